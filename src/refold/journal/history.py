"""The history of jobs, runs and nodes as columns, made from the records of a journal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from math import nan

import numpy as np

from refold.core import Entry, Header
from refold.errors import BadJournal
from refold.journal.changes import NodeChange
from refold.journal.job_history import JobHistories
from refold.journal.packed_values import PackedAllocations, PackedJobs
from refold.journal.records import Ending, JobRecord, RecordState, RunRecord
from refold.model import WHOLE, Allocation, Cluster, Demand, Job, Seconds, StartEstimate, format_count
from refold.placement import Floats, FreeResources, Ints

TIME_TOLERANCE_SECONDS: Seconds = 1e-3
"""Start and end times are rounded separately: smaller differences do not count as later."""


class Outcome(IntEnum):
    """The state of a job at the end of the history."""

    WAITING = 0
    RUNNING = 1
    FINISHED = 2
    FAILED = 3
    CANCELLED = 4
    INFEASIBLE = 5  # it would not fit even into the empty cluster


_OUTCOMES: dict[RecordState, Outcome] = {
    "waiting": Outcome.WAITING,
    "running": Outcome.RUNNING,
    "finished": Outcome.FINISHED,
    "failed": Outcome.FAILED,
    "timed out": Outcome.CANCELLED,
    "cancelled": Outcome.CANCELLED,
}


@dataclass(frozen=True, slots=True, eq=False)
class JobColumns:
    """One row per job, in the order of submission. Times of events that did not happen are nan.

    `first_start` is when the first run in the journal was ordered; for a run that is older than the journal, it is
    before its beginning.
    """

    jobs: Sequence[Job]
    submitted: Floats
    work: Floats
    gpus: Floats
    tenant: Ints
    first_start: Floats
    ended: Floats
    outcome: Ints

    def __len__(self) -> int:
        return len(self.jobs)

    def by_kind(self, value: Callable[[Job], int]) -> Ints:
        """Return a value per job that does not depend on its id, submission time and work."""
        if isinstance(self.jobs, PackedJobs):
            return self.jobs.by_kind(value)
        return make_ints([value(job) for job in self.jobs])


@dataclass(frozen=True, slots=True, eq=False)
class RunColumns:
    """One row per run, in the order of starts. A step is the number of an entry in the journal, from 1.

    `start` is when the run was ordered, or when the journal began, if the run is older. `computing_since` is when the
    run reported that it had started up; without a report, `start` if it finished, saved work or is older than the
    journal, and nan if it did not.
    `stop_ordered` and `end` are nan if that did not happen. `saved_before` and `saved` are the seconds of work from
    which the job could resume before and after the run.
    """

    allocations: Sequence[Allocation]
    job: Ints
    number: Ints
    start: Floats
    start_step: Ints
    computing_since: Floats
    stop_ordered: Floats
    end: Floats
    end_step: Ints
    ending: Ints
    saved_before: Floats
    saved: Floats
    gpus: Floats

    def __len__(self) -> int:
        return len(self.allocations)

    def distinct_allocations(self) -> tuple[Sequence[Allocation], Ints]:
        """Return allocations, and the index of that of each run among them; equal ones may be one."""
        if isinstance(self.allocations, PackedAllocations):
            return self.allocations.distinct, self.allocations.number
        return self.allocations, np.arange(len(self.allocations))


@dataclass(frozen=True, slots=True, eq=False)
class StartEstimateColumns:
    """One row per start estimate, in the order in which they were made; of a journal file, the first and last per job.

    `made_at` is the time of the estimate; `soonest` and `latest` are nan if the estimate has no bounds. `postponed`:
    how often the latest start was postponed since the row before of the same job.
    """

    job: Ints
    made_at: Floats
    at: Floats
    soonest: Floats
    latest: Floats
    postponed: Ints

    def __len__(self) -> int:
        return len(self.job)


@dataclass(frozen=True, slots=True, eq=False)
class HoldColumns:
    """One row per change, in the order of time: from `at` on, a job is held (1) or not (0)."""

    job: Ints
    at: Floats
    held: Ints

    def __len__(self) -> int:
        return len(self.job)


def hold_columns(changes: Sequence[tuple[int, Seconds, bool]] = ()) -> HoldColumns:
    job, at, held = zip(*changes, strict=True) if changes else ((), (), ())
    return HoldColumns(make_ints(job), _floats(at), make_ints(held))


@dataclass(frozen=True, eq=False)
class History:
    """Jobs, runs, holds, node changes and start estimates from the first entry of a journal to the last, at `until`."""

    cluster: Cluster
    jobs: JobColumns
    runs: RunColumns
    tenants: tuple[str, ...]
    node_changes: Sequence[NodeChange]
    until: Seconds
    start_estimates: StartEstimateColumns
    holds: HoldColumns = field(default_factory=hold_columns)

    @staticmethod
    def from_entries(cluster: Cluster, entries: Iterable[Entry]) -> History:
        journal = HistoryJournal()
        for entry in entries:
            journal.write(entry)
        return journal.history(cluster)

    @cached_property
    def run_end(self) -> Floats:
        """The end of each run; for a run that is still open, the end of the history."""
        return np.where(np.isnan(self.runs.end), self.until, self.runs.end)

    @cached_property
    def time_running(self) -> Floats:
        """The total run time of each job, in seconds."""
        return self.per_job(self.run_end - self.runs.start)

    @cached_property
    def gpu_seconds(self) -> Floats:
        """The GPU-seconds that each job held."""
        return self.per_job((self.run_end - self.runs.start) * self.runs.gpus)

    def per_job(self, amounts: Floats) -> Floats:
        return sum_by_group(self.runs.job, amounts, len(self.jobs))

    @property
    def first_submission(self) -> Seconds:
        """The time of the first submission; 0 if there was none."""
        return float(self.jobs.submitted.min()) if len(self.jobs) else 0.0

    @property
    def last_submission(self) -> Seconds:
        """The time of the last submission; 0 if there was none."""
        return float(self.jobs.submitted.max()) if len(self.jobs) else 0.0


class HistoryJournal(JobHistories):
    """A journal that records all jobs and runs, and returns them as columns.

    It runs inside the simulator's loop, so it only records; the columns are built once, at the end.
    """

    def history(self, source: Header | Cluster) -> History:
        """Return the entries written so far as columns."""
        cluster = source.cluster if isinstance(source, Header) else source
        check_runs(cluster, self.jobs_of_runs, self.runs)
        check_node_changes(cluster, self.node_changes)
        tenants = tuple(sorted({record.job.tenant for record in self.jobs}))
        index = {id(record): index for index, record in enumerate(self.jobs)}
        return History(
            cluster,
            job_columns(self.jobs, {tenant: index for index, tenant in enumerate(tenants)}, cluster),
            run_columns(self.runs, [index[id(record)] for record in self.jobs_of_runs]),
            tenants,
            self.node_changes,
            self.now,
            _start_estimate_columns(
                [(index[id(record)], made_at, estimate) for record, made_at, estimate in self.start_estimates]
            ),
            hold_columns([(index[id(record)], at, held) for record, at, held in self.holds]),
        )


def check_runs(cluster: Cluster, jobs: Iterable[JobRecord], runs: Iterable[RunRecord]) -> None:
    """Check that the nodes and GPUs of runs exist: compiled code uses their indices without bounds checks."""
    gpus = [node.gpus for node in cluster.nodes]
    for record, run in zip(jobs, runs, strict=True):
        for share in run.allocation.placement:
            if not 0 <= share.node < len(gpus):
                raise BadJournal(
                    f"{_run_name(record, run)} is on node {share.node}, but the cluster has {_node_count_text(gpus)}"
                )
            if share.gpus and not 0 <= min(share.gpus) <= max(share.gpus) < gpus[share.node]:
                name, held = cluster.nodes[share.node].name, list(share.gpus)
                raise BadJournal(
                    f"{_run_name(record, run)} is on GPUs {held} of node {name!r}, which has {gpus[share.node]}"
                )


def check_node_changes(cluster: Cluster, changes: Iterable[NodeChange]) -> None:
    """Check that the nodes and GPUs that went down or came up exist."""
    gpus = [node.gpus for node in cluster.nodes]
    for change in changes:
        change_text = f"{'came up' if change.up else 'went down'} at {change.at:g} s"
        if not 0 <= change.node < len(gpus):
            raise BadJournal(f"node {change.node} {change_text}, but the cluster has {_node_count_text(gpus)}")
        if change.gpu is not None and not 0 <= change.gpu < gpus[change.node]:
            gpu_text = f"GPU {change.gpu} of node {cluster.nodes[change.node].name!r}"
            raise BadJournal(f"{gpu_text} {change_text}, but the node has {gpus[change.node]} GPUs")


def _run_name(record: JobRecord, run: RunRecord) -> str:
    return f"run {run.number} of job {record.job.id!r}"


def _node_count_text(gpus: list[int]) -> str:
    return f"{format_count(len(gpus), 'node')}, numbered from 0"


def job_columns(records: Sequence[JobRecord], code: Mapping[str, int], cluster: Cluster) -> JobColumns:
    """Return the columns of these jobs. `code`: number of each tenant."""
    jobs = [record.job for record in records]
    return JobColumns(
        jobs,
        submitted=_floats([job.submitted for job in jobs]),
        work=_floats([_or_nan(job.work) for job in jobs]),
        gpus=_floats([job.demand.total_gpus for job in jobs]),
        tenant=make_ints([code[job.tenant] for job in jobs]),
        first_start=_floats([_or_nan(record.first_placed) for record in records]),
        ended=_floats([_or_nan(record.ended) for record in records]),
        outcome=make_ints(_outcomes(records, cluster)),
    )


def _outcomes(records: Sequence[JobRecord], cluster: Cluster) -> list[int]:
    """Return the recorded outcomes; waiting jobs that would not fit into the empty cluster are infeasible."""
    empty: FreeResources | None = None
    fits: dict[Demand, bool] = {}
    outcomes: list[int] = []
    for record in records:
        outcome, demand = _OUTCOMES[record.state], record.job.demand
        if outcome is Outcome.WAITING:
            if demand not in fits:
                empty = empty or FreeResources(cluster)
                fits[demand] = empty.fits_when_empty(demand)
            outcome = outcome if fits[demand] else Outcome.INFEASIBLE
        outcomes.append(int(outcome))
    return outcomes


def run_columns(runs: Sequence[RunRecord], jobs: Sequence[int]) -> RunColumns:
    """Return the columns of these runs of jobs with these indices."""
    start = [run.start if run.adopted is None else run.adopted for run in runs]
    return RunColumns(
        [run.allocation for run in runs],
        job=make_ints(jobs),
        number=make_ints([run.number for run in runs]),
        start=_floats(start),
        start_step=make_ints([run.start_step for run in runs]),
        computing_since=_floats([_computing_since(run) for run in runs]),
        stop_ordered=_floats([_or_nan(run.stop_ordered) for run in runs]),
        end=_floats([_or_nan(run.end) for run in runs]),
        end_step=make_ints([-1 if run.end is None else run.end_step for run in runs]),
        ending=make_ints([int(run.ending) for run in runs]),
        saved_before=_floats([run.saved_before for run in runs]),
        saved=_floats([nan if run.end_report is None else run.end_report.done for run in runs]),
        gpus=_floats([run.allocation.gpu_milli for run in runs]) / WHOLE,
    )


def _computing_since(run: RunRecord) -> float:
    if run.started is not None:
        return run.started
    if run.adopted is not None:
        return run.adopted
    saved_work = run.end_report is not None and run.end_report.done > run.saved_before
    return run.start if saved_work or run.ending is Ending.FINISHED else nan


def _start_estimate_columns(estimates: list[tuple[int, Seconds, StartEstimate]]) -> StartEstimateColumns:
    job = make_ints([job for job, _, _ in estimates])
    latest = _floats([_or_nan(estimate.latest) for _, _, estimate in estimates])
    order = np.argsort(job, kind="stable")
    before, after = order[:-1], order[1:]
    postponed = np.zeros(len(job), dtype=np.int64)
    postponed[after] = (job[before] == job[after]) & (latest[after] > latest[before] + TIME_TOLERANCE_SECONDS)
    return StartEstimateColumns(
        job,
        made_at=_floats([made_at for _, made_at, _ in estimates]),
        at=_floats([estimate.at for _, _, estimate in estimates]),
        soonest=_floats([_or_nan(estimate.soonest) for _, _, estimate in estimates]),
        latest=latest,
        postponed=postponed,
    )


def sum_by_group(group: Ints, amounts: Floats, groups: int) -> Floats:
    """Sum the amounts of each group. Groups are numbered from 0."""
    total = np.zeros(groups, dtype=np.float64)
    if len(group):
        total += np.bincount(group, amounts, minlength=groups)
    return total


def _or_nan(value: float | None) -> float:
    return nan if value is None else value


def _floats(values: Sequence[float]) -> Floats:
    return np.array(values, dtype=np.float64)


def make_ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)
