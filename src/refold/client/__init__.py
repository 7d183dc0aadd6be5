"""The Python client of the daemon, which the CLI uses too. Light to import."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
