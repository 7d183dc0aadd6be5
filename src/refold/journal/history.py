"""The history of jobs, runs and nodes as columns, built from journal entries as they are written or from a file.

`HistoryJournal` runs inside the simulator's loop, so it only records; the columns are built once, at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from math import nan

import msgspec
import numpy as np

from refold.core import (
    Entry,
    Event,
    Header,
    JobCancelled,
    JobContinued,
    JobHeld,
    JobReleased,
    JobSubmitted,
    NodeLost,
    NodeReturned,
    PastJob,
    RunAdopted,
    RunFailed,
    RunFinished,
    RunProgressed,
    RunRecalled,
    RunStarted,
    RunStopped,
    StartRun,
    Woke,
)
from refold.errors import BadJournal
from refold.model import WHOLE, Allocation, Cluster, Demand, Job, Seconds, StartEstimate
from refold.packing import Floats, FreeResources, Ints


class Outcome(IntEnum):
    """The state of a job at the end of the history."""

    WAITING = 0
    RUNNING = 1
    FINISHED = 2
    FAILED = 3
    CANCELLED = 4
    INFEASIBLE = 5  # it would not fit even into the empty cluster


class Ending(IntEnum):
    """How a run ended."""

    OPEN = 0  # it was still running at the end of the history
    FINISHED = 1
    STOPPED = 2
    FAILED = 3
    CANCELLED = 4  # stopped or failed after its job was cancelled


@dataclass(frozen=True, slots=True, eq=False)
class JobColumns:
    """One row per job, in the order of submission. Times of events that did not happen are nan."""

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


@dataclass(frozen=True, slots=True, eq=False)
class RunColumns:
    """One row per run, in the order of starts. A step is the number of an entry in the journal, from 1.

    `computing_since` is when the run reported that it had started up (or when it was ordered, if it reported nothing).
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


@dataclass(frozen=True, slots=True, eq=False)
class StartEstimateColumns:
    """One row per start estimate, in the order in which they were made.

    `made_at` is the time of the estimate; `soonest` and `latest` are nan if the estimate has no bounds.
    """

    job: Ints
    made_at: Floats
    at: Floats
    soonest: Floats
    latest: Floats

    def __len__(self) -> int:
        return len(self.job)


class NodeChange(msgspec.Struct, frozen=True):
    """A node went down or came up."""

    at: Seconds
    node: int
    up: bool


@dataclass(frozen=True, eq=False)
class History:
    """Jobs, runs, node changes and start estimates from the first entry of a journal to the last, at `until`."""

    cluster: Cluster
    jobs: JobColumns
    runs: RunColumns
    tenants: tuple[str, ...]
    node_changes: Sequence[NodeChange]
    until: Seconds
    start_estimates: StartEstimateColumns

    @staticmethod
    def from_entries(cluster: Cluster, entries: Iterable[Entry]) -> History:
        """Build the history of a journal."""
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
        """Sum amounts per run over the runs of each job."""
        return sum_by_group(self.runs.job, amounts, len(self.jobs))

    @property
    def first_submission(self) -> Seconds:
        """The time of the first submission; 0 if there was none."""
        return float(self.jobs.submitted.min()) if len(self.jobs) else 0.0

    @property
    def last_submission(self) -> Seconds:
        """The time of the last submission; 0 if there was none."""
        return float(self.jobs.submitted.max()) if len(self.jobs) else 0.0


class _JobRecord(msgspec.Struct, gc=False):
    """The record of a job while the history is built."""

    job: Job
    index: int
    run: _RunRecord | None = None
    saved: Seconds = 0.0
    first_start: Seconds = nan
    ended: Seconds = nan
    outcome: Outcome = Outcome.WAITING
    cancelled: bool = False


class _RunRecord(msgspec.Struct, gc=False):
    """The record of a run while the history is built."""

    job: int
    number: int
    allocation: Allocation
    start: Seconds
    start_step: int
    computing_since: Seconds
    saved_before: Seconds
    saved: Seconds = nan
    stop_ordered: Seconds = nan
    end: Seconds = nan
    end_step: int = -1
    ending: Ending = Ending.OPEN


