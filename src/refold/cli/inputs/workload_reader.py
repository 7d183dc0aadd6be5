"""Read the jobs and the cluster to simulate from a trace, journal or snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from refold.cli.inputs.workload import Workload

if TYPE_CHECKING:
    from refold.cli import TraceOptions
    from refold.simulator import Costs
    from refold.simulator.traces import Trace

DEMO = "demo"
"""The shipped trace that comes with a cluster."""


def read_workload(trace: str, cluster: str | None, options: TraceOptions, costs: Costs) -> Workload:
    """Read the jobs and the cluster to simulate; from a journal or snapshot, the jobs that have not ended."""
    from dataclasses import replace

    from refold.cli import max_gpus_per_node
    from refold.cli.inputs.backlog import is_journal, read_backlog
    from refold.simulator.traces import read_cluster

    if options.format is None and is_journal(trace):
        return read_backlog(trace, None if cluster is None else read_cluster(cluster), options, costs)
    machines = read_cluster(_cluster_for(trace, cluster))
    read = options.read(trace, max_gpus_per_node(machines))
    first = replace(read, jobs=read.jobs[: options.limit])
    ready = options.adapt(_with_work(first, options.skip_bad), machines)
    return Workload(ready.name, ready.jobs, machines, costs, (), len(ready.skipped_rows), ready.notes)


def _cluster_for(trace: str, cluster: str | None) -> str:
    from pathlib import Path

    from refold.errors import BadFile, BadInput

    if cluster is not None:
        return cluster
    if trace == DEMO:
        return DEMO
    if not Path(trace).exists():
        raise BadFile(trace, "no such file")
    raise BadInput(
        f"no cluster given for {trace}: use --cluster with a file (YAML, or a CSV list of nodes) "
        "or shorthand such as 135x8 for 135 nodes of 8 GPUs"
    )


def _with_work(trace: Trace, skip_bad: bool) -> Trace:
    """Return the trace without jobs of unknown duration, which cannot be simulated; reject them unless `skip_bad`."""
    from dataclasses import replace

    from refold.errors import BadInput
    from refold.model import format_count

    known = tuple(job for job in trace.jobs if job.work is not None)
    unknown = len(trace.jobs) - len(known)
    if not trace.jobs:
        raise BadInput(f"{trace.name} has no jobs")
    if not known:
        raise BadInput(_no_durations_error(trace))
    if not unknown:
        return trace
    if skip_bad:
        return replace(
            trace, jobs=known, notes=(*trace.notes, f"skipped {format_count(unknown, 'job')} without a duration")
        )
    first = next(job.id for job in trace.jobs if job.work is None)
    raise BadInput(
        f"{unknown:,} of {format_count(len(trace.jobs), 'job')} of {trace.name} have no duration "
        f"(the first is {first!r}); skip them with --skip-bad"
    )


def _no_durations_error(trace: Trace) -> str:
    """Return the error for a trace without durations: what it has instead, and what to do."""
    from refold.model import format_count

    steps = sum(job.steps is not None for job in trace.jobs)
    instead = f"; it has the steps of {format_count(steps, 'job')}, but not the time per step" if steps else ""
    return (
        f"no job of {trace.name} has a duration{instead}: to simulate it, give each job a duration in seconds "
        "in the column duration_s of the common CSV format (refold trace convert writes it)"
    )
