"""Training: PyTorch jobs that change shape (`start`), progress reports of other jobs (`progress`), and measurements.

`refold profile` measures training steps of models that are built from their shapes. Without PyTorch, only `profiling`,
`progress` and the agent of a job can be imported.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
