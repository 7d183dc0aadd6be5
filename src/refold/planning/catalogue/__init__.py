"""The catalogue of GPUs, models and engines, with sources, and readers for user-defined models.

The data is in `gpus.yaml`, `models.yaml` and `engines.yaml`; docs/catalogue.md explains how to add entries.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
