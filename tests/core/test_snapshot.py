"""A scheduler that starts from a snapshot has the same state as the old one, and continues."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from journals import write_entries
from random_histories import Grower, History, Move, finish_all_jobs, moves
from scripted_policy import ScriptedPolicy, on

from refold.core import Header, Journals, ListJournal, Policy, Scheduler, View
from refold.core.events import (
    GpuLost,
    GpuTimeUsed,
    JobCancelled,
    JobContinued,
    JobHeld,
    JobSubmitted,
    NodeLost,
    PastJob,
    RunAdopted,
    RunFailed,
    RunFinished,
    RunProgressed,
    RunRecalled,
    RunStarted,
    RunStopped,
    UsageRecorded,
)
from refold.core.orders import StartRun, StopRun
from refold.journal.files import check_replay, read_journal
from refold.journal.history import History as JobHistory
from refold.model import Cluster, Decision, Reason, Reshape, Start, Tenant
from refold.policies.queueing.fifo import FifoSkip
from refold.policies.queueing.las import Las
from refold.policies.table import POLICIES
from refold.simulator.futures import continue_with_new_policy, continue_with_own_policy, simulate_futures
from refold.simulator.registry import make_policy
from refold.simulator.results.measures import measure
from refold.simulator.state_at import StateAt
from refold.testing import Audit, make_cluster, make_job, seeded_workload
from refold.testing.disturbances import Disturbances, DisturbedCluster, release_all, unfinished_jobs

LIMITS = (Tenant("a", limit_gpus=3.0), Tenant("b", limit_gpus=2.5))


def state(view: View) -> dict[str, object]:
    """Return the state of a scheduler, as far as a snapshot contains it."""
    jobs = sorted(unfinished_jobs(view))
    return {
        "waiting": list(view.waiting.items()),
        "runs": sorted((run.job, run.number, run.allocation, run.since, run.stopping) for run in view.runs.values()),
        "held": {name: (job, view.reason(name).reason) for name, job in view.held.items()},
        "infeasible": dict(view.infeasible),
        "down": [(node, view.down_reason(node)) for node in range(len(view.cluster.nodes)) if not view.is_up(node)],
        "down GPUs": view.down_gpus,
        "free": view.free_gpus,
        "done": [(name, round(view.done(name), 6)) for name in jobs],
        "steps": [(name, view.steps_done(name)[0]) for name in jobs],
        "gpu_seconds": [(name, round(view.gpu_seconds(name), 6)) for name in jobs],
        "run_count": [(name, view.run_count(name)) for name in jobs],
    }


def restart_from_snapshot(cluster: Cluster, old: Scheduler, now: float) -> Scheduler:
    """Return a scheduler with the state of a snapshot, under a policy that changes nothing."""
    new = Scheduler(cluster, ScriptedPolicy())
    new.step(now, old.snapshot())
    return new


def without_free(state_fields: dict[str, object]) -> dict[str, object]:
    """Drop the free GPUs: the next allocation of a job that is being reshaped is not part of a snapshot."""
    return {name: value for name, value in state_fields.items() if name != "free"}


def test_a_snapshot_has_jobs_runs_progress_nodes_and_holds() -> None:
    policy = ScriptedPolicy()
    scheduler = Scheduler(make_cluster(2, 1), policy)
    jobs = {name: make_job(name) for name in "abcd"} | {"huge": make_job("huge", gpus=9)}
    policy.next = Decision((Start("a", on(0)), Start("b", on(1))))
    scheduler.step(0.0, [*map(JobSubmitted, jobs.values()), NodeLost(1)])
    scheduler.step(10.0, [RunProgressed("a", 1, 4.0, 3), JobHeld("d", Reason.DEPENDENCY), RunStopped("b", 1)])
    scheduler.step(12.0, [JobCancelled("a")])
    old = PastJob(make_job("old"), 5.0)
    assert scheduler.snapshot([old]) == (
        old,
        GpuTimeUsed(10.0),
        UsageRecorded("default", "", ((5.0, 10.0),)),
        JobSubmitted(jobs["a"]),
        JobContinued("a", 1, 6.0, 3, 0.0),
        JobSubmitted(jobs["c"]),
        JobSubmitted(jobs["b"]),
        JobContinued("b", 1, 0.0, 0, 10.0),
        JobSubmitted(jobs["d"]),
        JobSubmitted(jobs["huge"]),
        RunAdopted("a", 1, on(0), 0.0),
        JobCancelled("a"),
        NodeLost(1),
        JobHeld("d", Reason.DEPENDENCY),
    )


def test_a_run_on_a_node_that_is_down_is_adopted() -> None:
    scheduler = Scheduler(make_cluster(1), FifoSkip())
    scheduler.step(0.0, [JobSubmitted(make_job("a"))])
    scheduler.step(1.0, [NodeLost(0)])
    new = restart_from_snapshot(make_cluster(1), scheduler, 2.0)
    assert state(new.view) == state(scheduler.view) | {"done": [("a", 1.0)], "gpu_seconds": [("a", 2.0)]}


def test_a_stopping_run_is_stopped_again_and_its_job_is_queued_held_or_ended() -> None:
    scheduler = Scheduler(make_cluster(3), FifoSkip())
    scheduler.step(0.0, [JobSubmitted(make_job(name)) for name in "abc"])
    scheduler.step(1.0, [RunRecalled("a", 1), JobHeld("b"), JobCancelled("c")])
    new = Scheduler(make_cluster(3), FifoSkip())
    orders = new.step(2.0, scheduler.snapshot()).orders
    assert {order.job for order in orders if isinstance(order, StopRun)} == {"a", "b", "c"}
    assert len(orders) == 3
    entry = new.step(3.0, [RunStopped(name, 1) for name in "abc"])
    assert entry.orders == (StartRun("a", 2, on(0)),)
    assert (list(new.view.held), unfinished_jobs(new.view)) == (["b"], {"a", "b"})


def test_a_job_in_back_off_stays_so_although_its_tenant_is_at_its_limit() -> None:
    cluster = msgspec.structs.replace(make_cluster(3), tenants=LIMITS)
    scheduler = Scheduler(cluster, FifoSkip())
    scheduler.step(0.0, [JobSubmitted(make_job(name, gpus=3, tenant="a")) for name in ("fails", "follows")])
    scheduler.step(1.0, [RunFailed("fails", 1, "exit 1", retry=True), JobHeld("fails", Reason.BACKOFF)])
    assert (list(scheduler.view.runs), scheduler.view.hold_reason("fails")) == (["follows"], Reason.BACKOFF)
    new = restart_from_snapshot(cluster, scheduler, 1.0)
    assert state(new.view) == state(scheduler.view)


def test_a_run_that_was_being_reshaped_stops_and_its_job_is_queued() -> None:
    policy = ScriptedPolicy()
    scheduler = Scheduler(make_cluster(4), policy)
    policy.next = Decision((Start("a", on(0, 1)),))
    scheduler.step(0.0, [JobSubmitted(make_job("a", gpus=2, reshapable=True))])
    policy.next = Decision(reshapes=(Reshape("a", on(0, 1, 2), "grow"),))
    scheduler.step(1.0, ())
    new = restart_from_snapshot(make_cluster(4), scheduler, 2.0)
    assert new.step(3.0, [RunStopped("a", 1, 1.0)]).orders == ()
    assert (list(new.view.waiting), new.view.done("a")) == (["a"], 1.0)


def test_jobs_over_a_limit_keep_their_order_of_priority() -> None:
    cluster = msgspec.structs.replace(make_cluster(8), tenants=(Tenant("a", limit_gpus=4.0),))
    scheduler = Scheduler(cluster, FifoSkip())
    sizes = [("two", 2, 0), ("one", 1, 0), ("low", 2, 0), ("high", 4, 1)]
    jobs = [make_job(name, gpus=gpus, priority=priority, tenant="a") for name, gpus, priority in sizes]
    scheduler.step(0.0, [JobSubmitted(job) for job in jobs])
    scheduler.step(1.0, [RunFinished("one", 1)])  # 'low' would fit, but waits behind 'high'
    assert list(scheduler.view.held) == ["low", "high"]
    new = Scheduler(cluster, FifoSkip())
    new.step(1.0, scheduler.snapshot())
    assert state(new.view) == state(scheduler.view)
    assert new.step(2.0, [RunFinished("two", 1)]).orders == scheduler.step(2.0, [RunFinished("two", 1)]).orders


@settings(max_examples=80, deadline=None)
@given(moves)
def test_a_snapshot_restores_the_state_after_random_events(moves_to_play: list[Move]) -> None:
    cluster = msgspec.structs.replace(make_cluster(4, 4, 2), tenants=LIMITS)
    policies: list[Policy] = [FifoSkip(), Las(threshold_gpu_seconds=10.0), Grower()]
    for policy in policies:
        history = History(cluster, policy, on_rejection=lambda _: None)
        for _ in history.play(moves_to_play):
            pass
        new = restart_from_snapshot(cluster, history.scheduler, history.now)
        assert without_free(state(new.view)) == without_free(state(history.view))
        audit = Audit(cluster)
        restored = Scheduler(cluster, type(policy)(), audit, on_rejection=lambda _: None)
        restored.step(history.now, history.scheduler.snapshot())
        finish_all_jobs(restored, history.now, nodes=3)
        finish_all_jobs(history.scheduler, history.now, nodes=3)
        assert unfinished_jobs(restored.view) == unfinished_jobs(history.view)


def begin_with_snapshot(policy: str, past: int = 5) -> tuple[DisturbedCluster, ListJournal, Cluster]:
    """Return a running cluster whose journal begins with a snapshot."""
    jobs, cluster = seeded_workload(3, 40)
    journal = ListJournal()
    world = DisturbedCluster(jobs, cluster, make_policy(policy), Audit(cluster))
    world.disturb(lambda _: [GpuLost(2, 1, "fan")])
    disturbances = iter(Disturbances(3))
    for _ in range(6):
        world.run_until(world.now + 40.0)
        world.disturb(next(disturbances))
    past_jobs = [PastJob(make_job(f"past{number}"), 30.0) for number in range(past)]
    world.restart_scheduler(make_policy(policy), past_jobs, Journals(Audit(cluster), journal))
    for _ in range(6):
        world.run_until(world.now + 10.0)
        world.disturb(next(disturbances))
    return world, journal, cluster


@pytest.mark.parametrize("policy", POLICIES)
def test_a_journal_that_begins_with_a_snapshot_is_read_and_replayed(tmp_path: Path, policy: str) -> None:
    _, journal, cluster = begin_with_snapshot(policy)
    path = tmp_path / "journal.jsonl"
    write_entries(path, Header(cluster, policy), journal.entries)
    header, entries = read_journal(path)
    assert list(entries) == journal.entries
    assert check_replay(header, iter(journal.entries), make_policy(policy)) == len(journal.entries)


def test_a_history_that_begins_with_a_snapshot_includes_adopted_runs() -> None:
    world, journal, cluster = begin_with_snapshot("easy")
    world.disturb(release_all)
    world.run_to_end()
    history = JobHistory.from_entries(cluster, journal.entries)
    adopted = [event for event in journal.entries[0].events if isinstance(event, RunAdopted)]
    by_id = {job.id: index for index, job in enumerate(history.jobs.jobs)}
    assert adopted
    for event in adopted:
        assert history.jobs.first_start[by_id[event.job]] == event.since
    measures = measure(history)
    assert measures.outcomes.finished == sum(
        isinstance(event, RunFinished) for entry in journal.entries for event in entry.events
    )
    assert measures.outcomes.running == 0


def test_the_state_of_a_journal_that_begins_with_a_snapshot_is_that_of_its_scheduler() -> None:
    world, journal, cluster = begin_with_snapshot("easy")
    journal_state = StateAt.from_entries(cluster, journal.entries)
    assert state(journal_state.view) == state(world.view)


@pytest.mark.parametrize("policy", ["fifo", "easy", "refold"])
def test_futures_can_continue_a_journal_that_begins_with_a_snapshot(policy: str) -> None:
    _, journal, cluster = begin_with_snapshot(policy)
    journal_state = StateAt.from_entries(cluster, journal.entries)
    for continue_policy in (continue_with_own_policy, continue_with_new_policy):
        make_scheduler = continue_policy(journal_state, cluster, lambda: journal.entries, lambda: make_policy(policy))
        futures = simulate_futures(journal_state, make_scheduler, futures=3)
        estimates = [futures.start(job) for job in journal_state.view.waiting]
        assert all(start is not None and start.at >= journal_state.now for start in estimates)


def test_a_job_over_a_limit_may_start_in_a_future() -> None:
    cluster = msgspec.structs.replace(make_cluster(2), tenants=(Tenant("a", limit_gpus=1.0),))
    journal = ListJournal()
    scheduler = Scheduler(cluster, FifoSkip(), journal)
    scheduler.step(0.0, [JobSubmitted(make_job(name, tenant="a")) for name in ("first", "second")])
    journal_state = StateAt.from_entries(cluster, journal.entries)
    continue_policy = continue_with_own_policy(journal_state, cluster, lambda: journal.entries, FifoSkip)
    start = simulate_futures(journal_state, continue_policy, futures=5, job_ids=["second"]).start("second")
    assert start is not None
    assert start.at > 0.0


def test_a_snapshot_of_a_restored_scheduler_is_equal() -> None:
    world, _, cluster = begin_with_snapshot("fifo")
    first = world.scheduler.snapshot()
    again = restart_from_snapshot(cluster, world.scheduler, world.now)
    assert again.snapshot() == first


def test_start_up_time_does_not_count_as_work() -> None:
    scheduler = Scheduler(make_cluster(1), FifoSkip())
    scheduler.step(0.0, [JobSubmitted(make_job("a"))])
    scheduler.step(5.0, [RunStarted("a", 1)])
    scheduler.step(20.0, ())
    assert restart_from_snapshot(make_cluster(1), scheduler, 20.0).view.done("a") == 15.0
