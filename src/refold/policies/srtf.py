"""Shortest remaining time first, by known durations: the preemptive oracle."""

from __future__ import annotations

from refold.core import View
from refold.model import Decision, Job
from refold.packing import Placer
from refold.policies.preempting import PreemptingQueue
from refold.policies.sjf import work_of


def remaining(view: View, job: Job) -> float:
    """Seconds of work left."""
    return work_of(job) - view.done(job.id)


class Srtf:
    """The jobs with the least work left run; longer ones are stopped for them and go on later."""

    name = "srtf"

    def __init__(self, placement: str = "best-fit", seed: int = 0) -> None:
        self._queue = PreemptingQueue(self.name, Placer(placement, seed), remaining)

    def decide(self, view: View) -> Decision:
        """Start the shortest, stop the longest for them."""
        return self._queue.decide(view)
