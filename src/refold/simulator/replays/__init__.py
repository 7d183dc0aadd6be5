"""The compiled replay of `fifo` and `fifo-skip`: whole traces in one loop, with the results of the general simulator.

`find_replay` says whether an experiment has the same result; `replay_fifo` is the loop. It writes no journal.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
