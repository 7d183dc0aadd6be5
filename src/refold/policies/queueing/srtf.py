"""Shortest remaining time first, by known durations: the preemptive oracle."""

from __future__ import annotations

from refold.core import View
from refold.model import Decision, Job, Run
from refold.packing import Placer
from refold.policies.queueing.preempting import PreemptingQueue
from refold.policies.queueing.sjf import work_of


def remaining(view: View, job: Job) -> float:
    """Seconds of work left."""
    return work_of(job) - view.done(job.id)


def expected_end(view: View, run: Run) -> float:
    """All runs come nearer to their ends at the same pace, so the order of their ends is the order of what is left."""
    return view.now + remaining(view, view.active[run.job])


class Srtf:
    """The jobs with the least work left run; longer ones are stopped for them and go on later."""

    name = "srtf"

    def __init__(self, placement: str = "best-fit", seed: int = 0) -> None:
        self._queue = PreemptingQueue(self.name, Placer(placement, seed), remaining, expected_end)

    def decide(self, view: View) -> Decision:
        """Start the shortest, stop the longest for them."""
        return self._queue.decide(view)
