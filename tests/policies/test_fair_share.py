"""Fair share: weights by what users and tenants have used, and their effect on `refold`."""

from typing import Any

import msgspec
import pytest
from scripted_policy import ScriptedPolicy

from refold.core import ListJournal, Scheduler, TenantUser
from refold.core.events import JobSubmitted, UsageRecorded
from refold.core.orders import StartRun, StopRun
from refold.errors import BadValue
from refold.model import DAY, Cluster, Job, Reason, Tenant
from refold.planning.plans import Speeds
from refold.policies.common import AccountShare, FairShare
from refold.policies.refold.policy import Refold
from refold.simulator import Costs, RecordedSpeeds, simulate
from refold.simulator.costs import ModelledSpeeds
from refold.testing import make_cluster, make_job

GPU_DAYS = 24 * 3600.0
ANN, BOB, EVA = TenantUser("vision", "ann"), TenantUser("vision", "bob"), TenantUser("speech", "eva")
HALF_LIFE = 7 * DAY


def shares(
    cluster: Cluster, gpu_days: dict[TenantUser, float], accounts: list[TenantUser], strength: float = 1.0
) -> dict[TenantUser, AccountShare]:
    """Return the shares of accounts that have jobs, after some have used GPUs just now."""
    scheduler = Scheduler(cluster, ScriptedPolicy())
    used = [UsageRecorded(*account, ((0.0, days * GPU_DAYS),)) for account, days in gpu_days.items()]
    jobs = [make_job(f"{one.tenant}-{one.user}", tenant=one.tenant, user=one.user) for one in accounts]
    scheduler.step(0.0, [*used, *map(JobSubmitted, jobs)])
    return FairShare(strength, HALF_LIFE).shares(scheduler.view, jobs)


def weights(*args: object) -> dict[TenantUser, float]:
    return {account: round(found.weight, 2) for account, found in shares(*args).items()}  # type: ignore[arg-type]


def test_without_usage_all_users_have_weight_1_and_equal_shares() -> None:
    assert shares(make_cluster(8), {}, [ANN, BOB]) == {
        ANN: AccountShare(0.0, 0.0, 0.5, 1.0),
        BOB: AccountShare(0.0, 0.0, 0.5, 1.0),
    }


def test_a_user_that_has_used_everything_has_the_smallest_weight_and_others_the_largest() -> None:
    found = shares(make_cluster(8), {ANN: 1000.0}, [ANN, BOB])
    assert (found[ANN].used, found[BOB].used) == (1.0, 0.0)
    assert found[ANN].weight == pytest.approx(1 / 4, rel=0.05)
    assert found[BOB].weight == pytest.approx(4, rel=0.05)


def test_little_usage_on_a_large_cluster_has_little_effect() -> None:
    found = weights(make_cluster(*[8] * 100), {ANN: 10.0}, [ANN, BOB])
    assert 0.9 < found[ANN] < 1 < found[BOB] < 1.1


def test_tenants_have_shares_by_quota_and_users_equal_shares_of_them() -> None:
    cluster = msgspec.structs.replace(make_cluster(8), tenants=(Tenant("vision", 6.0), Tenant("speech", 2.0)))
    found = shares(cluster, {ANN: 30.0, BOB: 30.0, EVA: 20.0}, [ANN, BOB, EVA])
    assert [found[account].share for account in (ANN, BOB, EVA)] == [0.375, 0.375, 0.25]
    assert [round(found[account].weight, 2) for account in (ANN, BOB, EVA)] == [1.0, 1.0, 1.0]


def test_a_tenant_beyond_its_share_has_less_weight_although_its_users_are_equal() -> None:
    found = weights(make_cluster(8), {ANN: 40.0, BOB: 40.0}, [ANN, BOB, EVA])
    assert found[ANN] == found[BOB] < 0.5
    assert found[EVA] > 2


