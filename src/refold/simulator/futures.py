"""Start and end estimates from several simulated futures of a journal.

In each future, the policy of the journal continues, and every running or waiting job runs for a time that is drawn
from its predicted run-time distribution, using only what was known at that time. Optionally, more jobs arrive, as they
did in the past. The distribution of the start times over the futures is the estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from math import inf
from typing import NamedTuple
from zlib import crc32

import msgspec
import numpy as np

from refold.core import Entry, Event, JobSubmitted, Policy, RunFinished, RunStopped, Scheduler, StartRun, View
from refold.errors import BadJournal
from refold.model import Allocation, Cluster, Decision, Job, Seconds, StartEstimate
from refold.placement import Floats
from refold.policies.common import RunWatch
from refold.predict import DurationDistribution
from refold.simulator.agenda import Agenda
from refold.simulator.backend import SimulatedBackend
from refold.simulator.costs import RecordedSpeeds, SpeedModel
from refold.simulator.fork import CannotCopy, Fork
from refold.simulator.run_time_draws import PastArrivals
from refold.simulator.state_at import RecordedDecisions, StateAt

MAX_STEPS = 50_000
"""The number of steps per future: a policy with a wake-up every minute gets about a month."""

MAX_IDLE_STEPS = 1_000
"""A future ends after more steps than this in a row that start no job while nothing runs."""


def continue_with_own_policy(
    state: StateAt, cluster: Cluster, entries: Callable[[], Iterable[Entry]], policy: Callable[[], Policy]
) -> Callable[[], Scheduler]:
    """Return a factory of schedulers in the given state of the journal, with its policy and the policy's own state.

    `entries` returns the entries of the journal from the beginning at each call. The journal is replayed once, and the
    scheduler is copied; if the policy cannot be copied, the journal is replayed for each scheduler.
    """

    def make_replayed() -> Scheduler:
        own_policy = policy()
        scheduler = Scheduler(cluster, own_policy, on_rejection=lambda _: None)
        for entry in islice(entries(), state.entries):
            scheduler.repeat(entry)
        if isinstance(own_policy, RunWatch):
            own_policy.disable()
        return scheduler

    first = make_replayed()
    if dict(first.view.runs) != dict(state.view.runs):
        raise BadJournal("the policy does not repeat the recorded decisions, so its future decisions are unknown")
    return _scheduler_factory(first, make_replayed)


def continue_with_new_policy(
    state: StateAt, cluster: Cluster, entries: Callable[[], Iterable[Entry]], policy: Callable[[], Policy]
) -> Callable[[], Scheduler]:
    """Return a factory of schedulers in the given state, with another policy, to which all current jobs are new."""

    def make_replayed() -> Scheduler:
        successor = _Successor(policy())
        scheduler = Scheduler(cluster, successor, on_rejection=lambda _: None)
        for entry in islice(entries(), state.entries):
            successor.recorded.entry = entry
            scheduler.step(entry.now, entry.events)
        successor.active = True
        return scheduler

    return _scheduler_factory(make_replayed(), make_replayed)


def _scheduler_factory(first: Scheduler, make_replayed: Callable[[], Scheduler]) -> Callable[[], Scheduler]:
    try:
        return Fork(first).copy
    except CannotCopy:
        return make_replayed


class _Successor:
    """Repeats the recorded decisions, and once `active` is set, calls another policy."""

    def __init__(self, policy: Policy) -> None:
        self.name = policy.name
        self.recorded = RecordedDecisions(lambda _: None)
        self.active = False
        self._policy = policy
        self._was_called = False
        self._past_jobs: list[tuple[Job, Seconds]] = []

    def decide(self, view: View) -> Decision:
        if not self.active:
            self._past_jobs += view.changes.past_jobs
            return self.recorded.decide(view)
        if not self._was_called:
            self._was_called = True
            view.changes.submitted[:] = view.waiting.values()
            view.changes.started[:] = view.runs.values()
            view.changes.past_jobs[:] = self._past_jobs
            view.changes.requeued.clear()
        return self._policy.decide(view)


class RangeFactors(NamedTuple):
    """By which factors the ends of the range of a start are further from now, or nearer, than in the futures."""

    soonest: float = 1.0
    latest: float = 1.0


AS_SIMULATED = RangeFactors()
OTHER_SCHEDULER = RangeFactors(0.4, 3.0)
"""For the queue of another scheduler, of which only a simulation is known.

