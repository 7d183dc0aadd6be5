"""Promises to guaranteed jobs: each way to break one, beside a case that is just not broken."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from journals import start, step, submitted

from refold.core import Entry, ListJournal
from refold.core.events import JobCancelled, NodeLost, NodeReturned, RunFinished, RunStarted, RunStopped
from refold.core.orders import StartRun, StopRun
from refold.journal.history import History
from refold.model import Allocation, Cluster, Demand, Job, Plan, Share, Tenant
from refold.plans.relative_speed import Minimums, ModelledSpeedSource, SpeedSource
from refold.plans.speeds import Speeds
from refold.policies.queueing.fifo import FifoSkip
from refold.results.guarantees import Guarantees, Violation, broken_guarantees
from refold.simulator import simulate
from refold.testing import make_cluster, make_job

GRACE = 100.0
A800 = "A800-80GB"


class AsFastAsFour:
    """Whatever a reshapable job asked for, four GPUs are as fast, and two half as fast."""

    def speed(self, job: Job, allocation: Allocation) -> float:
        return 1.0 if not job.reshapable else min(1.0, len(allocation.placement[0].gpus) / 4)


class NearlyAsFast:
    """Slower than what was asked for by a little, or by a little more."""

    def __init__(self, speed: float) -> None:
        self._speed = speed

    def speed(self, job: Job, allocation: Allocation) -> float:
        return self._speed


def trained(id: str, gpus: int = 8, **more: Any) -> Job:
    """A job that the model knows, so that it can have another shape."""
    return make_job(id, gpus=gpus, cpus=8 * gpus, reshapable=True, workload="gpt2", steps=1000, **more)


def on(*sizes: int, **quotas: float) -> Cluster:
    tenants = tuple(Tenant(name, quota) for name, quota in (quotas or {"default": 1000.0}).items())
    return msgspec.structs.replace(make_cluster(*sizes, types=A800), tenants=tenants)


def counted(cluster: Cluster, *entries: Entry, pace: SpeedSource | None = None, grace: float = GRACE) -> Guarantees:
    history = History.from_entries(cluster, entries)
    return broken_guarantees(history, Speeds(cluster), pace or AsFastAsFour(), grace=grace)


def all_of(*nodes: int, gpus: int = 8) -> Allocation:
    return Allocation(tuple(Share(node, tuple(range(gpus))) for node in nodes))


BEST_EFFORT = make_job("b", gpus=8, job_class="best-effort")


# --- the minimum --------------------------------------------------------------------------------------------


def test_the_minimum_is_the_fewest_gpus_that_are_as_fast() -> None:
    minimums = Minimums(Speeds(on(8, 8)), AsFastAsFour())
    assert minimums.of(trained("a", 8)) == Demand(1, 4, cpu_milli=32_000, gpu_types=(A800,))
    assert minimums.of(trained("a", 8, instances=2)) == minimums.of(trained("a", 8))


def test_the_minimum_is_never_more_than_asked_for() -> None:
    minimums = Minimums(Speeds(on(8, 8)), NearlyAsFast(0.5))
    for job in (trained("a", 4), make_job("unknown", gpus=4, reshapable=True), make_job("rigid", gpus=4)):
        assert minimums.of(job) == job.demand


def test_a_plan_that_wastes_gpus_has_a_small_minimum_by_the_model() -> None:
    speeds = Speeds(on(8, 8))
    wasteful = trained("a", 8, plan=Plan(8, zero=2, offload=True))
    assert Minimums(speeds, ModelledSpeedSource(speeds)).of(wasteful).total_gpus < 8


# --- slow ---------------------------------------------------------------------------------------------------


def test_a_run_below_the_promised_speed_breaks_the_promise_after_the_time_of_grace() -> None:
    found = counted(
        on(8),
        step(0, submitted(trained("a")), start("a", gpus=(0, 1))),
        step(20, RunStarted("a", 1)),
        step(500, RunFinished("a", 1)),
    )
    why = "0.50 × the speed of what it asked for, on 2 GPUs"
    assert found == Guarantees(1, 1, 380.0, (Violation("a", 120.0, 500.0, "slow", why),))


@pytest.mark.parametrize(
    ("speed", "end", "broken"), [(0.98, 500, 1), (0.9901, 500, 0), (0.98, 100, 0), (0.98, 101, 1), (2.0, 500, 0)]
)
def test_a_little_slower_or_for_a_little_while_is_no_broken_promise(speed: float, end: float, broken: int) -> None:
    run = step(0, submitted(trained("a")), start("a")), step(end, RunFinished("a", 1))
    assert counted(on(8), *run, pace=NearlyAsFast(speed)).jobs == broken


def test_as_many_gpus_as_the_minimum_keep_the_promise() -> None:
    run = step(0, submitted(trained("a")), start("a", gpus=(0, 1, 2, 3))), step(900, RunFinished("a", 1))
    assert counted(on(8), *run).broken == ()


def test_going_from_one_slow_shape_to_the_next_gives_no_new_time_of_grace() -> None:
    def run_again_at(again: float) -> Guarantees:
        return counted(
            on(8),
            step(0, submitted(trained("a")), start("a", gpus=(0, 1))),
            step(80, RunStopped("a", 1)),
            step(again, start("a", 2, gpus=(0, 1, 2))),
            step(again + 80, RunFinished("a", 2)),
        )

    assert [(one.since, one.until) for one in run_again_at(80).broken] == [(100.0, 160.0)]
    assert run_again_at(90).broken == ()


def test_best_effort_jobs_are_promised_nothing() -> None:
    job = trained("a", job_class="best-effort")
    run = step(0, submitted(job), start("a", gpus=(0, 1))), step(900, RunFinished("a", 1))
    assert counted(on(8), *run) == Guarantees(0, 0, 0.0, ())


# --- kept waiting -------------------------------------------------------------------------------------------


def test_who_waits_for_what_best_effort_jobs_hold_is_kept_waiting() -> None:
    found = counted(
        on(8),
        step(0, submitted(BEST_EFFORT), start("b", gpus=(0, 1, 2, 3, 4, 5))),
        step(10, submitted(trained("a", at=10))),
        step(300, RunFinished("b", 1), start("a", gpus=(0, 1, 2, 3))),
        step(400, RunFinished("a", 1)),
    )
    why = "needs 4 GPUs; on n0: 2 free, 6 held without a promise"
    assert found == Guarantees(1, 1, 190.0, (Violation("a", 110.0, 300.0, "kept waiting", why),))


@pytest.mark.parametrize(("start_at", "broken"), [(110, 0), (111, 1)])
def test_getting_resources_back_may_take_the_time_of_grace(start_at: float, broken: int) -> None:
    found = counted(
        on(8),
        step(0, submitted(BEST_EFFORT), start("b", gpus=tuple(range(8)))),
        step(10, submitted(trained("a", at=10))),
        step(start_at, RunStopped("b", 1), start("a", gpus=(0, 1, 2, 3))),
        step(900, RunFinished("a", 1)),
    )
    assert found.jobs == broken


@pytest.mark.parametrize(("held", "broken"), [(7, 0), (8, 1)])
def test_what_is_held_above_a_minimum_can_be_asked_for(held: int, broken: int) -> None:
    """`g` needs 4 GPUs and keeps these; the node has as many more only if `g` holds 8 of 8, or 4 are free."""
    cluster = on(held)
    found = counted(
        cluster,
        step(0, submitted(trained("g")), start("g", gpus=tuple(range(held)))),
        step(10, submitted(trained("a", at=10))),
        step(500, RunFinished("g", 1), start("a", gpus=(0, 1, 2, 3))),
        step(900, RunFinished("a", 1)),
    )
    assert found.jobs == broken
    if broken:
        assert found.broken[0].why == "needs 4 GPUs; on n0: 4 held above a minimum"


@pytest.mark.parametrize(("more", "broken"), [({}, 1), ({"preemptible": False}, 0), ({"job_class": "guaranteed"}, 0)])
def test_what_a_run_may_keep_lets_nobody_start(more: dict[str, object], broken: int) -> None:
    holder = msgspec.structs.replace(make_job("b", gpus=8, job_class="best-effort"), **more)
    found = counted(
        on(8),
        step(0, submitted(holder), start("b", gpus=tuple(range(8)))),
        step(10, submitted(trained("a", at=10))),
        step(500, RunFinished("b", 1), start("a", gpus=(0, 1, 2, 3))),
        step(900, RunFinished("a", 1)),
    )
    assert found.jobs == broken


def test_gpus_on_several_nodes_are_no_room_for_a_job_that_needs_them_on_one() -> None:
    def two_nodes(first: int, second: int) -> Guarantees:
        return counted(
            on(8, 8),
            step(
                0,
                submitted(make_job("g", gpus=8 - first)),
                submitted(make_job("h", gpus=8 - second)),
                start("g", gpus=tuple(range(8 - first))),
                start("h", node=1, gpus=tuple(range(8 - second))),
            ),
            step(10, submitted(trained("a", at=10))),
            step(900, RunFinished("g", 1), RunFinished("h", 1), start("a")),
        )

    assert two_nodes(3, 3).jobs == 0
    assert [one.why for one in two_nodes(3, 4).broken] == ["needs 4 GPUs; on n1: 4 free"]


def test_a_run_over_several_nodes_keeps_its_minimum_where_it_holds_most() -> None:
    """`g` holds 8 + 8 and needs 4: 4 are left on one node and 8 on the other."""
    found = counted(
        on(8, 8),
        step(0, submitted(trained("g", 8, instances=2)), StartRun("g", 1, all_of(0, 1))),
        step(10, submitted(make_job("a", at=10, gpus=8)), submitted(make_job("c", at=10, gpus=4))),
        step(900, RunFinished("g", 1)),
    )
    assert [(one.job, one.why) for one in found.broken] == [
        ("a", "needs 8 GPUs; on n1: 8 held above a minimum"),
        ("c", "needs 4 GPUs; on n0: 4 held above a minimum"),
    ]


def test_room_for_one_is_no_broken_promise_to_two() -> None:
    found = counted(
        on(4),
        step(0, submitted(BEST_EFFORT), start("b", gpus=(0, 1, 2, 3))),
        step(10, submitted(make_job("c", at=10, gpus=3)), submitted(make_job("d", at=10, gpus=2))),
        step(900, JobCancelled("c")),
        step(1200, RunFinished("b", 1)),
    )
    assert [(one.job, one.since, one.until) for one in found.broken] == [("c", 110, 900), ("d", 1000, 1200)]


def test_a_node_that_is_down_is_no_room() -> None:
    found = counted(
        on(8),
        step(0, NodeLost(0)),
        step(10, submitted(trained("a", at=10))),
        step(500, NodeReturned(0)),
        step(700, start("a")),
    )
    assert [(one.since, one.until) for one in found.broken if one.kind == "kept waiting"] == [(600, 700)]


def test_gpus_of_another_type_are_no_room() -> None:
    waits = make_job("a", gpus=1, types=["A100"])
    two = msgspec.structs.replace(make_cluster(1, 1, types=["A100", A800]), tenants=(Tenant("default", 2.0),))
    for node, broken in ((0, 0), (1, 1)):
        holds = step(0, submitted(make_job("g")), submitted(waits), start("g", node=node))
        assert counted(two, holds, step(500, RunFinished("g", 1), start("a"))).jobs == broken


def test_fractions_of_two_gpus_are_no_room_for_more_than_either() -> None:
    def shares(of_each: int) -> Guarantees:
        holders = [make_job(id, share=of_each / 1000) for id in ("g", "h")]
        return counted(
            on(2),
            step(0, *map(submitted, holders), start("g", milli=of_each), start("h", gpus=(1,), milli=of_each)),
            step(0, submitted(make_job("a", share=0.5))),
            step(500, RunFinished("g", 1)),
        )

    assert (shares(501).jobs, shares(500).jobs) == (0, 1)


def test_a_stopped_job_waits_again() -> None:
    found = counted(
        on(4),
        step(0, submitted(make_job("a", gpus=4)), start("a", gpus=(0, 1, 2, 3))),
        step(50, StopRun("a", 1)),
        step(60, RunStopped("a", 1)),
        step(300, start("a", 2, gpus=(0, 1, 2, 3))),
        step(400, RunFinished("a", 2)),
        pace=NearlyAsFast(1.0),
    )
    assert [(one.kind, one.since, one.until) for one in found.broken] == [("kept waiting", 160, 300)]


# --- the quota ----------------------------------------------------------------------------------------------


def two_wait(quota: float, first: Job, second: Job) -> Guarantees:
    return counted(
        on(8, 8, default=quota),
        step(0, submitted(BEST_EFFORT), start("b", gpus=tuple(range(8)))),
        step(0, submitted(first), submitted(second)),
        step(500, RunFinished("b", 1)),
        step(500, JobCancelled(first.id)),
        step(900, JobCancelled(second.id)),
    )


def test_the_quota_counts_minimums_and_not_what_was_asked_for() -> None:
    assert two_wait(8, trained("a"), trained("c")).promised == 2
    assert [one.job for one in two_wait(8, trained("a"), trained("c")).broken] == ["a", "c"]


def test_beyond_the_quota_nothing_is_promised_until_others_have_gone() -> None:
    found = two_wait(7, trained("a"), trained("c"))
    assert [(one.job, one.since, one.until) for one in found.broken] == [("a", 100, 500), ("c", 600, 900)]


def test_a_job_larger_than_the_quota_is_promised_nothing_and_keeps_nobody_out() -> None:
    found = two_wait(5, make_job("a", gpus=6), trained("c"))
    assert (found.promised, {one.job for one in found.broken}) == (1, {"c"})


def test_a_job_that_does_not_fit_into_what_is_left_of_the_quota_is_passed_over() -> None:
    six, four, one = (make_job(id, gpus=gpus) for id, gpus in (("six", 6), ("four", 4), ("one", 1)))
    found = counted(
        on(8, default=8.0),
        step(0, submitted(six), submitted(four), submitted(one)),
        step(200, JobCancelled("six")),
        step(400, JobCancelled("four"), JobCancelled("one")),
    )
    assert [(one.job, one.since, one.until) for one in found.broken] == [
        ("one", 100, 400),
        ("six", 100, 200),
        ("four", 300, 400),
    ]


def test_a_tenant_without_a_quota_is_promised_nothing() -> None:
    other = trained("a", tenant="other")
    found = counted(on(8, mine=8.0), step(0, submitted(other)), step(500, JobCancelled("a")))
    assert found == Guarantees(0, 0, 0.0, ())


def test_jobs_beyond_the_quota_have_to_give_way() -> None:
    """`g` was started though its tenant has no quota: what it holds is promised to nobody."""
    found = counted(
        on(8, mine=8.0),
        step(0, submitted(make_job("g", gpus=8, tenant="other")), start("g", gpus=tuple(range(8)))),
        step(0, submitted(make_job("a", gpus=8, tenant="mine"))),
        step(500, RunFinished("g", 1)),
    )
    assert [one.why for one in found.broken] == ["needs 8 GPUs; on n0: 8 held without a promise"]


# --- whole histories ----------------------------------------------------------------------------------------


def test_who_starts_as_soon_as_there_is_room_for_what_was_asked_for_breaks_nothing() -> None:
    cluster = on(4, 4)
    jobs = [make_job(f"j{place}", at=float(place), work=50.0 + place % 7, gpus=1 + place % 4) for place in range(200)]
    journal = ListJournal()
    simulate(jobs, cluster, FifoSkip(), journal=journal)
    history = History.from_entries(cluster, journal.entries)
    assert broken_guarantees(history, Speeds(cluster), grace=0.0).broken == ()


def test_where_there_are_no_quotas_nothing_is_promised() -> None:
    holds = step(0, submitted(make_job("g", job_class="best-effort")), submitted(make_job("a")), start("g"))
    ends = step(500, RunFinished("g", 1), start("a"))
    assert counted(on(1), holds, ends).promised == 1
    assert counted(make_cluster(1, types=A800), holds, ends).promised == 0


def test_of_nothing_nothing_is_broken() -> None:
    assert counted(on(8)) == Guarantees(0, 0, 0.0, ())
    assert counted(make_cluster(0)) == Guarantees(0, 0, 0.0, ())
