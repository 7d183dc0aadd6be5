"""Back ends: they carry out orders and report events, but make no scheduling decisions.

Each is a folder, and the only importer of its library.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
