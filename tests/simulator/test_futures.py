"""Looking ahead: a scheduler copied at a moment goes on as it would have, and futures say when jobs may start."""

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
from refold.registry import make_policy, policy_names
from refold.simulator import Costs, Fault, simulate
from refold.simulator.arrivals import MOST_ARRIVALS, PastArrivals
from refold.simulator.fork import CannotCopy, Fork
from refold.simulator.futures import Futures, going_on, look_ahead, taking_over
from refold.simulator.state_at import StateAt
from refold.testing import make_cluster, make_job

SLOW = {"optimal", "sia", "gavel", "pollux"}
"""These search for long; that they can be copied is seen on fewer jobs."""

TWO_NODES = make_cluster(8, 8)


def some_jobs(count: int) -> list[Job]:
    """Of all sizes, more than fit at a time; some of them reshapable, some of another tenant."""
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


def journal_of(policy: Policy, jobs: list[Job], cluster: Cluster = TWO_NODES) -> list[Entry]:
    journal = ListJournal()
    costs = Costs(start=3.0, stop=2.0, restart=4.0, report_every=60.0)
    simulate(jobs, cluster, policy, journal=journal, costs=costs, faults=[Fault(1, 150.0, 400.0)])
    return journal.entries


def orders_from(scheduler: Scheduler, entries: list[Entry]) -> list[object]:
    return [order for entry in entries for order in scheduler.step(entry.now, entry.events).orders]


@pytest.mark.parametrize("name", policy_names())
def test_a_copied_scheduler_goes_on_as_the_one_it_was_copied_from(name: str) -> None:
    entries = journal_of(make_policy(name), some_jobs(8 if name in SLOW else 40))
    half = len(entries) // 2
    before, after = entries[:half], entries[half:]
    recorded = [order for entry in after for order in entry.orders]
    original = Scheduler(TWO_NODES, make_policy(name))
    orders_from(original, before)
    snapshot = Fork(original)
    assert orders_from(snapshot.copy(), after) == recorded
    assert orders_from(original, after) == recorded  # it was not disturbed
    assert orders_from(snapshot.copy(), after) == recorded  # nor was what is kept


class Holder:
    """Holds on to itself by a function, and to a frozen value."""

    def __init__(self) -> None:
        self.amounts = [1]
        self.job = make_job("kept")
        self.total: Callable[[], int] = lambda: sum(self.amounts)


def test_a_function_is_copied_with_what_it_holds_on_to_and_frozen_values_are_shared() -> None:
    original = Holder()
    copied = Fork(original).copy()
    copied.amounts.append(41)
    assert (copied.total(), original.total()) == (42, 1)
    assert copied.job is original.job


def test_a_large_array_is_copied_whole() -> None:
    amounts = np.arange(200_000)
    copied = Fork({"amounts": amounts}).copy()["amounts"]
    copied[0] = 7
    assert (copied[1:].tolist(), amounts[0]) == (amounts[1:].tolist(), 0)


def test_what_has_begun_cannot_be_copied() -> None:
    with pytest.raises(CannotCopy):
        Fork(iter(number for number in range(3)))


# How things stand.


@pytest.mark.parametrize("name", ["fifo-skip", "las", "srtf", "refold", "tiresias"])
def test_a_journal_is_followed_to_the_state_that_its_policy_left(name: str) -> None:
    entries = journal_of(make_policy(name), some_jobs(40))
    scheduler, present = Scheduler(TWO_NODES, make_policy(name)), StateAt(TWO_NODES)
    for entry in entries:
        scheduler.step(entry.now, entry.events)
        present.follow(entry)
        assert dict(present.view.runs) == dict(scheduler.view.runs)
        assert dict(present.view.waiting) == dict(scheduler.view.waiting)
        assert set(present.view.waiting) == set(present.waiting_since)
    assert not present.view.runs


def on(*gpus: int) -> Allocation:
    return Allocation((Share(0, gpus),))


