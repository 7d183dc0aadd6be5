"""The scheduler core: events in, orders out. The simulator and the daemon both drive it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
