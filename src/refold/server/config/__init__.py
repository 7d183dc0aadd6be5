"""`refold.yaml`: the configuration types, the reader, and the commented template."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