def started(job: str, *gpus: int, run: int = 1) -> StartRun:
    return StartRun(job, run, on(*gpus))


def test_who_waits_waits_since_it_came_or_since_its_run_ended() -> None:
    entries = [
        Entry(0.0, (JobSubmitted(make_job("a")), JobSubmitted(make_job("b"))), (started("a", 0),)),
        Entry(7.0, (RunStopped("a", 1, 5.0),)),
    ]
    present = StateAt.of(make_cluster(2), entries, 9.0)
    assert present.waiting_since == {"a": 7.0, "b": 0.0}
    assert (present.elapsed("a"), present.elapsed("b")) == (7.0, 0.0)


def test_a_moment_between_two_entries_is_later_than_the_first_of_them() -> None:
    entries = [Entry(0.0, (JobSubmitted(make_job("a")),), (started("a", 0),)), Entry(100.0, (RunFinished("a", 1),))]
    present = StateAt.of(make_cluster(2), entries, 60.0)
    assert (present.now, present.elapsed("a"), list(present.view.runs)) == (60.0, 60.0, ["a"])
    end = present.end(present.view.runs["a"])
    assert end.soonest is not None and end.latest is not None
    assert 60.0 <= end.soonest <= end.at <= end.latest


def test_a_journal_that_uses_a_gpu_twice_is_none() -> None:
    twice = Entry(0.0, (JobSubmitted(make_job("a")), JobSubmitted(make_job("b"))), (started("a", 0), started("b", 0)))
    with pytest.raises(BadDecision, match="the journal"):
        StateAt.of(make_cluster(2), [twice])


# Futures.


def ahead(
    policy: Callable[[], Policy],
    entries: list[Entry],
    *asked: Job,
    at: float,
    cluster: Cluster,
    successor: Callable[[], Policy] | None = None,
    seed: int = 0,
    futures: int = 20,
    arrivals: bool = False,
) -> Futures:
    present = StateAt.of(cluster, entries, at)
    if successor is None:
        go_on = going_on(present, cluster, lambda: entries, policy)
    else:
        go_on = taking_over(present, cluster, lambda: entries, successor)
    return look_ahead(present, go_on, futures=futures, seed=seed, asked=asked, arrivals=arrivals)


ONE_GPU = make_cluster(1)


def hundred_each(count: int) -> list[Job]:
    """One after the other on one GPU, each 100 s; and then four at once."""
    past = [make_job(f"past-{index}", at=100.0 * index) for index in range(count)]
    return past + [make_job(f"now-{index}", at=100.0 * count) for index in range(4)]


def simulated(policy: Policy, jobs: list[Job], cluster: Cluster = ONE_GPU) -> list[Entry]:
    journal = ListJournal()
    simulate(jobs, cluster, policy, journal=journal)
    return journal.entries


def test_after_many_alike_the_next_is_expected_to_be_like_them() -> None:
    entries = simulated(Fifo(), hundred_each(300))
    futures = ahead(Fifo, entries, at=30_050.0, cluster=ONE_GPU)
    found = [futures.start(f"now-{index}") for index in (1, 2, 3)]
    ats = [one.at for one in found if one is not None]
    assert ats == pytest.approx([30_100.0, 30_200.0, 30_300.0], abs=40.0)
    for one in found:
        assert one is not None and one.soonest is not None and one.latest is not None
        assert 30_050.0 <= one.soonest <= one.at <= one.latest


def test_a_job_that_says_its_work_ends_so_long_after_it_starts() -> None:
    entries = simulated(Fifo(), hundred_each(20))
    asked = make_job("asked", at=2_050.0, work=17.0)
    futures = ahead(Fifo, entries, asked, at=2_050.0, cluster=ONE_GPU)
    start, end = futures.start("asked"), futures.end("asked")
    assert start is not None and end is not None and start.soonest is not None
    assert end.at - start.at == pytest.approx(17.0)
    assert start.soonest >= 2_050.0


