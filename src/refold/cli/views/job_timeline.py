"""The timeline of one job in a journal: one entry per event or decision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from refold import journal
from refold.cli.views.output import plural
from refold.cli.views.times import format_clock, format_elapsed, format_gpus
from refold.errors import UnknownName
from refold.model import WHOLE

if TYPE_CHECKING:
    from refold.core import Entry, Header
    from refold.journal import JobChange, JobRecord, RunRecord
    from refold.model import Allocation, Cluster, Job, StartEstimate, Wait

TIME_TOLERANCE_SECONDS = 1e-3
"""Differences up to this are rounding errors."""


@dataclass(frozen=True, slots=True)
class RunResources:
    run: int
    gpus: float
    plan: str | None
    placement: str

    def __str__(self) -> str:
        return f"{format_gpus(self.gpus)}{f', {self.plan}' if self.plan else ''}, on {self.placement}"


@dataclass(slots=True)
class TimelineEntry:
    """One event of the job. `resources`: of a started run; `next`: of the run after a stop."""

    at: float
    event: str
    text: str = ""
    run: int | None = None
    reason: str | None = None
    resources: RunResources | None = None
    next: RunResources | None = None


class JobTimeline:
    """The timeline of one job, built from journal entries.

    `scheduler`: that of the cluster, if they are a snapshot of its queue. Its jobs were submitted earlier.
    """

    def __init__(self, cluster: Cluster, job_id: str, scheduler: str = "") -> None:
        self._cluster, self._id, self._scheduler = cluster, job_id, scheduler
        self._histories = journal.JobHistories()
        self.job: Job | None = None
        self.entries: list[TimelineEntry] = []
        self._waits: list[Wait] = []
        self._waiting_since = 0.0
        self._stop: TimelineEntry | None = None
        self._first_estimate: StartEstimate | None = None
        self._last_estimate: StartEstimate | None = None

    def read_entry(self, entry: Entry) -> None:
        """Add the parts of a journal entry that concern the job."""
        for change in self._histories.apply(entry):
            if not isinstance(change, journal.NodeChange) and change.record.job.id == self._id:
                self._read_change(entry.now, change)
        self._waits += [wait for wait in entry.waits if wait.job == self._id]
        for estimate in entry.start_estimates:
            if estimate.job == self._id:
                self._read_estimate(entry.now, estimate)

    def _read_estimate(self, now: float, estimate: StartEstimate) -> None:
        """Add the first start estimate of a wait, and every one that postpones the bound."""
        last, self._last_estimate = self._last_estimate, estimate
        if last is None:
            self._first_estimate = estimate
            event = "start bound" if estimate.latest is not None else "start estimate"
            by = f" (estimate of {self._scheduler})" if self._scheduler else ""
            self._add(now, event, _format_estimate(estimate) + by)
        elif estimate.latest is not None and (last.latest is None or estimate.latest > last.latest):
            self._add(now, "bound postponed", _format_estimate(estimate))

    def _add_estimate_outcome(self, now: float) -> None:
        """Add whether the first estimate of the wait was met, and its error."""
        estimate, self._first_estimate, self._last_estimate = self._first_estimate, None, None
        if estimate is None:
            return
        error = _format_error(now - estimate.at)
        if estimate.latest is None:
            self._add(now, "waited", error)
        elif now > estimate.latest + TIME_TOLERANCE_SECONDS:
            self._add(now, "bound missed", f"{format_elapsed(now - estimate.latest)} after the bound, {error}")
        else:
            self._add(now, "bound met", error)

    def _read_change(self, now: float, change: JobChange) -> None:
        match change:
            case journal.Submitted(record):
                at = min(now, record.job.submitted) if self._scheduler else now
                self.job, self._waiting_since = record.job, at
                self._add(at, "submitted", _format_request(record.job))
            case journal.Placed(_, run):
                self._add_start(now, run)
            case journal.RunBegan(_, run):
                self._add(now, "running", f"after {format_elapsed(now - run.start)} of start-up", run=run.number)
            case journal.PlanReplaced(_, run, ordered):
                self._add(now, "plan replaced", f"{run.allocation.plan}; the job cannot use {ordered}", run=run.number)
                self.entries[-1].resources = self._resources(run.number, run.allocation)
            case journal.StopOrdered(_, run, why, ends_job):
                event = "end requested" if ends_job else "stop requested"
                self._add(now, event, why or "no reason recorded", run=run.number, reason=why or None)
                self._stop = None if ends_job else self.entries[-1]
            case journal.Flagged(_, why, number):
                self._add(now, "flagged", why, run=number, reason=why)
            case journal.RunEnded(record, run, requeued):
                self._waiting_since = now
                self._add_run_end(now, record, run, requeued)
            case journal.Cancelled():
                self._add(now, "cancelled")
            case journal.Held() | journal.Released() | journal.JobEnded():
                pass

    def _add_run_end(self, now: float, record: JobRecord, run: RunRecord, requeued: bool) -> None:
        report, failure = run.end_report, run.failure
        if report is None:
            self._add(now, "finished", f"{format_elapsed(now - record.job.submitted)} after submission", run=run.number)
            return
        progress = _format_progress(report.done, report.steps)
        if failure is None:
            self._add(now, "stopped", progress, run=run.number)
        else:
            text = f"{failure.why}; requeued {progress}" if requeued else failure.why
            self._add(now, "failed", text, run=run.number, reason=failure.why)

    def _add_start(self, now: float, run: RunRecord) -> None:
        if run.adopted is None or not self._scheduler:  # the wait of a run in a snapshot is over
            self._add_wait(now)
        self._add_estimate_outcome(now)
        resources = self._resources(run.number, run.allocation)
        before = "; it began before the journal" if run.adopted is not None else ""
        self._add(now, "started", f"{resources}{before}", run=run.number)
        self.entries[-1].resources = resources
        if self._stop is not None:
            self._stop.next = resources
            self._stop.text += f"; restarted {_format_delay(now - self._stop.at)}: {resources}"
            self._stop = None

    def _resources(self, run: int, allocation: Allocation) -> RunResources:
        plan = allocation.plan or (self.job.plan if self.job is not None else None)
        placement = allocation.text(self._cluster)
        return RunResources(run, allocation.gpu_milli / WHOLE, str(plan) if plan else None, placement)

    def _add_wait(self, now: float) -> None:
        """Add how long the job waited, how often each reason was given, and the last reason in full."""
        waited, waits = now - self._waiting_since, self._waits
        self._waits = []
        if not waits and self._is_infeasible():
            self._add(now, "waited", f"{format_elapsed(waited)}: does not fit the empty cluster")
            return
        if not waits:
            if waited > 0:
                self._add(now, "waited", f"{format_elapsed(waited)}; no reason recorded")
            return
        counts = Counter(wait.reason.value for wait in waits)
        reasons = ", ".join(f"{reason} × {count}" for reason, count in counts.most_common())
        last = waits[-1].text(self.job.demand if self.job else None)
        text = f"{format_elapsed(waited)}: {reasons}{f'; last: {last}' if last else ''}"
        self._add(now, "waited", text, reason=last or None)

    def _is_infeasible(self) -> bool:
        from refold.placement import FreeResources

        return self.job is not None and not FreeResources(self._cluster).fits_when_empty(self.job.demand)

    def _add(self, at: float, event: str, text: str = "", *, run: int | None = None, reason: str | None = None) -> None:
        self.entries.append(TimelineEntry(at, event, text, run, reason))

    def end(self, now: float) -> None:
        """Add the state of the job at the end of the journal if it has not ended."""
        record = self._histories.records.get(self._id)
        if record is None:
            return
        if record.state == "waiting":
            self._add_wait(now)
            bound = self._first_estimate.latest if self._first_estimate is not None else None
            if bound is not None and now > bound + TIME_TOLERANCE_SECONDS:
                self._add_estimate_outcome(now)
        self._add(now, "journal ends", f"job is still {record.state}")


def read_timeline(header: Header, entries: Iterable[Entry], job_id: str, listed_by: str) -> JobTimeline:
    from refold.core import JobSubmitted

    timeline = JobTimeline(header.cluster, job_id, header.scheduler)
    ids: list[str] = []
    now = 0.0
    for entry in entries:
        timeline.read_entry(entry)
        now = entry.now
        if timeline.job is None:
            ids += [event.job.id for event in entry.events if isinstance(event, JobSubmitted)]
    if timeline.job is None:
        raise UnknownName("job", job_id, ids, listed_by=listed_by)
    timeline.end(now)
    return timeline


def _format_estimate(estimate: StartEstimate) -> str:
    """Format 'start at 02:00:00, between 01:00:00 and 05:00:00'."""
    soonest, latest = estimate.soonest, estimate.latest
    if soonest is not None and latest is not None:
        return f"start at {format_clock(estimate.at)}, between {format_clock(soonest)} and {format_clock(latest)}"
    bounds = [f"not before {format_clock(soonest)}"] if soonest is not None else []
    bounds += [f"not after {format_clock(latest)}"] if latest is not None else []
    return ", ".join([f"start at {format_clock(estimate.at)}", *bounds])


def _format_error(seconds: float) -> str:
    if abs(seconds) <= TIME_TOLERANCE_SECONDS:
        return "exactly as estimated"
    return f"{format_elapsed(abs(seconds))} {'later' if seconds > 0 else 'earlier'} than estimated"


def _format_request(job: Job) -> str:
    parts = [f"{job.demand}", job.workload, str(job.plan) if job.plan else "", job.job_class]
    parts += [f"tenant {job.tenant}" if job.tenant != "default" else "", plural(job.steps, "step") if job.steps else ""]
    parts += [
        f"{format_elapsed(job.work)} of work" if job.work is not None else "",
        "reshapable" if job.reshapable else "",
        "" if job.preemptible else "not preemptible",
    ]
    return ", ".join(part for part in parts if part)


def _format_progress(done: float, steps: int | None) -> str:
    return f"with {plural(steps, 'step')} done" if steps is not None else f"with {format_elapsed(done)} of work done"


def _format_delay(seconds: float) -> str:
    return f"after {format_elapsed(seconds)}" if seconds else "immediately"
