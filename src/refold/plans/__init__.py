"""Which plans a job could run with on given machines, the best of them, and how that depends on what it is given."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
