"""The catalogue: GPUs, models and engines as data files with sources, and readers of users' own models.

`gpus.yaml`, `models.yaml` and `engines.yaml` are the data; docs/catalogue.md says how to add to them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
