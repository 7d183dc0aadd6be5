"""Shortest job first, by known durations: an oracle, to measure others against."""

from __future__ import annotations

from refold.core import View
from refold.model import Decision, Job
from refold.packing import Placer
from refold.policies.queue import Queue


def work_of(job: Job) -> float:
    """How long the job will take; a job that does not say goes last."""
    return float("inf") if job.work is None else job.work


class Sjf:
    """The shortest waiting job that fits starts first; nothing is stopped."""

    name = "sjf"

    def __init__(self, placement: str = "best-fit", seed: int = 0) -> None:
        self._queue = Queue(Placer(placement, seed), key=work_of, strict=False)

    def decide(self, view: View) -> Decision:
        """Start whatever fits, shortest first."""
        return self._queue.decide(view)
