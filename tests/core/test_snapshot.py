"""A scheduler that is told nothing but an snapshot stands where the other stood, and goes on."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from random_histories import Grower, History, Move, finish_everybody, moves
from scripted_policy import Told, on

from refold.core import Header, Journals, ListJournal, Policy, Scheduler, View
from refold.core.events import (
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
)
from refold.core.orders import StartRun, StopRun
from refold.journal.files import JournalFile, check_replay, read_journal
from refold.journal.history import History as Measured
from refold.model import Cluster, Decision, Reason, Reshape, Start, Tenant
from refold.policies.queueing.fifo import FifoSkip
from refold.policies.queueing.las import Las
from refold.policies.table import POLICIES
from refold.registry import make_policy
from refold.results.measures import measure
from refold.simulator.futures import going_on, look_ahead, taking_over
from refold.simulator.state_at import StateAt
from refold.testing import Audit, make_cluster, make_job, seeded_workload
from refold.testing.disturbances import DRAINED, Disturbances, DisturbedCluster, drained_gpu, everybody, release_all

LIMITS = (Tenant("a", limit_gpus=3.0), Tenant("b", limit_gpus=2.5))


def state(view: View) -> dict[str, object]:
    """Where a scheduler stands, as far as an snapshot tells."""
    jobs = sorted(everybody(view))
    return {
        "waiting": list(view.waiting.items()),
        "runs": sorted((run.job, run.number, run.allocation, run.since, run.stopping) for run in view.runs.values()),
        "held": {name: (job, view.reason(name).reason) for name, job in view.held.items()},
        "never": dict(view.infeasible),
        "down": [node for node in range(len(view.cluster.nodes)) if not view.is_up(node)],
        "free": view.free_gpus,
        "done": [(name, round(view.done(name), 6)) for name in jobs],
        "steps": [(name, view.steps_done(name)[0]) for name in jobs],
        "gpu_seconds": [(name, round(view.gpu_seconds(name), 6)) for name in jobs],
        "runs_so_far": [(name, view.runs_so_far(name)) for name in jobs],
    }


def begun_anew(cluster: Cluster, old: Scheduler, now: float) -> Scheduler:
    """A scheduler that knows the snapshot, under a policy that leaves everything as it is, so that it can be seen."""
    new = Scheduler(cluster, Told())
    new.step(now, old.snapshot())
    return new


def without_shapes_to_come(known: dict[str, object]) -> dict[str, object]:
    """A run that was being reshaped holds its new place no longer: an snapshot does not tell of it."""
    return {name: value for name, value in known.items() if name != "free"}


def test_an_opening_tells_who_runs_who_waits_and_what_is_behind_them() -> None:
    told = Told()
    scheduler = Scheduler(make_cluster(2, 1), told)
    jobs = {name: make_job(name) for name in "abcd"} | {"huge": make_job("huge", gpus=9)}
    told.next = Decision((Start("a", on(0)), Start("b", on(1))))
    scheduler.step(0.0, [*map(JobSubmitted, jobs.values()), NodeLost(1)])
    scheduler.step(10.0, [RunProgressed("a", 1, 4.0, 3), JobHeld("d", Reason.DEPENDENCY), RunStopped("b", 1)])
    scheduler.step(12.0, [JobCancelled("a")])
    old = PastJob(make_job("old"), 5.0)
    assert scheduler.snapshot([old]) == (
        old,
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


def test_a_run_on_a_node_that_takes_no_more_work_goes_on() -> None:
    scheduler = Scheduler(make_cluster(1), FifoSkip())
    scheduler.step(0.0, [JobSubmitted(make_job("a"))])
    scheduler.step(1.0, [NodeLost(0)])
    new = begun_anew(make_cluster(1), scheduler, 2.0)
    assert state(new.view) == state(scheduler.view) | {"done": [("a", 1.0)], "gpu_seconds": [("a", 2.0)]}


def test_a_run_that_was_stopping_is_told_so_again_and_its_job_waits_or_is_held_or_over() -> None:
    scheduler = Scheduler(make_cluster(3), FifoSkip())
    scheduler.step(0.0, [JobSubmitted(make_job(name)) for name in "abc"])
    scheduler.step(1.0, [RunRecalled("a", 1), JobHeld("b"), JobCancelled("c")])
    new = Scheduler(make_cluster(3), FifoSkip())
    orders = new.step(2.0, scheduler.snapshot()).orders
    assert {order.job for order in orders if isinstance(order, StopRun)} == {"a", "b", "c"}
    assert len(orders) == 3
    entry = new.step(3.0, [RunStopped(name, 1) for name in "abc"])
    assert entry.orders == (StartRun("a", 2, on(0)),)
    assert (list(new.view.held), everybody(new.view)) == (["b"], {"a", "b"})


def test_a_job_that_pauses_after_a_failure_does_so_again_though_its_tenant_has_reached_its_limit() -> None:
    cluster = msgspec.structs.replace(make_cluster(3), tenants=LIMITS)
    scheduler = Scheduler(cluster, FifoSkip())
    scheduler.step(0.0, [JobSubmitted(make_job(name, gpus=3, tenant="a")) for name in ("fails", "follows")])
    scheduler.step(1.0, [RunFailed("fails", 1, "exit 1", retry=True), JobHeld("fails", Reason.BACKOFF)])
    assert (list(scheduler.view.runs), scheduler.view.held_for("fails")) == (["follows"], Reason.BACKOFF)
    new = begun_anew(cluster, scheduler, 1.0)
    assert state(new.view) == state(scheduler.view)


def test_a_run_that_was_being_reshaped_stops_and_its_job_waits() -> None:
    told = Told()
    scheduler = Scheduler(make_cluster(4), told)
    told.next = Decision((Start("a", on(0, 1)),))
    scheduler.step(0.0, [JobSubmitted(make_job("a", gpus=2, reshapable=True))])
    told.next = Decision(reshapes=(Reshape("a", on(0, 1, 2), "grow"),))
    scheduler.step(1.0, ())
    new = begun_anew(make_cluster(4), scheduler, 2.0)
    assert new.step(3.0, [RunStopped("a", 1, 1.0)]).orders == ()
    assert (list(new.view.waiting), new.view.done("a")) == (["a"], 1.0)


def test_who_waits_behind_a_limit_by_priority_does_so_again() -> None:
    cluster = msgspec.structs.replace(make_cluster(8), tenants=(Tenant("a", limit_gpus=4.0),))
    scheduler = Scheduler(cluster, FifoSkip())
    sizes = [("two", 2, 0), ("one", 1, 0), ("low", 2, 0), ("high", 4, 1)]
    made = [make_job(name, gpus=gpus, priority=priority, tenant="a") for name, gpus, priority in sizes]
    scheduler.step(0.0, [JobSubmitted(job) for job in made])
    scheduler.step(1.0, [RunFinished("one", 1)])  # there would be room for 'low', which waits behind 'high'
    assert list(scheduler.view.held) == ["low", "high"]
    new = Scheduler(cluster, FifoSkip())
    new.step(1.0, scheduler.snapshot())
    assert state(new.view) == state(scheduler.view)
    assert new.step(2.0, [RunFinished("two", 1)]).orders == scheduler.step(2.0, [RunFinished("two", 1)]).orders


@settings(max_examples=80, deadline=None)
@given(moves)
def test_after_any_history_another_scheduler_stands_where_the_old_one_does_and_goes_on(some: list[Move]) -> None:
    cluster = msgspec.structs.replace(make_cluster(4, 4, 2), tenants=LIMITS)
    policies: list[Policy] = [FifoSkip(), Las(threshold_gpu_seconds=10.0), Grower()]
    for policy in policies:
        one = History(cluster, policy, refused=lambda _: None)
        for _ in one.play(some):
            pass
        new = begun_anew(cluster, one.scheduler, one.now)
        assert without_shapes_to_come(state(new.view)) == without_shapes_to_come(state(one.view))
        audit = Audit(cluster)
        going_on = Scheduler(cluster, type(policy)(), audit, refused=lambda _: None)
        going_on.step(one.now, one.scheduler.snapshot())
        finish_everybody(going_on, one.now, nodes=3)
        finish_everybody(one.scheduler, one.now, nodes=3)
        assert everybody(going_on.view) == everybody(one.view)


def opened(policy: str, past: int = 5) -> tuple[DisturbedCluster, ListJournal, Cluster]:
    """A cluster in the middle of things, whose journal begins with an snapshot."""
    jobs, cluster = seeded_workload(3, 40)
    journal = ListJournal()
    world = DisturbedCluster(jobs, cluster, make_policy(policy), Audit(cluster))
    world.disturb(drained_gpu)
    disturbances = iter(Disturbances(3))
    for _ in range(6):
        world.run_until(world.now + 40.0)
        world.disturb(next(disturbances))
    remembered = [PastJob(make_job(f"past{number}"), 30.0) for number in range(past)]
    world.begin_anew(make_policy(policy), remembered, Journals(Audit(cluster), journal))
    for _ in range(6):
        world.run_until(world.now + 10.0)
        world.disturb(next(disturbances))
    return world, journal, cluster


@pytest.mark.parametrize("policy", POLICIES)
def test_a_journal_that_begins_with_an_opening_is_read_and_replayed(tmp_path: Path, policy: str) -> None:
    _, journal, cluster = opened(policy)
    path = tmp_path / "journal.jsonl"
    with JournalFile(path, Header(cluster, policy)) as file:
        for entry in journal.entries:
            file.write(entry)
    header, entries = read_journal(path)
    assert list(entries) == journal.entries
    assert check_replay(header, iter(journal.entries), make_policy(policy)) == len(journal.entries)


def test_a_history_that_begins_with_an_opening_counts_runs_that_went_on() -> None:
    world, journal, cluster = opened("easy")
    world.disturb(release_all)
    world.run_to_the_end({DRAINED.id})
    history = Measured.from_entries(cluster, journal.entries)
    adopted = [event for event in journal.entries[0].events if isinstance(event, RunAdopted)]
    by_id = {job.id: index for index, job in enumerate(history.jobs.jobs)}
    assert adopted
    for event in adopted:
        assert history.jobs.first_start[by_id[event.job]] == event.since
    measures = measure(history)
    assert measures.outcomes.finished == sum(
        isinstance(event, RunFinished) for entry in journal.entries for event in entry.events
    )
    assert measures.outcomes.running == 1


def test_the_present_of_a_journal_that_begins_with_an_opening_is_where_its_policy_left_it() -> None:
    world, journal, cluster = opened("easy")
    present = StateAt.of(cluster, journal.entries)
    assert state(present.view) == state(world.view)


@pytest.mark.parametrize("policy", ["fifo", "easy", "refold"])
def test_a_policy_goes_on_into_futures_from_a_journal_that_begins_with_an_opening(policy: str) -> None:
    _, journal, cluster = opened(policy)
    present = StateAt.of(cluster, journal.entries)
    for go_on in (going_on, taking_over):
        from_here = go_on(present, cluster, lambda: journal.entries, lambda: make_policy(policy))
        futures = look_ahead(present, from_here, futures=3)
        expected = [futures.start(job) for job in present.view.waiting]
        assert all(start is not None and start.at >= present.now for start in expected)


def test_who_waits_behind_a_limit_may_start_in_the_future() -> None:
    cluster = msgspec.structs.replace(make_cluster(2), tenants=(Tenant("a", limit_gpus=1.0),))
    journal = ListJournal()
    scheduler = Scheduler(cluster, FifoSkip(), journal)
    scheduler.step(0.0, [JobSubmitted(make_job(name, tenant="a")) for name in ("first", "second")])
    present = StateAt.of(cluster, journal.entries)
    go_on = going_on(present, cluster, lambda: journal.entries, FifoSkip)
    start = look_ahead(present, go_on, futures=5, about=["second"]).start("second")
    assert start is not None
    assert start.at > 0.0


def test_an_opening_may_be_told_again_and_again() -> None:
    world, _, cluster = opened("fifo")
    first = world.scheduler.snapshot()
    again = begun_anew(cluster, world.scheduler, world.now)
    assert again.snapshot() == first


def test_only_what_a_run_has_computed_is_behind_its_job() -> None:
    scheduler = Scheduler(make_cluster(1), FifoSkip())
    scheduler.step(0.0, [JobSubmitted(make_job("a"))])
    scheduler.step(5.0, [RunStarted("a", 1)])
    scheduler.step(20.0, ())
    assert begun_anew(make_cluster(1), scheduler, 20.0).view.done("a") == 15.0
