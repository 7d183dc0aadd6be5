"""First come, first served."""

from __future__ import annotations

from refold.core import View
from refold.model import Decision
from refold.packing import Placer
from refold.policies.queue import Queue


class Fifo:
    """Strict order of arrival: while the first has no place, everyone waits."""

    name = "fifo"

    def __init__(self, placement: str = "best-fit", seed: int = 0) -> None:
        self._queue = Queue(Placer(placement, seed), key=lambda job: job.submitted, strict=True)

    def decide(self, view: View) -> Decision:
        """Start from the front until one does not fit."""
        return self._queue.decide(view)


class FifoSkip:
    """Order of arrival, but a job that has no place is passed over by those that have."""

    name = "fifo-skip"

    def __init__(self, placement: str = "best-fit", seed: int = 0) -> None:
        self._queue = Queue(Placer(placement, seed), key=lambda job: job.submitted, strict=False)

    def decide(self, view: View) -> Decision:
        """Start whatever fits, in the order of arrival."""
        return self._queue.decide(view)