class HistoryJournal:
    """A journal that records what a `History` needs of each entry."""

    def __init__(self) -> None:
        self._jobs: dict[str, _JobRecord] = {}
        self._runs: list[_RunRecord] = []
        self._node_changes: list[NodeChange] = []
        self._start_estimates: list[tuple[int, Seconds, StartEstimate]] = []
        self._step = 0
        self._now: Seconds = 0.0

    def write(self, entry: Entry) -> None:
        """Record the events of an entry, then its orders, as the scheduler processed them.

        Submissions, finished runs and starts are the bulk of any journal, so they are tested first, with the fastest
        test.
        """
        self._step += 1
        self._now = entry.now
        jobs = self._jobs
        for event in entry.events:
            if type(event) is JobSubmitted:
                job = event.job
                if job.id not in jobs:
                    jobs[job.id] = _JobRecord(job, len(jobs))
            elif type(event) is RunFinished:
                self._record_finish(event)
            else:
                self._record_event(event)
        for order in entry.orders:
            if type(order) is StartRun:
                self._record_start(order)
            elif run := self._current_run(order.job, order.run):
                run.stop_ordered = self._now
        for end in entry.ends:
            jobs[end.job].cancelled = True  # by the policy, not by a user
        if entry.start_estimates:
            self._record_start_estimates(entry)

    def _record_event(self, event: Event) -> None:
        match event:
            case RunStopped(job_id, number, done):
                job = self._record_end(job_id, number, Ending.STOPPED, done)
                if job is not None and job.cancelled:
                    self._close_job(job, Outcome.CANCELLED)
            case RunFailed(job_id, number, _, done, retry):
                job = self._record_end(job_id, number, Ending.FAILED, done)
                if job is not None and (job.cancelled or not retry):
                    self._close_job(job, Outcome.CANCELLED if job.cancelled else Outcome.FAILED)
            case RunStarted(job_id, number):
                if run := self._current_run(job_id, number):
                    run.computing_since = self._now
            case JobCancelled(job_id):
                self._record_cancel(job_id)
            case NodeLost(node):
                self._node_changes.append(NodeChange(self._now, node, False))
            case NodeReturned(node):
                self._node_changes.append(NodeChange(self._now, node, True))
            case RunAdopted(job_id, number, allocation, since):
                self._record_start(StartRun(job_id, number, allocation))
                self._jobs[job_id].first_start = since
            case RunProgressed() | Woke() | JobSubmitted() | RunFinished():
                pass
            case JobContinued(job_id, _, done) if job_id in self._jobs:
                self._jobs[job_id].saved = done
            case JobHeld() | JobReleased() | JobContinued() | PastJob() | RunRecalled():
                pass  # their effects, if any, are orders, which are recorded

    def _record_start_estimates(self, entry: Entry) -> None:
        for estimate in entry.start_estimates:
            job = self._jobs.get(estimate.job)
            if job is None:
                raise BadJournal(f"start estimate for job {estimate.job!r}, which was never submitted")
            self._start_estimates.append((job.index, entry.now, estimate))

    def _record_start(self, order: StartRun) -> None:
        job = self._jobs.get(order.job)
        if job is None:
            raise BadJournal(f"run {order.run} of job {order.job!r}, which was never submitted")
        now = self._now
        job.run = run = _RunRecord(job.index, order.run, order.allocation, now, self._step, now, job.saved)
        job.outcome = Outcome.RUNNING
        if order.run == 1:
            job.first_start = now
        self._runs.append(run)

    def _record_finish(self, event: RunFinished) -> None:
        job = self._jobs.get(event.job)
        if job is not None and (run := job.run) is not None and run.number == event.run:
            run.end, run.end_step, run.ending = self._now, self._step, Ending.FINISHED
            job.run, job.outcome, job.ended = None, Outcome.FINISHED, self._now

    def _current_run(self, job_id: str, number: int) -> _RunRecord | None:
        """Return the run that a report is about, or None if the report is late."""
        job = self._jobs.get(job_id)
        if job is None or job.run is None or job.run.number != number:
            return None
        return job.run

    def _record_end(self, job_id: str, number: int, ending: Ending, saved: Seconds) -> _JobRecord | None:
        """Record the end of a run, and its job as waiting for now. Returns the job, or None if the report is late."""
        run = self._current_run(job_id, number)
        if run is None:
            return None
        job = self._jobs[job_id]
        run.end, run.end_step, run.saved = self._now, self._step, saved
        run.ending = Ending.CANCELLED if job.cancelled else ending
        job.run, job.saved, job.outcome = None, saved, Outcome.WAITING
        return job

    def _close_job(self, job: _JobRecord, outcome: Outcome) -> None:
        job.outcome, job.ended = outcome, self._now

    def _record_cancel(self, job_id: str) -> None:
        job = self._jobs.get(job_id)
        if job is None or job.outcome not in (Outcome.WAITING, Outcome.RUNNING):
            return
        if job.run is not None:
            job.cancelled = True  # it is closed when its run ends
        else:
            self._close_job(job, Outcome.CANCELLED)

    def history(self, source: Header | Cluster) -> History:
        """Return the entries written so far as columns."""
        cluster = source.cluster if isinstance(source, Header) else source
        self._check_indices(cluster)
        jobs = list(self._jobs.values())
        tenants = tuple(sorted({record.job.tenant for record in jobs}))
        return History(
            cluster,
            _job_columns(jobs, tenants, cluster),
            _run_columns(self._runs),
            tenants,
            self._node_changes,
            self._now,
            _start_estimate_columns(self._start_estimates),
        )

    def _check_indices(self, cluster: Cluster) -> None:
        """Check that all nodes and GPUs exist: compiled code uses their indices without bounds checks."""
        gpus = [node.gpus for node in cluster.nodes]
        for run in self._runs:
            for share in run.allocation.placement:
                if not 0 <= share.node < len(gpus):
                    raise BadJournal(
                        f"{self._run_name(run)} is on node {share.node}, but the cluster has {_node_count_text(gpus)}"
                    )
                if share.gpus and not 0 <= min(share.gpus) <= max(share.gpus) < gpus[share.node]:
                    name, held = cluster.nodes[share.node].name, list(share.gpus)
                    raise BadJournal(
                        f"{self._run_name(run)} is on GPUs {held} of node {name!r}, which has {gpus[share.node]}"
                    )
        for change in self._node_changes:
            if not 0 <= change.node < len(gpus):
                change_text = "came up" if change.up else "went down"
                raise BadJournal(
                    f"node {change.node} {change_text} at {change.at:g} s, but the cluster has {_node_count_text(gpus)}"
                )

    def _run_name(self, run: _RunRecord) -> str:
        job = next(id for id, job in self._jobs.items() if job.index == run.job)
        return f"run {run.number} of job {job!r}"


