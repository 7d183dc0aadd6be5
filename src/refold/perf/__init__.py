"""How fast a plan would be and how much memory it takes: nouns, formulas, and fits to what was measured."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
