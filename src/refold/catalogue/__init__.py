"""The catalogue: GPUs, models and engines as data files with sources, and readers of users' own models.

`gpus.yaml`, `models.yaml` and `engines.yaml` are the data; docs/catalogue.md says how to add to them.
"""

from __future__ import annotations

from refold.catalogue.engines import USUAL, engines, find_engine
from refold.catalogue.model_files import read_model
from refold.catalogue.tables import find_gpu, find_model, gpu_names, gpus, model_aliases, model_names, models

__all__ = [
    "USUAL",
    "engines",
    "find_engine",
    "find_gpu",
    "find_model",
    "gpu_names",
    "gpus",
    "model_aliases",
    "model_names",
    "models",
    "read_model",
]
