"""A pretend cluster on which people and machines interfere while a policy schedules.

Jobs are held, released and cancelled; runs are recalled whatever the policy thinks of it; nodes are lost; and the
scheduler begins anew in the middle of things, from nothing but its snapshot.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from refold.core import (
    Entry,
    Event,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobSubmitted,
    Journal,
    Order,
    PastJob,
    Policy,
    RunAdopted,
    RunRecalled,
    Scheduler,
    StopRun,
    View,
)
from refold.model import Allocation, Cluster, Job, Seconds, Share
from refold.simulator import Agenda, Costs, Fault, RecordedSpeeds, SimulatedBackend, SpeedModel, put_on
from refold.testing.makers import make_job

MOST_STEPS = 20_000
"""A policy that has not brought all jobs to their end by then is thought never to."""

SOME_COSTS = Costs(start=2.0, stop=3.0, restart=4.0)

Disturbance = Callable[[View], Iterable[Event]]
"""What somebody does to a cluster when he sees how it stands."""


class DisturbedCluster:
    """A cluster, its jobs, and a scheduler that can be replaced by one that knows nothing but the snapshot."""

    def __init__(
        self,
        jobs: Sequence[Job],
        cluster: Cluster,
        policy: Policy,
        journal: Journal,
        *,
        charge: SpeedModel | None = None,
        costs: Costs = SOME_COSTS,
        faults: Iterable[Fault] = (),
    ) -> None:
        self._cluster, self._journal = cluster, journal
        self._agenda = Agenda(jobs)
        put_on(self._agenda, faults)
        self._backend = SimulatedBackend(jobs, self._agenda, charge or RecordedSpeeds(cluster), costs)
        self.now: Seconds = 0.0
        self.scheduler = Scheduler(cluster, policy, journal)

    @property
    def view(self) -> View:
        """How things stand."""
        return self.scheduler.view

    def run_until(self, until: Seconds) -> None:
        """Let everything happen that will by then."""
        self._agenda.wake(until)
        for _ in range(MOST_STEPS):
            if not self._next() or self.now >= until:
                return
        raise AssertionError(f"{MOST_STEPS} steps have passed before {until} s")

    def run_to_the_end(self, still_there: Iterable[str] = ()) -> None:
        """Let everything happen until nobody is left, but for those that never end."""
        there = set(still_there)
        for _ in range(MOST_STEPS):
            if self._agenda.all_arrived and everybody(self.view) <= there:
                return
            if not self._next():
                break
        raise AssertionError(f"these jobs are not over at {self.now} s: {sorted(everybody(self.view) - there)}")

    def disturb(self, disturbance: Disturbance) -> Entry:
        """Let something happen now that nobody has planned."""
        return self.step(list(disturbance(self.view)))

    def begin_anew(self, policy: Policy, past: Sequence[PastJob] = (), journal: Journal | None = None) -> Entry:
        """From now on another scheduler, which has only been told the snapshot, is in charge."""
        snapshot = self.scheduler.snapshot(past)
        stopping = {(run.job, run.number) for run in self.view.runs.values() if run.stopping}
        self.scheduler = Scheduler(self._cluster, policy, journal or self._journal)
        entry = self.scheduler.step(self.now, snapshot)
        told_before = [
            order for order in entry.orders if isinstance(order, StopRun) and (order.job, order.run) in stopping
        ]
        self._act(entry, [order for order in entry.orders if order not in told_before])
        return entry

    def step(self, events: list[Event]) -> Entry:
        """One step with these facts and what they bring about."""
        events += self._backend.also_happens(self.now, events)
        entry = self.scheduler.step(self.now, events)
        self._act(entry, entry.orders)
        return entry

    def _next(self) -> bool:
        moment = self._agenda.next()
        if moment is None:
            return False
        self.now, events = moment
        self.step(events)
        return True

    def _act(self, entry: Entry, orders: Iterable[Order]) -> None:
        self._backend.carry_out(self.now, orders)
        if entry.wake_at is not None:
            self._agenda.wake(entry.wake_at)


def everybody(view: View) -> set[str]:
    """Whoever has come and is not over; each is in one place only."""
    places: Sequence[Iterable[str]] = (view.waiting, view.active, view.held, view.infeasible)
    listed = [job_id for place in places for job_id in place]
    assert len(listed) == len(set(listed)), f"a job is in two places at once: {sorted(listed)}"
    return set(listed)


class Disturbances:
    """Seeded ones, one after the other."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def __iter__(self) -> Iterator[Disturbance]:
        while True:
            yield self._chance.choice((self.hold, self.hold, self.release, self.recall, self.recall, self.cancel))

    def hold(self, view: View) -> Iterator[Event]:
        """One that waits and one that runs."""
        for some in (view.waiting, view.runs):
            yield from map(JobHeld, self._one_of(some))

    def release(self, view: View) -> Iterator[Event]:
        """One of those that are held."""
        yield from map(JobReleased, self._one_of(view.held))

    def recall(self, view: View) -> Iterator[Event]:
        """Two runs, preemptible or not."""
        for job_id in (*self._one_of(view.runs), *self._one_of(view.runs)):
            yield RunRecalled(job_id, view.runs[job_id].number, "drained")

    def cancel(self, view: View) -> Iterator[Event]:
        """One that waits, rarely one that runs."""
        yield from map(JobCancelled, self._one_of(view.waiting if self._chance.random() < 0.8 else view.runs))

    def _one_of(self, some: Iterable[str]) -> list[str]:
        there = [job_id for job_id in some if job_id != DRAINED.id]
        return [self._chance.choice(there)] if there else []


def release_all(view: View) -> Iterator[Event]:
    """Whoever is held, and whoever will be."""
    yield from map(JobReleased, (*view.held, *view.runs))


def drained_gpu(view: View) -> Iterator[Event]:
    """A GPU of the last node that has a free one is shown as a run that never ends, of a job that nobody may stop."""
    nodes, free = view.cluster.nodes, view.trial().free
    places = [(node, gpu) for node in reversed(range(len(nodes))) for gpu in range(nodes[node].gpus)]
    for node, gpu in places:
        allocation = Allocation((Share(node, (gpu,)),))
        if view.is_up(node) and free.has(allocation.placement):
            yield from adopted(DRAINED, allocation, max(0.0, view.now))
            return


DRAINED = make_job("drained", work=None, tenant="refold", preemptible=False)


def adopted(job: Job, allocation: Allocation, since: Seconds) -> tuple[Event, ...]:
    """A job comes that runs already."""
    return JobSubmitted(msgspec.structs.replace(job, submitted=since)), RunAdopted(job.id, 1, allocation, since)
