"""Placement: compiled kernels over arrays, shared by the live scheduler and the trace replays."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
