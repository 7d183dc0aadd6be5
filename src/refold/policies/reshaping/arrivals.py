"""Arrival times of jobs, and the estimated gap until the next arrival."""

from __future__ import annotations

from collections import deque
from math import inf
from typing import NamedTuple

from refold.model import Seconds

ARRIVAL_GAPS = 10
"""Number of recent inter-arrival times that are averaged."""


class ArrivalGap(NamedTuple):
    """Estimated seconds between the last arrival and the next, and the time of the last arrival."""

    seconds: Seconds
    last_arrival: Seconds


class Arrivals:
    """Recent arrivals."""

    def __init__(self) -> None:
        self._last: Seconds = -inf
        self._gaps: deque[Seconds] = deque(maxlen=ARRIVAL_GAPS)

    def record(self, now: Seconds) -> None:
        """Note that a job arrives now."""
        if self._last > -inf:
            self._gaps.append(now - self._last)
        self._last = now

    def gap(self, now: Seconds) -> ArrivalGap:
        """Return the mean gap, or the present one if it is longer."""
        mean = sum(self._gaps) / len(self._gaps) if self._gaps else 0.0
        return ArrivalGap(max(now - self._last, mean), self._last)
