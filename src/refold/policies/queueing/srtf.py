"""Shortest remaining time first, by known durations: a preemptive oracle."""

from __future__ import annotations

from refold.core import View
from refold.model import Decision, Job, Run, Seconds
from refold.placement import Placer
from refold.policies.queueing.preempting import PreemptingQueue
from refold.policies.queueing.sjf import known_duration


def remaining_seconds(view: View, job: Job) -> float:
    """Return the remaining work of the job in seconds."""
    return known_duration(job) - view.done(job.id)


def expected_end(view: View, run: Run) -> float:
    """Return the expected end of the run.

    All runs progress at the same rate, so their order by expected end is their order by remaining work, and unlike
    the remaining work it does not change while they run.
    """
    return view.now + remaining_seconds(view, view.active[run.job])


def _order(view: View, job: Job) -> tuple[int, Seconds]:
    return -job.priority, remaining_seconds(view, job)


def _rank(view: View, run: Run) -> tuple[int, Seconds]:
    return -view.active[run.job].priority, expected_end(view, run)


class Srtf:
    """Run the jobs with the least remaining work; preempt longer jobs for them. Jobs of higher priority come first."""

    name = "srtf"

    def __init__(self, placement: str = "best-fit", seed: int = 0) -> None:
        self._queue = PreemptingQueue(self.name, Placer(placement, seed), _order, _rank)

    def decide(self, view: View) -> Decision:
        """Start the jobs with the least remaining work, preempting those with the most."""
        return self._queue.decide(view)
