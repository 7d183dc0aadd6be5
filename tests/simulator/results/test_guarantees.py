"""Guarantee violations: each kind, next to a case that just fulfils the guarantee."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from journals import start, step, submitted

from refold.core import Entry, ListJournal
from refold.core.events import (
    GpuLost,
    GpuReturned,
    JobCancelled,
    JobHeld,
    JobReleased,
    NodeLost,
    NodeReturned,
    RunFailed,
    RunFinished,
    RunStarted,
    RunStopped,
)
from refold.core.orders import StartRun, StopRun
from refold.journal.history import History
from refold.model import Allocation, Cluster, Demand, Job, Plan, Reason, Share, Tenant
from refold.planning.plans.relative_speed import Minimums, ModelledSpeedSource, SpeedSource
from refold.planning.plans.speeds import Speeds
from refold.policies.queueing.fifo import FifoSkip
from refold.simulator import simulate
from refold.simulator.results.guarantees import GuaranteeReport, QuotaWait, Violation, find_violations, longest_stop
from refold.testing import make_cluster, make_job

GRACE = 100.0
A800 = "A800-80GB"


class FourGpusSuffice:
    """For reshapable jobs, four GPUs are as fast as the request, and two GPUs half as fast."""

    def speed(self, job: Job, allocation: Allocation) -> float:
        return 1.0 if not job.reshapable else min(1.0, len(allocation.placement[0].gpus) / 4)


class ConstantSpeed:
    """All runs have the same relative speed."""

    def __init__(self, speed: float) -> None:
        self._speed = speed

    def speed(self, job: Job, allocation: Allocation) -> float:
        return self._speed


def make_training_job(id: str, gpus: int = 8, **more: Any) -> Job:
    """Return a reshapable job of a model that the performance model knows."""
    return make_job(id, gpus=gpus, cpus=8 * gpus, reshapable=True, workload="gpt2", steps=1000, **more)


def make_quota_cluster(*sizes: int, **quotas: float) -> Cluster:
    tenants = tuple(Tenant(name, quota) for name, quota in (quotas or {"default": 1000.0}).items())
    return msgspec.structs.replace(make_cluster(*sizes, types=A800), tenants=tenants)


def check_guarantees(
    cluster: Cluster, *entries: Entry, speed_source: SpeedSource | None = None, grace: float = GRACE
) -> GuaranteeReport:
    history = History.from_entries(cluster, entries)
    return find_violations(history, Speeds(cluster), speed_source or FourGpusSuffice(), grace=grace)


def whole_nodes(*nodes: int, gpus: int = 8) -> Allocation:
    return Allocation(tuple(Share(node, tuple(range(gpus))) for node in nodes))


BEST_EFFORT = make_job("b", gpus=8, job_class="best-effort")


# --- minimum demands --------------------------------------------------------------------------------------------


def test_the_minimum_is_the_smallest_number_of_gpus_that_is_as_fast_as_the_request() -> None:
    minimums = Minimums(Speeds(make_quota_cluster(8, 8)), FourGpusSuffice())
    assert minimums.for_job(make_training_job("a", 8)) == Demand(1, 4, cpu_milli=32_000, gpu_types=(A800,))
    assert minimums.for_job(make_training_job("a", 8, instances=2)) == minimums.for_job(make_training_job("a", 8))


def test_the_minimum_never_exceeds_the_request() -> None:
    minimums = Minimums(Speeds(make_quota_cluster(8, 8)), ConstantSpeed(0.5))
    for job in (make_training_job("a", 4), make_job("unknown", gpus=4, reshapable=True), make_job("rigid", gpus=4)):
        assert minimums.for_job(job) == job.demand


def test_an_inefficient_plan_has_a_minimum_below_the_request() -> None:
    speeds = Speeds(make_quota_cluster(8, 8))
    wasteful = make_training_job("a", 8, plan=Plan(8, zero=2, offload=True))
    assert Minimums(speeds, ModelledSpeedSource(speeds)).for_job(wasteful).total_gpus < 8


# --- slow runs ---------------------------------------------------------------------------------------------------


def test_a_run_below_the_guaranteed_speed_is_a_violation_after_the_grace_period() -> None:
    found = check_guarantees(
        make_quota_cluster(8),
        step(0, submitted(make_training_job("a")), start("a", gpus=(0, 1))),
        step(20, RunStarted("a", 1)),
        step(500, RunFinished("a", 1)),
    )
    why = "0.50 × the guaranteed speed, on 2 GPUs"
    assert found == GuaranteeReport(1, 1, 380.0, (Violation("a", 120.0, 500.0, "slow", why),))


@pytest.mark.parametrize(
    ("speed", "end", "violated"), [(0.98, 500, 1), (0.9901, 500, 0), (0.98, 100, 0), (0.98, 101, 1), (2.0, 500, 0)]
)
def test_slightly_slow_or_short_runs_are_not_violations(speed: float, end: float, violated: int) -> None:
    run = step(0, submitted(make_training_job("a")), start("a")), step(end, RunFinished("a", 1))
    assert check_guarantees(make_quota_cluster(8), *run, speed_source=ConstantSpeed(speed)).violated_jobs == violated


def test_the_minimum_number_of_gpus_fulfils_the_guarantee() -> None:
    run = step(0, submitted(make_training_job("a")), start("a", gpus=(0, 1, 2, 3))), step(900, RunFinished("a", 1))
    assert check_guarantees(make_quota_cluster(8), *run).violations == ()


def test_consecutive_slow_runs_share_one_grace_period() -> None:
    def run_again_at(again: float) -> GuaranteeReport:
        return check_guarantees(
            make_quota_cluster(8),
            step(0, submitted(make_training_job("a")), start("a", gpus=(0, 1))),
            step(80, RunStopped("a", 1)),
            step(again, start("a", 2, gpus=(0, 1, 2))),
            step(again + 80, RunFinished("a", 2)),
        )

    assert [(one.since, one.until) for one in run_again_at(80).violations] == [(100.0, 160.0)]
    assert run_again_at(90).violations == ()


def test_best_effort_jobs_have_no_guarantee() -> None:
    job = make_training_job("a", job_class="best-effort")
    run = step(0, submitted(job), start("a", gpus=(0, 1))), step(900, RunFinished("a", 1))
    assert check_guarantees(make_quota_cluster(8), *run) == GuaranteeReport(0, 0, 0.0, ())


# --- avoidable waits -------------------------------------------------------------------------------------------


def test_waiting_for_gpus_held_by_best_effort_jobs_is_a_violation() -> None:
    found = check_guarantees(
        make_quota_cluster(8),
        step(0, submitted(BEST_EFFORT), start("b", gpus=(0, 1, 2, 3, 4, 5))),
        step(10, submitted(make_training_job("a", at=10))),
        step(300, RunFinished("b", 1), start("a", gpus=(0, 1, 2, 3))),
        step(400, RunFinished("a", 1)),
    )
    why = "needs 4 GPUs; on n0: 2 free, 6 held without a guarantee"
    violation, wait = Violation("a", 110.0, 300.0, "waiting", why), QuotaWait("a", 10.0, 300.0, why)
    assert found == GuaranteeReport(1, 1, 190.0, (violation,), (wait,))


@pytest.mark.parametrize(
    ("holders", "cause"),
    [
        ([make_job("b", gpus=8, job_class="best-effort", preemptible=False)], "held by runs that are not preemptible"),
        ([make_job("b", gpus=6), make_job("c", gpus=2)], "0 are up and not guaranteed to other jobs"),
        ([make_job("b", gpus=7)], "1 are up and not guaranteed to other jobs"),
    ],
)
def test_other_waits_within_the_quota_are_listed_with_their_cause(holders: list[Job], cause: str) -> None:
    starts, first = [], 0
    for holder in holders:
        starts.append(start(holder.id, gpus=tuple(range(first, first + holder.demand.gpus))))
        first += holder.demand.gpus
    found = check_guarantees(
        make_quota_cluster(8),
        step(0, *map(submitted, holders), *starts),
        step(10, submitted(make_training_job("a", at=10))),
        step(500, *(RunFinished(holder.id, 1) for holder in holders), start("a", gpus=(0, 1, 2, 3))),
        step(900, RunFinished("a", 1)),
    )
    assert (found.violations, found.waits) == ((), (QuotaWait("a", 10.0, 500.0, f"needs 4 GPUs: {cause}"),))


def test_a_wait_that_moving_guaranteed_runs_would_avoid_says_so() -> None:
    """Two guaranteed runs hold two of three GPUs of each node; `a` needs two on one node."""
    runs = [make_job(name, gpus=2) for name in "bc"]
    found = check_guarantees(
        make_quota_cluster(3, 3),
        step(0, *map(submitted, runs), start("b", node=0, gpus=(0, 1)), start("c", node=1, gpus=(0, 1))),
        step(10, submitted(make_job("a", gpus=2, at=10))),
        step(500, RunFinished("b", 1), start("a", node=0, gpus=(0, 1))),
        step(900, RunFinished("a", 1), RunFinished("c", 1)),
    )
    cause = "needs 2 GPUs: fits only if guaranteed runs are moved to other nodes"
    assert (found.violations, found.waits) == ((), (QuotaWait("a", 10.0, 500.0, cause),))


def test_the_second_of_two_waiting_jobs_waits_for_the_first() -> None:
    jobs = [make_job("b", gpus=4, job_class="best-effort", preemptible=False), make_job("c", gpus=4, at=10)]
    found = check_guarantees(
        make_quota_cluster(8),
        step(0, submitted(jobs[0]), start("b", gpus=(0, 1, 2, 3))),
        step(10, submitted(jobs[1]), submitted(make_job("d", gpus=4, at=10))),
        step(500, RunFinished("b", 1), start("c", gpus=(0, 1, 2, 3)), start("d", gpus=(4, 5, 6, 7))),
        step(900, RunFinished("c", 1), RunFinished("d", 1)),
    )
    assert [(one.job, one.cause) for one in found.waits] == [
        ("c", "needs 4 GPUs; on n0: 4 free"),
        ("d", "needs 4 GPUs: guaranteed jobs that were submitted earlier wait for the same GPUs"),
    ]


def test_the_grace_period_is_the_longest_time_that_a_stop_took() -> None:
    cluster = make_quota_cluster(8)
    entries = [
        step(0, submitted(BEST_EFFORT), start("b", gpus=tuple(range(8)))),
        step(10, submitted(make_training_job("a", at=10)), StopRun("b", 1)),
        step(40, RunStopped("b", 1), start("a", gpus=(0, 1, 2, 3))),
        step(900, RunFinished("a", 1)),
    ]
    history = History.from_entries(cluster, entries)
    assert longest_stop(history) == 30.0
    found = find_violations(history, Speeds(cluster), FourGpusSuffice())
    assert (found.violations, found.waits) == ((), ())


@pytest.mark.parametrize(("start_at", "violated"), [(110, 0), (111, 1)])
def test_freeing_gpus_may_take_the_grace_period(start_at: float, violated: int) -> None:
    found = check_guarantees(
        make_quota_cluster(8),
        step(0, submitted(BEST_EFFORT), start("b", gpus=tuple(range(8)))),
        step(10, submitted(make_training_job("a", at=10))),
        step(start_at, RunStopped("b", 1), start("a", gpus=(0, 1, 2, 3))),
        step(900, RunFinished("a", 1)),
    )
    assert found.violated_jobs == violated


@pytest.mark.parametrize(("held", "violated"), [(7, 0), (8, 1)])
def test_gpus_held_above_a_minimum_are_available(held: int, violated: int) -> None:
    """`g` is entitled to its minimum of 4 GPUs; 4 more are available only if the node has 8."""
    cluster = make_quota_cluster(held)
    found = check_guarantees(
        cluster,
        step(0, submitted(make_training_job("g")), start("g", gpus=tuple(range(held)))),
        step(10, submitted(make_training_job("a", at=10))),
        step(500, RunFinished("g", 1), start("a", gpus=(0, 1, 2, 3))),
        step(900, RunFinished("a", 1)),
    )
    assert found.violated_jobs == violated
    if violated:
        assert found.violations[0].why == "needs 4 GPUs; on n0: 4 held above a minimum"


@pytest.mark.parametrize(("more", "violated"), [({}, 1), ({"preemptible": False}, 0), ({"job_class": "guaranteed"}, 0)])
def test_gpus_that_a_run_is_entitled_to_are_not_available(more: dict[str, object], violated: int) -> None:
    holder = msgspec.structs.replace(make_job("b", gpus=8, job_class="best-effort"), **more)
    found = check_guarantees(
        make_quota_cluster(8),
        step(0, submitted(holder), start("b", gpus=tuple(range(8)))),
        step(10, submitted(make_training_job("a", at=10))),
        step(500, RunFinished("b", 1), start("a", gpus=(0, 1, 2, 3))),
        step(900, RunFinished("a", 1)),
    )
    assert found.violated_jobs == violated


def test_gpus_on_several_nodes_are_not_available_to_a_job_that_needs_them_on_one() -> None:
    def two_nodes(first: int, second: int) -> GuaranteeReport:
        return check_guarantees(
            make_quota_cluster(8, 8),
            step(
                0,
                submitted(make_job("g", gpus=8 - first)),
                submitted(make_job("h", gpus=8 - second)),
                start("g", gpus=tuple(range(8 - first))),
                start("h", node=1, gpus=tuple(range(8 - second))),
            ),
            step(10, submitted(make_training_job("a", at=10))),
            step(900, RunFinished("g", 1), RunFinished("h", 1), start("a")),
        )

    assert two_nodes(3, 3).violated_jobs == 0
    assert [one.why for one in two_nodes(3, 4).violations] == ["needs 4 GPUs; on n1: 4 free"]


def test_a_run_on_several_nodes_is_entitled_to_its_minimum_where_it_holds_most() -> None:
    """`g` holds 8 + 8 GPUs and needs 4: 4 are available on one node and 8 on the other."""
    found = check_guarantees(
        make_quota_cluster(8, 8),
        step(0, submitted(make_training_job("g", 8, instances=2)), StartRun("g", 1, whole_nodes(0, 1))),
        step(10, submitted(make_job("a", at=10, gpus=8)), submitted(make_job("c", at=10, gpus=4))),
        step(900, RunFinished("g", 1)),
    )
    assert [(one.job, one.why) for one in found.violations] == [
        ("a", "needs 8 GPUs; on n1: 8 held above a minimum"),
        ("c", "needs 4 GPUs; on n0: 4 held above a minimum"),
    ]


def test_gpus_for_one_job_are_not_a_violation_for_two() -> None:
    found = check_guarantees(
        make_quota_cluster(4),
        step(0, submitted(BEST_EFFORT), start("b", gpus=(0, 1, 2, 3))),
        step(10, submitted(make_job("c", at=10, gpus=3)), submitted(make_job("d", at=10, gpus=2))),
        step(900, JobCancelled("c")),
        step(1200, RunFinished("b", 1)),
    )
    assert [(one.job, one.since, one.until) for one in found.violations] == [("c", 110, 900), ("d", 1000, 1200)]


def test_gpus_of_a_node_that_is_down_are_not_available() -> None:
    found = check_guarantees(
        make_quota_cluster(8),
        step(0, NodeLost(0)),
        step(10, submitted(make_training_job("a", at=10))),
        step(500, NodeReturned(0)),
        step(700, start("a")),
    )
    assert [(one.since, one.until) for one in found.violations if one.kind == "waiting"] == [(600, 700)]


def test_gpus_that_are_down_are_not_available() -> None:
    found = check_guarantees(
        make_quota_cluster(8),
        step(0, GpuLost(0, 3)),
        step(10, submitted(make_job("a", at=10, gpus=8))),
        step(500, GpuReturned(0, 3)),
        step(700, start("a", gpus=tuple(range(8)))),
    )
    assert [(one.since, one.until) for one in found.violations if one.kind == "waiting"] == [(600, 700)]


def test_gpus_of_another_type_are_not_available() -> None:
    waits = make_job("a", gpus=1, types=["A100"])
    two = msgspec.structs.replace(make_cluster(1, 1, types=["A100", A800]), tenants=(Tenant("default", 2.0),))
    for node, violated in ((0, 0), (1, 1)):
        holds = step(0, submitted(make_job("g")), submitted(waits), start("g", node=node))
        assert check_guarantees(two, holds, step(500, RunFinished("g", 1), start("a"))).violated_jobs == violated


def test_free_fractions_of_two_gpus_are_not_combined() -> None:
    def two_shared_gpus(milli: int) -> GuaranteeReport:
        holders = [make_job(id, share=milli / 1000) for id in ("g", "h")]
        return check_guarantees(
            make_quota_cluster(2),
            step(0, *map(submitted, holders), start("g", milli=milli), start("h", gpus=(1,), milli=milli)),
            step(0, submitted(make_job("a", share=0.5))),
            step(500, RunFinished("g", 1)),
        )

    assert (two_shared_gpus(501).violated_jobs, two_shared_gpus(500).violated_jobs) == (0, 1)


def test_a_preempted_job_waits_again() -> None:
    found = check_guarantees(
        make_quota_cluster(4),
        step(0, submitted(make_job("a", gpus=4)), start("a", gpus=(0, 1, 2, 3))),
        step(50, StopRun("a", 1)),
        step(60, RunStopped("a", 1)),
        step(300, start("a", 2, gpus=(0, 1, 2, 3))),
        step(400, RunFinished("a", 2)),
        speed_source=ConstantSpeed(1.0),
    )
    assert [(one.kind, one.since, one.until) for one in found.violations] == [("waiting", 160, 300)]


def test_a_job_that_is_held_does_not_wait_for_gpus() -> None:
    """It failed and backs off until 500, and a user holds it from 600 to 900."""
    found = check_guarantees(
        make_quota_cluster(8),
        step(0, submitted(make_job("a", gpus=4)), start("a", gpus=(0, 1, 2, 3))),
        step(50, RunFailed("a", 1, retry=True), JobHeld("a", Reason.BACKOFF)),
        step(500, JobReleased("a")),
        step(600, JobHeld("a", Reason.HELD)),
        step(900, JobReleased("a")),
        step(1100, start("a", 2, gpus=(0, 1, 2, 3))),
        step(1200, RunFinished("a", 2)),
        speed_source=ConstantSpeed(1.0),
        grace=60.0,
    )
    assert [(one.since, one.until) for one in found.waits] == [(500.0, 600.0), (900.0, 1100.0)]
    assert [(one.since, one.until) for one in found.violations] == [(560.0, 600.0), (960.0, 1100.0)]


# --- quotas ----------------------------------------------------------------------------------------------


def two_waiting_jobs(quota: float, first: Job, second: Job) -> GuaranteeReport:
    return check_guarantees(
        make_quota_cluster(8, 8, default=quota),
        step(0, submitted(BEST_EFFORT), start("b", gpus=tuple(range(8)))),
        step(0, submitted(first), submitted(second)),
        step(500, RunFinished("b", 1)),
        step(500, JobCancelled(first.id)),
        step(900, JobCancelled(second.id)),
    )


def test_the_quota_counts_minimums_and_not_requests() -> None:
    assert two_waiting_jobs(8, make_training_job("a"), make_training_job("c")).guaranteed_jobs == 2
    assert [one.job for one in two_waiting_jobs(8, make_training_job("a"), make_training_job("c")).violations] == [
        "a",
        "c",
    ]


def test_a_job_beyond_the_quota_has_no_guarantee_until_another_job_ends() -> None:
    found = two_waiting_jobs(7, make_training_job("a"), make_training_job("c"))
    assert [(one.job, one.since, one.until) for one in found.violations] == [("a", 100, 500), ("c", 600, 900)]


def test_a_job_larger_than_the_quota_has_no_guarantee_and_does_not_block_others() -> None:
    found = two_waiting_jobs(5, make_job("a", gpus=6), make_training_job("c"))
    assert (found.guaranteed_jobs, {one.job for one in found.violations}) == (1, {"c"})


def test_a_job_that_does_not_fit_the_remaining_quota_is_skipped() -> None:
    six, four, one = (make_job(id, gpus=gpus) for id, gpus in (("a6", 6), ("b4", 4), ("c1", 1)))
    found = check_guarantees(
        make_quota_cluster(8, default=8.0),
        step(0, submitted(six), submitted(four), submitted(one)),
        step(200, JobCancelled("a6")),
        step(400, JobCancelled("b4"), JobCancelled("c1")),
    )
    assert [(one.job, one.since, one.until) for one in found.violations] == [
        ("a6", 100, 200),
        ("c1", 100, 400),
        ("b4", 300, 400),
    ]


def test_a_tenant_without_a_quota_has_no_guarantee() -> None:
    other = make_training_job("a", tenant="other")
    found = check_guarantees(make_quota_cluster(8, mine=8.0), step(0, submitted(other)), step(500, JobCancelled("a")))
    assert found == GuaranteeReport(0, 0, 0.0, ())


def test_gpus_held_by_jobs_beyond_the_quota_are_available() -> None:
    """`g` runs although its tenant has no quota, so it is not entitled to its GPUs."""
    found = check_guarantees(
        make_quota_cluster(8, mine=8.0),
        step(0, submitted(make_job("g", gpus=8, tenant="other")), start("g", gpus=tuple(range(8)))),
        step(0, submitted(make_job("a", gpus=8, tenant="mine"))),
        step(500, RunFinished("g", 1)),
    )
    assert [one.why for one in found.violations] == ["needs 8 GPUs; on n0: 8 held without a guarantee"]


# --- whole histories ----------------------------------------------------------------------------------------


def test_a_policy_that_starts_jobs_as_soon_as_they_fit_has_no_violations() -> None:
    cluster = make_quota_cluster(4, 4)
    jobs = [make_job(f"j{index}", at=float(index), work=50.0 + index % 7, gpus=1 + index % 4) for index in range(200)]
    journal = ListJournal()
    simulate(jobs, cluster, FifoSkip(), journal=journal)
    history = History.from_entries(cluster, journal.entries)
    assert find_violations(history, Speeds(cluster), grace=0.0).violations == ()


def test_without_quotas_there_are_no_guarantees() -> None:
    holds = step(0, submitted(make_job("g", job_class="best-effort")), submitted(make_job("a")), start("g"))
    ends = step(500, RunFinished("g", 1), start("a"))
    assert check_guarantees(make_quota_cluster(1), holds, ends).guaranteed_jobs == 1
    assert check_guarantees(make_cluster(1, types=A800), holds, ends).guaranteed_jobs == 0


def test_an_empty_history_has_no_violations() -> None:
    assert check_guarantees(make_quota_cluster(8)) == GuaranteeReport(0, 0, 0.0, ())
    assert check_guarantees(make_cluster(0)) == GuaranteeReport(0, 0, 0.0, ())
