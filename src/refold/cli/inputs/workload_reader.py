"""Read the jobs and the cluster to simulate, from a trace or from a journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from refold.cli.inputs.workload import TraceReadOptions, Workload
from refold.cli.views import progress

if TYPE_CHECKING:
    from refold.simulator import Costs
    from refold.traces import Trace

DEMO = "demo"
"""The trace that comes with its own cluster."""


def read_workload(trace: str, cluster: str | None, reading: TraceReadOptions, costs: Costs) -> Workload:
    """Jobs that can be simulated, and the cluster to do so on; of a journal or snapshot, what is left to do there."""
    from dataclasses import replace

    from refold.cli.commands import most_gpus_of_a_node
    from refold.cli.inputs.backlog import is_journal, read_queued
    from refold.traces import for_cluster, read_cluster, read_trace

    if reading.format is None and is_journal(trace):
        return read_queued(trace, None if cluster is None else read_cluster(cluster), reading, costs)
    machines = read_cluster(_cluster_for(trace, cluster))
    each = reading.gpus_per_instance or most_gpus_of_a_node(machines)
    with progress(f"reading {trace}"):
        read = read_trace(trace, format=reading.format, skip_bad=reading.skip_bad, gpus_per_instance=each)
    first = replace(read, jobs=read.jobs[: reading.limit])
    ready = for_cluster(_with_work(first, reading.skip_bad), machines)
    return Workload(ready.name, ready.jobs, machines, costs, (), len(ready.left_out), ready.notes)


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


def _with_work(trace: Trace, skip_bad: bool) -> Trace:
    """The trace with the jobs whose durations are known; those whose are not cannot be simulated."""
    from dataclasses import replace

    from refold.errors import BadInput
    from refold.traces import counted

    known = tuple(job for job in trace.jobs if job.work is not None)
    unknown = len(trace.jobs) - len(known)
    if not trace.jobs:
        raise BadInput(f"{trace.name} has no jobs")
    if not known:
        raise BadInput(_no_work(trace))
    if not unknown:
        return trace
    if skip_bad:
        return replace(
            trace, jobs=known, notes=(*trace.notes, f"left out {counted(unknown, 'job')} without a duration")
        )
    first = next(job.id for job in trace.jobs if job.work is None)
    raise BadInput(
        f"{unknown:,} of {counted(len(trace.jobs), 'job')} of {trace.name} have no duration (the first is {first!r}); "
        "--skip-bad leaves them out"
    )


def _no_work(trace: Trace) -> str:
    """What a trace lacks that has no durations, what it has instead, and what to do."""
    from refold.traces import counted

    steps = sum(job.steps is not None for job in trace.jobs)
    instead = f"; it says how many steps {counted(steps, 'job')} took, but not how long a step is" if steps else ""
    return (
        f"no job of {trace.name} has a duration{instead}: to simulate it, give each job its work in seconds, "
        "in the column duration_s of the common columns (refold trace convert writes them)"
    )
