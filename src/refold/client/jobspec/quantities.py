"""Parsers for quantities in the notations of Slurm, Kubernetes and SkyPilot. Invalid text raises ValueError."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal

from refold.client.api import MAX_JOB_GPUS
from refold.errors import BadValue
from refold.model import DAY, HOUR, MINUTE, Seconds

EXPECTED_SLURM_TIME = "a time such as 90 (minutes), 90:00, 1:30:00, 1-12 or 1-12:30:00"
EXPECTED_SLURM_MEMORY = "memory such as 4000 (MiB), 512M or 32G"
EXPECTED_QUANTITY = "a quantity such as 500m, 2, 512Mi or 32Gi"

SWITCH_WAIT: Seconds = 300.0
"""How long jobs wait for their number of switches if they do not say: the default of Slurm's max_switch_wait."""

_MAX_CHARS = 40
_PLUS = re.compile(r"(\d+(?:\.\d+)?)(\+?)", re.ASCII)
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)B?", re.ASCII | re.IGNORECASE)
_TIME = re.compile(r"(?:(?P<days>\d+)-(?P<of_day>\d+(?::\d+){0,2})|(?P<plain>\d+(?::\d+){0,2}))", re.ASCII)
_QUANTITY = re.compile(r"([+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d{1,2})?)(m|k|[KMGTPE]i?)?", re.ASCII)
_GIB_PER_UNIT = {"K": 2.0**-20, "M": 2.0**-10, "G": 1.0, "T": 2.0**10}
_SUFFIXES = "kMGTPE"


def _match(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    match = pattern.fullmatch(text.strip()) if len(text) <= _MAX_CHARS else None
    if match is None:
        raise BadValue(f"{text[:_MAX_CHARS]!r} is not a quantity")
    return match


def parse_cpus(text: str) -> float:
    """Parse a number of CPUs: '4' or '4+'."""
    return float(_match(_PLUS, text)[1])


def parse_gib(text: str) -> float:
    """Parse memory in GiB: '32', '32+', '32GB' or '512MB'."""
    text = text.strip().removesuffix("+")
    number, unit = _match(_MEMORY, text).groups()
    return float(number) * _GIB_PER_UNIT[unit.upper() or "G"]


def parse_slurm_gib(text: str) -> float:
    """Parse Slurm's memory notation, in GiB: '4000' is MiB, '32G' has its unit."""
    number, unit = _match(_MEMORY, text).groups()
    return float(number) * _GIB_PER_UNIT[unit.upper() or "M"]


def parse_slurm_seconds(text: str) -> Seconds | None:
    """Parse Slurm's time notation: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S; None for no limit."""
    if text.upper() in ("UNLIMITED", "INFINITE", "-1"):
        return None
    match = _match(_TIME, text)
    if match["plain"]:
        parts = [float(part) for part in match["plain"].split(":")]
        units = [HOUR, MINUTE, 1.0] if len(parts) == 3 else [MINUTE, 1.0]
    else:
        parts = [float(match["days"]), *(float(part) for part in match["of_day"].split(":"))]
        units = [DAY, HOUR, MINUTE, 1.0]
    return sum(part * unit for part, unit in zip(parts, units, strict=False)) or None


def parse_switches(text: str, parse_seconds: Callable[[str], Seconds | None]) -> tuple[int, Seconds | None]:
    """Parse Slurm's N[@TIME]: the most switches, and how long to wait for them; None: for ever."""
    number, at, wait = text.partition("@")
    if not number.isdecimal() or not 1 <= int(number) <= MAX_JOB_GPUS:
        raise BadValue(f"{text[:_MAX_CHARS]!r} is not a number of switches")
    return int(number), parse_seconds(wait) if at else SWITCH_WAIT


def parse_quantity(text: str) -> float:
    """Parse a Kubernetes quantity: '500m', '2', '1e3', '512Mi'."""
    number, suffix = _match(_QUANTITY, text).groups()
    exact = Decimal(number)
    if suffix == "m":
        exact /= 1000
    elif suffix:
        exact *= (1024 if suffix.endswith("i") else 1000) ** (1 + _SUFFIXES.upper().index(suffix[0].upper()))
    return float(exact)
