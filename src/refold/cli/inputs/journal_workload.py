"""What a journal tells: as a history to measure, and as a workload to simulate once more."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from refold.cli.inputs.workload import Workload
from refold.cli.views import plural, progress

if TYPE_CHECKING:
    from refold.core import Header
    from refold.journal import History
    from refold.model import Job
    from refold.results import ReportRun
    from refold.simulator import Costs, Fault


def recorded_in(path: Path) -> tuple[ReportRun, Header]:
    """What happened, as the journal tells it."""
    from refold.cli.inputs.policy_choice import name_of
    from refold.journal import History, read_journal
    from refold.results import ReportRun, measure

    with progress(f"reading {path.name}"):
        header, entries = read_journal(path)
        history = History.from_entries(header.cluster, entries)
        name = f"{name_of(header.policy, header.settings)} (recorded)"
        return ReportRun(name, history, measure(history)), header


def workload_of(path: Path, history: History, costs: Costs) -> Workload:
    """The jobs of a history with the work they really did, and the nodes that were lost, to simulate once more."""
    from refold.errors import BadInput

    jobs = _jobs_of(history)
    if not jobs:
        raise BadInput(f"{path}: no job of it was seen to end, so there is nothing to simulate")
    without = len(history.jobs) - len(jobs)
    notes = [f"left out {plural(without, 'job')} not seen to end"] if without else []
    return Workload(path.name, jobs, history.cluster, costs, _faults_of(history), notes=notes)


def _jobs_of(history: History) -> list[Job]:
    """In order of submission, which a live journal need not have them in."""
    import msgspec

    worked = _work_done(history)
    jobs = [
        msgspec.structs.replace(job, work=worked.get(index, job.work))
        for index, job in enumerate(history.jobs.jobs)
        if index in worked or job.work is not None
    ]
    return sorted(jobs, key=lambda job: job.submitted)


def _work_done(history: History) -> dict[int, float]:
    """Of each job that has ended: what its last run could go on from, and what that run did itself.

    Where this is what the job said beforehand, but for rounding, it is taken at its word.
    """
    from math import isclose

    from refold.journal import Outcome
    from refold.simulator import RecordedSpeeds

    charge, runs = RecordedSpeeds(history.cluster), history.runs
    ended = (Outcome.FINISHED, Outcome.FAILED, Outcome.CANCELLED)
    worked: dict[int, float] = {}
    for run in range(len(runs)):
        index = int(runs.job[run])
        if history.jobs.outcome[index] not in ended:
            continue
        job = history.jobs.jobs[index]
        computed = max(0.0, float(runs.end[run] - runs.computing[run]))
        done = float(runs.kept_before[run]) + computed * charge.speed(job, runs.allocations[run])
        said = job.work is not None and isclose(done, job.work, rel_tol=1e-6, abs_tol=1e-3)
        worked[index] = job.work if said and job.work is not None else done
    return worked


def _faults_of(history: History) -> list[Fault]:
    """When nodes were lost; one that had not returned when the journal ends does so then."""
    from refold.simulator import Fault

    lost: dict[int, float] = {}
    faults: list[Fault] = []
    for change in history.node_changes:
        if not change.up:
            lost.setdefault(change.node, change.at)
        elif change.node in lost and lost[change.node] < change.at:
            faults.append(Fault(change.node, lost.pop(change.node), change.at))
    faults += [Fault(node, at, history.until) for node, at in lost.items() if at < history.until]
    return sorted(faults, key=lambda fault: (fault.lost, fault.node))
