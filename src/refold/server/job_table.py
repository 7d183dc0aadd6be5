"""What is known of every job that is not over, beyond what the scheduler needs; and what was news in a step."""

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
from refold.model import MINUTE, Allocation, Cluster, Job, Reason, Seconds, text_from_seconds

End = Literal["finished", "failed", "cancelled"]
Kind = Literal[
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
    "noted",
    "node lost",
    "node returned",
    "gpu drained",
    "gpu warned",
]
"""Everything that can be news. A job is `cancelled` by a person, and `ended` by a rule, or by what became of another.

A run is suspected to hang by the rules of a watch, and by nothing else; what is `noted` asks nobody to do anything.
"""

LONGEST_PAUSE: Seconds = 5 * MINUTE


class JobRecord(msgspec.Struct, omit_defaults=True):
    """A job that is not over. Times are those of the journal.

    `started` is when its present run, or its last one, began to compute; `run` is the present one, 0 between two.
    `failures` counts runs that ended by themselves; `ended_by` is the rule by which it is being ended. `last_ended` is
    when its last run did.
    """

    job: Job
    first_placed: Seconds | None = None
    first_started: Seconds | None = None
    placed: Seconds | None = None
    started: Seconds | None = None
    runs: int = 0
    run: int = 0
    last_ended: Seconds | None = None
    ran: Seconds = 0.0
    failures: int = 0
    cancelled: bool = False
    ended_by: str = ""
    why: str = ""
    warning: str = ""

    @property
    def pause(self) -> Seconds:
        """How long it waits after its last failure before anybody looks at it: twice as long after each."""
        return min(2.0 ** min(self.failures, 30), LONGEST_PAUSE)


class Notice(msgspec.Struct, frozen=True):
    """Something that happened in a step, in words for people."""

    kind: Kind
    job: Job | None = None
    run: int = 0
    text: str = ""


class EndedJobNotice(msgspec.Struct, frozen=True):
    """A job is over, with what was known of it; `lasted` is how long its runs took, if it ended by itself."""

    record: JobRecord
    state: End
    why: str
    lasted: Seconds | None
    exit_code: int | None = None


class JobTable:
    """One record per job that is not over, kept up to date by the entries of the journal alone."""

    def __init__(self, cluster: Cluster, records: Iterable[JobRecord] = ()) -> None:
        self._cluster = cluster
        self.of: dict[str, JobRecord] = {record.job.id: record for record in records}

    def note(self, entry: Entry, view: View) -> tuple[list[Notice], list[EndedJobNotice]]:
        """Take note of a step, after it. Reports that came late or twice are no news."""
        step = _Step(self, entry, view)
        for event in entry.events:
            step.fact(event)
        for end in entry.ends:
            self.of[end.job].ended_by = end.why
        for flag in entry.flags:
            self.of[flag.job].warning = flag.why
            step.say("hang suspected", self.of[flag.job], flag.why)
        for order in entry.orders:
            if isinstance(order, StartRun):
                step.placed(order)
            else:
                step.told_to_stop(order)
        return step.news, step.over

    def where_text(self, allocation: Allocation) -> str:
        """'n0 (GPUs 0, 1), n1 (0.5 of GPU 3)', and the plan."""
        plan = f", {allocation.plan}" if allocation.plan is not None else ""
        return f"on {allocation.text(self._cluster)}{plan}"


_HELD_TEXTS: Mapping[Reason, str] = {Reason.DEPENDENCY: "until the jobs that it comes after have finished"}


