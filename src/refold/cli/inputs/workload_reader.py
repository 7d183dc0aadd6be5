"""Read workloads: from a trace, a journal (its backlog or its whole history), a snapshot, or Slurm's accounting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from refold.cli.inputs.workload import Workload
from refold.cli.views import plural, progress
from refold.errors import BadFile, BadInput, BadValue
from refold.model import Seconds, format_count

if TYPE_CHECKING:
    from refold.cli import TraceOptions
    from refold.cli.inputs.policy_choice import SelectedPolicy
    from refold.core import Header
    from refold.engines.slurm import Scheduling, SlurmCluster, SlurmHistory
    from refold.journal import History
    from refold.model import Cluster, Job
    from refold.simulator import Costs, Fault, StateAt
    from refold.simulator.results import ReportRun
    from refold.simulator.traces import Trace

DEMO = "demo"
"""The shipped trace that comes with a cluster."""

DEFAULT_SINCE = "30d"

MIN_WORK_SECONDS = 1.0
"""Minimum remaining work of a job."""


def read_workload(trace: str, cluster: str | None, options: TraceOptions, costs: Costs) -> Workload:
    """Read the jobs and the cluster to simulate; from a journal or snapshot, the jobs that have not ended."""
    from dataclasses import replace

    from refold.cli import max_gpus_per_node
    from refold.simulator.traces import read_cluster

    if options.format is None and is_journal(trace):
        return read_backlog(trace, None if cluster is None else read_cluster(cluster), options, costs)
    machines = read_cluster(_cluster_for(trace, cluster))
    read = options.read(trace, max_gpus_per_node(machines))
    first = replace(read, jobs=read.jobs[: options.limit])
    ready = options.adapt(_with_work(first, options.skip_bad), machines)
    return Workload(
        ready.name, ready.jobs, machines, costs, (), len(ready.skipped_rows), ready.notes, waits=ready.waits
    )


def _cluster_for(trace: str, cluster: str | None) -> str:
    from pathlib import Path

    if cluster is not None:
        return cluster
    if trace == DEMO:
        return DEMO
    if not trace or not Path(trace).exists():
        raise BadFile(trace or "''", "no such file")
    if Path(trace).is_dir():
        raise BadFile(trace, "is a folder, expected a trace file")
    raise BadInput(
        f"no cluster given for {trace}: use --cluster with a file (YAML, or a CSV list of nodes) "
        "or shorthand such as 135x8 for 135 nodes of 8 GPUs"
    )


def _with_work(trace: Trace, skip_bad: bool) -> Trace:
    """Return the trace without jobs of unknown duration, which cannot be simulated; reject them unless `skip_bad`."""
    from dataclasses import replace

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
    steps = sum(job.steps is not None for job in trace.jobs)
    instead = f"; it has the steps of {format_count(steps, 'job')}, but not the time per step" if steps else ""
    return (
        f"no job of {trace.name} has a duration{instead}: to simulate it, give each job a duration in seconds "
        "in the column duration_s of the common CSV format (refold trace convert writes it)"
    )


def parse_since(text: str | None) -> Seconds:
    """Parse --since: how far back jobs are read."""
    from refold.cli import parse_duration_option

    return parse_duration_option("--since", text or DEFAULT_SINCE)


def read_slurm_workload(
    since: Seconds, _trace: str, cluster: str | None, options: TraceOptions, costs: Costs
) -> Workload:
    """Read the jobs that have run under Slurm in the last `since` seconds, and its nodes unless a cluster is given."""
    from time import time

    from refold.engines.slurm import (
        Programs,
        Scheduling,
        SlurmError,
        map_nodes,
        read_history,
        read_nodes,
        read_topology,
        with_levels,
    )
    from refold.simulator.traces import read_cluster

    run = Programs().run
    try:
        with progress("reading Slurm's accounting"):
            found = with_levels(map_nodes(read_nodes(run)), read_topology(run))
            history = read_history(run, found, time() - since)
            scheduling = Scheduling(run)
    except (SlurmError, BadValue) as error:
        raise BadInput(f"Slurm's jobs cannot be read: {error}") from None
    machines = found.cluster if cluster is None else read_cluster(cluster)
    first = replace(history.trace, jobs=history.trace.jobs[: options.limit])
    if not first.jobs:
        raise BadInput("; ".join(["no jobs with GPUs in Slurm's accounting", *first.notes]))
    ready = options.adapt(first, machines)
    skipped = len(ready.skipped_rows)
    if cluster is not None:  # Slurm's decisions were for its own nodes
        return Workload(ready.name, ready.jobs, machines, costs, (), skipped, ready.notes, waits=ready.waits)
    history = history._replace(trace=replace(ready, jobs=_preempted(ready.jobs, history, scheduling)))
    recorded, left_out = _recorded_run(history, found)
    notes = [f"{format_count(left_out, 'job')} left out of what Slurm did: no GPUs were free by its records"]
    notes = [*ready.notes, *found.notes, *scheduling.notes, *(notes if left_out else [])]
    own = _engine_policy(history, scheduling)
    jobs = history.trace.jobs
    return Workload(
        ready.name, jobs, machines, costs, (), skipped, notes, recorded=recorded, has_consent=True, engine_policy=own
    )


def _preempted(jobs: Sequence[Job], history: SlurmHistory, scheduling: Scheduling) -> tuple[Job, ...]:
    """Return the jobs, of which only those are preemptible that Slurm itself may stop for others."""
    import msgspec

    qos = {name: start.qos for name, start in history.starts.items()}
    return tuple(msgspec.structs.replace(job, preemptible=qos.get(job.id) in scheduling.preempted_qos) for job in jobs)


def _engine_policy(history: SlurmHistory, scheduling: Scheduling) -> SelectedPolicy:
    from refold.cli.inputs.policy_choice import SelectedPolicy
    from refold.engines.slurm import POLICY, history_settings

    settings = history_settings(scheduling, history.trace.jobs, history.starts)
    return SelectedPolicy(POLICY, settings, "Slurm's backfill, simulated")


def _recorded_run(history: SlurmHistory, cluster: SlurmCluster) -> tuple[ReportRun, int]:
    from refold.engines.slurm import recorded_entries
    from refold.journal import History
    from refold.simulator.results import ReportRun, measure

    entries, left_out = recorded_entries(history.trace.jobs, history.starts, cluster)
    found = History.from_entries(cluster.cluster, entries)
    return ReportRun("Slurm (recorded)", found, measure(found), is_recorded=True), left_out


def read_recorded_run(path: Path) -> tuple[ReportRun, Header]:
    """Read all epochs of a journal as a run to measure and report, and the last header."""
    from refold.cli.inputs.policy_choice import is_oracle, policy_label
    from refold.journal import read_history
    from refold.simulator.results import ReportRun, measure

    with progress(f"reading {path.name}"):
        header, history = read_history(path)
        name = f"{policy_label(header.policy, header.settings)} (recorded)"
        oracle = is_oracle(header.policy)
        return ReportRun(name, history, measure(history), is_recorded=True, is_oracle=oracle), header


def workload_from_history(path: Path, history: History, costs: Costs) -> Workload:
    """Return the jobs of a history, with the work that they did, and its node faults, as a workload to simulate."""
    jobs = jobs_with_work(history)
    if not jobs:
        raise BadInput(f"{path}: no job of the journal has ended, so there is nothing to simulate")
    skipped = len(history.jobs) - len(jobs)
    notes = [f"skipped {plural(skipped, 'job')} that did not end in the journal"] if skipped else []
    return Workload(path.name, jobs, history.cluster, costs, _node_faults(history), notes=notes)


def jobs_with_work(history: History) -> list[Job]:
    """Return the jobs of known work in order of submission, which a live journal does not guarantee."""
    import msgspec

    work_done = _work_done(history)
    jobs = [
        msgspec.structs.replace(job, work=work_done.get(index, job.work))
        for index, job in enumerate(history.jobs.jobs)
        if index in work_done or job.work is not None
    ]
    return sorted(jobs, key=lambda job: job.submitted)


def _work_done(history: History) -> dict[int, float]:
    """Return the work of each ended job by index: what its last run resumed from, plus what that run did.

    If this equals the stated work up to rounding, the stated work is returned.
    """
    from math import isclose

    import numpy as np

    from refold.journal import Outcome
    from refold.simulator import RecordedSpeeds

    charge, runs = RecordedSpeeds(history.cluster), history.runs
    ended = (Outcome.FINISHED, Outcome.FAILED, Outcome.CANCELLED)
    work_done: dict[int, float] = {}
    for run in range(len(runs)):
        index = int(runs.job[run])
        if history.jobs.outcome[index] not in ended:
            continue
        job = history.jobs.jobs[index]
        computed = float(np.fmax(0.0, runs.end[run] - runs.computing_since[run]))
        done = float(runs.saved_before[run]) + computed * charge.speed(job, runs.allocations[run])
        as_stated = job.work is not None and isclose(done, job.work, rel_tol=1e-6, abs_tol=1e-3)
        work_done[index] = job.work if as_stated and job.work is not None else done
    return work_done


def _node_faults(history: History) -> list[Fault]:
    """Return the faults of nodes and GPUs. What is still down at the end of the journal is repaired at the end."""
    from refold.simulator import Fault

    lost: dict[tuple[int, int | None], float] = {}
    faults: list[Fault] = []
    for change in history.node_changes:
        part = change.node, change.gpu
        if not change.up:
            lost.setdefault(part, change.at)
        elif part in lost and lost[part] < change.at:
            faults.append(Fault(change.node, lost.pop(part), change.at, change.gpu))
    faults += [Fault(node, at, history.until, gpu) for (node, gpu), at in lost.items() if at < history.until]
    return sorted(faults, key=lambda fault: (fault.lost, fault.node))


def is_journal(trace: str) -> bool:
    """Whether a file is a journal or snapshot rather than a trace."""
    from refold.journal import read_journal

    try:
        read_journal(Path(trace))
    except BadFile:
        return False
    return True


def read_backlog(journal: str, cluster: Cluster | None, options: TraceOptions, costs: Costs) -> Workload:
    """Return the running and waiting jobs at the end of a journal, all submitted at time 0, on its or another cluster.

    Running jobs come first, with their remaining work. Jobs of unknown run time get the predicted median.
    """
    from refold.journal import read_journal
    from refold.simulator import StateAt
    from refold.simulator.traces import Trace

    path = Path(journal)
    header, entries = read_journal(path)
    with progress(f"reading {path.name}"):
        state = StateAt.from_entries(header.cluster, entries)
        jobs, notes = _remaining_jobs(state, path)
    machines = cluster or header.cluster
    ready = options.adapt(Trace(path.name, tuple(jobs[: options.limit]), (), tuple(notes)), machines)
    return Workload(ready.name, ready.jobs, machines, costs, (), 0, ready.notes, has_consent=True)


def _remaining_jobs(state: StateAt, path: Path) -> tuple[list[Job], list[str]]:
    view = state.view
    running = list(view.active.values())
    jobs = [*running, *view.waiting.values()]
    if not jobs:
        raise BadInput(
            f"{path}: the journal ends with no running or waiting jobs, so there is nothing to compare; "
            f"to simulate all of its jobs under another policy: refold replay {path} --policy NAME"
        )
    predicted = sum(job.work is None for job in jobs)
    counts = {
        f"jobs running or waiting at the end of {path.name}, all submitted at time 0": len(jobs),
        "running jobs restarted with their remaining work": len(running),
        "jobs of unknown run time simulated with the predicted median": predicted,
        "held jobs skipped": len(view.held),
    }
    notes = [f"{label}: {count:,}" for label, count in counts.items() if count]
    return [_remaining_job(state, job) for job in jobs], notes


def _remaining_job(state: StateAt, job: Job) -> Job:
    """Return the job with its remaining work and steps, submitted at time 0."""
    import msgspec

    steps, _ = state.view.steps_done(job.id)
    remaining = None if job.steps is None else max(0, job.steps - steps)
    return msgspec.structs.replace(job, submitted=0.0, work=_remaining_work(state, job), steps=remaining)


def _remaining_work(state: StateAt, job: Job) -> float:
    """Return the stated work minus the work done; if that is not positive or unknown, derive it from the median."""
    from refold.simulator import RecordedSpeeds

    view = state.view
    done = view.done(job.id)
    if job.work is not None and job.work > done:
        return job.work - done
    run = view.runs.get(job.id)
    speed = RecordedSpeeds(view.cluster).speed(job, run.allocation) if run is not None else 1.0
    return max(MIN_WORK_SECONDS, (state.predicted_duration(job).quantile(0.5) - state.elapsed(job.id)) * speed)
