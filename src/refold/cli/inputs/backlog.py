"""What is left to do at the end of a journal, as a workload: what would another policy do with this queue?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from refold.cli.inputs.workload import TraceReadOptions, Workload
from refold.cli.views import plural, progress

if TYPE_CHECKING:
    from refold.model import Cluster, Job
    from refold.simulator import Costs, StateAt

LEAST = 1.0
"""Seconds that a job has left at least."""


def is_journal(trace: str) -> bool:
    """Whether a file is a journal, or a snapshot, and no trace."""
    from refold.errors import BadFile
    from refold.journal import read_journal

    try:
        read_journal(Path(trace))
    except BadFile:
        return False
    return True


def read_queued(journal: str, cluster: Cluster | None, reading: TraceReadOptions, costs: Costs) -> Workload:
    """Who runs or waits at the end of a journal, on its cluster or another, all of them submitted at once.

    Whoever runs goes first, and has left what is not done; who says nothing lasts as long as is most likely.
    """
    from refold.journal import read_journal
    from refold.simulator import StateAt
    from refold.traces import Trace, for_cluster

    path = Path(journal)
    header, entries = read_journal(path)
    with progress(f"reading {path.name}"):
        present = StateAt.of(header.cluster, entries)
        jobs, notes = _left_over(present, path)
    machines = cluster or header.cluster
    ready = for_cluster(Trace(path.name, tuple(jobs[: reading.limit]), (), tuple(notes)), machines)
    return Workload(ready.name, ready.jobs, machines, costs, (), 0, ready.notes)


def _left_over(present: StateAt, path: Path) -> tuple[list[Job], list[str]]:
    from refold.errors import BadInput
    from refold.server import is_drain_placeholder

    view = present.view
    running = [job for job in view.active.values() if not is_drain_placeholder(job)]
    jobs = [*running, *view.waiting.values()]
    if not jobs:
        raise BadInput(
            f"{path}: nobody runs or waits at its end, so there is nothing to compare; "
            f"what would another policy have done with all of it? refold replay {path} --policy NAME"
        )
    foreseen = sum(job.work is None for job in jobs)
    counts = {
        f"who is there at the end of {path.name}, submitted all at once": len(jobs),
        "who runs begins anew, with what is left": len(running),
        "who does not say it lasts as long as is most likely": foreseen,
        "who is held is left out": len(view.held),
    }
    notes = [f"{what}: {plural(count, 'job')}" for what, count in counts.items() if count]
    return [_left_of(present, job) for job in jobs], notes


def _left_of(present: StateAt, job: Job) -> Job:
    """The rest of a job, as one that begins now."""
    import msgspec

    steps, _ = present.view.steps_done(job.id)
    left = None if job.steps is None else max(0, job.steps - steps)
    return msgspec.structs.replace(job, submitted=0.0, work=_work_left(present, job), steps=left)


def _work_left(present: StateAt, job: Job) -> float:
    """Of what it says it takes, while that can be true; else of what is most likely."""
    from refold.simulator import RecordedSpeeds

    view = present.view
    done = view.done(job.id)
    if job.work is not None and job.work > done:
        return job.work - done
    run = view.runs.get(job.id)
    speed = RecordedSpeeds(view.cluster).speed(job, run.allocation) if run is not None else 1.0
    return max(LEAST, (present.life(job).quantile(0.5) - present.elapsed(job.id)) * speed)