def _node_count_text(gpus: list[int]) -> str:
    return f"{len(gpus):,} node{'s' * (len(gpus) != 1)}, numbered from 0"


def _job_columns(records: list[_JobRecord], tenants: tuple[str, ...], cluster: Cluster) -> JobColumns:
    jobs = [record.job for record in records]
    code = {tenant: index for index, tenant in enumerate(tenants)}
    return JobColumns(
        jobs,
        submitted=_floats([job.submitted for job in jobs]),
        work=_floats([nan if job.work is None else job.work for job in jobs]),
        gpus=_floats([job.demand.total_gpus for job in jobs]),
        tenant=_ints([code[job.tenant] for job in jobs]),
        first_start=_floats([record.first_start for record in records]),
        ended=_floats([record.ended for record in records]),
        outcome=_ints(_outcomes(records, cluster)),
    )


def _outcomes(records: list[_JobRecord], cluster: Cluster) -> list[int]:
    """Return the recorded outcomes; waiting jobs that would not fit into the empty cluster are infeasible."""
    empty = FreeResources(cluster)
    fits: dict[Demand, bool] = {}
    outcomes: list[int] = []
    for record in records:
        outcome, demand = record.outcome, record.job.demand
        if outcome is Outcome.WAITING:
            if demand not in fits:
                fits[demand] = empty.fits_when_empty(demand)
            outcome = outcome if fits[demand] else Outcome.INFEASIBLE
        outcomes.append(int(outcome))
    return outcomes


def _run_columns(runs: list[_RunRecord]) -> RunColumns:
    return RunColumns(
        [run.allocation for run in runs],
        job=_ints([run.job for run in runs]),
        number=_ints([run.number for run in runs]),
        start=_floats([run.start for run in runs]),
        start_step=_ints([run.start_step for run in runs]),
        computing_since=_floats([run.computing_since for run in runs]),
        stop_ordered=_floats([run.stop_ordered for run in runs]),
        end=_floats([run.end for run in runs]),
        end_step=_ints([run.end_step for run in runs]),
        ending=_ints([int(run.ending) for run in runs]),
        saved_before=_floats([run.saved_before for run in runs]),
        saved=_floats([run.saved for run in runs]),
        gpus=_floats([run.allocation.gpu_milli for run in runs]) / WHOLE,
    )


def _start_estimate_columns(estimates: list[tuple[int, Seconds, StartEstimate]]) -> StartEstimateColumns:
    return StartEstimateColumns(
        job=_ints([job for job, _, _ in estimates]),
        made_at=_floats([made_at for _, made_at, _ in estimates]),
        at=_floats([estimate.at for _, _, estimate in estimates]),
        soonest=_floats([nan if estimate.soonest is None else estimate.soonest for _, _, estimate in estimates]),
        latest=_floats([nan if estimate.latest is None else estimate.latest for _, _, estimate in estimates]),
    )


def sum_by_group(group: Ints, amounts: Floats, groups: int) -> Floats:
    """Sum the amounts of each group. Groups are numbered from 0."""
    total = np.zeros(groups, dtype=np.float64)
    if len(group):
        total += np.bincount(group, amounts, minlength=groups)
    return total


def _floats(values: Sequence[float]) -> Floats:
    return np.array(values, dtype=np.float64)


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)
