"""Shortest job first, by known durations (an oracle to compare with) or by predicted ones."""

from __future__ import annotations

from refold.core import View
from refold.model import Decision, Job, Seconds
from refold.placement import Placer
from refold.policies.common import Defragment, DurationSource, DurationSourceName
from refold.policies.queueing.queue import Queue


def known_duration(job: Job) -> float:
    """Return the known duration of the job in seconds; infinity if it is not known, so that the job sorts last."""
    return float("inf") if job.work is None else job.work


class Sjf:
    """Start the shortest waiting job that fits; do not preempt. With `defragment`, running jobs may be moved.

    Jobs of higher priority come first. `durations` selects the source of run times: known, predicted at submission (the
    median), or the user's limit.
    """

    name = "sjf"

    def __init__(
        self,
        placement: str = "best-fit",
        seed: int = 0,
        defragment: bool = False,
        restart_seconds: float = 78.0,
        durations: DurationSourceName = "known",
    ) -> None:
        defragmentation = Defragment(restart_seconds)
        self._durations, self._known = DurationSource(durations), durations == "known"
        self._view: View | None = None
        self._queue = Queue(
            Placer(placement, seed),
            key=self._key,
            strict=False,
            defragment=defragmentation if defragment else None,
        )

    def decide(self, view: View) -> Decision:
        """Start the jobs that fit, shortest first."""
        self._view = view
        self._durations.observe(view)
        return self._queue.decide(view)

    def _key(self, job: Job) -> tuple[int, Seconds]:
        return -job.priority, known_duration(job) if self._known else self._median_duration(job)

    def _median_duration(self, job: Job) -> Seconds:
        assert self._view is not None
        return self._durations.remaining_time(self._view, job).quantile(0.5)
