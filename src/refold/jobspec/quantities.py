"""Amounts as people write them for Slurm, Kubernetes and SkyPilot, as numbers. What is no amount raises ValueError."""

from __future__ import annotations

import re
from decimal import Decimal

from refold.errors import BadValue
from refold.model import DAY, HOUR, MINUTE, Seconds

SLURM_TIME = "a time such as 90 (minutes), 90:00, 1:30:00, 1-12 or 1-12:30:00"
SLURM_MEMORY = "memory such as 4000 (MiB), 512M or 32G"
QUANTITY = "a quantity such as 500m, 2, 512Mi or 32Gi"

_LONGEST = 40
_PLUS = re.compile(r"(\d+(?:\.\d+)?)(\+?)", re.ASCII)
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)B?", re.ASCII | re.IGNORECASE)
_TIME = re.compile(r"(?:(?P<days>\d+)-(?P<of_day>\d+(?::\d+){0,2})|(?P<plain>\d+(?::\d+){0,2}))", re.ASCII)
_QUANTITY = re.compile(r"([+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d{1,2})?)(m|k|[KMGTPE]i?)?", re.ASCII)
_IN_GIB = {"K": 2.0**-20, "M": 2.0**-10, "G": 1.0, "T": 2.0**10}
_SUFFIXES = "kMGTPE"


def _match(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    found = pattern.fullmatch(text.strip()) if len(text) <= _LONGEST else None
    if found is None:
        raise BadValue(f"{text[:_LONGEST]!r} is no amount")
    return found


def at_least(text: str) -> float:
    """'4' or '4+'."""
    return float(_match(_PLUS, text)[1])


def gib_or_more(text: str) -> float:
    """'32', '32+', '32GB' or '512MB', in GiB."""
    text = text.strip().removesuffix("+")
    number, unit = _match(_MEMORY, text).groups()
    return float(number) * _IN_GIB[unit.upper() or "G"]


def slurm_gib(text: str) -> float:
    """'4000' is in MiB; '32G' says so itself."""
    number, unit = _match(_MEMORY, text).groups()
    return float(number) * _IN_GIB[unit.upper() or "M"]


def slurm_seconds(text: str) -> Seconds | None:
    """M, M:S, H:M:S, D-H, D-H:M or D-H:M:S; None for as long as it takes."""
    if text.upper() in ("UNLIMITED", "INFINITE", "-1"):
        return None
    found = _match(_TIME, text)
    if found["plain"]:
        parts = [float(part) for part in found["plain"].split(":")]
        units = [HOUR, MINUTE, 1.0] if len(parts) == 3 else [MINUTE, 1.0]
    else:
        parts = [float(found["days"]), *(float(part) for part in found["of_day"].split(":"))]
        units = [DAY, HOUR, MINUTE, 1.0]
    return sum(part * unit for part, unit in zip(parts, units, strict=False)) or None


def quantity(text: str) -> float:
    """A quantity of Kubernetes: '500m', '2', '1e3', '512Mi'."""
    number, suffix = _match(_QUANTITY, text).groups()
    exact = Decimal(number)
    if suffix == "m":
        exact /= 1000
    elif suffix:
        exact *= (1024 if suffix.endswith("i") else 1000) ** (1 + _SUFFIXES.upper().index(suffix[0].upper()))
    return float(exact)
