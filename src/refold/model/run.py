"""One attempt of a job on one allocation. Every report names its run, so that late reports can be recognised."""

from __future__ import annotations

import msgspec

from refold.model.allocation import Allocation
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
