"""Probability distribution of a duration."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from refold.errors import BadValue
from refold.model import Seconds
from refold.predict.layout import BINS, BINS_PER_DOUBLING, FIRST_EDGE, Floats
from refold.predict.survival import mean_between, service_per_completion, survival_at, time_exceeded_with


def bin_edges() -> Floats:
    """Return the times, in seconds, at which `survival` is given."""
    return FIRST_EDGE * np.exp2(np.arange(BINS + 1) / BINS_PER_DOUBLING)


@dataclass(frozen=True, slots=True, eq=False)
class DurationDistribution:
    """Distribution of a duration in seconds: `survival` is the probability to exceed each bin edge of `layout`.

    Inside a bin the logarithm of the time is uniform. The duration is known to exceed `floor`, and is cut off at
    `ceiling`.
    """

    survival: Floats
    floor: Seconds = 0.0
    ceiling: Seconds = math.inf

    def __post_init__(self) -> None:
        if self.survival.shape != (BINS + 1,):
            raise BadValue(f"survival has shape {self.survival.shape}, expected ({BINS + 1},)")
        self.survival.flags.writeable = False

    def quantile(self, q: float) -> Seconds:
        """Return the smallest time that is not exceeded with probability `q`."""
        if not 0.0 <= q <= 1.0:
            raise BadValue(f"quantile of {q} requested, expected a probability from 0 to 1")
        if q == 1.0:
            return self.ceiling
        probability = survival_at(self.survival, self.floor) * (1.0 - q)
        return min(max(time_exceeded_with(self.survival, probability), self.floor), self.ceiling)

    def probability(self, seconds: Seconds) -> float:
        """Return the probability that the duration is at most `seconds`."""
        if math.isnan(seconds):
            raise BadValue("probability for NaN seconds requested, expected a number")
        if seconds >= self.ceiling:
            return 1.0
        if seconds <= self.floor:
            return 0.0
        return 1.0 - survival_at(self.survival, seconds) / survival_at(self.survival, self.floor)

    def beyond(self, elapsed: Seconds) -> DurationDistribution:
        """Return the distribution given that the duration exceeds `elapsed`; still of the total, not of the rest.

        A ceiling that has been exceeded is dropped.
        """
        if not 0.0 <= elapsed < math.inf:
            raise BadValue(f"elapsed time is {elapsed}, expected seconds ≥ 0")
        floor = max(self.floor, elapsed)
        return DurationDistribution(self.survival, floor, self.ceiling if floor < self.ceiling else math.inf)

    @property
    def mean(self) -> Seconds:
        """The mean duration, in seconds."""
        return mean_between(self.survival, self.floor, self.ceiling)

    def service_per_completion(self, min_service: Seconds = 0.0) -> Seconds:
        """Return the expected service until completion, if it may be stopped after any time from `min_service` on.

        This is the inverse of the Gittins index; for a certain duration, the rest of it. On one machine, the order by
        this value has the least mean delay of all orders that know only the distributions.
        """
        return service_per_completion(self.survival, self.floor, self.ceiling, min_service)
