"""First come, first served."""

from __future__ import annotations

from refold.core import View
from refold.model import Decision
from refold.packing import Placer
from refold.policies.common import Defragment
from refold.policies.queueing.queue import Queue


class Fifo:
    """Strict order of arrival: while the first has no place, everyone waits.

    With `defragment`, running jobs are moved where that lets the first start; a move is believed to cost
    `restart_seconds`, and at most `most_moves` runs are on the move at once.
    """

    name = "fifo"
    strict = True

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
            Placer(placement, seed),
            key=lambda job: job.submitted,
            strict=self.strict,
            defragment=moving if defragment else None,
        )

    def decide(self, view: View) -> Decision:
        """Start from the front; strictly, until one does not fit."""
        return self._queue.decide(view)


class FifoSkip(Fifo):
    """Order of arrival, but a job that has no place is passed over by those that have."""

    name = "fifo-skip"
    strict = False
