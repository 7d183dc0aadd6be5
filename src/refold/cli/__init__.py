"""The command line interface, with one module per command. For fast start-up, functions import heavy packages."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
