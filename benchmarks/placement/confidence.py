"""Means over random seeds with confidence intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

from scipy.stats import t


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and half the width of its 95 % confidence interval (Student's t), which is 0 for a single value."""

    mean: float
    half: float

    def text(self, digits: int = 2, factor: float = 100.0) -> str:
        """Format as '95.02 ± 0.05'; by default as a percentage."""
        return f"{factor * self.mean:.{digits}f} ± {factor * self.half:.{digits}f}"


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of independent values and its confidence interval."""
    if len(values) == 1:
        return Interval(values[0], 0.0)
    return Interval(fmean(values), float(t.ppf(0.975, len(values) - 1)) * stdev(values) / sqrt(len(values)))


def paired(values: Sequence[float], others: Sequence[float]) -> Interval:
    """Return the mean of paired differences and its confidence interval; pairs had the same arrivals."""
    return interval([value - other for value, other in zip(values, others, strict=True)])
