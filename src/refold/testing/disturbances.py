"""A simulated cluster with disturbances that the policy did not cause, and jobs that may not be placed everywhere.

Jobs are held, released and cancelled; runs are recalled, whether preemptible or not; nodes and GPUs go down; and the
scheduler is restarted from its snapshot while runs are active.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from refold.core import (
    Entry,
    Event,
    GpuDrained,
    GpuReturned,
    JobCancelled,
    JobHeld,
    JobReleased,
    Journal,
    Order,
    PastJob,
    Policy,
    RunRecalled,
    Scheduler,
    StopRun,
    View,
)
from refold.model import Cluster, Job, Level, NodeSet, Seconds, TopologyRequest
from refold.placement import FreeResources
from refold.simulator import Agenda, Costs, Fault, RecordedSpeeds, SimulatedBackend, SpeedModel, schedule_faults

MAX_STEPS = 20_000
"""A simulation with more steps is considered to never end."""

DEFAULT_COSTS = Costs(start=2.0, stop=3.0, restart=4.0)

Disturbance = Callable[[View], Iterable[Event]]
"""Returns events that users or operators cause, given the current view."""


class DisturbedCluster:
    """A cluster, its jobs, and a scheduler that can be restarted from its snapshot."""

    def __init__(
        self,
        jobs: Sequence[Job],
        cluster: Cluster,
        policy: Policy,
        journal: Journal,
        *,
        charge: SpeedModel | None = None,
        costs: Costs = DEFAULT_COSTS,
        faults: Iterable[Fault] = (),
    ) -> None:
        self._cluster, self._journal = cluster, journal
        self._agenda = Agenda(jobs)
        schedule_faults(self._agenda, faults)
        self._backend = SimulatedBackend(jobs, self._agenda, charge or RecordedSpeeds(cluster), costs)
        self.now: Seconds = 0.0
        self.scheduler = Scheduler(cluster, policy, journal)

    @property
    def view(self) -> View:
        """The current view of the scheduler."""
        return self.scheduler.view

    def run_until(self, until: Seconds) -> None:
        """Simulate until this time."""
        self._agenda.wake(until)
        for _ in range(MAX_STEPS):
            if not self._next() or self.now >= until:
                return
        raise AssertionError(f"time {until} s was not reached within {MAX_STEPS} steps")

    def run_to_end(self) -> None:
        """Simulate until all jobs have ended."""
        for _ in range(MAX_STEPS):
            if self._agenda.all_arrived and not unfinished_jobs(self.view):
                return
            if not self._next():
                break
        raise AssertionError(f"these jobs have not ended at {self.now} s: {sorted(unfinished_jobs(self.view))}")

    def disturb(self, disturbance: Disturbance) -> Entry:
        """Apply a disturbance now. The runs of a GPU that it takes down continue: it is drained, and not broken."""
        return self._step(list(disturbance(self.view)))

    def restart_scheduler(self, policy: Policy, past: Sequence[PastJob] = (), journal: Journal | None = None) -> Entry:
        """Replace the scheduler by a new one that only knows the snapshot."""
        snapshot = self.scheduler.snapshot(past)
        stopping = {(run.job, run.number) for run in self.view.runs.values() if run.stopping}
        self.scheduler = Scheduler(self._cluster, policy, journal or self._journal)
        entry = self.scheduler.step(self.now, snapshot)
        already_ordered = [
            order for order in entry.orders if isinstance(order, StopRun) and (order.job, order.run) in stopping
        ]
        self._carry_out(entry, [order for order in entry.orders if order not in already_ordered])
        return entry

    def step(self, events: list[Event]) -> Entry:
        """Run one scheduler step with these events and their consequences."""
        return self._step(events + self._backend.consequences(self.now, events))

    def _step(self, events: list[Event]) -> Entry:
        entry = self.scheduler.step(self.now, events)
        self._carry_out(entry, entry.orders)
        return entry

    def _next(self) -> bool:
        upcoming = self._agenda.next()
        if upcoming is None:
            return False
        self.now, events = upcoming
        self.step(events)
        return True

    def _carry_out(self, entry: Entry, orders: Iterable[Order]) -> None:
        self._backend.carry_out(self.now, orders)
        if entry.wake_at is not None:
            self._agenda.wake(entry.wake_at)


def unfinished_jobs(view: View) -> set[str]:
    """Return the jobs that were submitted and have not ended; each must be in exactly one state."""
    by_state: Sequence[Iterable[str]] = (view.waiting, view.active, view.held, view.infeasible)
    job_ids = [job_id for state in by_state for job_id in state]
    assert len(job_ids) == len(set(job_ids)), f"a job is in two states at once: {sorted(job_ids)}"
    return set(job_ids)


class Disturbances:
    """An endless sequence of random disturbances."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def __iter__(self) -> Iterator[Disturbance]:
        while True:
            yield self._rng.choice((self.hold, self.hold, self.release, self.recall, self.recall, self.cancel))

    def hold(self, view: View) -> Iterator[Event]:
        """Hold one waiting and one running job."""
        for jobs in (view.waiting, view.runs):
            yield from map(JobHeld, self._choose_one(jobs))

    def release(self, view: View) -> Iterator[Event]:
        """Release one held job."""
        yield from map(JobReleased, self._choose_one(view.held))

    def recall(self, view: View) -> Iterator[Event]:
        """Recall two runs, preemptible or not."""
        for job_id in (*self._choose_one(view.runs), *self._choose_one(view.runs)):
            yield RunRecalled(job_id, view.runs[job_id].number, "drained")

    def cancel(self, view: View) -> Iterator[Event]:
        """Cancel one waiting job, or sometimes a running one."""
        yield from map(JobCancelled, self._choose_one(view.waiting if self._rng.random() < 0.8 else view.runs))

    def _choose_one(self, jobs: Iterable[str]) -> list[str]:
        candidates = list(jobs)
        return [self._rng.choice(candidates)] if candidates else []


