"""Future arrivals, resampled from the past: the past arrivals are repeated from a random time on."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from refold.model import Job, Seconds

MAX_ARRIVALS = 1_000
"""The number of arrivals per future."""


class PastArrivals:
    """The jobs submitted so far, in order, each with its actual or predicted run time."""

    def __init__(self, jobs: Sequence[Job], durations: Sequence[Seconds], now: Seconds) -> None:
        self._jobs, self._durations = jobs, durations
        self._submit_times = np.array([job.submitted for job in jobs], dtype=np.float64)
        self._now = now

    def resample(self, random: np.random.Generator, used_ids: set[str]) -> list[Job]:
        """Return the arrivals from now on: those after a random past time, shifted to now, and repeated cyclically.

        The jobs get unused ids, and their run time as `work`.
        """
        if not len(self._jobs) or not self._now > self._submit_times[0]:
            return []
        first, span = float(self._submit_times[0]), self._now - float(self._submit_times[0])
        begin = first + span * random.random()
        index = int(np.searchsorted(self._submit_times, begin))
        arrivals: list[Job] = []
        shift = self._now - begin
        for number in range(MAX_ARRIVALS):
            if index == len(self._jobs):
                index, shift = 0, shift + span
            job_id = _unused_id(f"coming-{number}", used_ids)
            at = float(self._submit_times[index]) + shift
            arrivals.append(
                msgspec.structs.replace(self._jobs[index], id=job_id, submitted=at, work=self._durations[index])
            )
            index += 1
        return arrivals


def _unused_id(job_id: str, used_ids: set[str]) -> str:
    while job_id in used_ids:
        job_id += "'"
    return job_id
