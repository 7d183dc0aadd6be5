"""Choose the settings of a policy on one part of a history, and report on a later part."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
