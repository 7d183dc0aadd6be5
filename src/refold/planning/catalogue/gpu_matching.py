"""Compare GPU names as spelled by Slurm's gres types, drivers, cluster files and users."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

VENDOR_WORDS = frozenset({"nvidia", "tesla", "geforce", "quadro", "amd", "instinct", "radeon"})
"""Words in the names that drivers print which do not distinguish models."""

_IGNORED = VENDOR_WORDS | {"generation", "oam", "vf"}
_SEPARATORS = re.compile(r"[\s_-]+")
_MEMORY = re.compile(r"(\d+)g(?:i?b)?")
_MEMORY_TECHNOLOGY = re.compile(r"hbm\d?e?")
_SXM = re.compile(r"sxm\d?")
_PREFIX = re.compile(r"(?:gtx|rtx)(?=\d)|rtx(?=a\d)")


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
