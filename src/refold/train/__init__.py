"""Training: measure real training steps for `refold profile`, and report progress from within a job (`progress`).

To measure, models are built from their shapes and trained under a plan. Without PyTorch, only `profiling` and
`progress` can be imported.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
