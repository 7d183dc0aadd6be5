"""Jobs that may come: as they came in the past, from a moment of it on that is drawn by lot."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from refold.model import Job, Seconds

MOST_ARRIVALS = 1_000
"""In no future do more jobs come: the further ahead, the less it can be known."""


class PastArrivals:
    """All jobs that have come so far, in order, with how long each lasted or will."""

    def __init__(self, jobs: Sequence[Job], lives: Sequence[Seconds], now: Seconds) -> None:
        self._jobs, self._lives = jobs, lives
        self._came = np.array([job.submitted for job in jobs], dtype=np.float64)
        self._now = now

    def again(self, chance: np.random.Generator, taken: set[str]) -> list[Job]:
        """From now on jobs come as they came from some past moment on; when that has reached now, as from the first.

        Their names are new; what they last is what they say of their work.
        """
        if not len(self._jobs) or not self._now > self._came[0]:
            return []
        first, span = float(self._came[0]), self._now - float(self._came[0])
        begin = first + span * chance.random()
        place = int(np.searchsorted(self._came, begin))
        coming: list[Job] = []
        shift = self._now - begin
        for number in range(MOST_ARRIVALS):
            if place == len(self._jobs):
                place, shift = 0, shift + span
            name = _new_name(f"coming-{number}", taken)
            at = float(self._came[place]) + shift
            coming.append(msgspec.structs.replace(self._jobs[place], id=name, submitted=at, work=self._lives[place]))
            place += 1
        return coming


def _new_name(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "'"
    return name
