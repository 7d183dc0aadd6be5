"""What is simulated: jobs on a cluster, what changes cost, and which nodes are lost when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from refold.cli.output import progress

if TYPE_CHECKING:
    from refold.model import Cluster, Job
    from refold.simulator import Costs, Fault
    from refold.traces import Trace

DEMO = "demo"
"""The trace that comes with its own cluster."""

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

    def __str__(self) -> str:
        nodes = len(self.cluster.nodes)
        cluster = f"{nodes:,} node{'s' * (nodes != 1)} with {self.cluster.gpus:,} GPUs"
        return f"{self.name}: {len(self.jobs):,} job{'s' * (len(self.jobs) != 1)} on {cluster}"

    @property
    def conditions(self) -> str:
        """What changes cost and how many faults there are, for whoever reads the results."""
        from refold.model.units import text_from_seconds

        costs = {"start": self.costs.start, "stop": self.costs.stop, "restart": self.costs.restart}
        said = [f"{what} {text_from_seconds(seconds)}" for what, seconds in costs.items() if seconds]
        changes = ", ".join(said) or "starting and stopping cost nothing"
        faults = f"{len(self.faults):,} node faults" if self.faults else "no node is lost"
        return f"Simulated: {changes}; {faults}."

    def tell(self) -> None:
        """Say on stderr what a person should know before believing the results."""
        for note in self.notes:
            typer.echo(f"note: {note}", err=True)
        if self.left_out:
            typer.echo(f"note: left out {self.left_out:,} rows of {self.name}", err=True)


@dataclass(frozen=True, slots=True)
class Reading:
    """How a trace is read; None of its format: found out from its first line. None of its limit: all of it."""

    format: str | None = None
    skip_bad: bool = False
    gpus_per_instance: int = 8
    limit: int | None = None


def read_workload(trace: str, cluster: str | None, reading: Reading, costs: Costs) -> Workload:
    """Jobs that can be simulated, and the cluster to do so on."""
    from refold.traces import read_cluster, read_trace

    machines = read_cluster(_cluster_for(trace, cluster))
    with progress(f"reading {trace}"):
        read = read_trace(
            trace, format=reading.format, skip_bad=reading.skip_bad, gpus_per_instance=reading.gpus_per_instance
        )
    jobs, without = _jobs_with_work(read, reading.skip_bad)
    notes = (*read.notes, *without)
    return Workload(read.name, jobs[: reading.limit], machines, costs, (), len(read.left_out), notes)


def _cluster_for(trace: str, cluster: str | None) -> str:
    from refold.errors import BadInput

    if cluster is not None:
        return cluster
    if trace == DEMO:
        return DEMO
    raise BadInput(
        f"on which cluster should {trace} run? Say it with --cluster: a file (YAML, or a CSV list of nodes), "
        "or shorthand such as --cluster 135x8 for 135 nodes of 8 GPUs"
    )


def _jobs_with_work(trace: Trace, skip_bad: bool) -> tuple[Sequence[Job], list[str]]:
    """The jobs whose durations are known; those whose are not cannot be simulated."""
    from refold.errors import BadInput

    known = [job for job in trace.jobs if job.work is not None]
    unknown = len(trace.jobs) - len(known)
    if not trace.jobs:
        raise BadInput(f"{trace.name} has no jobs")
    if not known:
        raise BadInput(f"no job of {trace.name} has a duration, so there is nothing to simulate")
    if not unknown:
        return trace.jobs, []
    if skip_bad:
        return known, [f"left out {unknown:,} jobs without a duration"]
    first = next(job.id for job in trace.jobs if job.work is None)
    raise BadInput(
        f"{unknown:,} of {len(trace.jobs):,} jobs of {trace.name} have no duration (the first is {first!r}); "
        "--skip-bad leaves them out"
    )


def with_faults(workload: Workload, faults: str | None, repair: str | None, seed: int) -> Workload:
    """The same, with nodes that are lost and return for as long as the work could last."""
    from dataclasses import replace

    from refold.errors import BadInput
    from refold.model.units import seconds_from_text
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


def _could_last(workload: Workload) -> float:
    """The last submission, then the longest job, then all the work there is, at full allocation."""
    jobs, gpus = workload.jobs, max(1, workload.cluster.gpus)
    gpu_seconds = sum((job.work or 0.0) * job.demand.total_gpus for job in jobs)
    return jobs[-1].submitted + max(job.work or 0.0 for job in jobs) + gpu_seconds / gpus
