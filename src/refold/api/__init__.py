"""What can be asked of a daemon: one table of calls, what goes over the wire, and who may."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
