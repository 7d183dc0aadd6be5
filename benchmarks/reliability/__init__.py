"""Reliability of the daemon: hundreds of injected crashes, and load from many clients."""
