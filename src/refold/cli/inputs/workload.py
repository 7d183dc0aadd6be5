"""What is simulated: jobs on a cluster, what changes cost, which nodes are lost when, and which jobs never end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from refold.cli.inputs.charges import AS_RECORDED, Charging

if TYPE_CHECKING:
    from refold.model import Cluster, Job
    from refold.simulator import Costs, Fault, NeverEnds

MOST_FAULTS = 1_000_000


@dataclass(frozen=True, slots=True)
class Workload:
    """Everything of an experiment but the policy. `left_out` and `notes` tell how the trace was read."""

    name: str
    jobs: Sequence[Job]
    cluster: Cluster
    costs: Costs
    faults: Sequence[Fault] = ()
    left_out: int = 0
    notes: Sequence[str] = ()
    charging: Charging = AS_RECORDED
    never_end: Sequence[NeverEnds] = ()

    def __str__(self) -> str:
        from refold.traces import counted

        cluster = f"{counted(len(self.cluster.nodes), 'node')} with {counted(self.cluster.gpus, 'GPU')}"
        return f"{self.name}: {counted(len(self.jobs), 'job')} on {cluster}"


@dataclass(frozen=True, slots=True)
class TraceReadOptions:
    """How a trace is read; None of its format: found out from its first line. None of its limit: all of it.

    None of `gpus_per_instance`: as many as the cluster's largest node has.
    """

    format: str | None = None
    skip_bad: bool = False
    gpus_per_instance: int | None = None
    limit: int | None = None


def with_charging(workload: Workload, charge: str | None, charging: Charging) -> Workload:
    """The same, with jobs that are as fast as `charging` says."""
    from dataclasses import replace

    from refold.cli.inputs.charges import check_charging

    check_charging(charge, charging, workload.jobs, workload.cluster, workload.name)
    return replace(workload, charging=charging)


def with_faults(workload: Workload, faults: str | None, repair: str | None, seed: int) -> Workload:
    """The same, with nodes that are lost and return for as long as the work could last."""
    from dataclasses import replace

    from refold.errors import BadInput
    from refold.model import seconds_from_text
    from refold.simulator import seeded_faults

    if faults is None:
        if repair is not None:
            raise BadInput("--repair needs --faults: how often nodes are lost, such as --faults 30d")
        return workload
    between, mend, until = seconds_from_text(faults), seconds_from_text(repair or "1h"), _could_last(workload)
    if (expected := len(workload.cluster.nodes) * until / max(between + mend, 1e-9)) > MOST_FAULTS:
        raise BadInput(f"--faults {faults} would be {expected:,.0f} faults, expected at most {MOST_FAULTS:,}")
    drawn = seeded_faults(workload.cluster, between=between, repair=mend, until=until, seed=seed)
    return replace(workload, faults=drawn)


def with_never_ending(workload: Workload, stuck: float | None, endless: float | None, seed: int) -> Workload:
    """The same, with some jobs by lot that hang, or work on and on; a note says how many."""
    from dataclasses import replace

    from refold.simulator import Stuck, seeded_never_ending
    from refold.traces import counted

    if not stuck and not endless:
        return workload
    drawn = seeded_never_ending(workload.jobs, stuck=stuck or 0.0, endless=endless or 0.0, seed=seed)
    hanging = sum(isinstance(one, Stuck) for one in drawn)
    kinds = {"stuck": hanging, "endless": len(drawn) - hanging}
    said = " and ".join(f"{count:,} {kind}" for kind, count in kinds.items() if count)
    note = f"of {counted(len(workload.jobs), 'job')}, {said or 'none'} by lot: these never end by themselves"
    return replace(workload, never_end=drawn, notes=(*workload.notes, note))


def _could_last(workload: Workload) -> float:
    """The last submission, then the longest job, then all the work there is, at full allocation."""
    jobs, gpus = workload.jobs, max(1, workload.cluster.gpus)
    gpu_seconds = sum((job.work or 0.0) * job.demand.total_gpus for job in jobs)
    return jobs[-1].submitted + max(job.work or 0.0 for job in jobs) + gpu_seconds / gpus
