"""Refold on top of the engine of a cluster, beside that engine alone."""
