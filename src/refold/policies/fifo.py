"""First come, first served."""

from __future__ import annotations

from refold.core import View
from refold.model import Decision
from refold.packing import Placer
from refold.policies.defragment import Defragment
from refold.policies.queue import Queue


class Fifo:
    """Strict order of arrival: while the first has no place, everyone waits.

    With `defragment`, running jobs are moved where that lets the first start; a move is believed to cost
    `restart_seconds`, and at most `most_moves` runs are on the move at once.
    """

    name = "fifo"

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
            strict=True,
            defragment=moving if defragment else None,
        )

    def decide(self, view: View) -> Decision:
        """Start from the front until one does not fit."""
        return self._queue.decide(view)


class FifoSkip:
    """Order of arrival, but a job that has no place is passed over by those that have.

    `defragment` and what belongs to it: as in `fifo`, for everybody who waits.
    """

    name = "fifo-skip"

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
            strict=False,
            defragment=moving if defragment else None,
        )

    def decide(self, view: View) -> Decision:
        """Start whatever fits, in the order of arrival."""
        return self._queue.decide(view)
