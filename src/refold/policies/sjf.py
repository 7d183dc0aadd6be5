"""Shortest job first, by known durations: an oracle, to measure others against."""

from __future__ import annotations

from refold.core import View
from refold.model import Decision, Job
from refold.packing import Placer
from refold.policies.defragment import Defragment
from refold.policies.queue import Queue


def work_of(job: Job) -> float:
    """How long the job will take; a job that does not say goes last."""
    return float("inf") if job.work is None else job.work


class Sjf:
    """The shortest waiting job that fits starts first; nothing is stopped, but with `defragment` some are moved."""

    name = "sjf"

    def __init__(
        self,
        placement: str = "best-fit",
        seed: int = 0,
        defragment: bool = False,
        restart_seconds: float = 78.0,
        most_moves: int = 8,
    ) -> None:
        moving = Defragment(restart_seconds, most_moves)
        self._queue = Queue(
            Placer(placement, seed), key=work_of, strict=False, defragment=moving if defragment else None
        )

    def decide(self, view: View) -> Decision:
        """Start whatever fits, shortest first."""
        return self._queue.decide(view)
