"""The GPUs and models that come with the package, found by the names people give them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import msgspec
import yaml

from refold.documents import as_struct
from refold.errors import UnknownName
from refold.perf import GpuSpec, ModelShape

VENDORS = {"nvidia", "tesla", "geforce", "amd", "instinct"}
"""Words that drivers put before the name of a GPU, and that tell nothing more."""


class _GpuTable(msgspec.Struct, forbid_unknown_fields=True):
    """The file of GPUs; `efficiencies` holds only what its entries refer to."""

    efficiencies: dict[str, Any]
    gpus: tuple[GpuSpec, ...]


class _ModelTable(msgspec.Struct, forbid_unknown_fields=True):
    """The file of models; `common` holds only what its entries refer to."""

    models: tuple[ModelShape, ...]
    aliases: dict[str, str]
    common: dict[str, Any]


@cache
def gpus() -> tuple[GpuSpec, ...]:
    """Every type of GPU of the catalogue."""
    return as_struct("gpus.yaml", document("gpus.yaml"), _GpuTable).gpus


@cache
def _model_table() -> _ModelTable:
    return as_struct("models.yaml", document("models.yaml"), _ModelTable)


def models() -> tuple[ModelShape, ...]:
    """Every model of the catalogue, in families."""
    return _model_table().models


def model_aliases() -> Mapping[str, str]:
    """Other names of models, and the models they name."""
    return MappingProxyType(_model_table().aliases)


def document(file: str) -> object:
    """A data file of this package, as plain values."""
    text = files("refold.catalogue").joinpath(file).read_text(encoding="utf-8")
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def gpu_names() -> tuple[str, ...]:
    """The names of all GPUs, without their aliases."""
    return tuple(gpu.name for gpu in gpus())


def model_names() -> tuple[str, ...]:
    """The names of all models, without their aliases."""
    return tuple(model.name for model in models())


def find_gpu(name: str) -> GpuSpec:
    """The GPU of that name: 'A100-80GB', 'a100 80gb', or as a driver prints it, 'NVIDIA A100-SXM4-80GB'."""
    found = _gpu_by_key().get(gpu_key(name))
    if found is None:
        raise UnknownName("GPU", name, gpu_names(), key=gpu_key, listed_by="refold gpus")
    return found


def find_model(name: str) -> ModelShape:
    """The model of that name: 'llama-2-7b', or 'Llama 2 7B'."""
    found = known_model(name)
    if found is None:
        raise UnknownName("model", name, model_names(), key=model_key, listed_by="refold models")
    return found


def known_model(name: str) -> ModelShape | None:
    """The model of that name, if there is one."""
    return _model_by_key().get(model_key(name))


def gpu_key(name: str) -> str:
    """What two spellings of a GPU have in common: no case, no spaces, hyphens or underscores, no vendor."""
    return "".join(word for word in re.split(r"[\s_-]+", name.casefold()) if word not in VENDORS)


def model_key(name: str) -> str:
    """What two spellings of a model have in common: no case, no spaces, hyphens or underscores."""
    return re.sub(r"[\s_-]+", "", name.casefold())


@cache
def _gpu_by_key() -> Mapping[str, GpuSpec]:
    return {gpu_key(name): gpu for gpu in gpus() for name in (gpu.name, *gpu.aliases)}


@cache
def _model_by_key() -> Mapping[str, ModelShape]:
    by_key = {model_key(model.name): model for model in models()}
    return by_key | {model_key(alias): by_key[model_key(name)] for alias, name in model_aliases().items()}
