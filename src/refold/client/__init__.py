"""Who asks a daemon: from Python, and for the commands. Light to import."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
