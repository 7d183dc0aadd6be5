"""Whose turn it is, by each of the orders."""

from math import log

import pytest

from refold.core import Scheduler, View
from refold.core.events import Event, JobSubmitted, RunFinished, RunStopped
from refold.errors import BadValue
from refold.model import KEEP, Allocation, Cluster, Decision, Job, Share, Start, Stop, Tenant
from refold.model.units import DAY
from refold.policies.backfill.ordering import RENEWED_EVERY, Ordering, OrderName
from refold.testing import make_cluster, make_job


class Starter:
    """A policy that starts everybody on the next GPU, and lets turns look on."""

    name = "starter"

    def __init__(self, turns: Ordering) -> None:
        self.turns = turns
        self.again: list[bool] = []
        self.starts = True
        self.next = KEEP

    def decide(self, view: View) -> Decision:
        self.again.append(self.turns.observe(view))
        if self.next is not KEEP or not self.starts:
            decision, self.next = self.next, KEEP
            return decision
        starts = [Start(job, Allocation((Share(0, (len(view.runs) + n,)),))) for n, job in enumerate(view.waiting)]
        return Decision(starts=tuple(starts))


def world(order: OrderName, cluster: Cluster | None = None) -> tuple[Starter, Scheduler]:
    policy = Starter(Ordering(order))
    return policy, Scheduler(cluster or make_cluster(8), policy)


def in_order(policy: Starter, scheduler: Scheduler, *jobs: Job, likely: dict[str, float] | None = None) -> list[str]:
    view, distribution = scheduler.view, likely or {}
    return [job.id for job in sorted(jobs, key=lambda job: policy.turns.key(view, job, distribution.get(job.id, 0.0)))]


def submitted(*jobs: Job) -> list[Event]:
    return [JobSubmitted(job) for job in jobs]


def test_whoever_came_first_goes_first_and_priority_before_that() -> None:
    policy, scheduler = world("arrival")
    jobs = [make_job("b", at=2), make_job("a", at=1), make_job("urgent", at=3, priority=1)]
    assert in_order(policy, scheduler, *jobs) == ["urgent", "a", "b"]
    low = make_job("low", at=0, priority=-1)
    assert in_order(policy, scheduler, low, *jobs) == ["urgent", "a", "b", "low"]


def test_the_shortest_goes_first_and_priority_before_that() -> None:
    policy, scheduler = world("shortest")
    jobs = [make_job("long", at=1), make_job("short", at=2), make_job("urgent", at=3, priority=1)]
    likely = {"long": 50.0, "short": 10.0, "urgent": 500.0}
    assert in_order(policy, scheduler, *jobs, likely=likely) == ["urgent", "short", "long"]


def test_who_has_attained_least_goes_first_and_of_equals_who_came_first() -> None:
    policy, scheduler = world("attained")
    old, other, new = make_job("old", at=0), make_job("other", at=1), make_job("new", at=2)
    scheduler.step(0, submitted(old))
    policy.next = Decision(stops=(Stop("old"),))
    policy.starts = False
    scheduler.step(10, [])
    scheduler.step(11, [RunStopped("old", 1, 10.0), *submitted(other, new)])
    assert in_order(policy, scheduler, old, new, other) == ["other", "new", "old"]


def test_the_tenant_that_has_used_least_goes_first() -> None:
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


def test_what_was_used_a_day_ago_counts_half() -> None:
    policy, scheduler = world("fair-share")
    scheduler.step(0, submitted(make_job("a", tenant="x")))
    scheduler.step(1000, [RunFinished("a", 1)])
    view, job = scheduler.view, make_job("b", tenant="x")
    used = (1 - 0.5 ** (1000 / DAY)) * DAY / log(2)
    assert policy.turns.key(view, job, 0.0) == (0, pytest.approx(used), 0.0)
    assert used == pytest.approx(1000, rel=0.01)
    scheduler.step(1000 + DAY, [])
    assert policy.turns.key(view, job, 0.0) == (0, pytest.approx(used / 2), 0.0)


def test_how_often_one_looks_does_not_change_what_was_used() -> None:
    keys = []
    for looks in ([], [100.0, 5000.0, 40_000.0]):
        policy, scheduler = world("fair-share")
        scheduler.step(0, submitted(make_job("a", tenant="x")))
        for now in looks:
            scheduler.step(now, [])
        scheduler.step(50_000, [RunFinished("a", 1)])
        keys.append(policy.turns.key(scheduler.view, make_job("b", tenant="x"), 0.0)[1])
    assert keys[0] == pytest.approx(keys[1])


def test_use_is_compared_per_gpu_of_quota_and_tenants_without_one_go_last() -> None:
    servers = make_cluster(8)
    cluster = Cluster(servers.nodes, servers.gpu_types, tenants=(Tenant("large", 6.0), Tenant("small", 1.0)))
    policy, scheduler = world("fair-share", cluster)
    tenants = ("large", "small", "none")
    scheduler.step(0, submitted(*[make_job(tenant, tenant=tenant) for tenant in tenants]))
    scheduler.step(100, [])
    jobs = [make_job(f"{tenant} again", at=5, tenant=tenant) for tenant in tenants]
    assert in_order(policy, scheduler, *reversed(jobs)) == ["large again", "small again", "none again"]


def test_shares_are_compared_anew_now_and_then_and_other_orders_never() -> None:
    for order, expected in (("fair-share", [False, True, False, True]), ("arrival", [False] * 4)):
        policy, scheduler = world(order)  # type: ignore[arg-type]
        for now in (0, RENEWED_EVERY, RENEWED_EVERY + 1, 2 * RENEWED_EVERY):
            scheduler.step(now, [])
        assert policy.again == expected


def test_an_order_that_is_not_known_is_refused() -> None:
    with pytest.raises(BadValue, match="order is 'chaos', expected one of arrival, fair-share, shortest, attained"):
        Ordering("chaos")  # type: ignore[arg-type]
