"""The command line: one file per command, each light to import; heavy rooms are imported where they are used."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
