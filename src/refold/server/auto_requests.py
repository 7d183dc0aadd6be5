"""`memory: auto` and `cpus: auto`: amounts learned from what earlier jobs of the same group have used.

A group is that of the run-time predictor: jobs of one user and tenant with the same name and workload.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Literal, NamedTuple

from msgspec.structs import replace

from refold.model import WHOLE, AutoRequest, Cluster, Demand, Job, MiB, Milli, Node, RunUsage
from refold.server.store import GroupUsage

GROUP_JOBS = 20
"""How many of the latest jobs of a group are considered."""

MEMORY_MARGIN = 1.2
"""The request, relative to the largest peak."""

CPU_MARGIN = 1.5
"""The request, relative to the largest average use of CPUs. A job that uses all it may gets more the next time."""

MAX_RAISES = 6
"""How often the memory of a job is doubled at most."""


class _Resource(NamedTuple):
    """What may be requested as `auto`. `used`: what a job has used; None: unknown. `amount_of`: what a node has.

    Requests are multiples of `step`, and at least that. `default`: what a job without GPUs gets before anything is
    known; one with GPUs gets the share of its GPUs.
    """

    name: Literal["memory", "cpus"]
    used: Callable[[GroupUsage], int | None]
    amount_of: Callable[[Node], int]
    margin: float
    step: int
    default: int


FindUsage = Callable[[Job, int], Sequence[GroupUsage]]
"""Returns what the latest jobs with the name, user and tenant of a job have used, at most so many."""


def choose_requests(job: Job, cluster: Cluster, find: FindUsage) -> Job:
    """Return a job with the amounts of what it requests as `auto`; the job itself if there is nothing to choose."""
    if not job.launch.auto:
        return job
    earlier = [used for used in find(job, GROUP_JOBS) if used.workload == job.workload]
    demand = job.demand
    chosen: list[AutoRequest] = []
    for resource in (request.resource for request in job.launch.auto):
        if resource == "memory":
            amount, choice = _choose(MEMORY, demand, cluster, earlier, cluster.memory_known)
            demand = replace(demand, memory_mib=amount)
        else:
            amount, choice = _choose(CPUS, demand, cluster, earlier, cluster.cpus_known)
            demand = replace(demand, cpu_milli=amount)
        chosen.append(choice)
    return replace(job, demand=demand, launch=replace(job.launch, auto=tuple(chosen)))


def raised_memory(job: Job, cluster: Cluster, usage: RunUsage | None, failures: int) -> MiB | None:
    """Return how much memory a job gets after it ran out of it: twice as much, if a node has more; None: no more.

    `failures`: how often it has failed before.
    """
    is_auto = any(request.resource == "memory" for request in job.launch.auto)
    current = job.demand.memory_mib
    if usage is None or not usage.out_of_memory or not is_auto or not current or failures >= MAX_RAISES:
        return None
    raised = _at_most(2 * current, _largest(cluster, MEMORY.amount_of))
    return raised if raised > current else None


def describe_choices(job: Job) -> list[str]:
    amounts = {"memory": job.demand.memory_mib, "cpus": job.demand.cpu_milli}
    return [request.text(amounts[request.resource]) for request in job.launch.auto]


def _choose(
    resource: _Resource, demand: Demand, cluster: Cluster, earlier: Sequence[GroupUsage], is_known: bool
) -> tuple[int, AutoRequest]:
    """Return an amount and from what it was chosen. `is_known`: whether nodes have known amounts."""
    measured = [(used, runs.runs) for runs in earlier if (used := resource.used(runs)) is not None]
    if not measured:
        default = _default(demand, cluster, resource.amount_of, resource.default) if is_known else 0
        return default, AutoRequest(resource.name)
    most = max(used for used, _ in measured)
    wanted = max(1, ceil(most * resource.margin / resource.step)) * resource.step
    request = AutoRequest(resource.name, sum(runs for _, runs in measured), most)
    return _at_most(wanted, _largest(cluster, resource.amount_of)), request


def _average_cpus(used: GroupUsage) -> Milli | None:
    if used.cpu_seconds is None or not used.run_time:
        return None
    return ceil(WHOLE * used.cpu_seconds / used.run_time / used.instances)


def _largest(cluster: Cluster, amount_of: Callable[[Node], int]) -> int:
    """Return the most that a node has; 0 if it is not known."""
    return max((amount_of(node) for node in cluster.nodes), default=0)


def _at_most(amount: int, limit: int) -> int:
    return min(amount, limit) if limit else amount


def _default(demand: Demand, cluster: Cluster, amount_of: Callable[[Node], int], without_gpus: int) -> int:
    """Return the least share of a node that belongs to the GPUs of an instance; a fixed amount without GPUs."""
    if not demand.gpus:
        return _at_most(without_gpus, _largest(cluster, amount_of))
    nodes = [node for node in cluster.nodes if node.gpus >= demand.gpus]
    shares = [amount_of(node) * demand.gpus * demand.gpu_milli // (node.gpus * WHOLE) for node in nodes]
    return min(shares, default=0)


MEMORY = _Resource(
    "memory", lambda used: used.peak_memory_mib, lambda node: node.memory_mib, MEMORY_MARGIN, step=128, default=4096
)
CPUS = _Resource("cpus", _average_cpus, lambda node: node.cpu_milli, CPU_MARGIN, step=WHOLE, default=WHOLE)
