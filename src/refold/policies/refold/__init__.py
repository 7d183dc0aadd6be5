"""Policies that choose resources and parallel plans together: Refold and Rubick."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
