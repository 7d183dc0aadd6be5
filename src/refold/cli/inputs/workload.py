"""The input of a simulation: jobs, cluster, overheads, node faults, and jobs that never end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from refold.cli.inputs.charges import AS_RECORDED, Charging
from refold.errors import BadInput
from refold.model import Seconds, format_count

if TYPE_CHECKING:
    from refold.cli import FaultOptions, NeverEndingOptions, PreemptionMode
    from refold.cli.inputs.policy_choice import SelectedPolicy
    from refold.model import Cluster, Job
    from refold.simulator import Costs, Fault, NeverEnds
    from refold.simulator.results import ReportRun

MAX_FAULTS = 1_000_000


@dataclass(frozen=True, slots=True)
class Workload:
    """Everything in an experiment except the policy. `skipped_rows` and `notes` are about reading the trace.

    `recorded`: what the scheduler of the trace did, if that is known; `waits`: or else how long jobs waited, by id.
    `engine_policy`: the engine's own order, if it is known. `has_consent`: the daemon or the engine that the jobs were
    submitted to has decided which of them may be preempted.
    """

    name: str
    jobs: Sequence[Job]
    cluster: Cluster
    costs: Costs
    faults: Sequence[Fault] = ()
    skipped_rows: int = 0
    notes: Sequence[str] = ()
    charging: Charging = AS_RECORDED
    never_end: Sequence[NeverEnds] = ()
    recorded: ReportRun | None = None
    waits: Mapping[str, Seconds] = field(default_factory=dict)
    has_consent: bool = False
    engine_policy: SelectedPolicy | None = None

    def __str__(self) -> str:
        cluster = f"{format_count(len(self.cluster.nodes), 'node')} with {format_count(self.cluster.gpus, 'GPU')}"
        return f"{self.name}: {format_count(len(self.jobs), 'job')} on {cluster}"


def with_preemption(workload: Workload, mode: PreemptionMode) -> Workload:
    """Return the workload with the jobs preemptible that may be preempted."""
    from dataclasses import replace

    from refold.model import jobs_under

    return replace(workload, jobs=jobs_under(mode.value, workload.jobs, has_consent=workload.has_consent))


def with_charging(workload: Workload, charge: str | None, charging: Charging) -> Workload:
    """Return the workload with job speeds by `charging`."""
    from dataclasses import replace

    from refold.cli.inputs.charges import check_charging

    check_charging(charge, charging, workload.jobs, workload.cluster, workload.name)
    return replace(workload, charging=charging)


def with_faults(workload: Workload, options: FaultOptions) -> Workload:
    """Return the workload with random node faults and repairs, up to an upper bound of its duration."""
    from dataclasses import replace

    from refold.cli import parse_duration_option
    from refold.simulator import random_faults

    if options.faults is None:
        return workload
    between = parse_duration_option("--faults", options.faults)
    repair = parse_duration_option("--repair", options.repair or "1h")
    until, seed = _max_duration(workload), options.fault_seed or 0
    if (expected := len(workload.cluster.nodes) * until / max(between + repair, 1e-9)) > MAX_FAULTS:
        raise BadInput(f"--faults {options.faults} would cause {expected:,.0f} faults, expected at most {MAX_FAULTS:,}")
    sampled = random_faults(workload.cluster, between=between, repair=repair, until=until, seed=seed)
    return replace(workload, faults=sampled)


def with_never_ending(workload: Workload, options: NeverEndingOptions) -> Workload:
    """Return the workload with random jobs that hang or run forever, and a note with their number."""
    from dataclasses import replace

    from refold.simulator import Stuck, random_never_ending_jobs

    stuck, endless = options.stuck or 0.0, options.endless or 0.0
    if not stuck and not endless:
        return workload
    sampled = random_never_ending_jobs(workload.jobs, stuck=stuck, endless=endless, seed=options.stuck_seed or 0)
    hanging = sum(isinstance(one, Stuck) for one in sampled)
    kinds = {"stuck": hanging, "endless": len(sampled) - hanging}
    counts = " and ".join(f"{count:,} {kind}" for kind, count in kinds.items() if count)
    note = f"jobs that never end by themselves, chosen at random: {counts or 'none'} of {len(workload.jobs):,}"
    return replace(workload, never_end=sampled, notes=(*workload.notes, note))


def _max_duration(workload: Workload) -> float:
    """Return an upper bound of the duration: last submission, plus longest job, plus all work at full allocation."""
    jobs, gpus = workload.jobs, max(1, workload.cluster.gpus)
    gpu_seconds = sum((job.work or 0.0) * job.demand.total_gpus for job in jobs)
    return jobs[-1].submitted + max(job.work or 0.0 for job in jobs) + gpu_seconds / gpus
