"""How things stand at a moment of a journal, and what can be known then of how long jobs last."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from operator import methodcaller

from refold.core import Entry, JobSubmitted, Scheduler, StartRun, StopRun, View
from refold.model import KEEP, Cluster, Decision, Job, Run, Seconds, Start, StartEstimate, Stop
from refold.predict import DurationDistribution, Predictor
from refold.simulator.arrivals import PastArrivals


class StateAt:
    """How things stand at a moment of a journal, as it is written: its policy is not asked again."""

    def __init__(self, cluster: Cluster) -> None:
        self._written = RecordedDecisions(self._learn)
        self._scheduler = Scheduler(cluster, self._written)
        self._ran: dict[str, Seconds] = {}
        self._jobs: dict[str, Job] = {}
        self._wakes: set[Seconds] = set()
        self._came: list[Job] = []
        self._lasted: dict[str, Seconds] = {}
        self._lessons: list[Callable[[Predictor], None]] = []
        self._predictor = Predictor()
        self.entries = 0
        self.now: Seconds = 0.0
        self.names: set[str] = set()
        """Those of all jobs that have ever been submitted: a name is taken for ever."""
        self.waiting_since: dict[str, Seconds] = {}
        """Of every job that waits: since it was submitted, or since its last run ended."""

    @staticmethod
    def of(cluster: Cluster, entries: Iterable[Entry], at: Seconds | None = None) -> StateAt:
        """Follow a journal to its end; or to a moment, `at`, and all that happened up to it."""
        present = StateAt(cluster)
        for entry in entries:
            if at is not None and entry.now > at:
                break
            present.follow(entry)
        if at is not None and present.entries:
            present.now = at
        return present

    @property
    def predictor(self) -> Predictor:
        """What has been learned so far of how long jobs last: at once, and only if somebody asks."""
        for lesson in self._lessons:
            lesson(self._predictor)
        self._lessons.clear()
        return self._predictor

    @property
    def view(self) -> View:
        """The state, as of the last entry up to now."""
        return self._scheduler.view

    @property
    def wakes(self) -> list[Seconds]:
        """When the policy has asked to be woken."""
        return sorted(moment for moment in self._wakes if moment > self.now)

    def follow(self, entry: Entry) -> None:
        """One entry more."""
        self._written.entry = entry
        self._scheduler.step(entry.now, entry.events)
        self.entries += 1
        self.now = entry.now
        self.names.update(event.job.id for event in entry.events if isinstance(event, JobSubmitted))
        for order in entry.orders:
            if isinstance(order, StartRun):
                self.waiting_since.pop(order.job, None)
        if entry.wake_at is not None:
            self._wakes.add(entry.wake_at)

    def _learn(self, view: View) -> None:
        """Who has come, who waits again, who is gone; and how long those have lasted that are over."""
        changes, now = view.changes, view.now
        for job, lasted in changes.remembered:
            self._lessons += [methodcaller("submitted", job, now), methodcaller("finished", job, lasted, now)]
        for run in changes.ended:
            ran = self._ran.get(run.job, 0.0) + now - run.since
            if run.job in view.waiting or run.job in view.runs:
                self._ran[run.job] = ran
                self.waiting_since[run.job] = now
            else:
                self._ran.pop(run.job, None)
                self._lasted[run.job] = ran
                job = self._jobs.pop(run.job)
                cut_short = run.stopping  # cancelled, or ended by a rule: that is no end of its own
                lesson = methodcaller("forget", job.id) if cut_short else methodcaller("finished", job, ran, now)
                self._lessons.append(lesson)
                self.waiting_since.pop(run.job, None)
        for job_id in changes.gone:
            self._jobs.pop(job_id, None)
            self._lessons.append(methodcaller("forget", job_id))
            self.waiting_since.pop(job_id, None)
        for job in changes.submitted:
            self._come(job, now)
            self.waiting_since[job.id] = now
        for run in changes.started:
            if run.job not in self._jobs and run.job in view.active:  # it was going on when the journal began
                self._come(view.active[run.job], now)

    def _come(self, job: Job, now: Seconds) -> None:
        self._jobs[job.id] = job
        self._came.append(job)
        self._lessons.append(methodcaller("submitted", job, now))

    def elapsed(self, job_id: str) -> Seconds:
        """How long a job has had a run, over all its runs up to now."""
        run = self.view.runs.get(job_id)
        return self._ran.get(job_id, 0.0) + (self.now - run.since if run is not None else 0.0)

    def life(self, job: Job) -> DurationDistribution:
        """How long a job that runs or waits will have run in all, as predicted."""
        elapsed = self.elapsed(job.id)
        if not elapsed > 0:
            return self.predictor.expect(job, self.now)
        return self.predictor.expect_running(job, self.now, elapsed, self.view.share_done(job))

    def past(self) -> PastArrivals:
        """All who have come and were not cancelled before they ran: each with how long it lasted, or probably will."""
        lasted, there = self._lasted, self._jobs
        jobs = [job for job in self._came if job.id in lasted or job.id in there]
        lives = [lasted[job.id] if job.id in lasted else self.life(job).quantile(0.5) for job in jobs]
        order = sorted(range(len(jobs)), key=lambda place: jobs[place].submitted)
        return PastArrivals([jobs[place] for place in order], [lives[place] for place in order], self.now)

    def end(self, run: Run) -> StartEstimate:
        """When a run will end, if it is left to run."""
        job = self.view.active[run.job]
        begin, life = self.now - self.elapsed(job.id), self.life(job)
        at, soonest, latest = (begin + life.quantile(part) for part in (0.5, 0.05, 0.95))
        return StartEstimate(job.id, max(at, self.now), max(soonest, self.now), max(latest, self.now))


class RecordedDecisions:
    """The policy that decides what the journal says was decided."""

    name = "the journal"

    def __init__(self, observe: Callable[[View], None]) -> None:
        self.entry = Entry(-inf)
        self._observe = observe

    def decide(self, view: View) -> Decision:
        """What the entry orders, but for what follows from its facts and has been ordered already."""
        self._observe(view)
        entry = self.entry
        if not (entry.orders or entry.waits or entry.start_estimates or entry.flags or entry.ends):
            return KEEP
        ended = {end.job for end in entry.ends}
        starts = [Start(order.job, order.allocation) for order in entry.orders if isinstance(order, StartRun)]
        stops = [
            Stop(order.job, order.why)
            for order in entry.orders
            if isinstance(order, StopRun) and order.job not in ended and _could_be_stopped(view, order.job)
        ]
        return Decision(
            tuple(starts), tuple(stops), (), entry.waits, entry.start_estimates, None, entry.flags, entry.ends
        )


def _could_be_stopped(view: View, job_id: str) -> bool:
    """Whether the policy may have ordered this stop. If not, it followed from an event, such as a cancellation.

    The run may even have ended in the same step: then it is not in the view any more.
    """
    run = view.runs.get(job_id)
    return run is not None and not run.stopping
