"""Step time and memory of plans, GPUs and models as data, and the search for the best plan."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
