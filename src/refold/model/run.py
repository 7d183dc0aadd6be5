"""One attempt of a job on one allocation. Every report names its run, so that late reports can be recognised."""

from __future__ import annotations

from collections import Counter
from typing import Literal, NamedTuple

import msgspec

from refold.model.allocation import Allocation, Placement
from refold.model.cluster import Cluster
from refold.model.job import Job
from refold.model.plan import Plan
from refold.model.units import WHOLE, MiB, Seconds


class RunUsage(msgspec.Struct, gc=False, frozen=True, omit_defaults=True):
    """What the processes of a run have used: CPU seconds of all of them, and the largest peak of an instance's memory.

    None: not measured. `out_of_memory`: whether the kernel killed one of them for lack of memory.
    """

    cpu_seconds: Seconds | None = None
    peak_memory_mib: MiB | None = None
    out_of_memory: bool = False


class Run(msgspec.Struct, gc=False, frozen=True, omit_defaults=True):
    """The `number`-th run of `job` (from 1), ordered at `since`; `stopping` once its stop has been ordered.

    `profiling`: for how many seconds its purpose is to measure its speed.
    """

    job: str
    number: int
    allocation: Allocation
    since: Seconds
    stopping: bool = False
    profiling: Seconds = 0.0


def run_plan(job: Job, allocation: Allocation) -> Plan | None:
    """Return the plan of a run: that of its allocation, else the one that the job pins, if it is for as many GPUs."""
    if allocation.plan is not None or job.plan is None:
        return allocation.plan
    return job.plan if job.plan.gpus * WHOLE == allocation.gpu_milli else None


# What a measured speed is the speed of.


class MeasuredShape(NamedTuple):
    """A kind of job, GPUs on each node (in descending order) of one type, a plan, and the GPUs in each domain."""

    workload: str
    batch: int
    sequence: int
    gpu_type: str
    layout: tuple[int, ...]
    plan: Plan
    spread: tuple[tuple[int, ...], ...] = ()


def spread_of(cluster: Cluster, placement: Placement) -> tuple[tuple[int, ...], ...]:
    """Return the GPUs in each domain, in descending order, for each level of the cluster, outermost first."""
    spread: list[tuple[int, ...]] = []
    for level in range(len(cluster.levels)):
        gpus: Counter[tuple[str, ...]] = Counter()
        for share in placement:
            gpus[cluster.domain(share.node, level)] += len(share.gpus)
        spread.append(tuple(sorted(gpus.values(), reverse=True)))
    return tuple(spread)


def measured_shape(job: Job, allocation: Allocation, cluster: Cluster) -> MeasuredShape:
    """Return the shape of a run; a run without a plan is data-parallel."""
    gpu_type = cluster.nodes[allocation.placement[0].node].gpu_type
    layout = allocation.gpus_on_node
    plan = allocation.plan or job.plan or Plan(data=max(sum(layout), 1))
    spread = spread_of(cluster, allocation.placement)
    return MeasuredShape(job.workload, job.batch, job.sequence, gpu_type, layout, plan, spread)


# What a back end and the agent of a run tell each other when processes are to continue under another plan.

ChangeWay = Literal["live", "warm", "cold"]
"""How a plan was changed: processes stayed, new processes with state in memory, or restarted from a checkpoint."""


NOT_REJOINED = 75
"""Exit status of an agent that was started again, and that the agents of the other instances do not let join.

They go on without it, or have ended.
"""


class InstanceGpus(msgspec.Struct, frozen=True):
    """How many ranks an instance of several may have, and its CUDA_VISIBLE_DEVICES (None: there are no GPUs)."""

    slots: int
    devices: str | None = None


class ChangeRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Train with another plan, as run `run`.

    `devices`: the new value of CUDA_VISIBLE_DEVICES; None: there are no GPUs, or they stay the same. `way`: a live
    change keeps processes where it can, a warm one replaces all of them. `instances`: what each of several instances
    has from then on; empty: the same as before.
    """

    run: int
    plan: Plan
    devices: str | None = None
    way: Literal["live", "warm"] = "live"
    instances: tuple[InstanceGpus, ...] = ()


class ChangeAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to the request for run `run`: the plan in use from `step` on; or `error`, if it was not carried out.

    `phases`: seconds without training, by phase. `why`: why the plan is not the requested one. `way`: how the plan was
    changed, whatever was requested.
    """

    run: int
    plan: Plan | None = None
    step: int | None = None
    phases: dict[str, Seconds] = {}
    why: str = ""
    error: str = ""
    way: ChangeWay = "live"

    def __post_init__(self) -> None:
        if (self.plan is None) is not bool(self.error):
            raise ValueError("an answer has either a plan or an error")


class SlowPlace(msgspec.Struct, frozen=True):
    """A rank that holds up the others (`what` says how), on the `local_rank`-th GPU of an instance."""

    instance: int
    local_rank: int
    what: str
