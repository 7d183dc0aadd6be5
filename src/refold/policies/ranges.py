"""Ranges of settings: the values that `refold tune` tries.

A policy declares them in its class as `ranges`, by the names of its settings. Settings that it does not list keep their
values: the random seed, facts such as the cost of a restart, and settings that are a matter of taste.
"""

from __future__ import annotations

from math import exp, log
from typing import Any

import msgspec

from refold.errors import BadValue

SIGNIFICANT_DIGITS = 3
"""Values are rounded to so many digits: more would have no effect, and are hard to read."""


class Range(msgspec.Struct, frozen=True):
    """Numbers from `low` to `high`, whole if both are. `log`: ratios matter, such as for times."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if not self.low < self.high or (self.log and self.low <= 0):
            raise BadValue(f"the range is {self.low} to {self.high}, expected ascending numbers")

    def value(self, share: float) -> float:
        """Return the value at a share of the range, from 0 to 1."""
        ratio = self.high / self.low if self.log else 1.0
        value = self.low * exp(log(ratio) * share) if self.log else self.low + self.width * share
        if isinstance(self.low, int) and isinstance(self.high, int):
            return round(value)
        return min(max(float(f"{value:.{SIGNIFICANT_DIGITS}g}"), self.low), self.high)

    def share(self, value: float) -> float:
        """Return where a value is in the range: 0 for `low`, 1 for `high`, and for values beyond them."""
        within = min(max(value, self.low), self.high)
        return log(within / self.low) / log(self.high / self.low) if self.log else (within - self.low) / self.width

    @property
    def width(self) -> float:
        """Distance from `low` to `high`."""
        return self.high - self.low


class Choices(msgspec.Struct, frozen=True):
    """A few values, without an order."""

    values: tuple[Any, ...]

    def value(self, share: float) -> Any:
        """Return the value at a share of the list, from 0 to 1."""
        return self.values[min(int(share * len(self.values)), len(self.values) - 1)]


SettingRange = Range | Choices

FACTOR = 4
"""Range of a number above 0 for which a policy declares none: its default divided and multiplied by this."""


def range_by_default(default: Any) -> SettingRange | None:
    """Return a range for a setting from the type of its default value; None: the setting keeps its value."""
    match default:
        case bool():
            return Choices((False, True))
        case int() if default > 0:
            return Range(max(1, default // FACTOR), default * FACTOR, log=True)
        case float() if 0 < default < 1:
            return Range(default / FACTOR, min(1.0, default * FACTOR))
        case float() if default > 0:
            return Range(default / FACTOR, default * FACTOR, log=True)
    return None
