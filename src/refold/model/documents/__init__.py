"""Readers of YAML and JSON documents, with file name, line and field in every error."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
