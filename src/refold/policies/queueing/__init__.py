"""Policies that order the queue: fifo, fifo-skip, sjf, srtf, las and drf."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