class _Step:
    """One step of the journal, as news."""

    def __init__(self, job_table: JobTable, entry: Entry, view: View) -> None:
        self._job_table, self._now, self._view = job_table, entry.now, view
        self._stopped: set[str] = set()
        self.news: list[Notice] = []
        self.over: list[EndedJobNotice] = []

    def say(self, kind: Kind, record: JobRecord, text: str = "", run: int = 0) -> None:
        self.news.append(Notice(kind, record.job, run or record.run, text))

    def fact(self, event: Event) -> None:
        match event:
            case JobSubmitted(job):
                self._submitted(job)
            case JobCancelled(job_id):
                self._cancelled(job_id, event.why)
            case JobHeld(job_id) if job_id in self._job_table.of:
                self._held(self._job_table.of[job_id], event.reason)
            case JobReleased(job_id) if job_id in self._job_table.of:
                self.say("released", self._job_table.of[job_id])
            case RunAdopted(job_id, number, _, since) if job_id in self._job_table.of:
                self._adopted(self._job_table.of[job_id], number, since)
            case RunStarted(job_id, number):
                self._started(self._current(job_id, number))
            case RunFinished(job_id, number):
                self._ended(self._current(job_id, number), "finished", exit_code=0)
            case RunFailed(job_id, number):
                self._failed(self._current(job_id, number), event)
            case RunStopped(job_id, number):
                self._has_stopped(self._current(job_id, number))
            case NodeLost(node):
                self.news.append(Notice("node lost", text=self._view.cluster.nodes[node].name))
            case NodeReturned(node):
                self.news.append(Notice("node returned", text=self._view.cluster.nodes[node].name))
            case _:
                pass

    def _current(self, job_id: str, number: int) -> JobRecord | None:
        record = self._job_table.of.get(job_id)
        return record if record is not None and record.run == number else None

    def _submitted(self, job: Job) -> None:
        if job.id in self._job_table.of:
            return
        record = self._job_table.of[job.id] = JobRecord(job)
        self.say("submitted", record, str(job.demand))
        if job.id in self._view.infeasible:
            self.say("infeasible", record, "the whole cluster, empty, has no room for it")

    def _cancelled(self, job_id: str, why: str) -> None:
        record = self._job_table.of.get(job_id)
        if record is None:
            return
        if record.run:
            record.cancelled = True  # it holds its GPUs until its run has ended
            record.ended_by = record.ended_by or why
        else:
            self._leave(record, "cancelled", why, None)

    def _held(self, record: JobRecord, reason: Reason) -> None:
        if reason is not Reason.BACKOFF:
            self.say("held", record, _HELD_TEXTS.get(reason, "until it is released"))
        elif self._view.held_for(record.job.id) is reason:  # else the pause came too late to mean anything
            failures = f"{record.failures} failure{'s' * (record.failures != 1)}"
            self.say("held", record, f"for {text_from_seconds(record.pause)}, after {failures}", record.runs)

    def _adopted(self, record: JobRecord, number: int, since: Seconds) -> None:
        if not record.run:  # else it is known from before the journal was begun anew
            record.runs = record.run = number
            record.placed = record.first_placed = since

    def _started(self, record: JobRecord | None) -> None:
        if record is None or (record.started is not None and record.started >= (record.placed or 0.0)):
            return
        record.started = self._now
        record.first_started = self._now if record.first_started is None else record.first_started
        self.say("started", record)

    def _failed(self, record: JobRecord | None, event: RunFailed) -> None:
        if record is None:
            return
        record.failures += 1
        if record.cancelled or record.ended_by:
            self._has_stopped(record)
        elif event.retry:
            self._run_is_over(record)
            record.why = event.why
            self.say("failed", record, f"{event.why}; it is tried again", record.runs)
        else:
            self._ended(record, "failed", event.why, event.exit_code)

    def _has_stopped(self, record: JobRecord | None) -> None:
        if record is None:
            return
        if record.cancelled or record.ended_by:
            self._run_is_over(record)
            self._leave(record, "cancelled", record.ended_by, None)
            return
        self._run_is_over(record)
        self._stopped.add(record.job.id)
        record.why = ""
        self.say("stopped", record, run=record.runs)

    def _ended(self, record: JobRecord | None, state: End, why: str = "", exit_code: int | None = None) -> None:
        if record is not None:
            self._run_is_over(record)
            self._leave(record, state, why, record.ran, exit_code)

    def _run_is_over(self, record: JobRecord) -> None:
        record.ran += self._now - (record.placed or self._now)
        record.run, record.warning, record.last_ended = 0, "", self._now

    def _leave(
        self, record: JobRecord, state: End, why: str, lasted: Seconds | None, exit_code: int | None = None
    ) -> None:
        del self._job_table.of[record.job.id]
        self.over.append(EndedJobNotice(record, state, why, lasted, exit_code))
        kind: Kind = "ended" if state == "cancelled" and why else state
        self.say(kind, record, why, record.runs)

    def placed(self, order: StartRun) -> None:
        record = self._job_table.of[order.job]
        record.run = record.runs = order.run
        record.placed, record.started = self._now, None
        record.first_placed = self._now if record.first_placed is None else record.first_placed
        kind: Kind = "reshaped" if order.job in self._stopped else "placed"
        self.say(kind, record, self._job_table.where_text(order.allocation))

    def told_to_stop(self, order: StopRun) -> None:
        record = self._job_table.of.get(order.job)
        if record is not None:
            self.say("stopping", record, order.why)
