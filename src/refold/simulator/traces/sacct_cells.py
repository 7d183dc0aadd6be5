"""Parse the cells of Slurm accounting: durations, memory, trackable (TRES) and generic (GRES) resources."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from refold.model import DAY, HOUR, MAX_AMOUNT, MINUTE
from refold.simulator.traces.text_source import BadCell, parse_whole

GPU_COLUMNS = ("ReqTRES", "AllocTRES", "ReqGRES", "AllocGRES")
"""Columns that state GPUs. Slurm before 20.11 has the last two."""

_DURATION = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)i?B?([cn]?)", re.IGNORECASE)
_MIB_OF_UNIT = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
_NO_LIMIT = frozenset({"", "UNLIMITED", "Partition_Limit", "INVALID"})
_GPU = re.compile(r"(?:gres[:/])?gpu(?:[:/=](?P<type_and_count>[^()]*))?(?:\(.*\))?")
_OTHER = re.compile(r"(?!(?:gres[:/])?gpu\b).*")


class GpuAmount(NamedTuple):
    """A number of GPUs, and the accepted types (none: any)."""

    total: int
    types: tuple[str, ...] = ()

    def times(self, nodes: int) -> GpuAmount:
        return GpuAmount(self.total * nodes, self.types)

    @staticmethod
    def from_tres(tres: Mapping[str, str]) -> GpuAmount:
        """Return the value of `gres/gpu`, or else the sum over all `gres/gpu:TYPE`."""
        by_type = {name.removeprefix("gres/gpu:"): n for name, n in tres.items() if name.startswith("gres/gpu:")}
        if "gres/gpu" in tres:
            count = parse_whole(tres["gres/gpu"], "gres/gpu")
        else:
            count = sum(parse_whole(number, f"gres/gpu:{name}") for name, number in by_type.items())
        return GpuAmount(count, tuple(sorted(by_type)))


def parse_gpus(text: str, column: str) -> GpuAmount:
    """Parse 'gpu:a100:4', 'gpu:2', 'gpu:tesla:2(S:0-1)' or 'craynetwork:1,gpu:1'; other resources are ignored."""
    total, types = 0, set[str]()
    for item in re.split(r",(?![^(]*\))", text):
        if _OTHER.fullmatch(item):
            continue
        match = _GPU.fullmatch(item)
        name, _, count = (match["type_and_count"] or "1" if match else "?").rpartition(":")
        if not name and not count.isdecimal():
            name, count = count, "1"  # gpu:a100 is one GPU
        if match is None or ":" in name:
            raise BadCell(column, text, "a list such as gpu:a100:4")
        total += parse_whole(count, column)
        types |= {name} if name else set()
    return GpuAmount(total, tuple(sorted(types)))


def parse_tres(text: str, column: str) -> dict[str, str]:
    """Parse 'cpu=8,gres/gpu:a100=4,mem=64G' into values by name."""
    items = [item.partition("=") for item in text.split(",") if item]
    if any(not equals for _, equals, _ in items):
        raise BadCell(column, text, "a list such as cpu=8,gres/gpu=4,mem=64G")
    return {name: value for name, _, value in items}


def parse_duration(text: str, column: str) -> float:
    """Parse '1-02:03:04', '02:03:04' or '03:04' as seconds."""
    parts = _DURATION.fullmatch(text)
    if parts is None:
        raise BadCell(column, text, "a duration such as 1-02:03:04")
    days, hours, minutes, seconds = (float(part or 0) for part in parts.groups())
    total = days * DAY + hours * HOUR + minutes * MINUTE + seconds
    if total > MAX_AMOUNT:
        raise BadCell(column, text, "a shorter duration")
    return total


def parse_time_limit(text: str) -> float | None:
    """Parse a time limit as seconds; None if there is none."""
    return None if text in _NO_LIMIT else parse_duration(text, "Timelimit") or None


def parse_memory_mib(text: str, nodes: int, cpus: float) -> int:
    """Parse memory as MiB in total. Old versions of Slurm append c (per CPU) or n (per node) to ReqMem."""
    if text in ("", "0", "?"):
        return 0
    parts = _MEMORY.fullmatch(text)
    if parts is None:
        raise BadCell("ReqMem", text, "memory such as 64G or 4000M")
    factor = {"c": cpus, "n": float(nodes)}.get(parts[3].lower(), 1.0)
    mib = float(parts[1]) * _MIB_OF_UNIT[parts[2].upper()] * factor
    if mib > MAX_AMOUNT:
        raise BadCell("ReqMem", text, "less memory")
    return math.ceil(mib)
