"""GPUs that get no more work: to the scheduler each is held by runs that do not end.

So every policy plans around one, whatever it keeps in its books. A stand-in takes what is free of the GPU; whoever else
has a part of it is told to stop, and as soon as that part is free another stand-in has it, before the policy looks.
There is one for each part that may get free by itself, and one more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from refold.core import Event, JobCancelled, JobHeld, JobSubmitted, RunAdopted, RunRecalled, RunStopped, View
from refold.model import WHOLE, Allocation, Cluster, Demand, Job, Placement, Seconds, Share

TENANT = "refold-drained"
"""Whose jobs the stand-ins are: no tenant of a person's has this name."""

RUN = 1
"""The number of a stand-in's only run."""

Gpu = tuple[str, int]
"""A GPU by the name of its node and its number there."""


def is_drain_placeholder(job: Job) -> bool:
    """Whether a job is none of anybody's, but stands for a drained GPU."""
    return job.tenant == TENANT


def drained_gpus(view: View) -> dict[Gpu, str]:
    """Every GPU that gets no more work, and why."""
    return {_gpu_of(job): job.group for job in _placeholders(view)}


def drain(view: View, gpu: Gpu, why: str) -> list[Event]:
    """The facts that drain a GPU: what is free of it is taken, and whoever runs on it has to move."""
    node = view.cluster.index_of_node[gpu[0]]
    parts = sum(_touches(view.held_by(job_id), node, gpu[1]) for job_id in view.runs)
    return [*recalls(view, node, why, gpu[1]), *_stood_for(view.cluster, gpu, why, view.now, parts + 1)]


def recalls(view: View, node: int, why: str, gpu: int | None = None) -> list[Event]:
    """The runs on a node, or on one GPU of it, have to stop and wait again."""
    return [
        RunRecalled(run.job, run.number, why)
        for run in view.runs.values()
        if not run.stopping
        and not is_drain_placeholder(view.active[run.job])
        and _touches(run.allocation.placement, node, gpu)
    ]


def resume(view: View, gpu: Gpu) -> list[Event]:
    """The facts after which a GPU gets work again, whether stand-ins have it by then or still wait for it."""
    mine = [job.id for job in _placeholders(view) if _gpu_of(job) == gpu]
    return [event for job_id in mine for event in (JobCancelled(job_id), RunStopped(job_id, RUN))]


def take_what_is_free(view: View) -> Sequence[Event]:
    """What each step adds, until stand-ins have all of every drained GPU."""
    if not any(map(is_drain_placeholder, (*view.held.values(), *view.active.values()))):
        return ()
    return [event for gpu, why in drained_gpus(view).items() for event in _taken_of(view, gpu, why)]


def drained_again(before: View, cluster: Cluster) -> list[Event]:
    """The facts that drain, on another cluster, those of the drained GPUs that it has."""
    there = [
        (gpu, why)
        for gpu, why in drained_gpus(before).items()
        if gpu[0] in cluster.index_of_node and gpu[1] < cluster.nodes[cluster.index_of_node[gpu[0]]].gpus
    ]
    parts = len(before.runs) + 1
    return [event for gpu, why in there for event in _stood_for(cluster, gpu, why, before.now, parts)]


def is_about_placeholder(event: Event) -> bool:
    """Whether a fact is about a stand-in."""
    job = getattr(event, "job", None)
    return is_drain_placeholder(job) if isinstance(job, Job) else isinstance(job, str) and job.startswith("drained:")


def _placeholders(view: View) -> Iterator[Job]:
    return (job for jobs in (view.held, view.active) for job in jobs.values() if is_drain_placeholder(job))


def _taken_of(view: View, gpu: Gpu, why: str) -> Sequence[Event]:
    """Nothing, if stand-ins have all of it; else whoever has a part is told to stop, and what is free is taken."""
    mine = [job for job in _placeholders(view) if _gpu_of(job) == gpu]
    if sum(view.runs[job.id].allocation.gpu_milli for job in mine if job.id in view.runs) >= WHOLE:
        return ()
    node = view.cluster.index_of_node[gpu[0]]
    taken = [_adopted(node, job.id, gpu, view.now) for job in mine if job.id in view.held]
    return [*recalls(view, node, why, gpu[1]), *taken]


def _stood_for(cluster: Cluster, gpu: Gpu, why: str, now: Seconds, parts: int) -> list[Event]:
    """Stand-ins, of which the first takes what is free; their group says why the GPU is drained."""
    node = cluster.index_of_node[gpu[0]]
    demand = Demand(gpus=1, gpu_types=(cluster.nodes[node].gpu_type,))
    events: list[Event] = []
    for part in range(parts):
        job_id = f"drained:{gpu[1]}:{now:.6f}:{part}:{gpu[0]}"
        job = Job(job_id, now, demand, tenant=TENANT, group=why, preemptible=False)
        events += [JobSubmitted(job), JobHeld(job_id), _adopted(node, job_id, gpu, now)]
    return events


def _adopted(node: int, job_id: str, gpu: Gpu, now: Seconds) -> Event:
    return RunAdopted(job_id, RUN, Allocation((Share(node, (gpu[1],)),)), now)


def _gpu_of(job: Job) -> Gpu:
    _, gpu, _, _, node = job.id.split(":", 4)
    return node, int(gpu)


def _touches(placement: Placement, node: int, gpu: int | None) -> bool:
    return any(share.node == node and (gpu is None or gpu in share.gpus) for share in placement)
