"""The history of jobs: the one fold of journal entries into records of jobs and runs, and into changes.

What a report means is decided here, by the rules of the scheduler: a report about a run that has ended, a second
submission, cancellation or start report have no effect. The columns for measures, the notices and the status of the
daemon, `refold run` and `refold why` are made from these records and changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from refold.core import (
    ChangeMeasured,
    Entry,
    Event,
    GpuDrained,
    GpuLost,
    GpuReturned,
    GpuTimeUsed,
    JobCancelled,
    JobContinued,
    JobHeld,
    JobReleased,
    JobSubmitted,
    MemoryRaised,
    ModelProfiled,
    NodeDrained,
    NodeLost,
    NodeReturned,
    NodesAllowed,
    NodeUsed,
    PastJob,
    RunAdopted,
    RunFailed,
    RunFinished,
    RunProgressed,
    RunRecalled,
    RunStarted,
    RunStopped,
    SpeedMeasured,
    StartRun,
    StopRun,
    UsageRecorded,
    Woke,
)
from refold.errors import BadJournal
from refold.journal.changes import Cancelled, Change, Held, NodeChange, PlanReplaced, Released, Submitted
from refold.journal.job_log import JobLog
from refold.journal.records import Ending, JobRecord, RunRecord
from refold.model import Allocation, Demand, NodeSet, Plan, Reason, run_plan


class JobHistories(JobLog):
    """The fold of journal entries: decides what each event and order means for jobs and runs.

    `fits` says whether a demand fits the empty cluster; a job that does not can be neither held nor adopted. A journal
    does not tell whether the scheduler rejected an adoption because the resources were not free: such a run is on
    record until `JobRecord.lose_run`.
    """

    def __init__(self, records: Iterable[JobRecord] = (), fits: Callable[[Demand], bool] | None = None) -> None:
        super().__init__(records)
        self._fits = fits
        self._orders_applied = 0

    def apply(self, entry: Entry) -> list[Change]:
        """Record an entry and return what changed. Only the records of jobs that have not ended are kept."""
        changes: list[Change] = []
        self._changes, self._step = changes, -1  # what is not kept needs no step numbers
        self.write(entry)
        self._changes = None
        for kept in (self.jobs, self.runs, self.jobs_of_runs, self.node_changes, self.holds, self.start_estimates):
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
                    self._finish(found, event)
            else:
                self._record_event(event)
        for end in entry.ends:
            if (ended := records.get(end.job)) is not None:
                ended.end_reason, ended.timed_out = end.why, end.rule == "time limit"
        for flag in entry.flags:
            if (flagged := records.get(flag.job)) is not None:
                self._flag(flagged, flag)
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
            case MemoryRaised():
                self._raise_memory(event)
            case RunRecalled():
                if self._current(event.job, event.run) is not None:
                    self._apply_caused_order(event.job)
            case NodesAllowed():
                for job in event.jobs:
                    self._allow_nodes(job, event.nodes)
            case JobContinued():
                self._continue(event)
            case RunAdopted():
                self._adopt(event)
            case NodeLost():
                drained = isinstance(event, NodeDrained)
                self._change_node(NodeChange(self.now, event.node, False, why=event.why, drained=drained))
            case NodeReturned():
                self._change_node(NodeChange(self.now, event.node, True))
            case GpuLost():
                drained = isinstance(event, GpuDrained)
                self._change_node(NodeChange(self.now, event.node, False, event.gpu, event.why, drained))
            case GpuReturned():
                self._change_node(NodeChange(self.now, event.node, True, event.gpu))
            case RunProgressed():
                self._progress(event)
            case (
                Woke()
                | PastJob()
                | ChangeMeasured()
                | SpeedMeasured()
                | GpuTimeUsed()
                | UsageRecorded()
                | ModelProfiled()
            ):
                pass
            case JobSubmitted() | RunFinished() | NodeUsed():
                pass

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

    def _continue(self, event: JobContinued) -> None:
        record = self.records.get(event.job)
        if record is not None and not record.runs:
            record.runs, record.saved, record.steps = event.runs, event.done, event.steps

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
        held_by_user = record.hold is Reason.HELD and not run
        if (reason is Reason.BACKOFF and run) or (reason is not Reason.HELD and held_by_user):
            return  # it runs again already, or the end of this hold would release it
        held = Reason.HELD if run else reason
        if record.hold is not held:
            self._set_hold(record, held)
            if self._changes is not None:
                self._changes.append(Held(record, reason, run))
        if run:
            self._apply_caused_order(event.job)

    def _release(self, event: JobReleased) -> None:
        record = self.records.get(event.job)
        if record is not None and record.hold is not None:
            self._set_hold(record, None)
            if self._changes is not None:
                self._changes.append(Released(record, record.run))

    def _raise_memory(self, event: MemoryRaised) -> None:
        record = self.records.get(event.job)
        if record is not None and record.hold is not None and record.current is None:
            demand = replace(record.job.demand, memory_mib=event.memory_mib)
            record.job = replace(record.job, demand=demand)

    def _allow_nodes(self, job: str, nodes: NodeSet | None) -> None:
        record = self.records.get(job)
        if record is not None:
            record.job = replace(record.job, demand=replace(record.job.demand, allowed_nodes=nodes))

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
            self._set_hold(record, None)
            self._begin_run(record, run)

    def _progress(self, event: RunProgressed) -> None:
        found = self._current(event.job, event.run)
        if found is not None and event.steps is not None:
            found[0].steps = max(found[0].steps, event.steps)
            if event.loss is not None:
                found[0].loss = event.loss
            if event.plan is not None:
                self._replace_plan(*found, event.plan)

    def _replace_plan(self, record: JobRecord, run: RunRecord, plan: Plan) -> None:
        """Record that a run uses another plan than the one that was ordered."""
        ordered = run_plan(record.job, run.allocation)
        if ordered is None or ordered == plan:
            return
        run.allocation = Allocation(run.allocation.placement, plan)
        if self._changes is not None:
            self._changes.append(PlanReplaced(record, run, ordered))

    def _stop(self, event: RunStopped) -> None:
        if (found := self._current(event.job, event.run)) is None:
            return
        record, run = found
        self._record_end(record, run, event)
        if record.end_reason is not None:
            self._end_cut_short(record, run)
            return
        record.why = ""
        self._requeue(record, run, Ending.STOPPED, event.done)
        self._apply_caused_order(event.job)  # the next run, if the job is being reshaped

    def _record_end(self, record: JobRecord, run: RunRecord, event: RunStopped | RunFailed) -> None:
        run.end_report = event
        if event.usage is not None:
            record.note_usage(event.usage)
        if event.steps is not None:
            record.steps = event.steps

    def _fail(self, event: RunFailed) -> None:
        if (found := self._current(event.job, event.run)) is None:
            return
        record, run = found
        self._record_end(record, run, event)
        record.failures += 1
        if record.end_reason is not None:
            self._end_cut_short(record, run)
        elif event.retry:
            record.why = event.why
            self._requeue(record, run, Ending.FAILED, event.done)
        else:
            self._end_with_run(record, run, Ending.FAILED, "failed")

    def _record_start_estimates(self, entry: Entry) -> None:
        for estimate in entry.start_estimates:
            record = self.records.get(estimate.job)
            if record is None:
                raise BadJournal(f"start estimate for job {estimate.job!r}, which was never submitted or has ended")
            self.start_estimates.append((record, entry.now, estimate))