Futures lack jobs that arrive later, and draw the run times of jobs that are alike independently. The factors were
chosen on one replay of a trace through Slurm, and are measured on another (docs/results/slurm.md).
"""


class Futures:
    """The start and end times of jobs in each future; infinity if a job does not start or end in it."""

    def __init__(
        self,
        count: int,
        starts: Mapping[str, Floats],
        ends: Mapping[str, Floats],
        now: Seconds = 0.0,
        factors: RangeFactors = AS_SIMULATED,
    ) -> None:
        self.count = count
        """The number of futures."""
        self._starts, self._ends = starts, ends
        self._now, self._factors = now, factors

    @property
    def all_starts(self) -> Mapping[str, Floats]:
        """The start times of all tracked jobs."""
        return self._starts

    @property
    def all_ends(self) -> Mapping[str, Floats]:
        """The end times of all jobs whose ends are known."""
        return self._ends

    def starts(self, job_id: str) -> Floats:
        return self._starts[job_id]

    def start(self, job_id: str) -> StartEstimate | None:
        """Return the start estimate of a job; None unless it starts in more than half of the futures."""
        found, now, factors = _estimate(job_id, self._starts[job_id]), self._now, self._factors
        if found is None or found.soonest is None:
            return found
        soonest = now + (found.soonest - now) * factors.soonest
        latest = None if found.latest is None else now + (found.latest - now) * factors.latest
        return msgspec.structs.replace(found, soonest=soonest, latest=latest)

    def end(self, job_id: str) -> StartEstimate | None:
        """Return the end estimate of one of the `new_jobs` or `ends_of`; None unless it ends in most futures."""
        return _estimate(job_id, self._ends[job_id])


def _estimate(job_id: str, times: Floats) -> StartEstimate | None:
    """Return the median, with the 5% and 95% quantiles as bounds; None if the median is infinite."""
    ordered = np.sort(times)
    soonest, at, latest = (float(ordered[int(share * (len(ordered) - 1) + 0.5)]) for share in (0.05, 0.5, 0.95))
    if at == inf:
        return None
    return StartEstimate(job_id, at, soonest, latest if latest < inf else None)


def simulate_futures(
    state: StateAt,
    make_scheduler: Callable[[], Scheduler],
    *,
    futures: int,
    seed: int = 0,
    charge: SpeedModel | None = None,
    job_ids: Iterable[str] | None = None,
    new_jobs: Sequence[Job] = (),
    ends_of: Iterable[str] = (),
    estimates_hold: bool = False,
    arrivals: bool = False,
    factors: RangeFactors = AS_SIMULATED,
    advance: Callable[[], None] = lambda: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Futures:
    """Simulate several futures; return the starts of the jobs `job_ids` (default: all waiting jobs) and `new_jobs`.

    `new_jobs` are submitted now; their ends are returned too, and those of the current jobs `ends_of`. One of the new
    jobs that has `work` runs for exactly that time; if `estimates_hold`, so do current jobs that have not run for
    longer: in the state of a live cluster, it is what users estimate. The run times drawn for a seed do not depend on
    `job_ids` and `new_jobs`. With `arrivals`, more jobs arrive, as they did in the past. `factors` change the ranges of
    starts. `advance` is called after each future; if `should_stop` returns True then, it was the last.
    """
    view = state.view
    past_arrivals = state.past_arrivals() if arrivals else PastArrivals((), (), state.now)
    used_ids = state.used_ids | {job.id for job in new_jobs}
    known = {job.id: job for jobs in (view.active, view.waiting, view.held) for job in jobs.values()}
    charge = charge or RecordedSpeeds(view.cluster)
    expected = {job.id: _present_duration(state, job, estimates_hold) for job in known.values()}
    durations = {job.id: _draw_durations(job, expected[job.id], futures, seed) for job in known.values()}
    durations |= {job.id: _draw_durations(job, _known_or_predicted(state, job), futures, seed) for job in new_jobs}
    new_jobs = [_with_work(state, job) for job in new_jobs]
    tracked = [*(view.waiting if job_ids is None else job_ids), *(job.id for job in new_jobs)]
    starts = {job_id: np.full(futures, inf) for job_id in tracked}
    ends = {job_id: np.full(futures, inf) for job_id in (*ends_of, *(job.id for job in new_jobs))}
    finished = 0
    for number in range(futures):
        arriving = past_arrivals.resample(np.random.default_rng([seed, number]), used_ids)
        remaining = {
            job_id: max(0.0, float(duration[number]) - state.elapsed(job_id)) for job_id, duration in durations.items()
        }
        remaining |= {job.id: job.work or 0.0 for job in arriving}
        jobs = [*known.values(), *new_jobs]
        future = Future(
            make_scheduler(), state.now, jobs, remaining, charge, arriving=arriving, wakes=state.pending_wakes
        )
        future.run(new_jobs, tracked, ends)
        for job_id, time in future.started.items():
            starts[job_id][number] = time
        for job_id, time in future.ended.items():
            ends[job_id][number] = time
        finished += 1
        advance()
        if should_stop():
            break
    if finished < futures:
        starts, ends = ({job_id: times[:finished] for job_id, times in each.items()} for each in (starts, ends))
    return Futures(finished, starts, ends, state.now, factors)


def _present_duration(state: StateAt, job: Job, estimates_hold: bool) -> DurationDistribution | Seconds:
    if estimates_hold and job.work is not None and job.work > state.elapsed(job.id):
        return job.work
    return state.predicted_duration(job)


def _known_or_predicted(state: StateAt, job: Job) -> DurationDistribution | Seconds:
    return job.work if job.work is not None else state.predictor.expect(job, state.now)


def _with_work(state: StateAt, job: Job) -> Job:
    """Return the job with its predicted median as `work`, if it has none: oracle policies need a value."""
    if job.work is not None:
        return job
    return msgspec.structs.replace(job, work=state.predictor.expect(job, state.now).quantile(0.5))


def _draw_durations(job: Job, duration: DurationDistribution | Seconds, count: int, seed: int) -> Floats:
    """Draw a run time for each future, by stratified sampling: one from each of `count` quantile ranges, shuffled."""
    if not isinstance(duration, DurationDistribution):
        return np.full(count, duration)
    random = np.random.default_rng([seed, crc32(job.id.encode())])
    shares = (random.permutation(count) + random.random(count)) / count
    return np.array([duration.quantile(min(max(share, 1e-4), 1 - 1e-4)) for share in shares.tolist()])


class _DrawnSpeeds:
    """A speed model with the drawn work of each job."""

    def __init__(self, works: Mapping[str, Seconds], base: SpeedModel) -> None:
        self._works, self._base = works, base

    def work(self, job: Job) -> Seconds:
        return self._works[job.id]

    def speed(self, job: Job, allocation: Allocation) -> float:
        return self._base.speed(job, allocation)


class Future:
    """One simulated future of a scheduler: its policy continues by itself, from a copy of the current state."""

    def __init__(
        self,
        scheduler: Scheduler,
        now: Seconds,
        jobs: Iterable[Job],
        remaining: Mapping[str, Seconds],
        charge: SpeedModel,
        *,
        arriving: Sequence[Job] = (),
        wakes: Iterable[Seconds] = (),
    ) -> None:
        """`remaining`: how long each of the jobs, and of those that are `arriving`, will still run; may be infinite."""
        self._scheduler, self.now = scheduler, now
        self._agenda = Agenda(arriving)
        view = scheduler.view
        done = {job_id: work_done(view, job_id, now) for job_id in (*view.waiting, *view.runs, *view.held)}
        works = {
            job_id: done.get(job_id, 0.0) + seconds * self._speed(job_id, charge)
            for job_id, seconds in remaining.items()
        }
        self._backend = SimulatedBackend([*jobs, *arriving], self._agenda, _DrawnSpeeds(works, charge), done=done)
        self._resume(wakes, done)
        self._endless = {job_id for job_id, seconds in remaining.items() if seconds == inf}
        self.started: dict[str, Seconds] = {}
        self.ended: dict[str, Seconds] = {}
        self.gpu_seconds = 0.0
        """What has been in use since the present."""
        self.is_over = False
        """Whether nothing more happens: no run ends whose end is known."""

    def _speed(self, job_id: str, charge: SpeedModel) -> float:
        run = self._scheduler.view.runs.get(job_id)
        return charge.speed(self._scheduler.view.active[job_id], run.allocation) if run is not None else 1.0

    def _resume(self, wakes: Iterable[Seconds], done: Mapping[str, Seconds]) -> None:
        """Resume the runs, and let those that are stopping stop now. The policy is called once at the start."""
        self._agenda.wake(self.now)
        for run in self._scheduler.view.runs.values():
            if run.stopping:
                self._agenda.add(self.now, RunStopped(run.job, run.number, done[run.job]))
            else:
                self._backend.carry_out(self.now, [StartRun(run.job, run.number, run.allocation)])
        for time in wakes:
            self._agenda.wake(time)

    def run(
        self, new_jobs: Sequence[Job], tracked: Iterable[str], ending: Iterable[str] = (), max_steps: int = MAX_STEPS
    ) -> None:
        """Simulate until all tracked jobs have started and all `ending` have ended, or nothing more happens."""
        unstarted, unended = set(tracked), set(ending)
        for job in new_jobs:
            self._agenda.add(self.now, JobSubmitted(job))
        idle_steps = 0
        for _ in range(max_steps):
            upcoming = self._agenda.next() if unstarted or unended else None
            if upcoming is None or upcoming[0] == inf or idle_steps > MAX_IDLE_STEPS:
                self.is_over = True
                return
            entry = self._step(*upcoming)
            for order in entry.orders:
                if isinstance(order, StartRun) and order.job in unstarted:
                    unstarted.remove(order.job)
                    self.started[order.job] = entry.now
            for event in entry.events:
                if isinstance(event, RunFinished) and event.job in unended:
                    unended.remove(event.job)
                    self.ended[event.job] = entry.now
            runs = self._scheduler.view.runs
            idle_steps = 0 if entry.orders or runs else idle_steps + 1
            if self._endless and runs and runs.keys() <= self._endless:
                self.is_over = True
                return

    def _step(self, now: Seconds, events: list[Event]) -> Entry:
        view = self._scheduler.view
        if view.runs:  # GPUs of nodes that are down are not free, but nothing runs on them
            self.gpu_seconds += (view.cluster.gpus - view.free_gpus) * (now - self.now)
        self.now = now
        events += self._backend.consequences(now, events)
        entry = self._scheduler.step(now, events)
        self._backend.carry_out(now, entry.orders)
        if entry.wake_at is not None:
            self._agenda.wake(entry.wake_at)
        return entry


def work_done(view: View, job_id: str, now: Seconds) -> Seconds:
    """Return the estimated work of a job done by now, in seconds."""
    return view.done(job_id) + (now - view.now if view.computing_since(job_id) is not None else 0.0)
