"""Units of resources and time, and their conversion from and to text.

Resource amounts are integers, because they are added and subtracted millions of times without rounding errors:
GPUs and CPUs in thousandths (`milli`), memory in MiB. Times are seconds as floats.
"""

from __future__ import annotations

import math
import re

from refold.errors import BadValue

Seconds = float
Milli = int
MiB = int

WHOLE: Milli = 1000
"""One whole GPU or CPU, in thousandths."""

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0

_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|min|s|m|h|d|w)?", re.IGNORECASE)
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def parse_duration(text: str) -> Seconds:
    """Parse a duration such as '90', '90s', '1h30m' or '2d'; a number without a unit is in seconds."""
    position, total, text = 0, 0.0, text.strip()
    while position < len(text):
        part = _DURATION.match(text, position)
        if part is None:
            break
        total += float(part[1]) * _UNIT_SECONDS[(part[2] or "s").lower()]
        position = part.end()
    if not text or position < len(text) or not math.isfinite(total):
        raise BadValue(f"{text!r} is not a duration; write it as 90, 90s, 15m, 1h30m or 2d")
    return total


def format_duration(seconds: Seconds) -> str:
    """Format a duration with at most two units: '45 s', '1 h 30 min', '3 d 4 h'."""
    if seconds < 0:
        return "-" + format_duration(-seconds)
    if seconds < MINUTE:
        return f"{seconds:.0f} s" if seconds >= 10 or seconds == int(seconds) else f"{seconds:.1f} s"
    big, small, big_name, small_name = (
        (MINUTE, 1.0, "min", "s")
        if seconds < HOUR
        else (HOUR, MINUTE, "h", "min")
        if seconds < DAY
        else (DAY, HOUR, "d", "h")
    )
    whole, rest = divmod(round(seconds / small), round(big / small))
    return f"{whole} {big_name} {rest} {small_name}" if rest else f"{whole} {big_name}"


def format_count(count: int, noun: str) -> str:
    """Format a count with its noun: '1 job', '2 jobs', '1,500 jobs'."""
    return f"{count:,} {plural(count, noun)}"


def plural(count: int, noun: str) -> str:
    """Return the noun in the singular for a count of 1, else in the plural."""
    return noun if count == 1 else f"{noun}s"


def format_memory(mib: MiB) -> str:
    """Format an amount of memory: '512 MiB', '4 GiB'."""
    return f"{mib} MiB" if mib < 1024 else f"{mib / 1024:.4g} GiB"


def milli_from_number(number: float) -> Milli:
    """Convert units to thousandths: 0.5 becomes 500."""
    return round(number * WHOLE)


def mib_from_gib(gib: float) -> MiB:
    """Convert GiB to MiB, rounded to a whole number."""
    return round(gib * 1024)
