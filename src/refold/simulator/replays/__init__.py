"""Compiled replays: whole traces simulated in one compiled loop, with the same results as the general simulator.

`find_replay` chooses one for an experiment: `fifo` has the loop of `fifo` and `fifo-skip`, `easy` that of `easy` with
known run times, `loop` what both share, and `journal` the journal that the general simulator would write.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
