"""`memory: auto` and `cpus: auto`: amounts learned from what earlier jobs of the same group have used.

A group is that of the run-time predictor: jobs of one user and tenant with the same name and workload.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

from msgspec.structs import replace

from refold.model import WHOLE, AutoRequest, Cluster, Demand, Job, MiB, Milli, Node, RunUsage
from refold.server.store import GroupUsage

GROUP_JOBS = 20
"""How many of the latest jobs of a group are considered."""

MEMORY_MARGIN = 1.2
"""The request, relative to the largest peak."""

CPU_MARGIN = 1.5
"""The request, relative to the largest average use of CPUs. A job that uses all it may gets more the next time."""

MEMORY_STEP_MIB = 128
"""Requests are multiples of this, and at least this."""

DEFAULT_MEMORY_MIB = 4096
DEFAULT_CPU_MILLI = WHOLE
"""What a job without GPUs gets before anything is known. One with GPUs gets the share of its GPUs."""

MAX_RAISES = 6
"""How often the memory of a job is doubled at most."""


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
            memory, choice = _choose_memory(demand, cluster, earlier)
            demand = replace(demand, memory_mib=memory)
        else:
            cpu, choice = _choose_cpus(demand, cluster, earlier)
            demand = replace(demand, cpu_milli=cpu)
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
    raised = _at_most(2 * current, _largest(cluster, _memory_of))
    return raised if raised > current else None


def describe_choices(job: Job) -> list[str]:
    """Say what was chosen for a job, and from what."""
    amounts = {"memory": job.demand.memory_mib, "cpus": job.demand.cpu_milli}
    return [request.text(amounts[request.resource]) for request in job.launch.auto]


def _choose_memory(demand: Demand, cluster: Cluster, earlier: Sequence[GroupUsage]) -> tuple[MiB, AutoRequest]:
    peaks = [(used.peak_memory_mib, used.runs) for used in earlier if used.peak_memory_mib is not None]
    if not peaks:
        default = _default(demand, cluster, _memory_of, DEFAULT_MEMORY_MIB) if cluster.memory_known else 0
        return default, AutoRequest("memory")
    most = max(peak for peak, _ in peaks)
    wanted = max(1, ceil(most * MEMORY_MARGIN / MEMORY_STEP_MIB)) * MEMORY_STEP_MIB
    request = AutoRequest("memory", sum(runs for _, runs in peaks), most)
    return _at_most(wanted, _largest(cluster, _memory_of)), request


def _choose_cpus(demand: Demand, cluster: Cluster, earlier: Sequence[GroupUsage]) -> tuple[Milli, AutoRequest]:
    averages = [
        (ceil(WHOLE * used.cpu_seconds / used.run_time / used.instances), used.runs)
        for used in earlier
        if used.cpu_seconds is not None and used.run_time
    ]
    if not averages:
        default = _default(demand, cluster, _cpus_of, DEFAULT_CPU_MILLI) if cluster.cpus_known else 0
        return default, AutoRequest("cpus")
    most = max(average for average, _ in averages)
    wanted = max(1, ceil(most * CPU_MARGIN / WHOLE)) * WHOLE
    request = AutoRequest("cpus", sum(runs for _, runs in averages), most)
    return _at_most(wanted, _largest(cluster, _cpus_of)), request


def _memory_of(node: Node) -> int:
    return node.memory_mib


def _cpus_of(node: Node) -> int:
    return node.cpu_milli


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