def test_the_same_seed_draws_the_same_lives_and_who_comes_last_under_fifo_delays_nobody() -> None:
    entries = simulated(Fifo(), hundred_each(20))
    look = partial(ahead, Fifo, entries, at=2_050.0, cluster=ONE_GPU)
    one, again, other, asked = look(), look(), look(seed=1), look(make_job("asked", at=2_050.0, work=None))
    assert one.starts("now-3").tolist() == again.starts("now-3").tolist() == asked.starts("now-3").tolist()
    assert one.starts("now-3").tolist() != other.starts("now-3").tolist()


def test_looking_ahead_leaves_the_present_as_it_is() -> None:
    entries = simulated(Fifo(), hundred_each(5))
    present = StateAt.of(ONE_GPU, entries, 550.0)
    go_on = going_on(present, ONE_GPU, lambda: entries, Fifo)
    first = look_ahead(present, go_on, futures=5).starts("now-3").tolist()
    assert look_ahead(present, go_on, futures=5).starts("now-3").tolist() == first
    assert list(present.view.waiting) == ["now-1", "now-2", "now-3"]


def test_who_cannot_start_in_any_future_is_expected_at_no_time() -> None:
    cluster = make_cluster(1, 4)
    jobs = [JobSubmitted(make_job("wide", gpus=4)), JobSubmitted(make_job("narrow"))]
    entries = [
        Entry(0.0, (NodeLost(1),)),
        Entry(1.0, (jobs[0],)),
        Entry(2.0, (jobs[1],)),
    ]
    futures = ahead(Fifo, entries, at=2.0, cluster=cluster)
    assert futures.start("wide") is futures.start("narrow") is None
    assert set(futures.starts("wide").tolist()) == {inf}


def test_where_bounds_are_beyond_all_futures_they_are_not_told() -> None:
    starts = np.array([1.0, 2.0, 3.0, inf, 4.0])
    found = Futures({"a": starts}, {}).start("a")
    assert found is not None
    assert (found.soonest, found.at, found.latest) == (1.0, 3.0, None)


def test_runs_that_are_stopping_have_stopped_and_others_go_on_from_where_they_are() -> None:
    jobs = [make_job("long", gpus=8, work=5_000.0), make_job("short", at=1_000.0, gpus=8, work=50.0)]
    cluster, journal = make_cluster(8), ListJournal()
    make = partial(Las, threshold_gpu_seconds=800.0)
    simulate(jobs, cluster, make(), journal=journal, costs=Costs(stop=30.0))
    present = StateAt.of(cluster, journal.entries, 1_010.0)
    assert [run.stopping for run in present.view.runs.values()] == [True]
    futures = ahead(make, journal.entries, at=1_010.0, cluster=cluster)
    assert set(futures.starts("short").tolist()) == {1_010.0}


class Counting:
    """Fifo that has begun to count by a generator, which nobody can copy."""

    name = "counting"

    def __init__(self) -> None:
        self._fifo = Fifo()
        self._looks = self._count()

    def _count(self) -> Iterator[int]:
        yield from range(10**9)

    def decide(self, view: View) -> Decision:
        next(self._looks)
        return self._fifo.decide(view)


def test_a_policy_that_cannot_be_copied_is_replayed_instead() -> None:
    entries = simulated(Fifo(), hundred_each(5))
    look = partial(ahead, entries=entries, at=550.0, cluster=ONE_GPU, futures=4)
    assert look(Counting).starts("now-2").tolist() == look(Fifo).starts("now-2").tolist()


class Sleepless:
    """Starts nobody and wants to be woken again and again."""

    name = "sleepless"

    def decide(self, view: View) -> Decision:
        return Decision(wake_at=view.now + 1.0)


def test_a_policy_that_wakes_for_ever_does_not_look_ahead_for_ever() -> None:
    entries = [Entry(0.0, (JobSubmitted(make_job("a")),), wake_at=1.0)]
    assert ahead(Sleepless, entries, at=0.0, cluster=ONE_GPU, futures=2).start("a") is None


