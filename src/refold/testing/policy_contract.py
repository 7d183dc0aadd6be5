"""The contract suite for policies. Subclass it, return your policy from `make_policy`, and run pytest:

    class TestMyPolicy(PolicyContract):
        def make_policy(self) -> Policy:
            return MyPolicy()

Set `reshapes = True` if the policy reshapes jobs or uses performance models, to test it on such jobs as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, pairwise
from typing import Any

import msgspec
import pytest

from refold.core import (
    GpuDrained,
    JobCancelled,
    JobSubmitted,
    Journals,
    ListJournal,
    PastJob,
    Policy,
    RunFailed,
    Scheduler,
    StartRun,
    StopRun,
    View,
)
from refold.model import ChangeLimit, Cluster, Decision, Job, Reason
from refold.planning.plans import Speeds
from refold.simulator import Costs, Fault, ModelledSpeeds, RecordedSpeeds, simulate
from refold.testing.audit import Audit
from refold.testing.disturbances import (
    Disturbances,
    DisturbedCluster,
    drain_last_gpus,
    in_domains,
    in_racks,
    limited_to_nodes,
    recall_from_drained_gpus,
    release_all,
    resume_gpus,
)
from refold.testing.makers import make_cluster, make_job, reshapable_workload, seeded_workload

FAULTS = (Fault(0, 250.0, 900.0), Fault(1, 700.0, 1500.0), Fault(0, 2500.0, 2600.0))
GPU_FAULTS = (Fault(0, 40.0, 600.0, gpu=1), Fault(2, 100.0, 900.0, gpu=0), Fault(0, 300.0, 500.0, gpu=2))
COSTS = Costs(start=10.0, stop=5.0, restart=40.0, checkpoint_every=60.0, report_every=30.0, report_speeds=True)
DISTURBANCES = 12
"""Disturbances per workload."""


class PolicyContract:
    """Tests that every policy must pass, on small seeded workloads, with an `Audit` as a second journal."""

    oracle = False
    """Whether the policy may use the run times of jobs before they have ended."""

    reshapes = False
    """Whether to test the policy on reshapable jobs of known models as well, which takes longer."""

    waits_for_quota = False
    """Whether, by design, a guaranteed job that is larger than its tenant's quota waits forever."""

    seeds: Sequence[int] = range(6)
    """Random seeds of workloads."""

    reshaping_seeds: Sequence[int] = range(2)
    """Random seeds of reshapable workloads."""

    disturbance_seeds: Sequence[int] = range(2)
    """Random seeds of workloads with disturbances."""

    def make_policy(self) -> Policy:
        """Return a new instance of your policy."""
        raise NotImplementedError

    def test_the_policy_has_a_name(self) -> None:
        """Errors and journals refer to the policy by its name."""
        assert isinstance(self.make_policy().name, str)
        assert self.make_policy().name

    def test_every_feasible_job_finishes_exactly_once(self) -> None:
        """No job is lost or started twice, and only free resources are allocated."""
        for seed in self.seeds:
            jobs, cluster = seeded_workload(seed)
            audit, _ = self._simulate(jobs, cluster)
            assert {job.id for job in jobs} == set(audit.ended), f"seed {seed}"

    def test_the_same_events_give_the_same_orders(self) -> None:
        """A journal can be replayed."""
        jobs, cluster = seeded_workload(1)
        _, journal = self._simulate(jobs, cluster, costs=Costs(start=3.0, stop=2.0, restart=5.0))
        replayed = Scheduler(cluster, self.make_policy())
        for entry in journal.entries:
            assert replayed.step(entry.now, entry.events).orders == entry.orders

    def test_every_job_finishes_despite_overhead_and_lost_nodes(self) -> None:
        """Runs take time to start and to stop, and nodes go down and return."""
        for seed in self.seeds:
            jobs, cluster = seeded_workload(seed)
            faults = [Fault(0, 40.0, 300.0), Fault(1, 200.0, 500.0), Fault(0, 900.0, 1000.0)]
            costs = Costs(start=5.0, stop=3.0, restart=8.0, checkpoint_every=20.0)
            audit, _ = self._simulate(jobs, cluster, costs=costs, faults=faults)
            assert {job.id for job in jobs} == set(audit.ended), f"seed {seed}"

    def test_every_waiting_job_has_a_reason(self) -> None:
        """Every job that waits after a scheduling round was considered, or has another reason."""
        jobs, cluster = seeded_workload(2)
        checked = _ReasonChecker(self.make_policy())
        self._simulate(jobs, cluster, policy=checked)
        assert checked.unexplained == []

    def test_an_infeasible_job_does_not_block_others(self) -> None:
        """The core does not pass infeasible jobs to the policy; the other jobs run."""
        cluster = make_cluster(4)
        jobs = [make_job("huge", gpus=4, instances=2), make_job("small", at=1.0)]
        audit, _ = self._simulate(jobs, cluster)
        assert set(audit.ended) == {"small"}

    def test_the_policy_accepts_an_empty_cluster(self) -> None:
        """Without jobs there are no orders."""
        scheduler = Scheduler(make_cluster(2), self.make_policy())
        assert scheduler.step(0.0, ()).orders == ()

    def test_cancelled_and_failed_jobs_are_not_started(self) -> None:
        """A waiting job that is cancelled never starts; a failed job is restarted only if a retry is requested."""
        cluster = make_cluster(1)
        scheduler = Scheduler(cluster, self.make_policy())
        audit = Audit(cluster)
        audit.write(scheduler.step(0.0, [JobSubmitted(make_job("a"))]))
        audit.write(scheduler.step(1.0, [JobSubmitted(make_job("b", at=1.0, work=500.0))]))
        audit.write(scheduler.step(2.0, [JobSubmitted(make_job("c", at=2.0, work=900.0))]))
        audit.write(scheduler.step(3.0, [JobCancelled("b")]))
        audit.write(scheduler.step(4.0, [RunFailed("a", 1, "exit 1")]))
        assert [job for _, job, _ in audit.starts] == ["a", "c"]

    def test_a_job_that_is_submitted_and_cancelled_in_one_step_is_ignored(self) -> None:
        """The policy never sees the job; other waiting jobs start when they fit."""
        cluster = make_cluster(1)
        scheduler, audit = Scheduler(cluster, self.make_policy()), Audit(cluster)
        audit.write(scheduler.step(0.0, [JobSubmitted(make_job("a"))]))
        audit.write(scheduler.step(1.0, [JobSubmitted(make_job("b", at=1.0, work=500.0))]))
        audit.write(scheduler.step(2.0, [JobSubmitted(make_job("c", at=2.0)), JobCancelled("c")]))
        audit.write(scheduler.step(3.0, [RunFailed("a", 1, retry=True), JobCancelled("a")]))
        assert [job for _, job, _ in audit.starts] == ["a", "b"]

    def test_the_policy_does_not_use_run_times_in_advance(self) -> None:
        """Unless the policy is an oracle, its decisions do not depend on run times of jobs that have not ended."""
        if self.oracle:
            pytest.skip("does not apply: the policy is an oracle, which may use run times in advance")
        jobs, cluster = seeded_workload(3)
        _, journal = self._simulate(jobs, cluster)
        without_work = Scheduler(cluster, self.make_policy())
        for entry in journal.entries:
            assert without_work.step(entry.now, [_without_work(event) for event in entry.events]).orders == entry.orders

    def test_every_reshapable_job_finishes_exactly_once(self) -> None:
        """Whatever allocations jobs get, none is lost, and only free resources are allocated."""
        self._skip_unless_it_reshapes()
        for seed in self.reshaping_seeds:
            jobs, cluster = self._reshapable(seed)
            audit, _ = self._simulate(jobs, cluster, charge=_modelled(cluster), costs=Costs(report_every=60.0))
            assert {job.id for job in jobs} == set(audit.ended), f"seed {seed}"

    def test_reshapable_jobs_finish_despite_overhead_and_lost_nodes_and_can_be_replayed(self) -> None:
        """Nodes go down while jobs are reshaped; every job finishes, and the same events give the same orders."""
        self._skip_unless_it_reshapes()
        for seed in self.reshaping_seeds:
            jobs, cluster = self._reshapable(seed)
            audit, journal = self._simulate(jobs, cluster, charge=_modelled(cluster), costs=COSTS, faults=FAULTS)
            assert {job.id for job in jobs} == set(audit.ended), f"seed {seed}"
            replayed = Scheduler(cluster, self.make_policy())
            for entry in journal.entries:
                events = entry.events if self.oracle else [_without_work(event) for event in entry.events]
                assert replayed.step(entry.now, events).orders == entry.orders, f"seed {seed} at {entry.now}"

    def test_every_waiting_reshapable_job_has_a_reason(self) -> None:
        """Every job that waits after a scheduling round was considered, or has another reason."""
        self._skip_unless_it_reshapes()
        jobs, cluster = self._reshapable(2)
        checked = _ReasonChecker(self.make_policy())
        self._simulate(jobs, cluster, policy=checked, charge=_modelled(cluster), costs=COSTS)
        assert checked.unexplained == []

    def test_jobs_are_placed_on_the_nodes_that_they_are_allowed_on(self) -> None:
        """Every job finishes, on its nodes only: the check of decisions raises otherwise."""
        for seed in self.disturbance_seeds:
            jobs, cluster = seeded_workload(seed)
            self._check_limited(jobs, cluster)

    def test_gangs_are_placed_in_the_domains_that_they_require(self) -> None:
        """Every job finishes, in one rack or in segments as required: the check of decisions raises otherwise."""
        for seed in self.disturbance_seeds:
            jobs, cluster = seeded_workload(seed)
            racks = in_racks(cluster)
            limited = [in_domains(job, number, racks) for number, job in enumerate(jobs)]
            audit, _ = self._simulate(limited, racks)
            assert {job.id for job in limited} == set(audit.ended)

    def test_reshapable_jobs_are_placed_on_the_nodes_that_they_are_allowed_on(self) -> None:
        """Every reshapable job finishes, on its nodes only."""
        self._skip_unless_it_reshapes()
        jobs, cluster = self._reshapable(0)
        self._check_limited(jobs, cluster, charge=_modelled(cluster), costs=COSTS)

    def _check_limited(self, jobs: Sequence[Job], cluster: Cluster, **options: Any) -> None:
        limited = limited_to_nodes(jobs, cluster)
        audit, _ = self._simulate(limited, cluster, **options)
        assert {job.id for job in limited} == set(audit.ended)

    def test_without_consent_no_run_is_stopped(self) -> None:
        """If no job is preemptible, every job runs once, from its start to its end."""
        for seed in self.disturbance_seeds:
            jobs, cluster = seeded_workload(seed)
            self._check_consent(_not_preemptible(jobs, every=1), cluster)

    def test_reshapable_runs_are_changed_only_with_consent(self) -> None:
        """If some jobs are not preemptible, only the others are stopped or reshaped."""
        self._skip_unless_it_reshapes()
        for every in (1, 2):
            jobs, cluster = self._reshapable(0)
            self._check_consent(_not_preemptible(jobs, every), cluster, charge=_modelled(cluster), costs=COSTS)

    def test_runs_are_not_changed_more_often_than_their_jobs_allow(self) -> None:
        """Jobs limit how often they are stopped or reshaped, and the time between two changes."""
        for limit in (ChangeLimit(0), ChangeLimit(1), ChangeLimit(every=40.0)):
            jobs, cluster = seeded_workload(0)
            self._check_change_limit(jobs, cluster, limit)
            if self.reshapes:
                jobs, cluster = self._reshapable(0)
                self._check_change_limit(jobs, cluster, limit, charge=_modelled(cluster), costs=COSTS)

    def _check_change_limit(self, jobs: Sequence[Job], cluster: Cluster, limit: ChangeLimit, **options: Any) -> None:
        limited = [msgspec.structs.replace(job, change_limit=limit) for job in jobs]
        audit, journal = self._simulate(limited, cluster, **options)
        changes: dict[str, list[float]] = {job.id: [] for job in jobs}
        for entry in journal.entries:
            for order in entry.orders:
                if isinstance(order, StopRun):
                    changes[order.job].append(entry.now)
        for moments in changes.values():
            assert limit.at_most is None or len(moments) <= limit.at_most
            assert all(later - earlier >= limit.every for earlier, later in pairwise(moments))
        assert {job.id for job in jobs} == set(audit.ended)

    def _check_consent(self, jobs: Sequence[Job], cluster: Cluster, **options: Any) -> None:
        audit, journal = self._simulate(jobs, cluster, **options)
        stopped = {order.job for entry in journal.entries for order in entry.orders if isinstance(order, StopRun)}
        assert stopped <= {job.id for job in jobs if job.preemptible}
        assert {job.id for job in jobs} == set(audit.ended)

    def test_held_released_recalled_and_cancelled_jobs_are_handled(self) -> None:
        """Runs are stopped by others, and jobs leave the queue and return; all remaining jobs finish."""
        for seed in self.disturbance_seeds:
            jobs, cluster = seeded_workload(seed, 40)
            self._check_disturbances(_not_preemptible(jobs, every=4), cluster, seed)

    def test_every_job_finishes_despite_lost_gpus(self) -> None:
        """GPUs go down with their runs and return; nothing starts on a GPU that is down."""
        for seed in self.disturbance_seeds:
            jobs, cluster = seeded_workload(seed)
            costs = Costs(start=5.0, stop=3.0, restart=8.0, checkpoint_every=20.0)
            audit, _ = self._simulate(jobs, cluster, costs=costs, faults=GPU_FAULTS)
            assert {job.id for job in jobs} == set(audit.ended), f"seed {seed}"

    def test_a_gpu_is_used_again_after_it_returns(self) -> None:
        """While one of two GPUs is down, one of two jobs waits; later each has a GPU."""
        jobs = [make_job(name, at=1.0, work=9000.0) for name in ("a", "b")]
        _, journal = self._simulate(jobs, make_cluster(2), faults=[Fault(0, 0.0, 500.0, gpu=0)])
        used = [
            (entry.now < 500.0, share.gpus)
            for entry in journal.entries
            if entry.now < 5000.0
            for order in entry.orders
            if isinstance(order, StartRun)
            for share in order.allocation.placement
        ]
        assert (True, (1,)) in used
        assert (True, (0,)) not in used
        assert (False, (0,)) in used

    def test_runs_may_continue_on_drained_gpus(self) -> None:
        """GPUs are drained while runs hold them; later these runs are recalled, and the GPUs resumed."""
        for seed in self.disturbance_seeds:
            jobs, cluster = seeded_workload(seed, 40)
            self._check_drain(jobs, cluster, until=jobs[-1].submitted)

    def test_reshapable_runs_may_continue_on_drained_gpus(self) -> None:
        """Like the previous test, with jobs that are reshaped."""
        self._skip_unless_it_reshapes()
        jobs, cluster = self._reshapable(1)
        self._check_drain(jobs, cluster, until=jobs[-1].submitted, charge=_modelled(cluster), costs=COSTS)

    def _check_drain(self, jobs: Sequence[Job], cluster: Cluster, until: float, **options: Any) -> None:
        audit = Audit(cluster)
        disturbed = DisturbedCluster(jobs, cluster, self.make_policy(), audit, **options)
        for share, disturbance in ((0.3, drain_last_gpus), (0.6, recall_from_drained_gpus), (1.0, resume_gpus)):
            disturbed.run_until(share * until)
            disturbed.disturb(disturbance)
        disturbed.run_to_end()
        assert set(audit.ended) == {job.id for job in jobs}

    def test_the_policy_continues_from_a_snapshot_with_a_drained_gpu(self) -> None:
        """A new policy takes over runs that it has not started, and a GPU that is down."""
        for seed in self.disturbance_seeds:
            jobs, cluster = seeded_workload(seed, 40)
            self._check_restart(_not_preemptible(jobs, every=4), cluster, seed)

    def test_reshapable_jobs_are_handled_with_disturbances_and_a_snapshot(self) -> None:
        """Like the previous tests, with jobs that are reshaped."""
        self._skip_unless_it_reshapes()
        jobs, cluster = self._reshapable(0)
        self._check_restart(jobs[:16], cluster, 0, charge=_modelled(cluster), costs=COSTS)

    def _skip_unless_it_reshapes(self) -> None:
        if not self.reshapes:
            pytest.skip("does not apply: the policy does not reshape jobs (the contract class does not set `reshapes`)")

    def _check_disturbances(self, jobs: Sequence[Job], cluster: Cluster, seed: int) -> None:
        audit = Audit(cluster)
        disturbed = DisturbedCluster(jobs, cluster, self.make_policy(), audit, faults=[Fault(1, 150.0, 300.0)])
        _apply_disturbances(disturbed, seed, jobs)
        disturbed.run_to_end()
        assert set(audit.ended) == {job.id for job in jobs}, f"seed {seed}"

    def _check_restart(self, jobs: Sequence[Job], cluster: Cluster, seed: int, **options: Any) -> None:
        before, after = Audit(cluster), Audit(cluster)
        disturbed = DisturbedCluster(jobs, cluster, self.make_policy(), before, **options)
        gpu = max((node, kind.gpus - 1) for node, kind in enumerate(cluster.nodes) if kind.gpus)
        disturbed.disturb(lambda _: [GpuDrained(*gpu, "drained")])
        _apply_disturbances(disturbed, seed, jobs[: len(jobs) // 2])
        past = [PastJob(make_job(f"past{number}", tenant="x"), 10.0 * number) for number in range(20)]
        disturbed.restart_scheduler(self.make_policy(), past, after)
        _apply_disturbances(disturbed, seed + 1, jobs[len(jobs) // 2 :])
        disturbed.run_to_end()
        assert {*before.ended, *after.ended} == {job.id for job in jobs}, f"seed {seed}"
        assert disturbed.view.down_gpus == {gpu: "drained"}

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


def _not_preemptible(jobs: Sequence[Job], every: int) -> list[Job]:
    """Return the jobs, of which the first and every so many others are not preemptible."""
    return [msgspec.structs.replace(job, preemptible=number % every > 0) for number, job in enumerate(jobs)]


def _apply_disturbances(disturbed: DisturbedCluster, seed: int, arriving: Sequence[Job]) -> None:
    """Apply disturbances at regular intervals while these jobs arrive, and release all held jobs at the end."""
    until = max(job.submitted for job in arriving)
    interval = (until - disturbed.now) / DISTURBANCES
    for disturbance in islice(Disturbances(seed), DISTURBANCES):
        disturbed.run_until(disturbed.now + interval)
        disturbed.disturb(disturbance)
    disturbed.disturb(release_all)


class _ReasonChecker:
    """Wraps a policy and records jobs that wait without a reason."""

    def __init__(self, policy: Policy) -> None:
        self.name = policy.name
        self.unexplained: list[str] = []
        self._policy = policy

    def decide(self, view: View) -> Decision:
        """Record jobs without a reason since the last round, then let the policy decide."""
        new = {job.id for job in (*view.changes.submitted, *view.changes.requeued)}
        for job_id in view.waiting:
            if job_id not in new and view.reason(job_id).reason is Reason.NOT_CONSIDERED:
                self.unexplained.append(job_id)
        return self._policy.decide(view)


def _without_work(event: Any) -> Any:
    if isinstance(event, JobSubmitted):
        return JobSubmitted(msgspec.structs.replace(event.job, work=None))
    return event
