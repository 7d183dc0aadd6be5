"""The shapes that a job could have: so many GPUs on so many nodes, with the plan and the speed that go with it.

A job that is known (`plans.speeds`) has one option for each number of GPUs that is worth having, on as few nodes as can
be, and spread over more nodes where that is not much slower. A job that is not has one: what it asked for.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from refold.model import MOST_GPUS, WHOLE, Cluster, Demand, Job, Plan
from refold.plans import Speeds, asked_cpus, asked_layout, kind_of

WORTH_MORE = 1.01
"""More GPUs are worth having if they are so many times as fast."""

WORTH_SPREADING = 0.5
"""A layout over more nodes is an option if it keeps so much of the speed."""


class Option(NamedTuple):
    """One shape: what to ask for, the plan, and steps per second (of an unknown job: jobs per second of work)."""

    gpus: int
    demand: Demand
    plan: Plan | None
    speed: float


class OptionCache:
    """The options of jobs, kept by kind of job."""

    def __init__(self, speeds: Speeds, plans: bool = True, resources: bool = True) -> None:
        """`plans`: a job may get another plan than its own. `resources`: it may get other amounts than it asked for."""
        self._speeds = speeds
        self.plans, self._resources = plans, resources
        self._sizes = _sizes(speeds)
        self._kept: dict[tuple[object, ...], tuple[Option, ...]] = {}
        self._of_job: dict[str, tuple[Option, ...]] = {}

    def of(self, job: Job) -> tuple[Option, ...]:
        """From the fewest GPUs to the most; of as many GPUs the fastest first."""
        options = self._of_job.get(job.id)
        if options is None:
            options = self._of_job[job.id] = self._of_kind(job)
        return options

    def forget(self, job_id: str) -> None:
        """A job has ended: nobody will ask for its options again."""
        self._of_job.pop(job_id, None)

    def _of_kind(self, job: Job) -> tuple[Option, ...]:
        known = self._speeds.knows(job)
        key = (kind_of(job) if known else None, job.demand, job.plan, range_of(job, self._speeds.cluster))
        if key not in self._kept:
            self._kept[key] = ((self._found(job) or as_asked_on(self._speeds, job)) if known else ()) or (
                as_asked(job),
            )
        return self._kept[key]

    def _found(self, job: Job) -> tuple[Option, ...]:
        options: list[Option] = []
        for gpu_type in self._speeds.types_for(job):
            best = 0.0
            for layouts in self._sizes[gpu_type] if self._resources else [[(job.demand.instances, job.demand.gpus)]]:
                at_best = 0.0
                for nodes, each in layouts:
                    option = self._option(job, gpu_type, nodes, each)
                    if option and option.speed > max(best * WORTH_MORE, at_best * WORTH_SPREADING):
                        options.append(option)
                        at_best = max(at_best, option.speed)
                best = max(best, at_best)
        least, most = range_of(job, self._speeds.cluster)
        within = (option for option in options if least <= option.gpus <= most)
        return tuple(sorted(within, key=lambda option: (option.gpus, -option.speed)))

    def _option(self, job: Job, gpu_type: str, nodes: int, each: int) -> Option | None:
        asked = job.demand
        cpu_milli = asked.cpu_milli * each // asked.gpus
        ask = self._speeds.fastest if self.plans else self._speeds.scaled
        speed = ask(job, gpu_type, (each,) * nodes, nodes * cpu_milli / WHOLE)
        if speed is None:
            return None
        memory = max(asked.memory_mib * each // asked.gpus, -(-speed.host_mib // nodes))
        demand = Demand(nodes, each, WHOLE, cpu_milli, memory, (gpu_type,))
        return Option(nodes * each, demand, speed.plan, speed.steps_per_second)


def range_of(job: Job, cluster: Cluster) -> tuple[int, int]:
    """The fewest GPUs and the most that a job may have: by its own range, and by its tenant's limit."""
    least, most = job.gpu_range or (1, MOST_GPUS)
    limit = next((tenant.limit_gpus for tenant in cluster.tenants if tenant.name == job.tenant), 0.0)
    return least, min(most, int(limit)) if limit else most


def as_asked(job: Job) -> Option:
    """What was asked for, and nothing else."""
    return Option(job.demand.instances * job.demand.gpus, job.demand, job.plan, 1.0)


def as_asked_on(speeds: Speeds, job: Job) -> tuple[Option, ...]:
    """What a known job asked for, on each type of GPU that it accepts and that is known."""
    cpus, plan = asked_cpus(job), speeds.own_plan(job)
    return tuple(
        Option(
            job.demand.instances * job.demand.gpus,
            msgspec.structs.replace(job.demand, gpu_types=(gpu_type,)),
            job.plan,
            speeds.with_plan(job, gpu_type, asked_layout(job), cpus, plan).steps_per_second,
        )
        for gpu_type in speeds.types_for(job)
    )


def _sizes(speeds: Speeds) -> dict[str, list[list[tuple[int, int]]]]:
    """For each GPU type and number of GPUs the layouts (nodes, GPUs on each), on the fewest nodes first."""
    found: dict[str, list[list[tuple[int, int]]]] = {}
    nodes = speeds.cluster.nodes
    for gpu_type in speeds.cluster.type_names:
        on_node = [node.gpus for node in nodes if node.gpu_type == gpu_type and node.gpus]
        most, count = max(on_node), len(on_node)
        sizes = set(range(1, most + 1)) | {most * many for many in _spaced(count)}
        sizes |= {each * many for many in _spaced(count) for each in range(1, most) if each * many > most}
        found[gpu_type] = [
            [(size // each, each) for each in range(most, 0, -1) if size % each == 0 and size // each <= count]
            for size in sorted(sizes)
        ]
    return found


def _spaced(count: int) -> list[int]:
    """1 to 8, and from there on wider and wider apart."""
    spaced = list(range(1, min(count, 8) + 1))
    while spaced[-1] >= 8 and spaced[-1] * 5 // 4 <= count:
        spaced.append(spaced[-1] * 5 // 4)
    return spaced
