"""Records of jobs and runs, and the transitions of their states."""

from __future__ import annotations

from collections.abc import Iterable

from refold.core import Entry, RunFinished, RunStarted, StopRun
from refold.journal.changes import Change, Flagged, JobEnded, NodeChange, Placed, RunBegan, RunEnded, StopOrdered
from refold.journal.records import Ending, JobRecord, RecordState, RunRecord
from refold.model import Flag, Reason, Seconds, StartEstimate


class JobLog:
    """Records of jobs and runs, and the transitions of their states; each adds a change if changes are collected.

    `records` are those of an earlier history, to be continued.
    """

    def __init__(self, records: Iterable[JobRecord] = ()) -> None:
        self.records: dict[str, JobRecord] = {record.job.id: record for record in records}
        """Jobs that have not ended, by id."""
        self.jobs: list[JobRecord] = []
        self.runs: list[RunRecord] = []
        self.jobs_of_runs: list[JobRecord] = []
        self.node_changes: list[NodeChange] = []
        self.holds: list[tuple[JobRecord, Seconds, bool]] = []
        """Since when jobs are held, and since when they are not."""
        self.start_estimates: list[tuple[JobRecord, Seconds, StartEstimate]] = []
        self.now: Seconds = 0.0
        self._step = 0
        self._entry = Entry(0.0)
        self._is_up: dict[tuple[int, int | None], bool] = {}
        self._changes: list[Change] | None = None  # None: they are not needed

    def _current(self, job_id: str, number: int) -> tuple[JobRecord, RunRecord] | None:
        """Return the job and run that a report is about; None if the report is late."""
        record = self.records.get(job_id)
        if record is None or (run := record.last) is None or run.number != number or run.end is not None:
            return None
        return record, run

    def _set_hold(self, record: JobRecord, reason: Reason | None) -> None:
        if (record.hold is None) is not (reason is None):
            self.holds.append((record, self.now, reason is not None))
        record.hold = reason

    def _flag(self, record: JobRecord, flag: Flag) -> None:
        record.warning = flag.why
        if self._changes is not None:
            self._changes.append(Flagged(record, flag.why, record.run, flag.rule))

    def _begin_run(self, record: JobRecord, run: RunRecord) -> None:
        if record.last is None:
            record.first_placed = run.start
        else:
            if record.last.end is None:  # the scheduler has not adopted it
                record.lose_run(self.now)
                record.last.end_step = self._step
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
            self._changes.append(RunBegan(record, run))

    def _finish(self, record: JobRecord, event: RunFinished) -> None:
        run = record.last
        if run is None or run.number != event.run or run.end is not None:
            return
        if event.usage is not None:
            record.note_usage(event.usage)
        run.end, run.end_step, run.ending = self.now, self._step, Ending.FINISHED
        record.state, record.ended = "finished", self.now
        del self.records[record.job.id]
        if self._changes is not None:
            self._changes += [RunEnded(record, run, requeued=False), JobEnded(record)]

    def _requeue(self, record: JobRecord, run: RunRecord, ending: Ending, saved: Seconds) -> None:
        record.state, record.warning, record.saved = "waiting", "", saved
        self._end_run(record, run, ending, requeued=True)

    def _end_with_run(self, record: JobRecord, run: RunRecord, ending: Ending, state: RecordState) -> None:
        self._end_run(record, run, ending, requeued=False)
        self._end_job(record, state)

    def _end_cut_short(self, record: JobRecord, run: RunRecord) -> None:
        """End a job that was cancelled while it ran, by a user or a rule."""
        self._end_with_run(record, run, Ending.CANCELLED, "timed out" if record.timed_out else "cancelled")

    def _end_run(self, record: JobRecord, run: RunRecord, ending: Ending, *, requeued: bool) -> None:
        run.end, run.end_step, run.ending = self.now, self._step, ending
        if self._changes is not None:
            self._changes.append(RunEnded(record, run, requeued))

    def _end_job(self, record: JobRecord, state: RecordState) -> None:
        record.state, record.ended = state, self.now
        del self.records[record.job.id]
        if self._changes is not None:
            self._changes.append(JobEnded(record))

    def _order_stop(self, order: StopRun) -> None:
        if (found := self._current(order.job, order.run)) is not None:
            record, run = found
            run.stop_ordered = self.now
            if self._changes is not None:
                ends_job = any(end.job == order.job for end in self._entry.ends)
                self._changes.append(StopOrdered(record, run, order.why, ends_job))

    def _change_node(self, change: NodeChange) -> None:
        part = change.node, change.gpu
        if self._is_up.get(part) is not change.up:
            self._is_up[part] = change.up
            self.node_changes.append(change)
            if self._changes is not None:
                self._changes.append(change)
