"""The shapes of a job that keeps its plan and only changes how many replicas it has, as Sia and Optimus scale jobs.

The global batch stays as it is. A shape is a number of GPUs on one node, or so many whole nodes. A plan with fewer
replicas than the job's own needs more memory on each GPU, so it has to fit, or be on the list of what was measured.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from refold.model import WHOLE, Demand, Job, Plan
from refold.packing import Free
from refold.plans import Kind, Knowledge, Speed, Speeds, asked_cpus, asked_layout, kind_of
from refold.policies.common import Option, as_asked, range_of

Key = tuple[Kind, Demand, Plan | None, int, tuple[int, int], bool]


class Replicas:
    """The options of jobs, kept by kind of job."""

    def __init__(self, speeds: Speeds, knowledge: Knowledge, *, powers_of_two: bool) -> None:
        """`powers_of_two`: inside a node only 1, 2, 4 … GPUs and the whole node; otherwise any number."""
        self._speeds = speeds
        self._menu = knowledge.menu
        self._empty = Free(speeds.cluster)
        self._shapes = {name: _shapes(speeds, name, powers_of_two) for name in speeds.cluster.type_names}
        self._kept: dict[Key, tuple[Option, ...]] = {}

    def of(self, job: Job, most_gpus: int) -> tuple[Option, ...]:
        """From the fewest GPUs to the most; the fewest may be more than `most_gpus`, the others are not.

        A job that is unknown, or may not be changed once it runs, has what it asked for: once for every GPU type.
        """
        known = job.preemptible and self._speeds.knows(job)
        key = (kind_of(job), job.demand, job.plan, most_gpus, range_of(job, self._speeds.cluster), known)
        if key not in self._kept:
            found = list(self._scaled(job, most_gpus)) if known else []
            self._kept[key] = tuple(sorted(found, key=_order)) or tuple(self._fixed(job))
        return self._kept[key]

    def _scaled(self, job: Job, most_gpus: int) -> Iterator[Option]:
        least, most = range_of(job, self._speeds.cluster)
        for gpu_type in self._speeds.types_for(job):
            found = [option for option in self._of_type(job, gpu_type) if least <= option.gpus <= most]
            fewest = min((option.gpus for option in found), default=0)
            yield from (option for option in found if option.gpus <= max(most_gpus, fewest))

    def _of_type(self, job: Job, gpu_type: str) -> Iterator[Option]:
        asked = job.demand.instances * job.demand.gpus
        cpus_per_gpu = asked_cpus(job) / asked
        sizes = set()
        for nodes, each in self._shapes[gpu_type]:
            speed = self._speeds.scaled(job, gpu_type, (each,) * nodes, cpus_per_gpu * nodes * each)
            if speed is None or not self._has_memory(job, speed):
                continue
            memory = max(job.demand.memory_mib * each // job.demand.gpus, -(-speed.host_mib // nodes))
            demand = Demand(nodes, each, WHOLE, round(cpus_per_gpu * each * WHOLE), memory, (gpu_type,))
            if self._empty.fits_when_empty(demand):
                sizes.add(nodes * each)
                yield Option(nodes * each, demand, speed.plan, speed.steps_per_second)
        demand = msgspec.structs.replace(job.demand, gpu_types=(gpu_type,))
        if asked not in sizes and self._empty.fits_when_empty(demand):
            plan = self._speeds.own_plan(job)
            speed = self._speeds.with_plan(job, gpu_type, asked_layout(job), asked_cpus(job), plan)
            yield Option(asked, demand, plan, speed.steps_per_second)

    def _has_memory(self, job: Job, speed: Speed) -> bool:
        if speed.fits or speed.plan.data >= self._speeds.own_plan(job).data:
            return True
        return speed.plan in self._menu.get(job.workload, ())

    def _fixed(self, job: Job) -> Iterator[Option]:
        """What was asked for, on each GPU type that is enough for it; else on all of them together."""
        cluster, option = self._speeds.cluster, as_asked(job)
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


def _order(option: Option) -> tuple[int, float, tuple[str, ...]]:
    return option.gpus, -option.speed, option.demand.gpu_types


def _shapes(speeds: Speeds, gpu_type: str, powers_of_two: bool) -> list[tuple[int, int]]:
    """(nodes, GPUs on each): parts of one node, then whole nodes."""
    on_node = [node.gpus for node in speeds.cluster.nodes if node.gpu_type == gpu_type and node.gpus]
    most = max(on_node)
    inside = [2**power for power in range(most.bit_length()) if 2**power < most] if powers_of_two else range(1, most)
    return [(1, each) for each in inside] + [(nodes, most) for nodes in range(1, on_node.count(most) + 1)]
