"""Yardsticks for policies and predictors: the optimum, the gap to it, prediction scores and baseline predictors."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
