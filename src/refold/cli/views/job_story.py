"""The story of one job, line by line, as a journal tells it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from refold.cli.views.output import plural
from refold.cli.views.times import clock, duration, gpus_text

if TYPE_CHECKING:
    from refold.core import Entry, Event, Header, Order
    from refold.model import Allocation, Cluster, Job, Plan, StartEstimate, Wait

DUST = 1e-3
"""Seconds by which a bound is not passed, but rounded."""


@dataclass(frozen=True, slots=True)
class RunResources:
    """What a run has."""

    run: int
    gpus: float
    plan: str | None
    where: str

    def __str__(self) -> str:
        return f"{gpus_text(self.gpus)}{f', {self.plan}' if self.plan else ''}, on {self.where}"


@dataclass(slots=True)
class StoryLine:
    """One thing that happened to the job; `next` is what it got after a stop."""

    at: float
    event: str
    text: str = ""
    run: int | None = None
    why: str | None = None
    shape: RunResources | None = None
    next: RunResources | None = None


class Story:
    """What happened to one job, line by line."""

    def __init__(self, cluster: Cluster, job_id: str) -> None:
        self._cluster, self._id = cluster, job_id
        self.job: Job | None = None
        self.told: list[StoryLine] = []
        self._waits: list[Wait] = []
        self._waiting_since = self._running_since = 0.0
        self._plan: Plan | None = None
        self._stop: StoryLine | None = None
        self._state = ""
        self._run = 0
        self._cancelled = False
        self._promised: StartEstimate | None = None
        self._last_promised: StartEstimate | None = None

    def note(self, entry: Entry) -> None:
        """What of an entry is about the job."""
        for event in entry.events:
            self._note_event(entry.now, event)
        for flag in entry.flags:
            if flag.job == self._id:
                self._say(entry.now, "flagged", flag.why, run=self._run, why=flag.why)
        for order in entry.orders:
            if order.job == self._id:
                self._note_order(entry.now, order, any(end.job == self._id for end in entry.ends))
        self._waits += [wait for wait in entry.waits if wait.job == self._id]
        for expected in entry.start_estimates:
            if expected.job == self._id:
                self._note_expected(entry.now, expected)

    def _note_expected(self, now: float, expected: StartEstimate) -> None:
        """What it is told first when it begins to wait, and every time that its bound becomes a later one."""
        last, self._last_promised = self._last_promised, expected
        if last is None:
            self._promised = expected
            self._say(now, "promised" if expected.latest is not None else "expected", _expected_text(expected))
        elif expected.latest is not None and (last.latest is None or expected.latest > last.latest):
            self._say(now, "renewed", _expected_text(expected))

    def _say_kept(self, now: float) -> None:
        """Whether the first thing that it was told came true, and how far off it was."""
        promised, self._promised, self._last_promised = self._promised, None, None
        if promised is None:
            return
        off = _off_text(now - promised.at)
        if promised.latest is None:
            self._say(now, "waited", off)
        elif now > promised.latest + DUST:
            self._say(now, "promise broken", f"{duration(now - promised.latest)} after its bound, {off}")
        else:
            self._say(now, "promise kept", off)

    def _note_event(self, now: float, event: Event) -> None:
        from refold.core import JobCancelled, JobSubmitted, RunFailed, RunFinished, RunStarted, RunStopped

        if getattr(event, "job", None) == self._id and getattr(event, "run", self._run) != self._run:
            return  # late: about a run that is over
        match event:
            case JobSubmitted(job) if job.id == self._id and self.job is None:
                self.job, self._plan, self._waiting_since, self._state = job, job.plan, now, "waits"
                self._say(now, "submitted", _asked_text(job))
            case RunStarted(self._id, run):
                self._say(now, "computes", f"after {duration(now - self._running_since)} of starting up", run=run)
            case RunStopped(self._id, run, done, steps):
                self._say(now, "stopped", _done_text(done, steps), run=run)
                self._run = 0
                self._waiting_since, self._state = now, "" if self._cancelled else "waits"
            case RunFailed(self._id, run, why, done, retry, steps):
                again = f"; it waits again, {_done_text(done, steps)}" if retry else ""
                self._say(now, "failed", f"{why}{again}", run=run, why=why)
                self._run = 0
                self._waiting_since, self._state = now, "waits" if retry and not self._cancelled else ""
            case RunFinished(self._id, run):
                asked = duration(now - self.job.submitted) if self.job else ""
                self._say(now, "finished", f"{asked} after it was submitted", run=run)
                self._run, self._state = 0, ""
            case JobCancelled(self._id):
                self._say(now, "cancelled")
                self._cancelled, self._state = True, self._state if self._state == "runs" else ""
            case _:
                pass

    def _note_order(self, now: float, order: Order, for_good: bool) -> None:
        from refold.core import StartRun

        if not isinstance(order, StartRun):
            event, why = "told to end" if for_good else "told to stop", order.why or "no reason was said"
            self._say(now, event, why, run=order.run, why=order.why or None)
            self._cancelled = self._cancelled or for_good
            self._stop = None if for_good else self.told[-1]
            return
        self._say_waited(now)
        self._say_kept(now)
        shape = self._shape(order.run, order.allocation)
        self._say(now, "started", str(shape), run=order.run)
        self.told[-1].shape = shape
        if self._stop is not None:
            self._stop.next = shape
            self._stop.text += f"; next, {_after(now - self._stop.at)}: {shape}"
            self._stop = None
        self._running_since, self._state, self._run = now, "runs", order.run

    def _shape(self, run: int, allocation: Allocation) -> RunResources:
        from refold.model import WHOLE

        plan = allocation.plan or self._plan
        where = allocation.text(self._cluster)
        return RunResources(run, allocation.gpu_milli / WHOLE, str(plan) if plan else None, where)

    def _say_waited(self, now: float) -> None:
        """Why it waited: what was said last, and how often what was."""
        waited, said = now - self._waiting_since, self._waits
        self._waits = []
        if not said and self._never_fits():
            self._say(now, "waited", f"{duration(waited)}: the whole cluster, empty, has no room for it")
            return
        if not said:
            if waited > 0:
                self._say(now, "waited", f"{duration(waited)}; no reason was said")
            return
        counts = Counter(wait.reason.value for wait in said)
        told = ", ".join(f"{reason} × {count}" for reason, count in counts.most_common())
        last = self._wait_text(said[-1])
        self._say(now, "waited", f"{duration(waited)}: {told}{f'; at last: {last}' if last else ''}", why=last or None)

    def _never_fits(self) -> bool:
        from refold.packing import Free

        return self.job is not None and not Free(self._cluster).fits_when_empty(self.job.demand)

    def _wait_text(self, wait: Wait) -> str:
        if wait.shortage is not None:
            return wait.shortage.text(gpus_text(self.job.demand.gpus) if self.job else "GPUs")
        return f"{plural(wait.ahead, 'job')} before it" if wait.ahead else ""

    def _say(self, at: float, event: str, text: str = "", *, run: int | None = None, why: str | None = None) -> None:
        self.told.append(StoryLine(at, event, text, run, why))

    def end(self, now: float) -> None:
        """The journal ends, and perhaps the job did not."""
        if self._state == "waits":
            self._say_waited(now)
            if self._promised is not None and self._promised.latest is not None and now > self._promised.latest + DUST:
                self._say_kept(now)
        if self._state:
            self._say(now, "the end", f"of the journal; it still {self._state}")


def story_of(header: Header, entries: Iterable[Entry], job_id: str, listed_by: str) -> Story:
    """What a journal tells of a job."""
    from refold.core import JobSubmitted
    from refold.errors import UnknownName

    story = Story(header.cluster, job_id)
    ids: list[str] = []
    now = 0.0
    for entry in entries:
        story.note(entry)
        now = entry.now
        if story.job is None:
            ids += [event.job.id for event in entry.events if isinstance(event, JobSubmitted)]
    if story.job is None:
        raise UnknownName("job", job_id, ids, listed_by=listed_by)
    story.end(now)
    return story


def _expected_text(expected: StartEstimate) -> str:
    """'at 02:00:00, between 01:00:00 and 05:00:00'."""
    soonest, latest = expected.soonest, expected.latest
    if soonest is not None and latest is not None:
        return f"to start at {clock(expected.at)}, between {clock(soonest)} and {clock(latest)}"
    bounds = [f"not before {clock(soonest)}"] if soonest is not None else []
    bounds += [f"not after {clock(latest)}"] if latest is not None else []
    return ", ".join([f"to start at {clock(expected.at)}", *bounds])


def _off_text(seconds: float) -> str:
    if abs(seconds) <= DUST:
        return "just when it was expected"
    return f"{duration(abs(seconds))} {'later' if seconds > 0 else 'sooner'} than expected"


def _asked_text(job: Job) -> str:
    parts = [f"{job.demand}", job.workload, str(job.plan) if job.plan else "", job.job_class]
    parts += [f"tenant {job.tenant}" if job.tenant != "default" else "", plural(job.steps, "step") if job.steps else ""]
    parts += [f"{duration(job.work)} of work" if job.work is not None else "", "reshapable" if job.reshapable else ""]
    return ", ".join(part for part in parts if part)


def _done_text(done: float, steps: int | None) -> str:
    return f"with {plural(steps, 'step')} done" if steps is not None else f"with {duration(done)} of work done"


def _after(seconds: float) -> str:
    return f"after {duration(seconds)}" if seconds else "at once"
