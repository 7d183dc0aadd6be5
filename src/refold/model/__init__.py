"""The nouns. Each is frozen and cannot be built wrong, so nothing downstream checks it again.

What is frozen when it is built cannot be part of a cycle: the garbage collector need not know (`gc=False`).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
