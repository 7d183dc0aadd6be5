"""Shortest job first: by known durations an oracle, to measure others against; or by predicted ones."""

from __future__ import annotations

from refold.core import View
from refold.model import Decision, Job
from refold.packing import Placer
from refold.policies.common import Defragment, DurationSource, Source
from refold.policies.queueing.queue import Queue


def work_of(job: Job) -> float:
    """How long the job will take; a job that does not say goes last."""
    return float("inf") if job.work is None else job.work


class Sjf:
    """The shortest waiting job that fits starts first; nothing is stopped, but with `defragment` some are moved.

    How long jobs last is known, predicted when they come (the median), or what their users said.
    """

    name = "sjf"

    def __init__(
        self,
        placement: str = "best-fit",
        seed: int = 0,
        defragment: bool = False,
        restart_seconds: float = 78.0,
        most_moves: int = 8,
        durations: Source = "known",
    ) -> None:
        moving = Defragment(restart_seconds, most_moves)
        self._foresight = DurationSource(durations)
        self._view: View | None = None
        self._queue = Queue(
            Placer(placement, seed),
            key=work_of if durations == "known" else self._median,
            strict=False,
            defragment=moving if defragment else None,
        )

    def decide(self, view: View) -> Decision:
        """Start whatever fits, shortest first."""
        self._view = view
        self._foresight.observe(view)
        return self._queue.decide(view)

    def _median(self, job: Job) -> float:
        assert self._view is not None
        return self._foresight.life(self._view, job).quantile(0.5)
