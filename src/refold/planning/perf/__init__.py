"""Performance model: step time and memory footprint of a plan, and fits to measurements."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
