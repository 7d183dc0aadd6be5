"""The daemon's REST API: the table of calls, the JSON types, roles and tokens, and the ASGI application."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
