"""What every policy promises. Subclass it, say how yours is made, and pytest tells you when you are done.

class TestMine(PolicyContract):
    def make_policy(self) -> Policy:
        return Mine()

One that reshapes jobs, or knows how fast they are, says `reshapes = True` and is tried on such jobs too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import msgspec

from refold.core import (
    JobCancelled,
    JobSubmitted,
    Journals,
    ListJournal,
    PastJob,
    Policy,
    RunFailed,
    Scheduler,
    View,
)
from refold.model import Cluster, Decision, Job, Reason
from refold.plans import Speeds
from refold.simulator import Costs, Fault, ModelledSpeeds, RecordedSpeeds, simulate
from refold.testing.audit import Audit
from refold.testing.disturbances import DRAINED, Disturbances, DisturbedCluster, drained_gpu, release_all
from refold.testing.makers import make_cluster, make_job
from refold.testing.workloads import reshapable_workload, seeded_workload

FAULTS = (Fault(0, 250.0, 900.0), Fault(1, 700.0, 1500.0), Fault(0, 2500.0, 2600.0))
COSTS = Costs(start=10.0, stop=5.0, restart=40.0, checkpoint_every=60.0, report_every=30.0)


DISTURBANCES = 12


class PolicyContract:
    """The tests. Each runs the policy on small seeded workloads, with an audit beside the journal."""

    oracle = False
    """Whether the policy may look at how long jobs will take."""

    reshapes = False
    """Whether it is tried on jobs of known models too, which may be reshaped; that takes longer."""

    waits_for_quota = False
    """Whether a guaranteed job that is larger than its tenant's quota waits for ever, as the policy means it to."""

    seeds: Sequence[int] = range(6)

    reshaping_seeds: Sequence[int] = range(2)

    unrest_seeds: Sequence[int] = range(2)

    def make_policy(self) -> Policy:
        """Your policy, new."""
        raise NotImplementedError

    def test_it_has_a_name(self) -> None:
        """Errors and journals name it."""
        assert isinstance(self.make_policy().name, str)
        assert self.make_policy().name

    def test_every_job_that_fits_runs_to_its_end_once(self) -> None:
        """No job is lost, none runs twice, and nobody gets what is not free."""
        for seed in self.seeds:
            jobs, cluster = seeded_workload(seed)
            audit, _ = self._simulate(jobs, cluster)
            assert {job.id for job in jobs} == set(audit.over), f"seed {seed}"

    def test_the_same_facts_give_the_same_orders(self) -> None:
        """Replay is the promise."""
        jobs, cluster = seeded_workload(1)
        _, journal = self._simulate(jobs, cluster, costs=Costs(start=3.0, stop=2.0, restart=5.0))
        again = Scheduler(cluster, self.make_policy())
        for entry in journal.entries:
            assert again.step(entry.now, entry.events).orders == entry.orders

    def test_costs_and_lost_nodes_break_nothing(self) -> None:
        """Runs take time to start and to stop, nodes fall and return; every job still ends."""
        for seed in self.seeds:
            jobs, cluster = seeded_workload(seed)
            faults = [Fault(0, 40.0, 300.0), Fault(1, 200.0, 500.0), Fault(0, 900.0, 1000.0)]
            costs = Costs(start=5.0, stop=3.0, restart=8.0, checkpoint_every=20.0)
            audit, _ = self._simulate(jobs, cluster, costs=costs, faults=faults)
            assert {job.id for job in jobs} == set(audit.over), f"seed {seed}"

    def test_every_waiting_job_has_a_reason(self) -> None:
        """Whoever waits after a look was looked at, or is told so."""
        jobs, cluster = seeded_workload(2)
        watched = _ReasonChecker(self.make_policy())
        self._simulate(jobs, cluster, policy=watched)
        assert watched.unexplained == []

    def test_a_job_that_never_fits_blocks_nobody(self) -> None:
        """The core keeps it out of the way; the others run."""
        cluster = make_cluster(4)
        jobs = [make_job("huge", gpus=4, instances=2), make_job("small", at=1.0)]
        audit, _ = self._simulate(jobs, cluster)
        assert set(audit.over) == {"small"}

    def test_it_waits_with_nothing_to_do(self) -> None:
        """An empty cluster is no reason to fail."""
        scheduler = Scheduler(make_cluster(2), self.make_policy())
        assert scheduler.step(0.0, ()).orders == ()

    def test_cancelled_and_failed_jobs_are_forgotten(self) -> None:
        """A job that waits and is cancelled never starts; one that failed is tried again only if asked."""
        cluster = make_cluster(1)
        scheduler = Scheduler(cluster, self.make_policy())
        audit = Audit(cluster)
        audit.write(scheduler.step(0.0, [JobSubmitted(make_job("a"))]))
        audit.write(scheduler.step(1.0, [JobSubmitted(make_job("b", at=1.0, work=500.0))]))
        audit.write(scheduler.step(2.0, [JobSubmitted(make_job("c", at=2.0, work=900.0))]))
        audit.write(scheduler.step(3.0, [JobCancelled("b")]))
        audit.write(scheduler.step(4.0, [RunFailed("a", 1, "exit 1")]))
        assert [job for _, job, _ in audit.starts] == ["a", "c"]

    def test_a_job_that_comes_and_goes_in_one_step_troubles_nobody(self) -> None:
        """The policy never saw it; whoever waits besides is started when there is room."""
        cluster = make_cluster(1)
        scheduler, audit = Scheduler(cluster, self.make_policy()), Audit(cluster)
        audit.write(scheduler.step(0.0, [JobSubmitted(make_job("a"))]))
        audit.write(scheduler.step(1.0, [JobSubmitted(make_job("b", at=1.0, work=500.0))]))
        audit.write(scheduler.step(2.0, [JobSubmitted(make_job("c", at=2.0)), JobCancelled("c")]))
        audit.write(scheduler.step(3.0, [RunFailed("a", 1, retry=True), JobCancelled("a")]))
        assert [job for _, job, _ in audit.starts] == ["a", "b"]

    def test_it_does_not_look_into_the_future(self) -> None:
        """Unless it is an oracle, how long a job will take changes nothing before the job has ended."""
        if self.oracle:
            return
        jobs, cluster = seeded_workload(3)
        _, journal = self._simulate(jobs, cluster)
        blind = Scheduler(cluster, self.make_policy())
        for entry in journal.entries:
            assert blind.step(entry.now, [_without_work(event) for event in entry.events]).orders == entry.orders

    def test_reshapable_jobs_run_to_their_end_once(self) -> None:
        """Whatever shapes they are given, none is lost, and nobody gets what is not free."""
        for seed in self.reshaping_seeds if self.reshapes else ():
            jobs, cluster = self._reshapable(seed)
            audit, _ = self._simulate(jobs, cluster, charge=_modelled(cluster), costs=Costs(report_every=60.0))
            assert {job.id for job in jobs} == set(audit.over), f"seed {seed}"

    def test_reshaping_survives_costs_and_lost_nodes_and_is_replayed(self) -> None:
        """Nodes fall while shapes change; every job still ends, and the same facts give the same orders."""
        for seed in self.reshaping_seeds if self.reshapes else ():
            jobs, cluster = self._reshapable(seed)
            audit, journal = self._simulate(jobs, cluster, charge=_modelled(cluster), costs=COSTS, faults=FAULTS)
            assert {job.id for job in jobs} == set(audit.over), f"seed {seed}"
            again = Scheduler(cluster, self.make_policy())
            for entry in journal.entries:
                events = entry.events if self.oracle else [_without_work(event) for event in entry.events]
                assert again.step(entry.now, events).orders == entry.orders, f"seed {seed} at {entry.now}"

    def test_every_reshapable_job_that_waits_has_a_reason(self) -> None:
        """Whoever waits after a look was looked at, or is told so."""
        if not self.reshapes:
            return
        jobs, cluster = self._reshapable(2)
        watched = _ReasonChecker(self.make_policy())
        self._simulate(jobs, cluster, policy=watched, charge=_modelled(cluster), costs=COSTS)
        assert watched.unexplained == []

    def test_whoever_is_held_released_recalled_or_cancelled_is_not_forgotten(self) -> None:
        """Runs stop that the policy has not stopped, jobs go and come again; all that are left end."""
        for seed in self.unrest_seeds:
            jobs, cluster = seeded_workload(seed, 40)
            self._disturb(_some_not_preemptible(jobs), cluster, seed)

    def test_it_goes_on_from_an_opening_around_a_drained_gpu(self) -> None:
        """It has started none of the runs that there are, and one of them never ends."""
        for seed in self.unrest_seeds:
            jobs, cluster = seeded_workload(seed, 40)
            self._begin_anew(_some_not_preemptible(jobs), cluster, seed)

    def test_jobs_that_may_be_reshaped_survive_unrest_and_an_opening(self) -> None:
        """The same with runs that change their shapes."""
        if self.reshapes:
            jobs, cluster = self._reshapable(0)
            self._begin_anew(jobs[:16], cluster, 0, charge=_modelled(cluster), costs=COSTS)

    def _disturb(self, jobs: Sequence[Job], cluster: Cluster, seed: int) -> None:
        audit = Audit(cluster)
        world = DisturbedCluster(jobs, cluster, self.make_policy(), audit, faults=[Fault(1, 150.0, 300.0)])
        _unrest(world, seed, jobs)
        world.run_to_the_end()
        assert set(audit.over) == {job.id for job in jobs}, f"seed {seed}"

    def _begin_anew(self, jobs: Sequence[Job], cluster: Cluster, seed: int, **options: Any) -> None:
        before, after = Audit(cluster), Audit(cluster)
        world = DisturbedCluster(jobs, cluster, self.make_policy(), before, **options)
        world.disturb(drained_gpu)
        _unrest(world, seed, jobs[: len(jobs) // 2])
        past = [PastJob(make_job(f"past{number}", tenant="x"), 10.0 * number) for number in range(20)]
        world.begin_anew(self.make_policy(), past, after)
        _unrest(world, seed + 1, jobs[len(jobs) // 2 :])
        world.run_to_the_end({DRAINED.id})
        assert {*before.over, *after.over} == {job.id for job in jobs}, f"seed {seed}"
        assert list(world.view.runs) == [DRAINED.id]

    def _reshapable(self, seed: int) -> tuple[list[Job], Cluster]:
        jobs, cluster = reshapable_workload(seed)
        return jobs, msgspec.structs.replace(cluster, tenants=()) if self.waits_for_quota else cluster

    def _simulate(
        self, jobs: Sequence[Job], cluster: Cluster, *, policy: Policy | None = None, **options: Any
    ) -> tuple[Audit, ListJournal]:
        audit, journal = Audit(cluster), ListJournal()
        simulate(jobs, cluster, policy or self.make_policy(), journal=Journals(audit, journal), **options)
        return audit, journal


def _modelled(cluster: Cluster) -> ModelledSpeeds:
    return ModelledSpeeds(Speeds(cluster), RecordedSpeeds(cluster))


def _some_not_preemptible(jobs: Sequence[Job]) -> list[Job]:
    return [msgspec.structs.replace(job, preemptible=number % 4 > 0) for number, job in enumerate(jobs)]


def _unrest(world: DisturbedCluster, seed: int, arriving: Sequence[Job]) -> None:
    """While these arrive, something is done to somebody again and again; in the end nobody is held any more."""
    until = max(job.submitted for job in arriving)
    pause = (until - world.now) / DISTURBANCES
    for disturbance in islice(Disturbances(seed), DISTURBANCES):
        world.run_until(world.now + pause)
        world.disturb(disturbance)
    world.disturb(release_all)


class _ReasonChecker:
    """A policy with somebody looking over its shoulder: who waits without a reason?"""

    def __init__(self, policy: Policy) -> None:
        self.name = policy.name
        self.unexplained: list[str] = []
        self._policy = policy

    def decide(self, view: View) -> Decision:
        """Decide as the policy does, after a look at what it left unexplained the last time."""
        fresh = {job.id for job in (*view.changes.submitted, *view.changes.returned)}
        for job_id in view.waiting:
            if job_id not in fresh and view.reason(job_id).reason is Reason.NOT_LOOKED_AT:
                self.unexplained.append(job_id)
        return self._policy.decide(view)


def _without_work(event: Any) -> Any:
    if isinstance(event, JobSubmitted):
        return JobSubmitted(msgspec.structs.replace(event.job, work=None))
    return event
