"""The command line interface. For fast start-up, modules of commands, and heavy packages, are imported when needed."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
