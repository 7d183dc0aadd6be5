"""The live side: the same scheduler, driven by a clock and by what really happens.

Nothing is imported here: who only asks a daemon should not wait for what the daemon needs.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
