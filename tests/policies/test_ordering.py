"""Queue orders of the backfill policies."""

from math import log

import pytest

from refold.core import Scheduler, View
from refold.core.events import Event, JobSubmitted, RunAdopted, RunFinished, RunStopped
from refold.errors import BadValue
from refold.model import NO_CHANGE, Allocation, Cluster, Decision, Job, Share, Start, Stop, Tenant
from refold.model.units import DAY
from refold.policies.backfill.ordering import RESORT_INTERVAL, Ordering, OrderName
from refold.testing import make_cluster, make_job


class Starter:
    """A policy that starts each job on the next GPU and passes views to an `Ordering`."""

    name = "starter"

    def __init__(self, ordering: Ordering) -> None:
        self.ordering = ordering
        self.resorts: list[bool] = []
        self.starts = True
        self.next = NO_CHANGE

    def decide(self, view: View) -> Decision:
        self.resorts.append(self.ordering.observe(view))
        if self.next is not NO_CHANGE or not self.starts:
            decision, self.next = self.next, NO_CHANGE
            return decision
        starts = [Start(job, Allocation((Share(0, (len(view.runs) + n,)),))) for n, job in enumerate(view.waiting)]
        return Decision(starts=tuple(starts))


def world(order: OrderName, cluster: Cluster | None = None) -> tuple[Starter, Scheduler]:
    policy = Starter(Ordering(order))
    return policy, Scheduler(cluster or make_cluster(8), policy)


def in_order(policy: Starter, scheduler: Scheduler, *jobs: Job, durations: dict[str, float] | None = None) -> list[str]:
    view, known = scheduler.view, durations or {}
    return [job.id for job in sorted(jobs, key=lambda job: policy.ordering.key(view, job, known.get(job.id, 0.0)))]


def submitted(*jobs: Job) -> list[Event]:
    return [JobSubmitted(job) for job in jobs]


def test_arrival_orders_by_priority_then_by_submission() -> None:
    policy, scheduler = world("arrival")
    jobs = [make_job("b", at=2), make_job("a", at=1), make_job("urgent", at=3, priority=1)]
    assert in_order(policy, scheduler, *jobs) == ["urgent", "a", "b"]
    low = make_job("low", at=0, priority=-1)
    assert in_order(policy, scheduler, low, *jobs) == ["urgent", "a", "b", "low"]


def test_shortest_orders_by_priority_then_by_duration() -> None:
    policy, scheduler = world("shortest")
    jobs = [make_job("long", at=1), make_job("short", at=2), make_job("urgent", at=3, priority=1)]
    durations = {"long": 50.0, "short": 10.0, "urgent": 500.0}
    assert in_order(policy, scheduler, *jobs, durations=durations) == ["urgent", "short", "long"]


def test_attained_orders_by_attained_service_then_by_submission() -> None:
    policy, scheduler = world("attained")
    old, other, new = make_job("old", at=0), make_job("other", at=1), make_job("new", at=2)
    scheduler.step(0, submitted(old))
    policy.next = Decision(stops=(Stop("old"),))
    policy.starts = False
    scheduler.step(10, [])
    scheduler.step(11, [RunStopped("old", 1, 10.0), *submitted(other, new)])
    assert in_order(policy, scheduler, old, new, other) == ["other", "new", "old"]


def test_fair_share_puts_the_tenant_with_the_least_usage_first() -> None:
    policy, scheduler = world("fair-share")
    scheduler.step(0, submitted(make_job("h", tenant="heavy"), make_job("l", tenant="light")))
    scheduler.step(100, [RunFinished("l", 1)])
    scheduler.step(200, [RunFinished("h", 1)])
    jobs = [
        make_job("a", at=1, tenant="heavy"),
        make_job("b", at=2, tenant="light"),
        make_job("c", at=3, tenant="none"),
    ]
    assert in_order(policy, scheduler, *jobs) == ["c", "b", "a"]


