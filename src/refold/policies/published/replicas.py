"""Options of a job that keeps its plan and changes only the number of replicas, as in Sia and Optimus.

The global batch size is fixed. A shape is a number of GPUs on one node, or a number of whole nodes. A plan with fewer
replicas than the job's own needs more memory per GPU, so it must fit, or be listed as measured in `Knowledge.menu`.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from refold.model import WHOLE, Demand, Job, Plan
from refold.placement import FreeResources
from refold.planning.plans import (
    Knowledge,
    Speed,
    Speeds,
    WorkloadKind,
    requested_cpus,
    requested_layout,
    workload_kind,
)
from refold.policies.common import Option, allowed_gpu_range, requested_option

Key = tuple[WorkloadKind, Demand, Plan | None, int, tuple[int, int], bool]


class Replicas:
    """Options of jobs, cached by kind of job."""

    def __init__(self, speeds: Speeds, knowledge: Knowledge, *, powers_of_two: bool) -> None:
        """`powers_of_two`: within a node, allow only 1, 2, 4 … GPUs and the whole node; otherwise any number."""
        self._speeds = speeds
        self._menu = knowledge.menu
        self._empty = FreeResources(speeds.cluster)
        self._shapes = {name: _shapes(speeds, name, powers_of_two) for name in speeds.cluster.type_names}
        self._cache: dict[Key, tuple[Option, ...]] = {}

    def clear(self) -> None:
        """Drop all cached options: estimated speeds have changed."""
        self._cache.clear()

    def for_job(self, job: Job, max_gpus: int) -> tuple[Option, ...]:
        """Return the options by ascending GPUs, up to `max_gpus`; the smallest is included even beyond that.

        A job without a speed model, or that is not preemptible, has its request only, once per GPU type.
        """
        can_scale = job.preemptible and self._speeds.can_model(job)
        key = (
            workload_kind(job),
            job.demand,
            job.plan,
            max_gpus,
            allowed_gpu_range(job, self._speeds.cluster),
            can_scale,
        )
        if key not in self._cache:
            options = list(self._scaled(job, max_gpus)) if can_scale else []
            self._cache[key] = tuple(sorted(options, key=_sort_key)) or tuple(self._fixed(job))
        return self._cache[key]

    def _scaled(self, job: Job, max_gpus: int) -> Iterator[Option]:
        smallest, largest = allowed_gpu_range(job, self._speeds.cluster)
        for gpu_type in self._speeds.types_for(job):
            options = [option for option in self._options_on(job, gpu_type) if smallest <= option.gpus <= largest]
            min_gpus = min((option.gpus for option in options), default=0)
            yield from (option for option in options if option.gpus <= max(max_gpus, min_gpus))

    def _options_on(self, job: Job, gpu_type: str) -> Iterator[Option]:
        requested = job.demand.instances * job.demand.gpus
        cpus_per_gpu = requested_cpus(job) / requested
        sizes = set()
        for nodes, gpus_per_node in self._shapes[gpu_type]:
            speed = self._speeds.scaled(job, gpu_type, (gpus_per_node,) * nodes, cpus_per_gpu * nodes * gpus_per_node)
            if speed is None or not self._fits_memory(job, speed):
                continue
            memory = max(job.demand.memory_mib * gpus_per_node // job.demand.gpus, -(-speed.host_mib // nodes))
            cpu_milli, where = (
                round(cpus_per_gpu * gpus_per_node * WHOLE),
                (job.demand.allowed_nodes, job.demand.topology),
            )
            demand = Demand(nodes, gpus_per_node, WHOLE, cpu_milli, memory, (gpu_type,), *where)
            if self._empty.fits_when_empty(demand):
                sizes.add(nodes * gpus_per_node)
                yield Option(nodes * gpus_per_node, demand, speed.plan, speed.steps_per_second)
        demand = msgspec.structs.replace(job.demand, gpu_types=(gpu_type,))
        if requested not in sizes and self._empty.fits_when_empty(demand):
            plan = self._speeds.own_plan(job)
            speed = self._speeds.with_plan(job, gpu_type, requested_layout(job), requested_cpus(job), plan)
            yield Option(requested, demand, plan, speed.steps_per_second)

    def _fits_memory(self, job: Job, speed: Speed) -> bool:
        if speed.fits or speed.plan.data >= self._speeds.own_plan(job).data:
            return True
        return speed.plan in self._menu.get(job.workload, ())

    def _fixed(self, job: Job) -> Iterator[Option]:
        """Yield the request on each GPU type that can hold it; if there is none, on all types together."""
        cluster, option = self._speeds.cluster, requested_option(job)
        demands = [
            (msgspec.structs.replace(job.demand, gpu_types=(name,)), cluster.gpu_type(name).speed)
            for name in cluster.type_names
            if job.demand.gpus and (not job.demand.gpu_types or name in job.demand.gpu_types)
        ]
        fitting = [(demand, speed) for demand, speed in demands if self._empty.fits_when_empty(demand)]
        for demand, speed in fitting:
            yield option._replace(demand=demand, speed=speed)
        if not fitting:
            yield option


def _sort_key(option: Option) -> tuple[int, float, tuple[str, ...]]:
    return option.gpus, -option.speed, option.demand.gpu_types


def _shapes(speeds: Speeds, gpu_type: str, powers_of_two: bool) -> list[tuple[int, int]]:
    """Return (nodes, GPUs per node) of all shapes: parts of one node, then whole nodes."""
    on_node = [node.gpus for node in speeds.cluster.nodes if node.gpu_type == gpu_type and node.gpus]
    largest = max(on_node)
    powers = [2**power for power in range(largest.bit_length()) if 2**power < largest]
    partial = [(1, gpus) for gpus in (powers if powers_of_two else range(1, largest))]
    return partial + [(nodes, largest) for nodes in range(1, on_node.count(largest) + 1)]
