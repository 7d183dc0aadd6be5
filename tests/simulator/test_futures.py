"""Copies of schedulers, the state at a time of a journal, and start estimates from simulated futures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from math import inf

import numpy as np
import pytest

from refold.core import Entry, ListJournal, Policy, Scheduler, View
from refold.core.events import JobCancelled, JobSubmitted, NodeLost, RunFinished, RunStopped
from refold.core.orders import StartRun
from refold.errors import BadDecision, BadJournal
from refold.model import Allocation, Cluster, Decision, Job, Share
from refold.policies.queueing.fifo import Fifo, FifoSkip
from refold.policies.queueing.las import Las
from refold.simulator import Costs, Fault, simulate
from refold.simulator.fork import CannotCopy, Fork
from refold.simulator.futures import Futures, continue_with_new_policy, continue_with_own_policy, simulate_futures
from refold.simulator.registry import make_policy, policy_names
from refold.simulator.run_time_draws import MAX_ARRIVALS, PastArrivals
from refold.simulator.state_at import StateAt
from refold.testing import make_cluster, make_job

SLOW = {"sia", "gavel", "pollux"}
"""Slow policies, tested with fewer jobs."""

TWO_NODES = make_cluster(8, 8)


def mixed_jobs(count: int) -> list[Job]:
    """Return jobs of all sizes, more than fit at a time, some reshapable, of two tenants."""
    return [
        make_job(
            str(index),
            at=20.0 * index,
            gpus=(1, 2, 4, 8, 1)[index % 5],
            work=100.0 + 37.0 * (index * 7 % 11),
            tenant="ab"[index % 2],
            reshapable=index % 3 == 0,
            time_limit=1000.0,
        )
        for index in range(count)
    ]


def simulate_with_faults(policy: Policy, jobs: list[Job], cluster: Cluster = TWO_NODES) -> list[Entry]:
    journal = ListJournal()
    costs = Costs(start=3.0, stop=2.0, restart=4.0, report_every=60.0)
    simulate(jobs, cluster, policy, journal=journal, costs=costs, faults=[Fault(1, 150.0, 400.0)])
    return journal.entries


def orders_from(scheduler: Scheduler, entries: list[Entry]) -> list[object]:
    return [order for entry in entries for order in scheduler.step(entry.now, entry.events).orders]


@pytest.mark.parametrize("name", policy_names())
def test_a_copied_scheduler_gives_the_same_orders_as_the_original(name: str) -> None:
    entries = simulate_with_faults(make_policy(name), mixed_jobs(8 if name in SLOW else 40))
    half = len(entries) // 2
    before, after = entries[:half], entries[half:]
    recorded = [order for entry in after for order in entry.orders]
    original = Scheduler(TWO_NODES, make_policy(name))
    orders_from(original, before)
    snapshot = Fork(original)
    assert orders_from(snapshot.copy(), after) == recorded
    assert orders_from(original, after) == recorded  # the original was not changed
    assert orders_from(snapshot.copy(), after) == recorded  # nor was the stored state


class Holder:
    """Refers to itself through a function, and to a frozen value."""

    def __init__(self) -> None:
        self.amounts = [1]
        self.job = make_job("shared")
        self.total: Callable[[], int] = lambda: sum(self.amounts)


def test_functions_are_copied_with_their_closures_and_frozen_values_are_shared() -> None:
    original = Holder()
    copied = Fork(original).copy()
    copied.amounts.append(41)
    assert (copied.total(), original.total()) == (42, 1)
    assert copied.job is original.job


def test_large_arrays_are_copied() -> None:
    amounts = np.arange(200_000)
    copied = Fork({"amounts": amounts}).copy()["amounts"]
    copied[0] = 7
    assert (copied[1:].tolist(), amounts[0]) == (amounts[1:].tolist(), 0)


def test_a_generator_cannot_be_copied() -> None:
    with pytest.raises(CannotCopy):
        Fork(iter(number for number in range(3)))


# The state at a time of a journal.


@pytest.mark.parametrize("name", ["fifo-skip", "las", "srtf", "refold", "tiresias"])
def test_the_state_of_a_journal_equals_that_of_its_scheduler_after_every_entry(name: str) -> None:
    entries = simulate_with_faults(make_policy(name), mixed_jobs(40))
    scheduler, state = Scheduler(TWO_NODES, make_policy(name)), StateAt(TWO_NODES)
    for entry in entries:
        scheduler.step(entry.now, entry.events)
        state.apply(entry)
        assert dict(state.view.runs) == dict(scheduler.view.runs)
        assert dict(state.view.waiting) == dict(scheduler.view.waiting)
        assert set(state.view.waiting) == set(state.waiting_since)
    assert not state.view.runs


def on(*gpus: int) -> Allocation:
    return Allocation((Share(0, gpus),))


def started(job: str, *gpus: int, run: int = 1) -> StartRun:
    return StartRun(job, run, on(*gpus))


def test_waiting_since_is_the_submission_or_the_end_of_the_last_run() -> None:
    entries = [
        Entry(0.0, (JobSubmitted(make_job("a")), JobSubmitted(make_job("b"))), (started("a", 0),)),
        Entry(7.0, (RunStopped("a", 1, 5.0),)),
    ]
    state = StateAt.from_entries(make_cluster(2), entries, 9.0)
    assert state.waiting_since == {"a": 7.0, "b": 0.0}
    assert (state.elapsed("a"), state.elapsed("b")) == (7.0, 0.0)


def test_the_state_between_two_entries_is_at_the_requested_time() -> None:
    entries = [Entry(0.0, (JobSubmitted(make_job("a")),), (started("a", 0),)), Entry(100.0, (RunFinished("a", 1),))]
    state = StateAt.from_entries(make_cluster(2), entries, 60.0)
    assert (state.now, state.elapsed("a"), list(state.view.runs)) == (60.0, 60.0, ["a"])
    end = state.end_estimate(state.view.runs["a"])
    assert end.soonest is not None and end.latest is not None
    assert 60.0 <= end.soonest <= end.at <= end.latest


def test_a_journal_that_allocates_a_gpu_twice_is_rejected() -> None:
    twice = Entry(0.0, (JobSubmitted(make_job("a")), JobSubmitted(make_job("b"))), (started("a", 0), started("b", 0)))
    with pytest.raises(BadDecision, match="the journal"):
        StateAt.from_entries(make_cluster(2), [twice])


# Futures.


def forecast(
    policy: Callable[[], Policy],
    entries: list[Entry],
    *new_jobs: Job,
    at: float,
    cluster: Cluster,
    successor: Callable[[], Policy] | None = None,
    seed: int = 0,
    futures: int = 20,
    arrivals: bool = False,
) -> Futures:
    state = StateAt.from_entries(cluster, entries, at)
    if successor is None:
        make_scheduler = continue_with_own_policy(state, cluster, lambda: entries, policy)
    else:
        make_scheduler = continue_with_new_policy(state, cluster, lambda: entries, successor)
    return simulate_futures(state, make_scheduler, futures=futures, seed=seed, new_jobs=new_jobs, arrivals=arrivals)


ONE_GPU = make_cluster(1)


def queue_of_equal_jobs(count: int) -> list[Job]:
    """Return jobs of 100 s each: `count` one after the other, and then four at once."""
    past_arrivals = [make_job(f"past-{index}", at=100.0 * index) for index in range(count)]
    return past_arrivals + [make_job(f"now-{index}", at=100.0 * count) for index in range(4)]


def simulate_entries(policy: Policy, jobs: list[Job], cluster: Cluster = ONE_GPU) -> list[Entry]:
    journal = ListJournal()
    simulate(jobs, cluster, policy, journal=journal)
    return journal.entries


def test_start_estimates_follow_the_run_times_of_equal_past_jobs() -> None:
    entries = simulate_entries(Fifo(), queue_of_equal_jobs(300))
    futures = forecast(Fifo, entries, at=30_050.0, cluster=ONE_GPU)
    found = [futures.start(f"now-{index}") for index in (1, 2, 3)]
    times = [estimate.at for estimate in found if estimate is not None]
    assert times == pytest.approx([30_100.0, 30_200.0, 30_300.0], abs=40.0)
    for estimate in found:
        assert estimate is not None and estimate.soonest is not None and estimate.latest is not None
        assert 30_050.0 <= estimate.soonest <= estimate.at <= estimate.latest


def test_a_new_job_with_known_work_runs_for_that_time() -> None:
    entries = simulate_entries(Fifo(), queue_of_equal_jobs(20))
    new_job = make_job("new", at=2_050.0, work=17.0)
    futures = forecast(Fifo, entries, new_job, at=2_050.0, cluster=ONE_GPU)
    start, end = futures.start("new"), futures.end("new")
    assert start is not None and end is not None and start.soonest is not None
    assert end.at - start.at == pytest.approx(17.0)
    assert start.soonest >= 2_050.0


def test_the_seed_determines_the_futures_and_a_new_job_under_fifo_delays_no_other() -> None:
    entries = simulate_entries(Fifo(), queue_of_equal_jobs(20))
    forecast_with = partial(forecast, Fifo, entries, at=2_050.0, cluster=ONE_GPU)
    first, second, other_seed = forecast_with(), forecast_with(), forecast_with(seed=1)
    with_new_job = forecast_with(make_job("new", at=2_050.0, work=None))
    starts = first.starts("now-3").tolist()
    assert starts == second.starts("now-3").tolist() == with_new_job.starts("now-3").tolist()
    assert starts != other_seed.starts("now-3").tolist()


def test_simulating_futures_does_not_change_the_state() -> None:
    entries = simulate_entries(Fifo(), queue_of_equal_jobs(5))
    state = StateAt.from_entries(ONE_GPU, entries, 550.0)
    make_scheduler = continue_with_own_policy(state, ONE_GPU, lambda: entries, Fifo)
    first = simulate_futures(state, make_scheduler, futures=5).starts("now-3").tolist()
    assert simulate_futures(state, make_scheduler, futures=5).starts("now-3").tolist() == first
    assert list(state.view.waiting) == ["now-1", "now-2", "now-3"]


def test_a_job_that_starts_in_no_future_has_no_estimate() -> None:
    cluster = make_cluster(1, 4)
    jobs = [JobSubmitted(make_job("wide", gpus=4)), JobSubmitted(make_job("narrow"))]
    entries = [
        Entry(0.0, (NodeLost(1),)),
        Entry(1.0, (jobs[0],)),
        Entry(2.0, (jobs[1],)),
    ]
    futures = forecast(Fifo, entries, at=2.0, cluster=cluster)
    assert futures.start("wide") is futures.start("narrow") is None
    assert set(futures.starts("wide").tolist()) == {inf}


def test_fewer_futures_are_simulated_if_that_is_enough() -> None:
    entries = [Entry(0.0, tuple(JobSubmitted(job) for job in (make_job("a"), make_job("b"))))]
    state = StateAt.from_entries(ONE_GPU, entries)
    make_scheduler = continue_with_new_policy(state, ONE_GPU, lambda: entries, Fifo)
    checks = iter([False, False, True])
    futures = simulate_futures(state, make_scheduler, futures=20, should_stop=lambda: next(checks))
    assert (futures.count, len(futures.starts("b"))) == (3, 3)
    assert futures.start("b") is not None


def test_infinite_bounds_are_omitted() -> None:
    starts = np.array([1.0, 2.0, 3.0, inf, 4.0])
    found = Futures(5, {"a": starts}, {}).start("a")
    assert found is not None
    assert (found.soonest, found.at, found.latest) == (1.0, 3.0, None)


def test_stopping_runs_have_stopped_at_the_start_of_a_future() -> None:
    jobs = [make_job("long", gpus=8, work=5_000.0), make_job("short", at=1_000.0, gpus=8, work=50.0)]
    cluster, journal = make_cluster(8), ListJournal()
    make = partial(Las, threshold_gpu_seconds=800.0)
    simulate(jobs, cluster, make(), journal=journal, costs=Costs(stop=30.0))
    state = StateAt.from_entries(cluster, journal.entries, 1_010.0)
    assert [run.stopping for run in state.view.runs.values()] == [True]
    futures = forecast(make, journal.entries, at=1_010.0, cluster=cluster)
    assert set(futures.starts("short").tolist()) == {1_010.0}


class Counting:
    """FIFO with a running generator, which cannot be copied."""

    name = "counting"

    def __init__(self) -> None:
        self._fifo = Fifo()
        self._calls = self._count()

    def _count(self) -> Iterator[int]:
        yield from range(10**9)

    def decide(self, view: View) -> Decision:
        next(self._calls)
        return self._fifo.decide(view)


def test_a_policy_that_cannot_be_copied_is_replayed_instead() -> None:
    entries = simulate_entries(Fifo(), queue_of_equal_jobs(5))
    forecast_with = partial(forecast, entries=entries, at=550.0, cluster=ONE_GPU, futures=4)
    assert forecast_with(Counting).starts("now-2").tolist() == forecast_with(Fifo).starts("now-2").tolist()


class Sleepless:
    """Starts no job, and sets a wake-up after every second."""

    name = "sleepless"

    def decide(self, view: View) -> Decision:
        return Decision(wake_at=view.now + 1.0)


def test_a_future_ends_if_the_policy_only_sets_wake_ups() -> None:
    entries = [Entry(0.0, (JobSubmitted(make_job("a")),), wake_at=1.0)]
    assert forecast(Sleepless, entries, at=0.0, cluster=ONE_GPU, futures=2).start("a") is None


def test_a_policy_that_does_not_repeat_the_recorded_decisions_is_rejected() -> None:
    entries = simulate_entries(Fifo(), [make_job("wide", gpus=8), make_job("next", gpus=8)], make_cluster(8))
    with pytest.raises(BadJournal, match="does not repeat the recorded decisions"):
        forecast(Sleepless, entries, at=50.0, cluster=make_cluster(8))


@pytest.mark.parametrize("name", [name for name in policy_names() if name not in SLOW])
def test_every_policy_can_take_over(name: str) -> None:
    entries = simulate_with_faults(FifoSkip(), mixed_jobs(30))
    middle = entries[len(entries) // 2].now
    state = StateAt.from_entries(TWO_NODES, entries, middle)
    futures = forecast(FifoSkip, entries, at=middle, cluster=TWO_NODES, successor=partial(make_policy, name), futures=2)
    assert len(state.view.waiting) > 1
    assert all(futures.start(job_id) is not None for job_id in state.view.waiting)


def test_a_new_policy_may_start_at_once_what_the_old_one_kept_waiting() -> None:
    cluster = make_cluster(4)
    jobs = [make_job("runs", gpus=3), make_job("wide", at=1.0, gpus=4), make_job("narrow", at=2.0)]
    entries = list(islice(simulate_entries(Fifo(), jobs, cluster), 3))
    new_job = make_job("new", at=3.0, gpus=4, work=1.0)
    under_fifo = forecast(Fifo, entries, new_job, at=3.0, cluster=cluster).start("narrow")
    after_takeover = forecast(Fifo, entries, new_job, at=3.0, cluster=cluster, successor=FifoSkip).start("narrow")
    assert after_takeover is not None and after_takeover.at == 3.0
    assert under_fifo is not None and under_fifo.at > 3.0


def test_a_cancelled_job_is_not_in_the_state() -> None:
    jobs = (JobSubmitted(make_job("a")), JobSubmitted(make_job("b")))
    entries = [Entry(0.0, jobs, (started("a", 0),)), Entry(1.0, (JobCancelled("b"),))]
    state = StateAt.from_entries(ONE_GPU, entries)
    assert (list(state.view.waiting), list(state.view.runs), state.waiting_since) == ([], ["a"], {})


# Arrivals.


def test_arrivals_repeat_the_past_from_a_random_time_on() -> None:
    past_arrivals = PastArrivals([make_job("a", at=10.0, gpus=2), make_job("b", at=40.0)], [5.0, 7.0], 110.0)
    arrivals = past_arrivals.resample(np.random.default_rng(3), {"coming-1"})
    assert [job.id for job in arrivals[:3]] == ["coming-0", "coming-1'", "coming-2"]
    assert len({job.id for job in arrivals}) == len(arrivals) == MAX_ARRIVALS
    gaps = np.diff([job.submitted for job in arrivals])
    assert set(np.round(gaps, 6).tolist()) == {30.0, 70.0}  # as in the past, repeated every 100 s
    assert arrivals[0].submitted >= 110.0
    assert {(job.demand.gpus, job.work) for job in arrivals} == {(2, 5.0), (1, 7.0)}


def test_without_past_arrivals_there_are_no_future_arrivals() -> None:
    generator = np.random.default_rng(0)
    assert (
        PastArrivals([], [], 5.0).resample(generator, set())
        == PastArrivals([make_job("a", at=5.0)], [1.0], 5.0).resample(generator, set())
        == []
    )


def test_arrivals_delay_a_job_that_can_be_overtaken_but_none_under_fifo() -> None:
    cluster = make_cluster(4)
    jobs = [make_job(f"small-{index}", at=10.0 * index, gpus=1, work=30.0) for index in range(60)]
    jobs = sorted([*jobs, make_job("wide", at=405.0, gpus=4)], key=lambda job: job.submitted)
    for make, delays in ((FifoSkip, True), (Fifo, False)):
        entries = [entry for entry in simulate_entries(make(), jobs, cluster) if entry.now <= 410.0]
        forecast_with = partial(forecast, make, entries, at=410.0, cluster=cluster, futures=5)
        alone, among = forecast_with().starts("wide"), forecast_with(arrivals=True).starts("wide")
        assert bool((among > alone).any()) == delays
        assert bool((among >= alone).all())
