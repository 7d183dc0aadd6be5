"""The history of jobs: the one fold of journal entries into records of jobs and runs, and into changes.

What a report means is decided here, by the rules of the scheduler: a report about a run that has ended, a second
submission, cancellation or start report have no effect. The columns for measures, the notices and the status of the
daemon, `refold run` and `refold why` are made from these records and changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Literal

import msgspec

from refold.core import (
    Entry,
    Event,
    GpuLost,
    GpuReturned,
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
    StopRun,
    Woke,
)
from refold.errors import BadJournal
from refold.model import Allocation, Demand, Job, Reason, Seconds, StartEstimate

RecordState = Literal["waiting", "running", "finished", "failed", "cancelled"]
"""State of a job. Held and infeasible jobs are waiting; a job that is cancelled while it runs ends with its run."""


class Ending(IntEnum):
    """How a run ended."""

    OPEN = 0  # it has not ended
    FINISHED = 1
    STOPPED = 2
    FAILED = 3
    CANCELLED = 4  # stopped or failed after its job was cancelled


class RunRecord(msgspec.Struct, gc=False, omit_defaults=True):
    """One run of a job. What did not happen is None. A step is the number of an entry, from 1; 0 if not counted.

    `start`: when its start was ordered; `adopted`: when the journal began, if the run was older; `started`: when it
    reported that it computes. `saved_before`: seconds of work from which the job could resume before the run.
    `end_report`: the report of its stop or failure.
    """

    number: int
    allocation: Allocation
    start: Seconds
    start_step: int = 0
    saved_before: Seconds = 0.0
    adopted: Seconds | None = None
    started: Seconds | None = None
    stop_ordered: Seconds | None = None
    end: Seconds | None = None
    end_step: int = 0
    ending: Ending = Ending.OPEN
    end_report: RunStopped | RunFailed | None = None

    @property
    def failure(self) -> RunFailed | None:
        """The report of its failure, if it failed."""
        return self.end_report if isinstance(self.end_report, RunFailed) else None

    @property
    def run_time(self) -> Seconds:
        """Seconds from start to end; 0 if the run has not ended."""
        return 0.0 if self.end is None else self.end - self.start


class JobRecord(msgspec.Struct, gc=False, omit_defaults=True):
    """One job. Times are seconds since the start of the journal.

    `last`: the current or the last run; `runs`: its number. `first_placed`: when the first run on record was ordered;
    `first_started`: when a run first computed. `saved`: seconds of work from which the job can resume.
    `earlier_run_time`: seconds of all runs before `last`. `failures`: number of failed runs. `end_reason`: None unless
    the job was cancelled; then why, '' if by a user. `why`: how the last run failed, if it was retried. `warning`: why
    a hang of the current run is suspected. `hold`: why the job is held, except by the limit of its tenant; while it
    runs, it is not held before its run has ended.
    """

    job: Job
    state: RecordState = "waiting"
    last: RunRecord | None = None
    runs: int = 0
    first_placed: Seconds | None = None
    first_started: Seconds | None = None
    ended: Seconds | None = None
    saved: Seconds = 0.0
    earlier_run_time: Seconds = 0.0
    failures: int = 0
    end_reason: str | None = None
    why: str = ""
    warning: str = ""
    hold: Reason | None = None

    @property
    def current(self) -> RunRecord | None:
        """The current run, if there is one."""
        return self.last if self.last is not None and self.last.end is None else None

    @property
    def run(self) -> int:
        """The number of the current run; 0 if there is none."""
        current = self.current
        return 0 if current is None else current.number

    @property
    def last_run_ended(self) -> Seconds | None:
        """When the last run ended; None if there is none, or if it has not ended."""
        return None if self.last is None else self.last.end

    @property
    def run_time(self) -> Seconds:
        """The total seconds of all ended runs."""
        return self.earlier_run_time + (0.0 if self.last is None else self.last.run_time)

    @property
    def message(self) -> str:
        """Why the job failed, or was ended; '' if it finished, or a user cancelled it."""
        if self.state == "failed" and (failure := self._last_failure) is not None:
            return failure.why
        return self.end_reason or "" if self.state == "cancelled" else ""

    @property
    def exit_code(self) -> int | None:
        """The exit code of an ended job; None if it was cancelled, or failed without one."""
        if self.state == "failed" and (failure := self._last_failure) is not None:
            return failure.exit_code
        return 0 if self.state == "finished" else None

    @property
    def known_duration(self) -> Seconds | None:
        """The run time of a job that ran to its end; None if it was cancelled, since it would have run longer."""
        return None if self.state == "cancelled" else self.run_time

    @property
    def _last_failure(self) -> RunFailed | None:
        return None if self.last is None else self.last.failure

    def lose_run(self, now: Seconds) -> None:
        """End the current run, because the scheduler does not know it any more; the job waits again."""
        if (run := self.current) is not None:
            run.end, run.ending = now, Ending.STOPPED
            self.state = "waiting"


class Submitted(msgspec.Struct, frozen=True):
    """A job was submitted."""

    record: JobRecord


class Held(msgspec.Struct, frozen=True):
    """A job was held, or will be when its current run has ended. `run`: number of that run, 0 if there is none."""

    record: JobRecord
    reason: Reason
    run: int


class Released(msgspec.Struct, frozen=True):
    """The hold of a job, or its pending hold, was removed. `run`: number of its current run, 0 if there is none."""

    record: JobRecord
    run: int


class Cancelled(msgspec.Struct, frozen=True):
    """A job was cancelled: by a user, or for the reason `why`. If it runs, it ends with its run."""

    record: JobRecord
    why: str


class Placed(msgspec.Struct, frozen=True):
    """A run was ordered to start, or was adopted."""

    record: JobRecord
    run: RunRecord


class Started(msgspec.Struct, frozen=True):
    """A run reported that it computes."""

    record: JobRecord
    run: RunRecord


class StopOrdered(msgspec.Struct, frozen=True):
    """A run was ordered to stop. `ends_job`: the policy ends the job with it."""

    record: JobRecord
    run: RunRecord
    why: str
    ends_job: bool


class Flagged(msgspec.Struct, frozen=True):
    """The policy suspects that a run hangs."""

    record: JobRecord
    why: str
    run: int


class RunEnded(msgspec.Struct, frozen=True):
    """A run has ended. `requeued`: its job waits again; otherwise its end follows."""

    record: JobRecord
    run: RunRecord
    requeued: bool


class JobEnded(msgspec.Struct, frozen=True):
    """A job has ended, as its state says. Its record does not change any more."""

    record: JobRecord


class NodeChange(msgspec.Struct, frozen=True):
    """A node, or one of its GPUs, went down or came up. `why`: the reason why it went down, if one was given."""

    at: Seconds
    node: int
    up: bool
    gpu: int | None = None
    why: str = ""


JobChange = Submitted | Held | Released | Cancelled | Placed | Started | StopOrdered | Flagged | RunEnded | JobEnded
Change = JobChange | NodeChange


class JobHistories:
    """The records of the jobs that have not ended, and of all jobs and runs since the last `apply`.

    `records` are those of an earlier history, to be continued. `fits` says whether a demand fits the empty cluster; a
    job that does not can be neither held nor adopted. A journal does not tell whether the scheduler rejected an
    adoption because the resources were not free: such a run is on record until `JobRecord.lose_run`.
    """

    def __init__(self, records: Iterable[JobRecord] = (), fits: Callable[[Demand], bool] | None = None) -> None:
        self.records: dict[str, JobRecord] = {record.job.id: record for record in records}
        """Jobs that have not ended, by id."""
        self.jobs: list[JobRecord] = []
        self.runs: list[RunRecord] = []
        self.jobs_of_runs: list[JobRecord] = []
        self.node_changes: list[NodeChange] = []
        self.start_estimates: list[tuple[JobRecord, Seconds, StartEstimate]] = []
        self.now: Seconds = 0.0
        self._step = 0
        self._fits = fits
        self._is_up: dict[tuple[int, int | None], bool] = {}
        self._entry = Entry(0.0)
        self._orders_applied = 0
        self._changes: list[Change] | None = None  # built only if `apply` returns them

    def apply(self, entry: Entry) -> list[Change]:
        """Record an entry and return what changed. Only the records of jobs that have not ended are kept."""
        changes: list[Change] = []
        self._changes, self._step = changes, -1  # what is not kept needs no step numbers
        self.write(entry)
        self._changes = None
        for kept in (self.jobs, self.runs, self.jobs_of_runs, self.node_changes, self.start_estimates):
            kept.clear()
        return changes

    def write(self, entry: Entry) -> None:
        """Record an entry: its events and the orders that they cause, then the decision of the policy.

        Submissions, finished runs and starts are the bulk of any journal, so they are tested first, with the fastest
        test.
        """
        self._step += 1
        self.now = entry.now
        self._entry = entry
        records = self.records
        for event in entry.events:
            if type(event) is JobSubmitted:
                job = event.job
                if job.id not in records:
                    records[job.id] = record = JobRecord(job)
                    self.jobs.append(record)
                    if self._changes is not None:
                        self._changes.append(Submitted(record))
            elif type(event) is RunFinished:
                if (found := records.get(event.job)) is not None:
                    self._finish(found, event.run)
            else:
                self._record_event(event)
        for end in entry.ends:
            if (ended := records.get(end.job)) is not None:
                ended.end_reason = end.why
        for flag in entry.flags:
            if (flagged := records.get(flag.job)) is not None:
                self._flag(flagged, flag.why)
        orders = entry.orders
        if self._orders_applied:
            orders = orders[self._orders_applied :]
            self._orders_applied = 0
        for order in orders:
            if type(order) is StartRun:
                self._start(order)
            elif type(order) is StopRun:
                self._order_stop(order)
        if entry.start_estimates:
            self._record_start_estimates(entry)

    def _record_event(self, event: Event) -> None:
        match event:
            case RunStopped():
                self._stop(event)
            case RunStarted():
                self._note_started(event)
            case RunFailed():
                self._fail(event)
            case JobCancelled():
                self._cancel(event)
            case JobHeld():
                self._hold(event)
            case JobReleased():
                self._release(event)
            case RunRecalled():
                if self._current(event.job, event.run) is not None:
                    self._apply_caused_order(event.job)
            case JobContinued():
                self._continue(event)
            case RunAdopted():
                self._adopt(event)
            case NodeLost():
                self._change_node(NodeChange(self.now, event.node, False, why=event.why))
            case NodeReturned():
                self._change_node(NodeChange(self.now, event.node, True))
            case GpuLost():
                self._change_node(NodeChange(self.now, event.node, False, event.gpu, event.why))
            case GpuReturned():
                self._change_node(NodeChange(self.now, event.node, True, event.gpu))
            case RunProgressed() | Woke() | PastJob() | JobSubmitted() | RunFinished():
                pass

    def _current(self, job_id: str, number: int) -> tuple[JobRecord, RunRecord] | None:
        """Return the job and run that a report is about; None if the report is late."""
        record = self.records.get(job_id)
        if record is None or (run := record.last) is None or run.number != number or run.end is not None:
            return None
        return record, run

    def _apply_caused_order(self, job_id: str) -> None:
        """Apply the next order of the entry if the current event caused it.

        The orders that events cause come first, in the order of the events, and are about the same jobs. An order of
        the policy for this job cannot be mistaken for one unless it is the next, and then the result is the same.
        """
        orders, applied = self._entry.orders, self._orders_applied
        if applied < len(orders) and orders[applied].job == job_id:
            self._orders_applied += 1
            match orders[applied]:
                case StartRun() as start:
                    self._start(start)
                case StopRun() as stop:
                    self._order_stop(stop)

    # Jobs.

    def _continue(self, event: JobContinued) -> None:
        record = self.records.get(event.job)
        if record is not None and not record.runs:
            record.runs, record.saved = event.runs, event.done

    def _cancel(self, event: JobCancelled) -> None:
        record = self.records.get(event.job)
        if record is None:
            return
        if record.end_reason is None:
            record.end_reason = event.why
            if self._changes is not None:
                self._changes.append(Cancelled(record, event.why))
        if record.current is None:
            self._end_job(record, "cancelled")
        else:
            self._apply_caused_order(event.job)

    def _is_infeasible(self, record: JobRecord) -> bool:
        return self._fits is not None and not self._fits(record.job.demand)

    def _hold(self, event: JobHeld) -> None:
        record, reason = self.records.get(event.job), event.reason
        if record is None or self._is_infeasible(record):
            return
        run = record.run
        if reason is Reason.BACKOFF and (run or record.hold is Reason.HELD):
            return  # it runs again already, or a user holds it
        held = Reason.HELD if run else reason
        if record.hold is not held:
            record.hold = held
            if self._changes is not None:
                self._changes.append(Held(record, reason, run))
        if run:
            self._apply_caused_order(event.job)

    def _release(self, event: JobReleased) -> None:
        record = self.records.get(event.job)
        if record is not None and record.hold is not None:
            record.hold = None
            if self._changes is not None:
                self._changes.append(Released(record, record.run))

    def _flag(self, record: JobRecord, why: str) -> None:
        record.warning = why
        if self._changes is not None:
            self._changes.append(Flagged(record, why, record.run))

    def _end_job(self, record: JobRecord, state: RecordState) -> None:
        record.state, record.ended = state, self.now
        del self.records[record.job.id]
        if self._changes is not None:
            self._changes.append(JobEnded(record))

    # Runs.

    def _start(self, order: StartRun) -> None:
        record = self.records.get(order.job)
        if record is None:
            raise BadJournal(f"run {order.run} of job {order.job!r}, which was never submitted or has ended")
        self._begin_run(record, RunRecord(order.run, order.allocation, self.now, self._step, record.saved))

    def _adopt(self, event: RunAdopted) -> None:
        """Record a run that is older than the journal, unless it is on record already."""
        record = self.records.get(event.job)
        if record is not None and record.state == "waiting" and not self._is_infeasible(record):
            run = RunRecord(event.run, event.allocation, event.since, self._step, record.saved, self.now)
            record.hold = None
            self._begin_run(record, run)

    def _begin_run(self, record: JobRecord, run: RunRecord) -> None:
        if record.last is None:
            record.first_placed = run.start
        else:
            record.earlier_run_time += record.last.run_time
        record.last = run
        record.runs = run.number
        record.state = "running"
        self.runs.append(run)
        self.jobs_of_runs.append(record)
        if self._changes is not None:
            self._changes.append(Placed(record, run))

    def _note_started(self, event: RunStarted) -> None:
        found = self._current(event.job, event.run)
        if found is None or found[1].started is not None:
            return
        record, run = found
        run.started = self.now
        if record.first_started is None:
            record.first_started = self.now
        if self._changes is not None:
            self._changes.append(Started(record, run))

    def _order_stop(self, order: StopRun) -> None:
        if (found := self._current(order.job, order.run)) is not None:
            record, run = found
            run.stop_ordered = self.now
            if self._changes is not None:
                ends_job = any(end.job == order.job for end in self._entry.ends)
                self._changes.append(StopOrdered(record, run, order.why, ends_job))

    def _finish(self, record: JobRecord, number: int) -> None:
        run = record.last
        if run is None or run.number != number or run.end is not None:
            return
        run.end, run.end_step, run.ending = self.now, self._step, Ending.FINISHED
        record.state, record.ended = "finished", self.now
        del self.records[record.job.id]
        if self._changes is not None:
            self._changes += [RunEnded(record, run, requeued=False), JobEnded(record)]

    def _stop(self, event: RunStopped) -> None:
        if (found := self._current(event.job, event.run)) is None:
            return
        record, run = found
        run.end_report = event
        if record.end_reason is not None:
            self._end_with_run(record, run, Ending.CANCELLED, "cancelled")
            return
        record.why = ""
        self._requeue(record, run, Ending.STOPPED, event.done)
        self._apply_caused_order(event.job)  # the next run, if the job is being reshaped

    def _fail(self, event: RunFailed) -> None:
        if (found := self._current(event.job, event.run)) is None:
            return
        record, run = found
        run.end_report = event
        record.failures += 1
        if record.end_reason is not None:
            self._end_with_run(record, run, Ending.CANCELLED, "cancelled")
        elif event.retry:
            record.why = event.why
            self._requeue(record, run, Ending.FAILED, event.done)
        else:
            self._end_with_run(record, run, Ending.FAILED, "failed")

    def _requeue(self, record: JobRecord, run: RunRecord, ending: Ending, saved: Seconds) -> None:
        record.state, record.warning, record.saved = "waiting", "", saved
        self._end_run(record, run, ending, requeued=True)

    def _end_with_run(self, record: JobRecord, run: RunRecord, ending: Ending, state: RecordState) -> None:
        self._end_run(record, run, ending, requeued=False)
        self._end_job(record, state)

    def _end_run(self, record: JobRecord, run: RunRecord, ending: Ending, *, requeued: bool) -> None:
        run.end, run.end_step, run.ending = self.now, self._step, ending
        if self._changes is not None:
            self._changes.append(RunEnded(record, run, requeued))

    # Nodes and start estimates.

    def _change_node(self, change: NodeChange) -> None:
        part = change.node, change.gpu
        if self._is_up.get(part) is not change.up:
            self._is_up[part] = change.up
            self.node_changes.append(change)
            if self._changes is not None:
                self._changes.append(change)

    def _record_start_estimates(self, entry: Entry) -> None:
        for estimate in entry.start_estimates:
            record = self.records.get(estimate.job)
            if record is None:
                raise BadJournal(f"start estimate for job {estimate.job!r}, which was never submitted or has ended")
            self.start_estimates.append((record, entry.now, estimate))
