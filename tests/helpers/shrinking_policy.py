"""A policy for tests: jobs with a GPU range use all free GPUs of a node, and shrink to their minimum for others."""

from refold.core import View
from refold.model import Allocation, Decision, Job, Plan, Reason, Reshape, Share, Start, Wait
from refold.placement import Placer


class Shrinking:
    """Jobs with a GPU range use all free GPUs of the first node, and shrink to their minimum while others wait."""

    name = "shrinking"

    def __init__(self, placement: str = "best-fit", seed: int = 0) -> None:
        self._placer = Placer(placement, seed)

    def decide(self, view: View) -> Decision:
        """Start the first waiting job, or make room for it."""
        self._placer.observe(view)
        job = next(iter(view.waiting.values()), None)
        if job is None:
            return Decision()
        if (allocation := self._place(view, job)) is not None:
            return Decision(starts=(Start(job.id, allocation),))
        wait = Wait(job.id, Reason.RESOURCES, shortage=view.shortage(job.demand))
        shrunk = (shrink(view.active[run.job], run.allocation) for run in view.runs.values() if not run.stopping)
        return Decision(reshapes=tuple(found for found in shrunk if found is not None)[:1], waits=(wait,))

    def _place(self, view: View, job: Job) -> Allocation | None:
        if job.gpu_range is None:
            placement = view.trial().place(self._placer, job.demand)
            return Allocation(placement) if placement is not None else None
        low, high = job.gpu_range
        free = [gpu for gpu, milli in enumerate(view.free_gpu_milli(0)) if milli == 1000]
        return allocate(tuple(free[:high])) if len(free) >= low else None


def allocate(gpus: tuple[int, ...]) -> Allocation:
    """Return GPUs of the first node, with a plan for all of them."""
    return Allocation((Share(0, gpus),), Plan(data=len(gpus)))


def shrink(job: Job, allocation: Allocation) -> Reshape | None:
    """Return the change of a job to its smallest size; None if it has that already."""
    gpus = allocation.placement[0].gpus
    low = job.gpu_range[0] if job.gpu_range else len(gpus)
    return Reshape(job.id, allocate(gpus[:low]), "makes room") if len(gpus) > low else None
