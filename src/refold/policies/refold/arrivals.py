"""Arrivals of jobs: the gap between them, and how many of them are wide."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from refold.model import Job, Seconds

ARRIVAL_GAPS = 10
"""Number of recent inter-arrival times that are averaged."""

WIDE_GPUS = 8
"""A job that requests this many GPUs is wide: it needs a whole node or more, which rarely becomes free by itself."""

ASSUMED_NARROW_JOBS = 10
"""Added to the number of arrivals, so that the first wide jobs have some weight."""


class ArrivalSummary(NamedTuple):
    """Arrivals so far.

    `gap` and `mean_gap`: estimated seconds between the last arrival and the next, and the recent mean.
    `jobs_per_wide_job`: number of all jobs for each wide one.
    """

    gap: Seconds = inf
    mean_gap: Seconds = 0.0
    last_arrival: Seconds = -inf
    jobs_per_wide_job: float = 1.0


class Arrivals:
    """Recent arrivals, and the numbers of all and of wide jobs so far."""

    def __init__(self) -> None:
        self._last: Seconds = -inf
        self._gaps: deque[Seconds] = deque(maxlen=ARRIVAL_GAPS)
        self._jobs = self._wide_jobs = 0

    def record(self, now: Seconds, jobs: Sequence[Job]) -> None:
        """Note that jobs arrive now."""
        if not jobs:
            return
        self._jobs += len(jobs)
        self._wide_jobs += sum(map(is_wide, jobs))
        if self._last > -inf:
            self._gaps.append(now - self._last)
        self._last = now

    def summary(self, now: Seconds) -> ArrivalSummary:
        """Summarise them; the gap is the mean one, or the current one if that is longer."""
        mean = sum(self._gaps) / len(self._gaps) if self._gaps else 0.0
        jobs_per_wide_job = (self._jobs + ASSUMED_NARROW_JOBS) / (self._wide_jobs + 1)
        return ArrivalSummary(max(now - self._last, mean), mean, self._last, jobs_per_wide_job)


def is_wide(job: Job) -> bool:
    """Return whether a job requests a whole node or more."""
    return job.demand.total_gpus >= WIDE_GPUS
