"""Looking ahead: how things may go on from a moment of a journal.

The policy of the journal goes on in several imagined futures. In each of them every job that runs or waits lives as
long as was drawn for it from what is predicted of it, by what was known at that moment. Others arrive as they did in
the past, or nobody does. When a job starts in these futures is when it may start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from math import inf
from zlib import crc32

import msgspec
import numpy as np

from refold.core import Entry, Event, JobSubmitted, Policy, RunFinished, RunStopped, Scheduler, StartRun, View
from refold.errors import BadJournal
from refold.model import Allocation, Cluster, Decision, Job, Seconds, StartEstimate
from refold.packing import Floats
from refold.policies.common import RunWatch
from refold.predict import DurationDistribution
from refold.simulator.agenda import Agenda
from refold.simulator.arrivals import PastArrivals
from refold.simulator.backend import SimulatedBackend
from refold.simulator.costs import RecordedSpeeds, SpeedModel
from refold.simulator.fork import CannotCopy, Fork
from refold.simulator.state_at import RecordedDecisions, StateAt

MOST_STEPS = 50_000
"""No future goes on for longer: a policy that is woken every minute sees a month of it."""

MOST_WAKES_IN_VAIN = 1_000
"""Nor for longer than so many wakes in a row that start nobody while nothing runs."""


def going_on(
    present: StateAt, cluster: Cluster, entries: Callable[[], Iterable[Entry]], policy: Callable[[], Policy]
) -> Callable[[], Scheduler]:
    """Schedulers that stand where the journal does, with its policy and all that it remembers: one per call.

    `entries` are the journal's, from its first on, as often as it is called. The journal is replayed once and copied;
    where there is something in a policy that cannot be copied, it is replayed for each.
    """

    def replayed() -> Scheduler:
        decides = policy()
        scheduler = Scheduler(cluster, decides, refused=lambda _: None)
        for entry in islice(entries(), present.entries):
            scheduler.step(entry.now, entry.events)
        if isinstance(decides, RunWatch):
            decides.look_away()
        return scheduler

    first = replayed()
    if dict(first.view.runs) != dict(present.view.runs):
        raise BadJournal("its policy decides otherwise now than it did then, so nobody knows how it would go on")
    return _several(first, replayed)


def taking_over(
    present: StateAt, cluster: Cluster, entries: Callable[[], Iterable[Entry]], policy: Callable[[], Policy]
) -> Callable[[], Scheduler]:
    """The same with another policy from here on, to whom everybody who waits or runs is new."""

    def replayed() -> Scheduler:
        successor = _Successor(policy())
        scheduler = Scheduler(cluster, successor, refused=lambda _: None)
        for entry in islice(entries(), present.entries):
            successor.past.entry = entry
            scheduler.step(entry.now, entry.events)
        successor.has_begun = True
        return scheduler

    return _several(replayed(), replayed)


def _several(first: Scheduler, replayed: Callable[[], Scheduler]) -> Callable[[], Scheduler]:
    try:
        return Fork(first).copy
    except CannotCopy:
        return replayed


class _Successor:
    """Decides as is written, and from some time on as another policy does."""

    def __init__(self, policy: Policy) -> None:
        self.name = policy.name
        self.past = RecordedDecisions(lambda _: None)
        self.has_begun = False
        self._policy = policy
        self._has_looked = False
        self._remembered: list[tuple[Job, Seconds]] = []

    def decide(self, view: View) -> Decision:
        """As is written, or as the successor says."""
        if not self.has_begun:
            self._remembered += view.changes.remembered
            return self.past.decide(view)
        if not self._has_looked:
            self._has_looked = True
            view.changes.submitted[:] = view.waiting.values()
            view.changes.started[:] = view.runs.values()
            view.changes.remembered[:] = self._remembered
            view.changes.returned.clear()
        return self._policy.decide(view)


class Futures:
    """When jobs started and ended in each of several futures; infinity where they did not."""

    def __init__(self, starts: Mapping[str, Floats], ends: Mapping[str, Floats]) -> None:
        self._starts, self._ends = starts, ends

    def starts(self, job_id: str) -> Floats:
        """When a job started, future by future."""
        return self._starts[job_id]

    def start(self, job_id: str) -> StartEstimate | None:
        """When a job may start; None: in half of the futures, or more, it does not."""
        return _expected(job_id, self._starts[job_id])

    def end(self, job_id: str) -> StartEstimate | None:
        """When a job that was asked about may end."""
        return _expected(job_id, self._ends[job_id])


def _expected(job_id: str, moments: Floats) -> StartEstimate | None:
    """The middle of some moments, and bounds within which nearly all are; one that is not finite is not there."""
    ordered = np.sort(moments)
    soonest, at, latest = (float(ordered[int(part * (len(ordered) - 1) + 0.5)]) for part in (0.05, 0.5, 0.95))
    if at == inf:
        return None
    return StartEstimate(job_id, at, soonest, latest if latest < inf else None)


def look_ahead(
    present: StateAt,
    go_on: Callable[[], Scheduler],
    *,
    futures: int,
    seed: int = 0,
    charge: SpeedModel | None = None,
    about: Iterable[str] | None = None,
    asked: Sequence[Job] = (),
    arrivals: bool = False,
    advance: Callable[[], None] = lambda: None,
) -> Futures:
    """What may become of the jobs that it is `about`, or of all that wait now; and of those `asked` about, which are
    submitted now.

    The same seed draws the same lives, whoever is asked about. A job that is asked about and says its work lives for as
    long as that. With `arrivals` others come as they did in the past.
    """
    view = present.view
    past = present.past() if arrivals else PastArrivals((), (), present.now)
    names = present.names | {job.id for job in asked}
    known = {job.id: job for jobs in (view.active, view.waiting, view.held) for job in jobs.values()}
    charge = charge or RecordedSpeeds(view.cluster)
    lives = {job.id: _drawn(job, present.life(job), futures, seed) for job in known.values()}
    lives |= {job.id: _drawn(job, _said_or_predicted(present, job), futures, seed) for job in asked}
    asked = [_as_known_to_oracles(present, job) for job in asked]
    watched = [*(view.waiting if about is None else about), *(job.id for job in asked)]
    starts = {job_id: np.full(futures, inf) for job_id in watched}
    ends = {job.id: np.full(futures, inf) for job in asked}
    for number in range(futures):
        coming = past.again(np.random.default_rng([seed, number]), names)
        whole = {job_id: float(life[number]) for job_id, life in lives.items()}
        whole |= {job.id: job.work or 0.0 for job in coming}
        future = _Future(present, go_on(), [*known.values(), *asked], coming, whole, charge)
        future.go_on(asked, watched)
        for job_id, moment in future.started.items():
            starts[job_id][number] = moment
        for job_id, moment in future.ended.items():
            ends[job_id][number] = moment
        advance()
    return Futures(starts, ends)


def _said_or_predicted(present: StateAt, job: Job) -> DurationDistribution | Seconds:
    return job.work if job.work is not None else present.predictor.expect(job, present.now)


def _as_known_to_oracles(present: StateAt, job: Job) -> Job:
    """Who knows everything has to know something of a job that says nothing: what is most likely."""
    if job.work is not None:
        return job
    return msgspec.structs.replace(job, work=present.predictor.expect(job, present.now).quantile(0.5))


def _drawn(job: Job, life: DurationDistribution | Seconds, count: int, seed: int) -> Floats:
    """One life for each future: one out of each of as many equally likely parts, in an order drawn by lot."""
    if not isinstance(life, DurationDistribution):
        return np.full(count, life)
    chance = np.random.default_rng([seed, crc32(job.id.encode())])
    parts = (chance.permutation(count) + chance.random(count)) / count
    return np.array([life.quantile(min(max(part, 1e-4), 1 - 1e-4)) for part in parts.tolist()])


class _Drawn:
    """Charges each job the work that was drawn for it."""

    def __init__(self, works: Mapping[str, Seconds], otherwise: SpeedModel) -> None:
        self._works, self._otherwise = works, otherwise

    def work(self, job: Job) -> Seconds:
        return self._works[job.id]

    def speed(self, job: Job, allocation: Allocation) -> float:
        return self._otherwise.speed(job, allocation)


class _Resumed(SimulatedBackend):
    """A back end whose jobs have something behind them."""

    def __init__(self, jobs: Iterable[Job], agenda: Agenda, charge: SpeedModel, done: Mapping[str, Seconds]) -> None:
        super().__init__(jobs, agenda, charge)
        self._done.update(done)


class _Future:
    """One way in which things may go on."""

    def __init__(
        self,
        present: StateAt,
        scheduler: Scheduler,
        jobs: Sequence[Job],
        coming: Sequence[Job],
        lives: Mapping[str, Seconds],
        charge: SpeedModel,
    ) -> None:
        self._scheduler, self._now = scheduler, present.now
        self._agenda = Agenda(coming)
        view = scheduler.view
        done = {job_id: self._done(job_id) for job_id in (*view.waiting, *view.runs, *view.held)}
        works = {job.id: self._work(present, job, done.get(job.id, 0.0), lives[job.id], charge) for job in jobs}
        works |= {job.id: lives[job.id] for job in coming}
        self._backend = _Resumed([*jobs, *coming], self._agenda, _Drawn(works, charge), done)
        self._resume(present.wakes, done)
        self.started: dict[str, Seconds] = {}
        self.ended: dict[str, Seconds] = {}

    def _done(self, job_id: str) -> Seconds:
        """The work that is behind a job by now, as far as can be believed."""
        view = self._scheduler.view
        computing = view.computing_since(job_id) is not None
        return view.done(job_id) + (self._now - view.now if computing else 0.0)

    def _work(self, present: StateAt, job: Job, done: Seconds, life: Seconds, charge: SpeedModel) -> Seconds:
        """All of a job's work, if it lives so long: of its life is left what it has not run, where it runs."""
        run = self._scheduler.view.runs.get(job.id)
        speed = charge.speed(job, run.allocation) if run is not None else 1.0
        return done + max(0.0, life - present.elapsed(job.id)) * speed

    def _resume(self, wakes: Iterable[Seconds], done: Mapping[str, Seconds]) -> None:
        """Whoever runs goes on; whoever was told to stop has done so. The policy looks once more, in every future."""
        self._agenda.wake(self._now)
        for run in self._scheduler.view.runs.values():
            if run.stopping:
                self._agenda.add(self._now, RunStopped(run.job, run.number, done[run.job]))
            else:
                self._backend.carry_out(self._now, [StartRun(run.job, run.number, run.allocation)])
        for moment in wakes:
            self._agenda.wake(moment)

    def go_on(self, asked: Sequence[Job], watched: Sequence[str]) -> None:
        """Until everybody who is watched has started, and whoever is asked about has ended; or nothing happens."""
        unstarted, unended = set(watched), {job.id for job in asked}
        for job in asked:
            self._agenda.add(self._now, JobSubmitted(job))
        in_vain = 0
        for _ in range(MOST_STEPS):
            moment = self._agenda.next() if unstarted or unended else None
            if moment is None or in_vain > MOST_WAKES_IN_VAIN:
                return
            entry = self._step(*moment)
            for order in entry.orders:
                if isinstance(order, StartRun) and order.job in unstarted:
                    unstarted.remove(order.job)
                    self.started[order.job] = entry.now
            for event in entry.events:
                if isinstance(event, RunFinished) and event.job in unended:
                    unended.remove(event.job)
                    self.ended[event.job] = entry.now
            in_vain = 0 if entry.orders or self._scheduler.view.runs else in_vain + 1

    def _step(self, now: Seconds, events: list[Event]) -> Entry:
        events += self._backend.also_happens(now, events)
        entry = self._scheduler.step(now, events)
        self._backend.carry_out(now, entry.orders)
        if entry.wake_at is not None:
            self._agenda.wake(entry.wake_at)
        return entry