def test_a_policy_that_decides_otherwise_than_is_written_is_told() -> None:
    entries = simulated(Fifo(), [make_job("wide", gpus=8), make_job("next", gpus=8)], make_cluster(8))
    with pytest.raises(BadJournal, match="decides otherwise"):
        ahead(Sleepless, entries, at=50.0, cluster=make_cluster(8))


@pytest.mark.parametrize("name", [name for name in policy_names() if name not in SLOW])
def test_any_policy_can_take_over(name: str) -> None:
    entries = journal_of(FifoSkip(), some_jobs(30))
    middle = entries[len(entries) // 2].now
    present = StateAt.of(TWO_NODES, entries, middle)
    futures = ahead(FifoSkip, entries, at=middle, cluster=TWO_NODES, successor=partial(make_policy, name), futures=2)
    assert len(present.view.waiting) > 1
    assert all(futures.start(job_id) is not None for job_id in present.view.waiting)


def test_who_takes_over_may_start_at_once_whom_the_other_kept_waiting() -> None:
    cluster = make_cluster(4)
    jobs = [make_job("runs", gpus=3), make_job("wide", at=1.0, gpus=4), make_job("narrow", at=2.0)]
    entries = list(islice(simulated(Fifo(), jobs, cluster), 3))
    asked = make_job("asked", at=3.0, gpus=4, work=1.0)
    kept = ahead(Fifo, entries, asked, at=3.0, cluster=cluster).start("narrow")
    over = ahead(Fifo, entries, asked, at=3.0, cluster=cluster, successor=FifoSkip).start("narrow")
    assert over is not None and over.at == 3.0
    assert kept is not None and kept.at > 3.0


def test_who_was_cancelled_is_in_no_future() -> None:
    jobs = (JobSubmitted(make_job("a")), JobSubmitted(make_job("b")))
    entries = [Entry(0.0, jobs, (started("a", 0),)), Entry(1.0, (JobCancelled("b"),))]
    present = StateAt.of(ONE_GPU, entries)
    assert (list(present.view.waiting), list(present.view.runs), present.waiting_since) == ([], ["a"], {})


# Who may come.


def test_jobs_come_again_as_they_came_from_some_moment_on() -> None:
    past = PastArrivals([make_job("a", at=10.0, gpus=2), make_job("b", at=40.0)], [5.0, 7.0], 110.0)
    coming = past.again(np.random.default_rng(3), {"coming-1"})
    assert [job.id for job in coming[:3]] == ["coming-0", "coming-1'", "coming-2"]
    assert len({job.id for job in coming}) == len(coming) == MOST_ARRIVALS
    gaps = np.diff([job.submitted for job in coming])
    assert set(np.round(gaps, 6).tolist()) == {30.0, 70.0}  # as in the past, round after round of 100 s
    assert coming[0].submitted >= 110.0
    assert {(job.demand.gpus, job.work) for job in coming} == {(2, 5.0), (1, 7.0)}


def test_where_nobody_has_come_nobody_comes_again() -> None:
    chance = np.random.default_rng(0)
    assert (
        PastArrivals([], [], 5.0).again(chance, set())
        == PastArrivals([make_job("a", at=5.0)], [1.0], 5.0).again(chance, set())
        == []
    )


def test_who_may_be_overtaken_starts_later_where_others_arrive_and_under_fifo_nobody_is() -> None:
    cluster = make_cluster(4)
    jobs = [make_job(f"small-{index}", at=10.0 * index, gpus=1, work=30.0) for index in range(60)]
    jobs = sorted([*jobs, make_job("wide", at=405.0, gpus=4)], key=lambda job: job.submitted)
    for make, delays in ((FifoSkip, True), (Fifo, False)):
        entries = [entry for entry in simulated(make(), jobs, cluster) if entry.now <= 410.0]
        look = partial(ahead, make, entries, at=410.0, cluster=cluster, futures=5)
        alone, among = look().starts("wide"), look(arrivals=True).starts("wide")
        assert bool((among > alone).any()) == delays
        assert bool((among >= alone).all())
