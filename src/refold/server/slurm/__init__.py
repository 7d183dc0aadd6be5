"""Slurm's queue and history as snapshots and traces: nothing is changed in Slurm."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
