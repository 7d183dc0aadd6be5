"""Where a demand fits: compiled kernels over arrays, the same for a live cluster and a million-task replay."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
