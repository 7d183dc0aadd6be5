"""Drained GPUs: the scheduler sees each as occupied by drain placeholders, jobs whose runs never end.

Every policy therefore plans around a drained GPU without special support. A placeholder claims the free part of the
GPU. Runs that hold other parts are recalled, and as soon as a part is free another placeholder claims it, before the
policy decides. Each GPU has one placeholder per part that can become free on its own, plus one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from refold.core import Event, JobCancelled, JobHeld, JobSubmitted, RunAdopted, RunRecalled, RunStopped, View
from refold.model import WHOLE, Allocation, Cluster, Demand, Job, Placement, Seconds, Share
from refold.server.subscribers import Subscriber

PLACEHOLDER_TENANT = "refold-drained"
"""Tenant of drain placeholders; user tenants cannot have this name."""

PLACEHOLDER_RUN = 1
"""Number of a drain placeholder's only run."""

GpuId = tuple[str, int]
"""Node name and GPU index on the node."""


def is_drain_placeholder(job: Job) -> bool:
    """Whether a job is a drain placeholder and not a user's job."""
    return job.tenant == PLACEHOLDER_TENANT


def drained_gpus(view: View) -> dict[GpuId, str]:
    """Return every drained GPU with its reason."""
    return {_gpu_of(job): job.group for job in _placeholders(view)}


def drain(view: View, gpu: GpuId, why: str) -> list[Event]:
    """Return the events that drain a GPU: recall its runs and claim its free part."""
    node = view.cluster.index_of_node[gpu[0]]
    parts = sum(_uses(view.held_by(job_id), node, gpu[1]) for job_id in view.runs)
    return [*recall_runs(view, node, why, gpu[1]), *_placeholder_events(view.cluster, gpu, why, view.now, parts + 1)]


def recall_runs(view: View, node: int, why: str, gpu: int | None = None) -> list[Event]:
    """Return events that stop all runs on a node, or on one of its GPUs, and queue their jobs again."""
    return [
        RunRecalled(run.job, run.number, why)
        for run in view.runs.values()
        if not run.stopping
        and not is_drain_placeholder(view.active[run.job])
        and _uses(run.allocation.placement, node, gpu)
    ]


def resume(view: View, gpu: GpuId) -> list[Event]:
    """Return the events that end all drain placeholders of a GPU, running or not."""
    placeholders = [job.id for job in _placeholders(view) if _gpu_of(job) == gpu]
    return [event for job_id in placeholders for event in (JobCancelled(job_id), RunStopped(job_id, PLACEHOLDER_RUN))]


class DrainedGpus(Subscriber):
    """Claims parts of drained GPUs as soon as they are free."""

    def __init__(self, view: View) -> None:
        self._view = view

    def before_step(self, now: Seconds) -> Sequence[Event]:  # noqa: ARG002
        """Return the claims."""
        return claim_freed_gpus(self._view)


def claim_freed_gpus(view: View) -> Sequence[Event]:
    """Return events that claim free parts of drained GPUs. Called in every step."""
    if not any(map(is_drain_placeholder, (*view.held.values(), *view.active.values()))):
        return ()
    return [event for gpu, why in drained_gpus(view).items() for event in _claim_events(view, gpu, why)]


def drain_on_new_cluster(before: View, cluster: Cluster) -> list[Event]:
    """Return the events that drain, on a new cluster, the drained GPUs that it still has."""
    present = [
        (gpu, why)
        for gpu, why in drained_gpus(before).items()
        if gpu[0] in cluster.index_of_node and gpu[1] < cluster.nodes[cluster.index_of_node[gpu[0]]].gpus
    ]
    parts = len(before.runs) + 1
    return [event for gpu, why in present for event in _placeholder_events(cluster, gpu, why, before.now, parts)]


def is_about_placeholder(event: Event) -> bool:
    """Whether an event concerns a drain placeholder."""
    job = getattr(event, "job", None)
    return is_drain_placeholder(job) if isinstance(job, Job) else isinstance(job, str) and job.startswith("drained:")


def _placeholders(view: View) -> Iterator[Job]:
    return (job for jobs in (view.held, view.active) for job in jobs.values() if is_drain_placeholder(job))


def _claim_events(view: View, gpu: GpuId, why: str) -> Sequence[Event]:
    """Return () if placeholders hold the whole GPU; else recall other runs on it and claim what is free."""
    placeholders = [job for job in _placeholders(view) if _gpu_of(job) == gpu]
    if sum(view.runs[job.id].allocation.gpu_milli for job in placeholders if job.id in view.runs) >= WHOLE:
        return ()
    node = view.cluster.index_of_node[gpu[0]]
    claims = [_adoption(node, job.id, gpu, view.now) for job in placeholders if job.id in view.held]
    return [*recall_runs(view, node, why, gpu[1]), *claims]


def _placeholder_events(cluster: Cluster, gpu: GpuId, why: str, now: Seconds, parts: int) -> list[Event]:
    """Return events that create placeholders and start them on the GPU.

    The first one claims the part that is free. The reason is stored as the job's group.
    """
    node = cluster.index_of_node[gpu[0]]
    demand = Demand(gpus=1, gpu_types=(cluster.nodes[node].gpu_type,))
    events: list[Event] = []
    for part in range(parts):
        job_id = f"drained:{gpu[1]}:{now:.6f}:{part}:{gpu[0]}"
        job = Job(job_id, now, demand, tenant=PLACEHOLDER_TENANT, group=why, preemptible=False)
        events += [JobSubmitted(job), JobHeld(job_id), _adoption(node, job_id, gpu, now)]
    return events


def _adoption(node: int, job_id: str, gpu: GpuId, now: Seconds) -> Event:
    return RunAdopted(job_id, PLACEHOLDER_RUN, Allocation((Share(node, (gpu[1],)),)), now)


def _gpu_of(job: Job) -> GpuId:
    _, gpu, _, _, node = job.id.split(":", 4)
    return node, int(gpu)


def _uses(placement: Placement, node: int, gpu: int | None) -> bool:
    return any(share.node == node and (gpu is None or gpu in share.gpus) for share in placement)
