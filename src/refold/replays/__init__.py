"""Compiled replays: whole traces simulated in one compiled loop, with the same results as the general simulator.

`find_replay` chooses one for an experiment. `queues` has those of `sjf`, `srtf` and `las`, `predicted_easy` that of
`easy` with predicted run times, and `learned` the simulator in which the learned policy is trained.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
