"""Built-in GPUs, models and training frameworks, looked up by name in the spellings of users, Slurm and drivers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import msgspec

from refold.errors import UnknownName
from refold.model import PCIE, Link
from refold.model.documents import parse
from refold.planning.perf import Engine, GpuSpec, ModelShape

T = TypeVar("T")

GENERAL_ENGINE = "megatron"
"""The engine that stands for any framework: its plans may use everything."""

VENDOR_WORDS = frozenset({"nvidia", "tesla", "geforce", "quadro", "amd", "instinct", "radeon"})
"""Words in the names that drivers print which do not distinguish models."""

_IGNORED = VENDOR_WORDS | {"generation", "oam", "vf"}
_SEPARATORS = re.compile(r"[\s_-]+")
_MEMORY = re.compile(r"(\d+)g(?:i?b)?")
_MEMORY_TECHNOLOGY = re.compile(r"hbm\d?e?")
_SXM = re.compile(r"sxm\d?")
_PREFIX = re.compile(r"(?:gtx|rtx)(?=\d)|rtx(?=a\d)")


class _GpuTable(msgspec.Struct, forbid_unknown_fields=True):
    """Contents of `gpus.yaml`; `efficiencies` holds YAML anchors only."""

    efficiencies: dict[str, Any]
    gpus: tuple[GpuSpec, ...]


class _ModelTable(msgspec.Struct, forbid_unknown_fields=True):
    """Contents of `models.yaml`; `common` holds YAML anchors only."""

    models: tuple[ModelShape, ...]
    aliases: dict[str, str]
    common: dict[str, Any]


class _EngineTable(msgspec.Struct, forbid_unknown_fields=True):
    """Contents of `engines.yaml`."""

    engines: tuple[Engine, ...]


@cache
def gpus() -> tuple[GpuSpec, ...]:
    return _read_table("gpus.yaml", _GpuTable).gpus


@cache
def engines() -> tuple[Engine, ...]:
    """Return all engines of the catalogue, the current ones first."""
    return _read_table("engines.yaml", _EngineTable).engines


@cache
def _model_table() -> _ModelTable:
    return _read_table("models.yaml", _ModelTable)


def models() -> tuple[ModelShape, ...]:
    """Return all models of the catalogue, grouped by family."""
    return _model_table().models


def model_aliases() -> Mapping[str, str]:
    return MappingProxyType(_model_table().aliases)


def _read_table(file: str, kind: type[T]) -> T:
    return parse(files("refold.planning.catalogue").joinpath(file).read_text(encoding="utf-8"), kind, file)


def gpu_names() -> tuple[str, ...]:
    return tuple(gpu.name for gpu in gpus())


def model_names() -> tuple[str, ...]:
    return tuple(model.name for model in models())


def find_gpu(name: str) -> GpuSpec:
    """Return the GPU of that name: 'A100-80GB', 'a100 80gb', or as printed by a driver, 'NVIDIA A100-SXM4-80GB'.

    Of several GPUs that a name stands for, the first in the catalogue is returned.
    """
    gpu = _gpu_by_key().get(gpu_key(name))
    if gpu is not None:
        return gpu
    matches = matching_gpu_names(name, gpu_names())
    if parse_gpu_name(name).memory_gb:
        matches = [match for match in matches if parse_gpu_name(match).memory_gb]
    if not matches:
        raise UnknownName("GPU", name, gpu_names(), key=gpu_key, listed_by="refold gpus")
    return _gpu_by_key()[gpu_key(matches[0])]


def gpu_link(gpu_type: str) -> Link:
    """Return the link between the GPUs of a node; PCIe for a GPU type that the catalogue does not have."""
    try:
        return find_gpu(base_gpu_type(gpu_type)).link
    except UnknownName:
        return PCIE


def find_model(name: str) -> ModelShape:
    """Return the model of that name: 'llama-2-7b', or 'Llama 2 7B'."""
    model = known_model(name)
    if model is None:
        raise UnknownName("model", name, model_names(), key=model_key, listed_by="refold models")
    return model


def known_model(name: str) -> ModelShape | None:
    """Return the model of that name, or None."""
    return _model_by_key().get(model_key(name))


def model_key(name: str) -> str:
    """Normalise the name of a model: lower case, without spaces, hyphens and underscores."""
    return re.sub(r"[\s_-]+", "", name.casefold())


@cache
def _gpu_by_key() -> Mapping[str, GpuSpec]:
    return {gpu_key(name): gpu for gpu in gpus() for name in (gpu.name, *gpu.aliases)}


@cache
def _model_by_key() -> Mapping[str, ModelShape]:
    by_key = {model_key(model.name): model for model in models()}
    return by_key | {model_key(alias): by_key[model_key(name)] for alias, name in model_aliases().items()}


def find_engine(name: str) -> Engine:
    by_key = {model_key(engine.name): engine for engine in engines()}
    match = by_key.get(model_key(name))
    if match is None:
        raise UnknownName("engine", name, [engine.name for engine in engines()])
    return match


class GpuName(NamedTuple):
    """The parts of a GPU name. 'NVIDIA A100-SXM4-80GB' is `('a100', 80, 'sxm')`; 0 and '' mean not stated."""

    model: str
    memory_gb: int = 0
    form: str = ""

    def is_compatible(self, other: GpuName) -> bool:
        """Whether both may name the same GPU: equal in every part that both state."""
        return (
            self.model == other.model
            and (self.memory_gb == other.memory_gb or not (self.memory_gb and other.memory_gb))
            and (self.form == other.form or not (self.form and other.form))
        )


def gpu_key(name: str) -> str:
    """Normalise a GPU name: lower case, without spaces, hyphens, underscores and vendor."""
    return "".join(word for word in _SEPARATORS.split(name.casefold()) if word not in VENDOR_WORDS)


@cache
def parse_gpu_name(name: str) -> GpuName:
    """Split a GPU name into model, memory and form factor.

    A bare number is the memory if the model is complete ('a100_80'), and part of the model otherwise ('rtx 4090').
    A MIG profile ('1g.5gb') stays part of the model, so that a slice never matches a whole GPU.
    """
    model, memory, form = "", 0, ""
    for word in _SEPARATORS.split(name.casefold()):
        gigabytes = _MEMORY.fullmatch(word)
        if gigabytes is not None:
            memory = int(gigabytes[1])
        elif word.isdecimal() and re.search(r"\d", model):
            memory = int(word)
        elif _SXM.fullmatch(word):
            form = "sxm"
        elif word in ("pcie", "nvl"):
            form = word
        elif word not in _IGNORED and not _MEMORY_TECHNOLOGY.fullmatch(word):
            model += word
    return GpuName(_PREFIX.sub("", model, count=1) if _PREFIX.match(model) else model, memory, form)


def base_gpu_type(name: str) -> str:
    """Return the GPU of a type: 'H100-80GB' for 'H100-80GB/pool=research', the H100s of some of the nodes."""
    return name.partition("/")[0]


def matching_gpu_names(name: str, candidates: Iterable[str]) -> list[str]:
    """Return the candidates that a name stands for: those spelled alike if there are any, else all compatible ones.

    'a100' stands for A100-40GB and A100-80GB; 'nvidia_a100-sxm4-80gb' for A100-80GB, and for A100, which is less
    specific, but not for A100-PCIe-80GB.
    """
    names = list(candidates)
    alike = [candidate for candidate in names if gpu_key(candidate) == gpu_key(name)]
    wanted = parse_gpu_name(name)
    return alike or [candidate for candidate in names if wanted.is_compatible(parse_gpu_name(candidate))]