def release_all(view: View) -> Iterator[Event]:
    """Release all held jobs, and all running jobs that will be held when they have stopped."""
    yield from map(JobReleased, (*view.held, *view.runs))


def drain_last_gpus(view: View) -> Iterator[Event]:
    """Drain the last GPU of every node that has more than one; their runs continue."""
    for node, kind in enumerate(view.cluster.nodes):
        if kind.gpus > 1:
            yield GpuDrained(node, kind.gpus - 1, "drained")


def recall_from_drained_gpus(view: View) -> Iterator[Event]:
    """Recall the runs that still hold a part of a drained GPU."""
    for run in view.runs.values():
        if not view.is_placement_up(run.allocation.placement):
            yield RunRecalled(run.job, run.number, "drained")


def resume_gpus(view: View) -> Iterator[Event]:
    """Resume all drained GPUs."""
    for node, gpu in view.down_gpus:
        yield GpuReturned(node, gpu)


def in_racks(cluster: Cluster) -> Cluster:
    """Put neighbouring nodes into racks, three in each."""
    nodes = [
        msgspec.structs.replace(node, rack=f"rack{index // 3}", domains=(f"rack{index // 3}",))
        for index, node in enumerate(cluster.nodes)
    ]
    return msgspec.structs.replace(cluster, nodes=tuple(nodes), racks=(), levels=(Level("rack"),))


def in_domains(job: Job, number: int, cluster: Cluster) -> Job:
    """Let a gang require one rack, two for some time, or segments of two, if it fits into the empty cluster so."""
    requests = [TopologyRequest("rack"), TopologyRequest(most=2, wait=600.0), TopologyRequest(segment=2)]
    request = requests[number % (2 if job.demand.instances % 2 else 3)]
    demand = msgspec.structs.replace(job.demand, topology=request)
    is_limited = job.demand.instances > 1 and FreeResources(cluster).fits_when_empty(demand)
    return msgspec.structs.replace(job, demand=demand, reshapable=False) if is_limited else job


def limited_to_nodes(jobs: Sequence[Job], cluster: Cluster) -> list[Job]:
    """Limit two of three jobs to every second node, or to all but one, if they fit there."""
    free, count = FreeResources(cluster), len(cluster.nodes)
    limited: list[Job] = []
    for number, job in enumerate(jobs):
        nodes = (
            range(number % 2, count, 2) if number % 3 == 1 else (node for node in range(count) if node != number % 5)
        )
        demand = msgspec.structs.replace(job.demand, allowed_nodes=NodeSet.of(nodes))
        is_limited = number % 3 and free.fits_when_empty(demand)
        limited.append(msgspec.structs.replace(job, demand=demand) if is_limited else job)
    return limited
