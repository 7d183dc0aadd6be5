"""What runs real training steps: models made from their shapes, steps under a plan, and what they take.

Only `profiling` can be imported where PyTorch is not installed.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
