"""The shapes that a job could have: a number of GPUs on a number of nodes, with the plan and speed of each.

A job with known speed (`plans.speeds`) has one option for each useful number of GPUs, on as few nodes as possible, and
options spread over more nodes if those are not much slower. Any other job has one option: what it requested.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import msgspec

from refold.model import MAX_GPUS, WHOLE, Cluster, Demand, Job, Plan
from refold.planning.plans import MIN_SPEEDUP, Speeds, requested_cpus, requested_layout, workload_kind

MIN_SPREAD_SPEED = 0.5
"""A layout over more nodes is an option if it keeps more than this share of the speed."""


class Option(NamedTuple):
    """One shape: the demand, the plan, and the speed in steps per second (1.0 for a job with unknown speed)."""

    gpus: int
    demand: Demand
    plan: Plan | None
    speed: float


class Options(tuple[Option, ...]):
    """The options of a job by increasing number of GPUs; with equal GPUs, the fastest first.

    Jobs of a kind share them, so that what all jobs need in every round is computed once.
    """

    @cached_property
    def top_speed(self) -> float:
        """Steps per second in the fastest shape."""
        return max(option.speed for option in self)

    @cached_property
    def gpu_seconds_per_step(self) -> float:
        """GPU time of a step in the most efficient shape."""
        return min(max(option.gpus, 1) / option.speed for option in self)

    @cached_property
    def fewest_gpus(self) -> int:
        """GPUs of the smallest shape."""
        return min(option.gpus for option in self)

    @cached_property
    def most_gpus(self) -> int:
        """GPUs of the largest shape."""
        return max(option.gpus for option in self)

    @cached_property
    def _hash(self) -> int:
        return super().__hash__()

    def __hash__(self) -> int:
        return self._hash


class OptionCache:
    """The options of jobs, cached by kind of job."""

    def __init__(self, speeds: Speeds, plans: bool = True, resources: bool = True) -> None:
        """`plans`: a job may get another plan than its own. `resources`: it may get other amounts than requested."""
        self._speeds = speeds
        self.plans, self._resources = plans, resources
        self._layouts = _layouts_by_size(speeds)
        self._of_kind: dict[tuple[object, ...], Options] = {}
        self._of_job: dict[str, tuple[Job, Options]] = {}

    def for_job(self, job: Job) -> Options:
        """Return the options of a job."""
        known = self._of_job.get(job.id)
        if known is not None and known[0] is job:
            return known[1]
        options = self._options_of_kind(job)  # it is new, or may be placed on other nodes now
        self._of_job[job.id] = job, options
        return options

    def clear(self) -> None:
        """Drop all cached options: estimated speeds have changed."""
        self._of_kind.clear()
        self._of_job.clear()

    def forget(self, job_id: str) -> None:
        """Drop the cached options of a job that has ended."""
        self._of_job.pop(job_id, None)

    def _options_of_kind(self, job: Job) -> Options:
        known = self._speeds.can_model(job)
        key = (
            workload_kind(job) if known else None,
            job.demand,
            job.plan,
            allowed_gpu_range(job, self._speeds.cluster),
        )
        if key not in self._of_kind:
            modelled = (self._find_options(job) or requested_options(self._speeds, job)) if known else ()
            self._of_kind[key] = Options(modelled or (requested_option(job),))
        return self._of_kind[key]

    def _find_options(self, job: Job) -> tuple[Option, ...]:
        options: list[Option] = []
        for gpu_type in self._speeds.types_for(job):
            best = 0.0
            for layouts in self._layouts[gpu_type] if self._resources else [[(job.demand.instances, job.demand.gpus)]]:
                best_of_size = 0.0
                for nodes, each in layouts:
                    option = self._option(job, gpu_type, nodes, each)
                    if option and option.speed > max(best * MIN_SPEEDUP, best_of_size * MIN_SPREAD_SPEED):
                        options.append(option)
                        best_of_size = max(best_of_size, option.speed)
                best = max(best, best_of_size)
        least, most = allowed_gpu_range(job, self._speeds.cluster)
        within = (option for option in options if least <= option.gpus <= most)
        return tuple(sorted(within, key=lambda option: (option.gpus, -option.speed)))

    def _option(self, job: Job, gpu_type: str, nodes: int, each: int) -> Option | None:
        requested = job.demand
        cpu_milli = requested.cpu_milli * each // requested.gpus
        speed_of = self._speeds.fastest if self.plans else self._speeds.scaled
        speed = speed_of(job, gpu_type, (each,) * nodes, nodes * cpu_milli / WHOLE)
        if speed is None:
            return None
        memory = max(requested.memory_mib * each // requested.gpus, -(-speed.host_mib // nodes))
        demand = Demand(nodes, each, WHOLE, cpu_milli, memory, (gpu_type,), requested.allowed_nodes, requested.topology)
        return Option(nodes * each, demand, speed.plan, speed.steps_per_second)


def allowed_gpu_range(job: Job, cluster: Cluster) -> tuple[int, int]:
    """Return the minimum and maximum number of GPUs of a job, by its own range and its tenant's limit."""
    least, most = job.gpu_range or (1, MAX_GPUS)
    limit = next((tenant.limit_gpus for tenant in cluster.tenants if tenant.name == job.tenant), 0.0)
    return least, min(most, int(limit)) if limit else most


def requested_option(job: Job) -> Option:
    """Return the option that a job requested, for a job with unknown speed."""
    return Option(job.demand.instances * job.demand.gpus, job.demand, job.plan, 1.0)


def requested_options(speeds: Speeds, job: Job) -> tuple[Option, ...]:
    """Return what a job with known speed requested, on each GPU type that it accepts and whose speed is known."""
    cpus, plan = requested_cpus(job), speeds.own_plan(job)
    return tuple(
        Option(
            job.demand.instances * job.demand.gpus,
            msgspec.structs.replace(job.demand, gpu_types=(gpu_type,)),
            job.plan,
            speeds.with_plan(job, gpu_type, requested_layout(job), cpus, plan).steps_per_second,
        )
        for gpu_type in speeds.types_for(job)
    )


def _layouts_by_size(speeds: Speeds) -> dict[str, list[list[tuple[int, int]]]]:
    """Return the layouts (nodes, GPUs on each) per GPU type and number of GPUs, those on the fewest nodes first."""
    layouts: dict[str, list[list[tuple[int, int]]]] = {}
    nodes = speeds.cluster.nodes
    for gpu_type in speeds.cluster.type_names:
        on_node = [node.gpus for node in nodes if node.gpu_type == gpu_type and node.gpus]
        most, count = max(on_node), len(on_node)
        sizes = set(range(1, most + 1)) | {most * many for many in _node_counts(count)}
        sizes |= {each * many for many in _node_counts(count) for each in range(1, most) if each * many > most}
        layouts[gpu_type] = [
            [(size // each, each) for each in range(most, 0, -1) if size % each == 0 and size // each <= count]
            for size in sorted(sizes)
        ]
    return layouts


def _node_counts(count: int) -> list[int]:
    """Return 1 to 8, and from there on numbers of nodes that grow by about a quarter each."""
    counts = list(range(1, min(count, 8) + 1))
    while counts[-1] >= 8 and counts[-1] * 5 // 4 <= count:
        counts.append(counts[-1] * 5 // 4)
    return counts