def test_users_without_jobs_do_not_compete() -> None:
    assert weights(make_cluster(8), {ANN: 40.0, BOB: 40.0}, [ANN]) == {ANN: 1.0}


def test_strength_limits_the_effect() -> None:
    half = weights(make_cluster(8), {ANN: 1000.0}, [ANN, BOB], 0.5)
    assert half[BOB] == pytest.approx(2, rel=0.05)
    assert weights(make_cluster(8), {ANN: 1000.0}, [ANN, BOB], 0.0) == {ANN: 1.0, BOB: 1.0}


@pytest.mark.parametrize(
    "settings", [{"fair_share": 1.1}, {"fair_share": -0.1}, {"fair_share_half_life": 0.0}, {"fair_share": float("nan")}]
)
def test_bad_settings_are_rejected(settings: dict[str, Any]) -> None:
    with pytest.raises(BadValue, match="fair_share"):
        Refold(**settings)


CLUSTER = make_cluster(8, types="A800-80GB", cpus=96, memory_gib=1600)


def whole_node(id: str, user: str, at: float, seconds: float, *, preemptible: bool) -> Job:
    """Return a training job that runs for about this long on all GPUs."""
    fields: dict[str, Any] = {"workload": "bert", "reshapable": True, "gpu_range": (8, 8), "work": None}
    return make_job(id, gpus=8, cpus=64, at=at, user=user, steps=int(23 * seconds), preemptible=preemptible, **fields)


def journal_of(policy: Refold, jobs: list[Job]) -> ListJournal:
    journal, charge = ListJournal(), ModelledSpeeds(Speeds(CLUSTER), RecordedSpeeds(CLUSTER))
    simulate(jobs, CLUSTER, policy, journal=journal, charge=charge, costs=Costs(restart=78.0))
    return journal


class TestOrder:
    """Ann has used the cluster for a day when a job of hers and a longer one of Bob wait for it."""

    def _simulate(self, fair_share: float) -> ListJournal:
        jobs = [
            whole_node("first", "ann", 0, DAY, preemptible=False),
            whole_node("anns", "ann", DAY / 2, 1000.0, preemptible=False),
            whole_node("bobs", "bob", DAY / 2, 1500.0, preemptible=False),
        ]
        return journal_of(Refold(fair_share=fair_share), jobs)

    def _order(self, journal: ListJournal) -> list[str]:
        orders = (order for entry in journal.entries for order in entry.orders)
        return [order.job for order in orders if isinstance(order, StartRun)]

    def test_the_job_of_the_user_that_has_used_less_goes_first(self) -> None:
        assert self._order(self._simulate(0.0)) == ["first", "anns", "bobs"]
        assert self._order(self._simulate(1.0)) == ["first", "bobs", "anns"]

    def test_the_reason_of_the_other_job_says_so(self) -> None:
        waits = [wait for entry in self._simulate(1.0).entries for wait in entry.waits if wait.job == "anns"]
        assert [wait.reason for wait in waits[:2]] == [Reason.RESOURCES, Reason.FAIR_SHARE]
        assert waits[1].text() == "1 job started first, of users that have used less of their share"
        without = [wait for entry in self._simulate(0.0).entries for wait in entry.waits]
        assert {wait.reason for wait in without} == {Reason.RESOURCES}


def test_a_stop_by_fair_share_alone_says_so() -> None:
    jobs = [
        whole_node("anns", "ann", 0, DAY, preemptible=True),
        whole_node("bobs", "bob", DAY / 2, 0.6 * DAY, preemptible=False),
    ]
    assert _stops(journal_of(Refold(), jobs)) == []
    stops = _stops(journal_of(Refold(fair_share=1.0), jobs))
    assert [why.partition(":")[0] for why in stops] == ["gave all 8 GPUs to bobs, which goes first by fair share"]


def _stops(journal: ListJournal) -> list[str]:
    return [order.why for entry in journal.entries for order in entry.orders if isinstance(order, StopRun)]
