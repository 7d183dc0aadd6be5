"""GPUs that get no more work: to the scheduler each is a run that does not end.

So every policy plans around one, whatever it keeps in its books. The stand-in takes the GPU as soon as nobody has it.
"""

from __future__ import annotations

from collections.abc import Sequence

from refold.core import View
from refold.core.events import Event, JobCancelled, JobHeld, JobSubmitted, RunAdopted, RunFinished, RunRecalled
from refold.model import Allocation, Demand, Job, Node, Share
from refold.model.units import Seconds

TENANT = "refold-drained"
"""Whose jobs the stand-ins are: no tenant of a person's has this name."""


Drained = dict[tuple[str, int], Job]
"""Stand-ins by their node's name and their GPU's number."""


RUN = 1
"""The number of a stand-in's only run."""


def is_stand_in(job: Job) -> bool:
    """Whether a job is none of anybody's, but stands for a drained GPU."""
    return job.tenant == TENANT


def stand_in(node: Node, gpu: int, why: str, now: Seconds) -> Job:
    """The job that stands for a GPU; its group says why the GPU is drained."""
    demand = Demand(gpus=1, gpu_types=(node.gpu_type,))
    return Job(f"drained:{node.name}:{gpu}:{now:.6f}", now, demand, tenant=TENANT, group=why, preemptible=False)


def drained_gpus(view: View) -> Drained:
    """Every GPU that is drained, or will be once it is free, by its node's name and its number."""
    stand_ins = [job for jobs in (view.held, view.active) for job in jobs.values() if is_stand_in(job)]
    return {_gpu_of(job): job for job in stand_ins}


def drain(view: View, node: int, gpu: int, why: str) -> list[Event]:
    """The facts that drain a GPU: whoever runs on it has to move, and if nobody does the stand-in has it at once."""
    job = stand_in(view.cluster.nodes[node], gpu, why, view.now)
    return [JobSubmitted(job), JobHeld(job.id), *recalls(view, node, why, gpu), _taken(view, job)]


def recalls(view: View, node: int, why: str, gpu: int | None = None) -> list[Event]:
    """The runs on a node, or on one GPU of it, have to stop and wait again."""
    return [
        RunRecalled(run.job, run.number, why)
        for run in view.runs.values()
        if not run.stopping and not is_stand_in(view.active[run.job]) and _touches(run.allocation, node, gpu)
    ]


def resume(view: View, node: int, gpu: int) -> list[Event]:
    """The facts after which a GPU gets work again, whether its stand-in has it by then or not."""
    job = drained_gpus(view).get((view.cluster.nodes[node].name, gpu))
    return [] if job is None else [RunFinished(job.id, RUN), JobCancelled(job.id)]


def take_what_is_free(view: View) -> Sequence[Event]:
    """What each step adds: stand-ins that wait for their GPU try to take it."""
    return [_taken(view, job) for job in view.held.values() if is_stand_in(job)]


def _taken(view: View, job: Job) -> Event:
    node, gpu = _gpu_of(job)
    allocation = Allocation((Share(view.cluster.index_of_node[node], (gpu,)),))
    return RunAdopted(job.id, RUN, allocation, view.now)


def _gpu_of(job: Job) -> tuple[str, int]:
    _, node, gpu, _ = job.id.split(":")
    return node, int(gpu)


def _touches(allocation: Allocation, node: int, gpu: int | None) -> bool:
    return any(share.node == node and (gpu is None or gpu in share.gpus) for share in allocation.placement)
