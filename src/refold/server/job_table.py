"""The job table: one record per active job, and the notices that each step produces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from refold.core import (
    Entry,
    Event,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobSubmitted,
    NodeLost,
    NodeReturned,
    RunAdopted,
    RunFailed,
    RunFinished,
    RunStarted,
    RunStopped,
    StartRun,
    StopRun,
    View,
)
from refold.model import MINUTE, Allocation, Cluster, Job, Reason, Seconds, format_duration

EndState = Literal["finished", "failed", "cancelled"]
NoticeKind = Literal[
    "submitted",
    "infeasible",
    "held",
    "released",
    "placed",
    "reshaped",
    "started",
    "stopping",
    "stopped",
    "failed",
    "finished",
    "cancelled",
    "ended",
    "hang suspected",
    "idle",
    "note",
    "node down",
    "node up",
    "gpu drained",
    "gpu warning",
]
"""The kinds of notices. A job is `cancelled` by a user and `ended` by a rule or a failed dependency.

`hang suspected` is reported only by the watch rules. A `note` is information that needs no action.
"""

MAX_BACKOFF_SECONDS: Seconds = 5 * MINUTE
"""Longest back-off after a failure."""


class JobRecord(msgspec.Struct, omit_defaults=True):
    """An active job. Times are seconds since the start of the journal.

    `placed`: when the current or last run was ordered to start; `started`: when it began to compute. `run`: number of
    the current run, 0 if there is none; `runs`: number of the last run. `run_time`: total seconds of all ended runs.
    `failures`: number of failed runs. `end_reason`: why the job is being ended, unless a user cancelled it. `why`: how
    the last run failed, if it is retried. `warning`: why a hang of the current run is suspected.
    """

    job: Job
    first_placed: Seconds | None = None
    first_started: Seconds | None = None
    placed: Seconds | None = None
    started: Seconds | None = None
    runs: int = 0
    run: int = 0
    last_run_ended: Seconds | None = None
    run_time: Seconds = 0.0
    failures: int = 0
    cancelled: bool = False
    end_reason: str = ""
    why: str = ""
    warning: str = ""

    @property
    def backoff(self) -> Seconds:
        """Seconds that the job is held after its last failure; doubles with each failure."""
        return min(2.0 ** min(self.failures, 30), MAX_BACKOFF_SECONDS)


class Notice(msgspec.Struct, frozen=True):
    """A readable message about something that happened in a step: stored, published, and in part sent to users."""

    kind: NoticeKind
    job: Job | None = None
    run: int = 0
    text: str = ""


class EndedJobNotice(msgspec.Struct, frozen=True):
    """A job that ended, with its last record. `run_time`: seconds of all its runs, None if it was cancelled."""

    record: JobRecord
    state: EndState
    why: str
    run_time: Seconds | None
    exit_code: int | None = None


class JobTable:
    """One record per active job, updated only by journal entries."""

    def __init__(self, cluster: Cluster, records: Iterable[JobRecord] = ()) -> None:
        self._cluster = cluster
        self.records: dict[str, JobRecord] = {record.job.id: record for record in records}

    def apply(self, entry: Entry, view: View) -> tuple[list[Notice], list[EndedJobNotice]]:
        """Apply an entry and return its notices and ended jobs. Late and duplicate reports are ignored."""
        step = _StepNotices(self, entry, view)
        for event in entry.events:
            step.apply_event(event)
        for end in entry.ends:
            self.records[end.job].end_reason = end.why
        for flag in entry.flags:
            self.records[flag.job].warning = flag.why
            step.add("hang suspected", self.records[flag.job], flag.why)
        for order in entry.orders:
            if isinstance(order, StartRun):
                step.add_start(order)
            else:
                step.add_stop(order)
        return step.notices, step.ended

    def format_allocation(self, allocation: Allocation) -> str:
        """Format an allocation: 'on n0 (GPUs 0, 1), n1 (0.5 of GPU 3)', and the plan."""
        plan = f", {allocation.plan}" if allocation.plan is not None else ""
        return f"on {allocation.text(self._cluster)}{plan}"


_HOLD_TEXTS: Mapping[Reason, str] = {Reason.DEPENDENCY: "until its dependencies have finished"}


class _StepNotices:
    """Collects the notices of one journal entry."""

    def __init__(self, job_table: JobTable, entry: Entry, view: View) -> None:
        self._job_table, self._now, self._view = job_table, entry.now, view
        self._stopped: set[str] = set()
        self.notices: list[Notice] = []
        self.ended: list[EndedJobNotice] = []

    def add(self, kind: NoticeKind, record: JobRecord, text: str = "", run: int = 0) -> None:
        self.notices.append(Notice(kind, record.job, run or record.run, text))

    def apply_event(self, event: Event) -> None:
        match event:
            case JobSubmitted(job):
                self._submitted(job)
            case JobCancelled(job_id):
                self._cancelled(job_id, event.why)
            case JobHeld(job_id) if job_id in self._job_table.records:
                self._held(self._job_table.records[job_id], event.reason)
            case JobReleased(job_id) if job_id in self._job_table.records:
                self.add("released", self._job_table.records[job_id])
            case RunAdopted(job_id, number, _, since) if job_id in self._job_table.records:
                self._adopted(self._job_table.records[job_id], number, since)
            case RunStarted(job_id, number):
                self._started(self._current(job_id, number))
            case RunFinished(job_id, number):
                self._end_job(self._current(job_id, number), "finished", exit_code=0)
            case RunFailed(job_id, number):
                self._failed(self._current(job_id, number), event)
            case RunStopped(job_id, number):
                self._stopped_run(self._current(job_id, number))
            case NodeLost(node):
                self.notices.append(Notice("node down", text=self._view.cluster.nodes[node].name))
            case NodeReturned(node):
                self.notices.append(Notice("node up", text=self._view.cluster.nodes[node].name))
            case _:
                pass

    def _current(self, job_id: str, number: int) -> JobRecord | None:
        record = self._job_table.records.get(job_id)
        return record if record is not None and record.run == number else None

    def _submitted(self, job: Job) -> None:
        if job.id in self._job_table.records:
            return
        record = self._job_table.records[job.id] = JobRecord(job)
        self.add("submitted", record, str(job.demand))
        if job.id in self._view.infeasible:
            self.add("infeasible", record, "it does not fit the cluster even when all nodes are empty")

    def _cancelled(self, job_id: str, why: str) -> None:
        record = self._job_table.records.get(job_id)
        if record is None:
            return
        if record.run:
            record.cancelled = True  # it holds its GPUs until the run has ended
            record.end_reason = record.end_reason or why
        else:
            self._remove(record, "cancelled", why, None)

    def _held(self, record: JobRecord, reason: Reason) -> None:
        if reason is not Reason.BACKOFF:
            self.add("held", record, _HOLD_TEXTS.get(reason, "until it is released"))
        elif self._view.hold_reason(record.job.id) is reason:  # else the hold came too late to have an effect
            failures = f"{record.failures} failure{'s' * (record.failures != 1)}"
            self.add("held", record, f"for {format_duration(record.backoff)}, after {failures}", record.runs)

    def _adopted(self, record: JobRecord, number: int, since: Seconds) -> None:
        if not record.run:  # else the record survived from the previous epoch
            record.runs = record.run = number
            record.placed = record.first_placed = since

    def _started(self, record: JobRecord | None) -> None:
        if record is None or (record.started is not None and record.started >= (record.placed or 0.0)):
            return
        record.started = self._now
        record.first_started = self._now if record.first_started is None else record.first_started
        self.add("started", record)

    def _failed(self, record: JobRecord | None, event: RunFailed) -> None:
        if record is None:
            return
        record.failures += 1
        if record.cancelled or record.end_reason:
            self._stopped_run(record)
        elif event.retry:
            self._end_run(record)
            record.why = event.why
            self.add("failed", record, f"{event.why}; it will be retried", record.runs)
        else:
            self._end_job(record, "failed", event.why, event.exit_code)

    def _stopped_run(self, record: JobRecord | None) -> None:
        if record is None:
            return
        if record.cancelled or record.end_reason:
            self._end_run(record)
            self._remove(record, "cancelled", record.end_reason, None)
            return
        self._end_run(record)
        self._stopped.add(record.job.id)
        record.why = ""
        self.add("stopped", record, run=record.runs)

    def _end_job(self, record: JobRecord | None, state: EndState, why: str = "", exit_code: int | None = None) -> None:
        if record is not None:
            self._end_run(record)
            self._remove(record, state, why, record.run_time, exit_code)

    def _end_run(self, record: JobRecord) -> None:
        if record.placed is not None:
            record.run_time += self._now - record.placed
        record.run, record.warning, record.last_run_ended = 0, "", self._now

    def _remove(
        self, record: JobRecord, state: EndState, why: str, run_time: Seconds | None, exit_code: int | None = None
    ) -> None:
        del self._job_table.records[record.job.id]
        self.ended.append(EndedJobNotice(record, state, why, run_time, exit_code))
        kind: NoticeKind = "ended" if state == "cancelled" and why else state
        self.add(kind, record, why, record.runs)

    def add_start(self, order: StartRun) -> None:
        record = self._job_table.records[order.job]
        record.run = record.runs = order.run
        record.placed, record.started = self._now, None
        record.first_placed = self._now if record.first_placed is None else record.first_placed
        kind: NoticeKind = "reshaped" if order.job in self._stopped else "placed"
        self.add(kind, record, self._job_table.format_allocation(order.allocation))

    def add_stop(self, order: StopRun) -> None:
        record = self._job_table.records.get(order.job)
        if record is not None:
            self.add("stopping", record, order.why)
