"""A custom policy in one file, explained in docs/policies.md.

refold compare --policies fifo,fifo-skip,examples/policies/widest_first.py
"""

from refold.core import View
from refold.model import Allocation, Decision, Reason, Start, Wait
from refold.placement import Placer


class WidestFirst:
    """Largest jobs first; jobs that do not fit are skipped."""

    name = "widest-first"

    def __init__(self, placement: str = "best-fit", seed: int = 0) -> None:
        self._placer = Placer(placement, seed)

    def decide(self, view: View) -> Decision:
        """Start waiting jobs in descending order of GPUs, as far as they fit."""
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
