"""The state at a given time of a journal, and the run times of jobs that can be predicted at that time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from operator import methodcaller

from refold.core import Entry, JobSubmitted, Scheduler, StartRun, StopRun, View
from refold.model import DAY, NO_CHANGE, Cluster, Decision, Job, Run, Seconds, Start, StartEstimate, Stop
from refold.predict import DurationDistribution, Predictor
from refold.simulator.run_time_draws import PastArrivals

MAX_PAST: Seconds = 100 * DAY
"""Jobs submitted longer ago do not count as arrivals: their times may be of another clock, as in traces."""


class StateAt:
    """The state at a given time of a journal, with the recorded decisions: the policy is not called."""

    def __init__(self, cluster: Cluster) -> None:
        self._recorded = RecordedDecisions(self._note_changes)
        self._scheduler = Scheduler(cluster, self._recorded)
        self._run_times: dict[str, Seconds] = {}
        self._jobs: dict[str, Job] = {}
        self._wakes: set[Seconds] = set()
        self._submitted: list[Job] = []
        self._past: list[tuple[Job, Seconds]] = []
        self._final_run_times: dict[str, Seconds] = {}
        self._updates: list[Callable[[Predictor], None]] = []
        self._predictor = Predictor()
        self._has_learned = False
        self.entries = 0
        self.now: Seconds = 0.0
        self.used_ids: set[str] = set()
        """The ids of all jobs ever submitted; ids are not reused."""
        self.waiting_since: dict[str, Seconds] = {}
        """For each waiting job: when it was submitted, or when its last run ended."""

    @staticmethod
    def from_entries(cluster: Cluster, entries: Iterable[Entry], at: Seconds | None = None) -> StateAt:
        """Return the state after the entries of a journal up to and including the time `at` (default: all)."""
        state = StateAt(cluster)
        for entry in entries:
            if at is not None and entry.now > at:
                break
            state.apply(entry)
        if at is not None and state.entries:
            state.now = at
        return state

    @property
    def predictor(self) -> Predictor:
        """The predictor of run times, trained on the journal so far. It is updated only when it is used."""
        for update in self._updates:
            update(self._predictor)
        self._updates.clear()
        return self._predictor

    @property
    def knows_run_times(self) -> bool:
        """Whether anything is known about run times: a job has ended, or all jobs have an estimate or a time limit."""
        jobs = (*self.view.active.values(), *self.view.waiting.values())
        return self._has_learned or all(job.work or job.time_limit for job in jobs)

    @property
    def view(self) -> View:
        """The scheduler's view after the last entry."""
        return self._scheduler.view

    @property
    def pending_wakes(self) -> list[Seconds]:
        """The future wake-up times that the policy has set."""
        return sorted(time for time in self._wakes if time > self.now)

    def apply(self, entry: Entry) -> None:
        self._recorded.entry = entry
        self._scheduler.step(entry.now, entry.events)
        self.entries += 1
        self.now = entry.now
        self.used_ids.update(event.job.id for event in entry.events if isinstance(event, JobSubmitted))
        for order in entry.orders:
            if isinstance(order, StartRun):
                self.waiting_since.pop(order.job, None)
        if entry.wake_at is not None:
            self._wakes.add(entry.wake_at)

    def _note_changes(self, view: View) -> None:
        """Record submitted, requeued and removed jobs, and the run times of jobs that have ended."""
        changes, now = view.changes, view.now
        for job, run_time in changes.past_jobs:
            self._has_learned = True
            self._past.append((job, run_time))
            self._updates += [methodcaller("submitted", job, now), methodcaller("finished", job, run_time, now)]
        for run in changes.ended:
            run_time = self._run_times.get(run.job, 0.0) + now - run.since
            if run.job in view.waiting or run.job in view.runs:
                self._run_times[run.job] = run_time
                self.waiting_since[run.job] = now
            else:
                self._run_times.pop(run.job, None)
                self._final_run_times[run.job] = run_time
                job = self._jobs.pop(run.job)
                self._has_learned = True
                cut_short = run.stopping  # cancelled or ended by the policy: its run time is not representative
                update = methodcaller("forget", job.id) if cut_short else methodcaller("finished", job, run_time, now)
                self._updates.append(update)
                self.waiting_since.pop(run.job, None)
        for job_id in changes.removed:
            self._jobs.pop(job_id, None)
            self._updates.append(methodcaller("forget", job_id))
            self.waiting_since.pop(job_id, None)
        for job in changes.submitted:
            self._add_job(job, now)
            self.waiting_since[job.id] = now
        for run in changes.started:
            if run.job not in self._jobs and run.job in view.active:  # it was running when the journal began
                self._add_job(view.active[run.job], now)

    def _add_job(self, job: Job, now: Seconds) -> None:
        self._jobs[job.id] = job
        self._submitted.append(job)
        self._updates.append(methodcaller("submitted", job, now))

    def elapsed(self, job_id: str) -> Seconds:
        """Return the run time of a job so far, over all its runs."""
        run = self.view.runs.get(job_id)
        return self._run_times.get(job_id, 0.0) + (self.now - run.since if run is not None else 0.0)

    def predicted_duration(self, job: Job) -> DurationDistribution:
        """Return the predicted total run time of a running or waiting job."""
        elapsed = self.elapsed(job.id)
        if not elapsed > 0:
            return self.predictor.expect(job, self.now)
        return self.predictor.expect_running(job, self.now, elapsed, self.view.share_done(job))

    def past_arrivals(self) -> PastArrivals:
        """Return the submitted jobs, except those cancelled before they ran, with actual or predicted run times.

        Jobs that ended before the journal began are among them if their time of submission is known.
        """
        final, unfinished = self._final_run_times | {job.id: run_time for job, run_time in self._past}, self._jobs
        past = [job for job, _ in self._past if self.now - MAX_PAST < job.submitted <= self.now]
        jobs = past + [job for job in self._submitted if job.id in final or job.id in unfinished]
        durations = [final[job.id] if job.id in final else self.predicted_duration(job).quantile(0.5) for job in jobs]
        order = sorted(range(len(jobs)), key=lambda index: jobs[index].submitted)
        return PastArrivals([jobs[index] for index in order], [durations[index] for index in order], self.now)

    def end_estimate(self, run: Run) -> StartEstimate:
        """Return the predicted end of a run, if it is not stopped, with the 5% and 95% quantiles as bounds."""
        job = self.view.active[run.job]
        start, duration = self.now - self.elapsed(job.id), self.predicted_duration(job)
        at, soonest, latest = (start + duration.quantile(share) for share in (0.5, 0.05, 0.95))
        return StartEstimate(job.id, max(at, self.now), max(soonest, self.now), max(latest, self.now))


class RecordedDecisions:
    """A policy that repeats the decisions recorded in a journal."""

    name = "the journal"

    def __init__(self, observe: Callable[[View], None]) -> None:
        self.entry = Entry(-inf)
        self._observe = observe

    def decide(self, view: View) -> Decision:
        """Return the recorded decision. Orders that followed from events are left out: the core repeats them."""
        self._observe(view)
        entry = self.entry
        if not (entry.orders or entry.waits or entry.start_estimates or entry.flags or entry.ends):
            return NO_CHANGE
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
    """Whether the policy may have ordered the stop. Otherwise it followed from an event, such as a cancellation.

    The run may also have ended in the same step, and then is no longer in the view.
    """
    run = view.runs.get(job_id)
    return run is not None and not run.stopping
