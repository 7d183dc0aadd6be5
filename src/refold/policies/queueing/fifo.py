"""First in, first out."""

from __future__ import annotations

from refold.core import View
from refold.model import Decision
from refold.placement import Placer
from refold.policies.common import Defragment
from refold.policies.queueing.queue import Queue, arrival_order


class Fifo:
    """Strict order of arrival: while the first job in the queue does not fit, no other job starts.

    Jobs of higher priority come first. With `defragment`, running jobs are moved if that lets the first job start. Each
    move is assumed to cost `restart_seconds`.
    """

    name = "fifo"
    strict = True

    def __init__(
        self,
        placement: str = "best-fit",
        seed: int = 0,
        defragment: bool = False,
        restart_seconds: float = 78.0,
    ) -> None:
        defragmentation = Defragment(restart_seconds)
        self._queue = Queue(
            Placer(placement, seed),
            key=arrival_order,
            strict=self.strict,
            defragment=defragmentation if defragment else None,
        )

    def decide(self, view: View) -> Decision:
        """Start jobs from the front of the queue; in strict order, stop at the first job that does not fit."""
        return self._queue.decide(view)


class FifoSkip(Fifo):
    """Order of arrival; jobs that do not fit are skipped."""

    name = "fifo-skip"
    strict = False
