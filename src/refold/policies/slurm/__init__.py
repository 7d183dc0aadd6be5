"""Slurm's own order: multifactor priorities, limits, and backfill with reservations of whole nodes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
