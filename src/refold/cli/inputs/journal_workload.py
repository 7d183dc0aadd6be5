"""A journal as a history to measure, and as a workload to simulate again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from refold.cli.inputs.workload import Workload
from refold.cli.views import plural, progress

if TYPE_CHECKING:
    from refold.core import Header
    from refold.journal import History
    from refold.model import Job
    from refold.simulator import Costs, Fault
    from refold.simulator.results import ReportRun


def read_recorded_run(path: Path) -> tuple[ReportRun, Header]:
    """Read all epochs of a journal as a run to measure and report, and the last header."""
    from refold.cli.inputs.policy_choice import policy_label
    from refold.journal import read_history
    from refold.simulator.results import ReportRun, measure

    with progress(f"reading {path.name}"):
        header, history = read_history(path)
        name = f"{policy_label(header.policy, header.settings)} (recorded)"
        return ReportRun(name, history, measure(history)), header


def workload_from_history(path: Path, history: History, costs: Costs) -> Workload:
    """Return the jobs of a history, with the work that they did, and its node faults, as a workload to simulate."""
    from refold.errors import BadInput

    jobs = _jobs_with_work(history)
    if not jobs:
        raise BadInput(f"{path}: no job of the journal has ended, so there is nothing to simulate")
    skipped = len(history.jobs) - len(jobs)
    notes = [f"skipped {plural(skipped, 'job')} that did not end in the journal"] if skipped else []
    return Workload(path.name, jobs, history.cluster, costs, _node_faults(history), notes=notes)


def _jobs_with_work(history: History) -> list[Job]:
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
