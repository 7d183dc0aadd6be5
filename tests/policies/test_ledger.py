"""Rubick's parts: the ledger of counts per job and node, sensitivity curves, and refold's arrivals."""

from math import inf

import pytest
from scripted_policy import ScriptedPolicy, on

from refold.core import Scheduler, View
from refold.core.events import JobSubmitted, NodeLost
from refold.model import WHOLE, Allocation, Decision, Plan, Share, Start
from refold.planning.plans import CurvePoint
from refold.policies.common import Draft
from refold.policies.published.rubick.jobs import GpuCurve
from refold.policies.published.rubick.ledger import NO_SHARE, Ledger, NodeShare, scale_share
from refold.policies.refold.arrivals import Arrivals
from refold.testing import make_cluster, make_job

GIB = 1024


def make_view() -> View:
    """Return a view of three nodes of 4 GPUs; a has GPUs 0 and 1 of n0 and 0 of n1, b has GPU 3 of n0; n2 is down."""
    policy = ScriptedPolicy()
    scheduler = Scheduler(make_cluster(4, 4, 4, cpus=16, memory_gib=64), policy)
    gang = Allocation((Share(0, (0, 1), WHOLE, 4000, 8 * GIB), Share(1, (0,), WHOLE, 2000, 4 * GIB)), Plan(3))
    policy.next = Decision((Start("a", gang), Start("b", on(3))))
    jobs = [make_job("a", gpus=3, reshapable=True), make_job("b", reshapable=True)]
    scheduler.step(0.0, [*map(JobSubmitted, jobs), NodeLost(2)])
    return scheduler.view


@pytest.fixture
def draft() -> Draft:
    return Draft(make_view())


@pytest.fixture
def ledger(draft: Draft) -> Ledger:
    return Ledger(make_view(), draft, ["a", "b"])


class TestLedger:
    def test_it_begins_with_the_shares_of_the_draft(self, ledger: Ledger) -> None:
        assert ledger.shares == {
            "a": {0: NodeShare(2, 4000, 8 * GIB), 1: NodeShare(1, 2000, 4 * GIB)},
            "b": {0: NodeShare(1)},
        }
        assert ledger.jobs_on_node == {0: {"a", "b"}, 1: {"a"}}
        assert (ledger.gpus("a"), ledger.layout("a"), ledger.cpus("a")) == (3, (2, 1), 6.0)

    def test_free_resources_are_those_of_nodes_that_are_up(self, ledger: Ledger) -> None:
        assert ledger.free == [NodeShare(1, 12000, 56 * GIB), NodeShare(3, 14000, 60 * GIB), NO_SHARE]
        assert ledger.nodes_with_free_gpus == {0, 1}

    def test_a_job_that_is_not_known_has_nothing(self, ledger: Ledger) -> None:
        assert (ledger.gpus("new"), ledger.layout("new"), ledger.cpus("new")) == (0, (), 0.0)

    def test_a_larger_share_takes_the_difference_from_the_free_resources(self, ledger: Ledger) -> None:
        ledger.set_share("a", 0, NodeShare(3, 5000, 9 * GIB))
        assert ledger.free[0] == NodeShare(0, 11000, 55 * GIB)
        assert ledger.nodes_with_free_gpus == {1}
        assert (ledger.gpus("a"), ledger.layout("a"), ledger.cpus("a")) == (4, (3, 1), 7.0)

    def test_a_smaller_share_returns_the_difference(self, ledger: Ledger) -> None:
        ledger.set_share("a", 0, NodeShare(1, 1000, 1 * GIB))
        assert ledger.free[0] == NodeShare(2, 15000, 63 * GIB)
        assert (ledger.gpus("a"), ledger.layout("a")) == (2, (1, 1))

    def test_a_job_without_a_share_is_no_longer_on_the_node(self, ledger: Ledger) -> None:
        ledger.set_share("a", 1, NO_SHARE)
        assert (list(ledger.shares["a"]), ledger.jobs_on_node[1], ledger.gpus("a")) == ([0], set(), 2)

    def test_a_new_job_is_on_the_node(self, ledger: Ledger) -> None:
        ledger.set_share("new", 1, NodeShare(2))
        assert (ledger.gpus("new"), ledger.jobs_on_node[1], ledger.free[1].gpus) == (2, {"a", "new"}, 1)

    def test_changes_are_rolled_back_to_a_savepoint(self, ledger: Ledger) -> None:
        ledger.set_share("b", 0, NO_SHARE)
        before = ([*ledger.free], {job: dict(shares) for job, shares in ledger.shares.items()})
        savepoint = ledger.savepoint()
        ledger.set_share("a", 0, NodeShare(3))
        ledger.set_share("new", 1, NodeShare(3))
        ledger.set_share("new", 1, NodeShare(1))
        assert list(ledger.changed_since(savepoint)) == ["a", "new"]
        ledger.roll_back(savepoint)
        assert (ledger.free, ledger.shares) == (before[0], before[1] | {"new": {}})
        assert (ledger.gpus("a"), ledger.gpus("b"), ledger.gpus("new")) == (3, 0, 0)
        assert (ledger.jobs_on_node[0], ledger.nodes_with_free_gpus) == ({"a"}, {0, 1})
        assert (list(ledger.changed_since(savepoint)), list(ledger.changed_since(0))) == ([], ["b"])

    def test_a_job_that_grows_keeps_its_gpus_and_gets_the_first_free_ones(self, draft: Draft, ledger: Ledger) -> None:
        ledger.set_share("a", 0, NodeShare(3, 6000, 12 * GIB))
        ledger.apply({"a": Plan(4)}, {"a": "grow"})
        expected = (Share(0, (0, 1, 2), WHOLE, 6000, 12 * GIB), Share(1, (0,), WHOLE, 2000, 4 * GIB))
        assert draft.allocation_of("a") == Allocation(expected, Plan(4))
        assert draft.changed == {"a": "grow"}

    def test_a_job_that_shrinks_keeps_its_first_gpus(self, draft: Draft, ledger: Ledger) -> None:
        ledger.set_share("a", 0, NodeShare(1, 2000, 4 * GIB))
        ledger.apply({"a": Plan(2)}, {})
        expected = (Share(0, (0,), WHOLE, 2000, 4 * GIB), Share(1, (0,), WHOLE, 2000, 4 * GIB))
        assert draft.allocation_of("a") == Allocation(expected, Plan(2))

    def test_gpus_move_between_jobs(self, draft: Draft, ledger: Ledger) -> None:
        ledger.set_share("a", 0, NO_SHARE)
        ledger.set_share("b", 0, NodeShare(4))
        ledger.apply({"a": Plan(1), "b": None}, {})
        held = draft.allocation_of("b")
        assert held is not None
        assert held.placement == (Share(0, (0, 1, 2, 3)),)
        assert draft.allocation_of("a") == Allocation((Share(1, (0,), WHOLE, 2000, 4 * GIB),), Plan(1))

    def test_a_job_without_shares_is_released(self, draft: Draft, ledger: Ledger) -> None:
        ledger.set_share("b", 0, NO_SHARE)
        ledger.apply({}, {"b": "for others"})
        assert (draft.allocation_of("b"), draft.changed) == (None, {"b": "for others"})

    def test_a_job_that_ends_up_with_the_same_share_and_plan_is_not_changed(self, draft: Draft, ledger: Ledger) -> None:
        ledger.set_share("b", 0, NO_SHARE)
        ledger.set_share("b", 0, NodeShare(1))
        ledger.apply({"b": None}, {"b": "no reason"})
        assert draft.changed == {}

    def test_another_plan_on_the_same_share_is_a_change(self, draft: Draft, ledger: Ledger) -> None:
        ledger.set_share("b", 0, NodeShare(1))
        ledger.apply({"b": Plan(1)}, {"b": "plan"})
        assert (draft.allocation_of("b"), draft.changed) == (Allocation(on(3).placement, Plan(1)), {"b": "plan"})

    @pytest.mark.parametrize(
        ("gpus", "expected"),
        [
            (4, NodeShare(4, 8000, 4 * GIB)),
            (3, NodeShare(3, 6000, 3 * GIB)),
            (1, NodeShare(1, 2000, GIB)),
            (0, NO_SHARE),
        ],
    )
    def test_a_share_is_scaled_in_proportion(self, gpus: int, expected: NodeShare) -> None:
        assert scale_share(NodeShare(4, 8000, 4 * GIB), gpus) == expected


