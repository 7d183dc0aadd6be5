"""The daemon: the same scheduler as in the simulator, driven by a clock and a real backend.

Names are loaded lazily, so that a client that imports one of them does not load the rest of the daemon.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
