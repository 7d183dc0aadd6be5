"""The HTTP server of the daemon: limits on connections and on what clients send, and fairness to the scheduler."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
