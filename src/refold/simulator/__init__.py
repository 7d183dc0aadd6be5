"""The simulator: the scheduler core on simulated time, with a simulated back end.

Also speed models, faults, and simulated futures of a journal.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
