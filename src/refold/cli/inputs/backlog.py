"""The running and waiting jobs at the end of a journal, as a workload on which policies can be compared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from refold.cli.inputs.workload import Workload
from refold.cli.views import progress

if TYPE_CHECKING:
    from refold.cli import TraceOptions
    from refold.model import Cluster, Job
    from refold.simulator import Costs, StateAt

MIN_WORK_SECONDS = 1.0
"""Minimum remaining work of a job."""


def is_journal(trace: str) -> bool:
    """Whether a file is a journal or snapshot rather than a trace."""
    from refold.errors import BadFile
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
    from refold.errors import BadInput

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
