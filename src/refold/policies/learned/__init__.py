"""The learned policy: one compiled scoring function over features of jobs and of the queue."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
