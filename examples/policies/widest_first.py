"""A policy of one's own, in one file. docs/policies.md walks through it.

refold compare --policies fifo,fifo-skip,examples/policies/widest_first.py
"""

from refold.core import View
from refold.model import Allocation, Decision, Reason, Start, Wait
from refold.packing import Placer


class WidestFirst:
    """Whoever asks for the most GPUs goes first; who has no place is passed over."""

    name = "widest-first"

    def __init__(self, placement: str = "best-fit", seed: int = 0) -> None:
        self._placer = Placer(placement, seed)

    def decide(self, view: View) -> Decision:
        """Start the widest job that has a place, then the next."""
        self._placer.observe(view)
        trial = view.trial()
        starts: list[Start] = []
        waits: list[Wait] = []
        for job in sorted(view.waiting.values(), key=lambda job: -job.demand.total_gpus):
            placement = trial.place(self._placer, job.demand)
            if placement is not None:
                starts.append(Start(job.id, Allocation(placement)))
            else:
                waits.append(Wait(job.id, Reason.RESOURCES, shortage=view.shortage(job.demand)))
        return Decision(starts=tuple(starts), waits=tuple(waits))