class TestGpuCurve:
    """Speed 1 on 1 GPU, 3 on 3 GPUs and 3.5 on 4."""

    CURVE = GpuCurve.from_points(
        [CurvePoint(1, 1.0, Plan(1)), CurvePoint(3, 3.0, Plan(3)), CurvePoint(4, 3.5, Plan(4))], "A100"
    )

    def test_the_gain_from_one_more_gpu_is_its_part_of_the_next_step(self) -> None:
        assert [self.CURVE.gain(gpus) for gpus in range(6)] == [1.0, 1.0, 1.0, 0.5, 0.0, 0.0]

    def test_the_loss_from_one_gpu_fewer_is_its_part_of_the_step_below(self) -> None:
        assert [self.CURVE.loss(gpus) for gpus in (1, 3, 4, 5)] == [1.0, 1.0, 0.5, 0.0]

    def test_more_gpus_than_the_last_step_are_of_no_use(self) -> None:
        assert (self.CURVE.max_gpus, self.CURVE.gpu_type) == (4, "A100")


class TestArrivals:
    def gap(self, now: float, *times: float) -> tuple[float, float]:
        arrivals = Arrivals()
        for at in times:
            arrivals.record(at, [make_job("a")])
        found = arrivals.summary(now)
        return found.gap, found.last_arrival

    def test_before_the_first_arrival_the_gap_is_infinite(self) -> None:
        assert self.gap(5.0) == (inf, -inf)

    def test_the_gap_is_the_mean_of_the_recent_ones(self) -> None:
        assert self.gap(41.0, 0.0, 10.0, 40.0) == (20.0, 40.0)

    @pytest.mark.parametrize(("now", "seconds"), [(60.0, 20.0), (61.0, 21.0), (500.0, 460.0)])
    def test_the_present_gap_counts_if_it_is_longer(self, now: float, seconds: float) -> None:
        assert self.gap(now, 0.0, 10.0, 40.0) == (seconds, 40.0)

    def test_ten_gaps_are_averaged(self) -> None:
        times = [0.0, 1000.0, *(1000.0 + 10 * number for number in range(1, 11))]
        assert self.gap(1100.0, *times) == (10.0, 1100.0)
