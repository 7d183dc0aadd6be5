"""Run-time prediction: distributions of job durations, from job history and reported progress."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
