"""Factories of jobs, clusters and workloads, and the disturbances that contract suites apply."""

from __future__ import annotations

from itertools import islice

import pytest
from scripted_policy import ScriptedPolicy, on

from refold.core import (
    Event,
    GpuDrained,
    GpuReturned,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobSubmitted,
    ListJournal,
    Policy,
    RunRecalled,
    Scheduler,
    StopRun,
)
from refold.errors import BadValue
from refold.model import Cluster, Decision, Demand, GpuType, Job, Node, Plan, Start
from refold.simulator.registry import make_policy
from refold.testing import make_cluster, make_job, reshapable_workload, seeded_workload
from refold.testing.disturbances import (
    Disturbances,
    DisturbedCluster,
    drain_last_gpus,
    recall_from_drained_gpus,
    release_all,
    resume_gpus,
)


def test_a_job_is_by_default_one_gpu_for_100_seconds() -> None:
    assert make_job() == Job("job", 0.0, Demand(1, 1, 1000, 0, 0, ()), 100.0)


def test_the_fields_of_a_job_are_given_in_everyday_units() -> None:
    job = make_job(
        "a", at=5.0, work=None, instances=2, gpus=3, cpus=1.5, memory_gib=0.5, types=["T4", "A100"], tenant="lab"
    )
    assert job == Job("a", 5.0, Demand(2, 3, 1000, 1500, 512, ("A100", "T4")), None, tenant="lab")
    assert make_job(share=0.25).demand.gpu_milli == 250


def test_an_invalid_job_cannot_be_made() -> None:
    with pytest.raises(BadValue):
        make_job(gpus=-1)
    with pytest.raises(TypeError, match="colour"):
        make_job(colour="red")


def test_a_cluster_has_one_node_per_size() -> None:
    assert make_cluster(2, 0, types=["T4", "T4"], cpus=1.5, memory_gib=2.0, speeds={"T4": 0.5}) == Cluster(
        (Node("n0", 2, "T4", 1500, 2048), Node("n1", 0, "", 1500, 2048)), (GpuType("T4", speed=0.5),)
    )
    assert make_cluster(8).nodes == (Node("n0", 8, "A100", 64_000, 512 * 1024),)


def test_types_are_given_for_all_nodes_or_for_each() -> None:
    with pytest.raises(ValueError, match="shorter"):
        make_cluster(8, 8, types=["A100"])


@pytest.mark.parametrize("workload", [seeded_workload, reshapable_workload])
def test_workloads_depend_on_the_seed_alone(workload: type) -> None:
    assert workload(3) == workload(3)
    assert workload(3) != workload(4)


def test_a_seeded_workload_has_all_kinds_of_jobs_and_each_fits_the_empty_cluster() -> None:
    jobs, cluster = seeded_workload(0)
    assert len(jobs) == 60
    assert [job.submitted for job in jobs] == sorted(job.submitted for job in jobs)
    demands = [job.demand for job in jobs]
    assert {demand.gpus for demand in demands} == {0, 1, 2, 4}
    assert {demand.instances for demand in demands} == {1, 2, 3}
    assert any(demand.gpu_milli < 1000 for demand in demands)
    assert any(demand.gpu_types for demand in demands)
    assert {job.tenant for job in jobs} == set("xyz")
    scheduler = Scheduler(cluster, ScriptedPolicy())
    scheduler.step(jobs[-1].submitted, list(map(JobSubmitted, jobs)))
    assert not scheduler.view.infeasible


def test_a_reshapable_workload_has_plans_of_the_requested_size() -> None:
    for seed in range(5):
        jobs, _ = reshapable_workload(seed)
        for job in jobs:
            assert job.plan is None or job.plan.gpus == job.demand.total_gpus
            assert (job.steps is None) != (job.work is None) or not job.reshapable
        assert sum(job.reshapable for job in jobs) > len(jobs) / 2
        assert Plan(1) not in [job.plan for job in jobs if job.demand.total_gpus > 1]


# Disturbances


def five_jobs() -> DisturbedCluster:
    """A cluster of two nodes with two GPUs: a, b, c and d run, e waits."""
    jobs = [make_job(name, work=500.0, preemptible=name != "a") for name in "abcde"]
    disturbed = DisturbedCluster(jobs, make_cluster(2, 2), make_policy("fifo"), ListJournal())
    disturbed.run_until(10.0)
    assert (set(disturbed.view.runs), list(disturbed.view.waiting)) == (set("abcd"), ["e"])
    return disturbed


def random_events(seed: int, count: int) -> list[list[Event]]:
    disturbed, applied = five_jobs(), []
    for disturbance in islice(Disturbances(seed), count):
        events = list(disturbance(disturbed.view))
        applied.append(events)
        disturbed.disturb(lambda _, events=events: events)  # type: ignore[misc]
        disturbed.run_until(disturbed.now + 7.0)
    return applied