def test_usage_of_a_day_ago_counts_half() -> None:
    policy, scheduler = world("fair-share")
    scheduler.step(0, submitted(make_job("a", tenant="x")))
    scheduler.step(1000, [RunFinished("a", 1)])
    view, job = scheduler.view, make_job("b", tenant="x")
    used = (1 - 0.5 ** (1000 / DAY)) * DAY / log(2)
    assert policy.ordering.key(view, job, 0.0) == (0, pytest.approx(used), 0.0)
    assert used == pytest.approx(1000, rel=0.01)
    scheduler.step(1000 + DAY, [])
    assert policy.ordering.key(view, job, 0.0) == (0, pytest.approx(used / 2), 0.0)


def test_usage_counts_runs_from_before_the_first_round() -> None:
    policy, scheduler = world("fair-share")
    policy.starts = False
    old, new = make_job("old", tenant="old"), make_job("new", tenant="new")
    adopted = [
        RunAdopted("old", 1, Allocation((Share(0, (0,)),)), 0.0),
        RunAdopted("new", 1, Allocation((Share(0, (1,)),)), DAY - 60.0),
    ]
    scheduler.step(DAY, [*submitted(old, new), *adopted])
    jobs = make_job("x", tenant="old"), make_job("y", tenant="new")
    usage = [policy.ordering.key(scheduler.view, job, 0.0)[1] for job in jobs]
    assert usage == [pytest.approx(DAY / 2 / log(2)), pytest.approx(60.0, rel=0.001)]


def test_usage_counts_the_second_run_of_a_job_although_it_ends_before_the_next_round() -> None:
    policy, scheduler = world("fair-share")
    scheduler.step(0, submitted(make_job("a", tenant="x")))
    policy.next = Decision(stops=(Stop("a"),))
    scheduler.step(100, [])
    scheduler.step(100, [RunStopped("a", 1, 100.0)])
    scheduler.step(300, [RunFinished("a", 2)])
    used = policy.ordering.key(scheduler.view, make_job("b", tenant="x"), 0.0)[1]
    assert used == pytest.approx(300.0, rel=0.01)


def test_usage_does_not_depend_on_the_number_of_rounds() -> None:
    keys = []
    for rounds in ([], [100.0, 5000.0, 40_000.0]):
        policy, scheduler = world("fair-share")
        scheduler.step(0, submitted(make_job("a", tenant="x")))
        for now in rounds:
            scheduler.step(now, [])
        scheduler.step(50_000, [RunFinished("a", 1)])
        keys.append(policy.ordering.key(scheduler.view, make_job("b", tenant="x"), 0.0)[1])
    assert keys[0] == pytest.approx(keys[1])


def test_usage_is_compared_per_gpu_of_quota_and_tenants_without_quota_come_last() -> None:
    servers = make_cluster(8)
    cluster = Cluster(servers.nodes, servers.gpu_types, tenants=(Tenant("large", 6.0), Tenant("small", 1.0)))
    policy, scheduler = world("fair-share", cluster)
    tenants = ("large", "small", "none")
    scheduler.step(0, submitted(*[make_job(tenant, tenant=tenant) for tenant in tenants]))
    scheduler.step(100, [])
    jobs = [make_job(f"{tenant} again", at=5, tenant=tenant) for tenant in tenants]
    assert in_order(policy, scheduler, *reversed(jobs)) == ["large again", "small again", "none again"]


def test_only_fair_share_is_resorted_periodically() -> None:
    for order, expected in (("fair-share", [False, True, False, True]), ("arrival", [False] * 4)):
        policy, scheduler = world(order)  # type: ignore[arg-type]
        for now in (0, RESORT_INTERVAL, RESORT_INTERVAL + 1, 2 * RESORT_INTERVAL):
            scheduler.step(now, [])
        assert policy.resorts == expected


def test_an_unknown_order_is_rejected() -> None:
    with pytest.raises(BadValue, match="order is 'chaos', expected one of arrival, fair-share, shortest, attained"):
        Ordering("chaos")  # type: ignore[arg-type]
