"""How long something lasts, as a distribution over seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from refold.errors import BadValue
from refold.model import Seconds
from refold.predict.kernels import BINS, Floats, mean_between, survival_at, time_at


@dataclass(frozen=True, slots=True, eq=False)
class DurationDistribution:
    """A distribution over seconds: `survival` is the chance to last beyond each edge of the bins of `kernels`.

    Inside a bin the logarithm of the time is spread evenly. It is known to last longer than `floor`; where it would
    last longer than `ceiling`, it ends there.
    """

    survival: Floats
    floor: Seconds = 0.0
    ceiling: Seconds = math.inf

    def __post_init__(self) -> None:
        if self.survival.shape != (BINS + 1,):
            raise BadValue(f"a distribution has {BINS + 1} edges, not {self.survival.shape}")
        self.survival.flags.writeable = False

    def quantile(self, q: float) -> Seconds:
        """The smallest time by which it has ended with probability `q`."""
        if not 0.0 <= q <= 1.0:
            raise BadValue(f"a quantile is asked for with a probability from 0 to 1, not {q}")
        if q == 1.0:
            return self.ceiling
        left = survival_at(self.survival, self.floor) * (1.0 - q)
        return min(max(time_at(self.survival, left), self.floor), self.ceiling)

    def probability(self, seconds: Seconds) -> float:
        """The chance that it has ended within `seconds`."""
        if math.isnan(seconds):
            raise BadValue("the probability to end within NaN seconds was asked for")
        if seconds >= self.ceiling:
            return 1.0
        if seconds <= self.floor:
            return 0.0
        return 1.0 - survival_at(self.survival, seconds) / survival_at(self.survival, self.floor)

    def beyond(self, elapsed: Seconds) -> DurationDistribution:
        """The same, knowing that it lasts longer than `elapsed`; of the whole life, not of what is left.

        What has outlived its ceiling was not bound by it.
        """
        if not 0.0 <= elapsed < math.inf:
            raise BadValue(f"what runs has run for 0 or more seconds, not {elapsed}")
        floor = max(self.floor, elapsed)
        return DurationDistribution(self.survival, floor, self.ceiling if floor < self.ceiling else math.inf)

    @property
    def mean(self) -> Seconds:
        """How long it lasts on average."""
        return mean_between(self.survival, self.floor, self.ceiling)
