"""Refold: a scheduler for shared GPU clusters that reshapes training jobs to fit the cluster."""

__version__ = "0.1.0"
