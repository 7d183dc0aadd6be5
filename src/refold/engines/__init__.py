"""Engines carry out orders and report events, but make no scheduling decisions: this machine, Kubernetes, Slurm, Ray.

Each is a folder with everything that knows the engine, and the only importer of its library.
"""
