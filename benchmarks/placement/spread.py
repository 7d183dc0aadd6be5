"""Means over seeds, with how sure one can be of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

from scipy.stats import t


@dataclass(frozen=True, slots=True)
class Spread:
    """A mean, and half of its 95 % confidence interval (Student's t); 0 where there is one value."""

    mean: float
    half: float

    def text(self, digits: int = 2, factor: float = 100.0) -> str:
        """'95.02 ± 0.05', as a percentage where nothing else is said."""
        return f"{factor * self.mean:.{digits}f} ± {factor * self.half:.{digits}f}"


def spread(values: Sequence[float]) -> Spread:
    """Of values that were drawn independently."""
    if len(values) == 1:
        return Spread(values[0], 0.0)
    return Spread(fmean(values), float(t.ppf(0.975, len(values) - 1)) * stdev(values) / sqrt(len(values)))


def paired(values: Sequence[float], others: Sequence[float]) -> Spread:
    """By how much the first are above the second, pair by pair: both saw the same arrivals."""
    return spread([value - other for value, other in zip(values, others, strict=True)])