def test_disturbances_depend_on_the_seed_alone() -> None:
    assert random_events(1, 30) == random_events(1, 30)
    assert random_events(1, 30) != random_events(2, 30)


def test_every_kind_of_disturbance_occurs_and_names_jobs_in_the_right_state() -> None:
    kinds: set[type] = set()
    for seed in range(4):
        disturbed = five_jobs()
        for disturbance in islice(Disturbances(seed), 12):
            view = disturbed.view
            for event in disturbance(view):
                kinds.add(type(event))
                match event:
                    case JobHeld(job) | JobCancelled(job):
                        assert job in view.waiting or job in view.runs
                    case JobReleased(job):
                        assert job in view.held
                    case RunRecalled(job, run):
                        assert view.runs[job].number == run
                    case _:
                        raise AssertionError(f"unexpected event {event}")
            disturbed.disturb(disturbance)
            disturbed.run_until(disturbed.now + 5.0)
    assert kinds == {JobHeld, JobReleased, RunRecalled, JobCancelled}


def test_disturbances_of_an_empty_cluster_are_empty() -> None:
    view = Scheduler(make_cluster(1), ScriptedPolicy()).view
    chance = Disturbances(0)
    for disturbance in (chance.hold, chance.release, chance.recall, chance.cancel, release_all, resume_gpus):
        assert list(disturbance(view)) == []


def test_the_last_gpu_of_each_node_is_drained_recalled_and_resumed() -> None:
    disturbed = five_jobs()
    assert list(drain_last_gpus(disturbed.view)) == [GpuDrained(0, 1, "drained"), GpuDrained(1, 1, "drained")]
    disturbed.disturb(drain_last_gpus)
    on_drained = {
        run.job for run in disturbed.view.runs.values() if any(1 in share.gpus for share in run.allocation.placement)
    }
    assert {
        event.job for event in recall_from_drained_gpus(disturbed.view) if isinstance(event, RunRecalled)
    } == on_drained
    assert sorted(resume_gpus(disturbed.view), key=str) == [GpuReturned(0, 1), GpuReturned(1, 1)]
    disturbed.disturb(resume_gpus)
    assert list(recall_from_drained_gpus(disturbed.view)) == []


def test_nodes_with_one_gpu_are_not_drained() -> None:
    view = Scheduler(make_cluster(1, 0, 3), ScriptedPolicy()).view
    assert list(drain_last_gpus(view)) == [GpuDrained(2, 2, "drained")]


def test_held_jobs_run_to_their_end_once_all_are_released() -> None:
    disturbed = five_jobs()
    disturbed.disturb(lambda _: [JobHeld("a"), JobHeld("e")])
    disturbed.run_until(50.0)
    assert set(disturbed.view.held) == {"a", "e"}
    disturbed.disturb(release_all)
    disturbed.run_to_end()
    assert not disturbed.view.runs


def test_jobs_that_never_end_are_named() -> None:
    disturbed = five_jobs()
    disturbed.disturb(lambda _: [JobHeld("e")])
    with pytest.raises(AssertionError, match=r"these jobs have not ended at \d+\.0 s: \['e'\]"):
        disturbed.run_to_end()


class WakesForever:
    """Starts nothing, and asks to be called again a moment later."""

    name = "wakes-forever"

    def decide(self, view: object) -> Decision:
        return Decision(wake_at=view.now + 1e-6)  # type: ignore[attr-defined]


def test_a_time_that_is_never_reached_is_reported() -> None:
    policy: Policy = WakesForever()
    disturbed = DisturbedCluster([make_job()], make_cluster(1), policy, ListJournal())
    with pytest.raises(AssertionError, match=r"time 9\.0 s was not reached within 20000 steps"):
        disturbed.run_until(9.0)


def test_a_restarted_scheduler_continues_the_runs_of_the_one_before() -> None:
    disturbed, journal = five_jobs(), ListJournal()
    before = {job: run.allocation for job, run in disturbed.view.runs.items()}
    disturbed.restart_scheduler(make_policy("fifo"), journal=journal)
    assert {job: run.allocation for job, run in disturbed.view.runs.items()} == before
    disturbed.run_to_end()
    starts = [order for entry in journal.entries for order in entry.orders]
    assert [order.job for order in starts] == ["e"]


def test_a_run_that_was_being_stopped_stops_once_after_a_restart() -> None:
    policy, journal = ScriptedPolicy(), ListJournal()
    disturbed = DisturbedCluster([make_job("a", work=50.0)], make_cluster(1), policy, journal)
    policy.next = Decision(starts=(Start("a", on(0)),))
    disturbed.run_until(10.0)
    disturbed.disturb(lambda _: [RunRecalled("a", 1)])
    entry = disturbed.restart_scheduler(make_policy("fifo"))
    assert [type(order) for order in entry.orders] == [StopRun]
    disturbed.run_to_end()
    assert disturbed.view.runs == {}
