"""How much slower a gang is across domains than in as few as possible."""

from __future__ import annotations

import msgspec
import pytest

from refold.core import View
from refold.errors import BadValue
from refold.model import (
    Allocation,
    Cluster,
    Decision,
    Job,
    Level,
    Link,
    Plan,
    Share,
    Start,
    TopologyRequest,
    measured_shape,
    spread_of,
)
from refold.planning.plans import Crossings, Speeds
from refold.planning.plans.cluster_machines import ClusterMachines
from refold.simulator import RecordedSpeeds, recorded_speeds, simulate
from refold.simulator.traces import read_cluster
from refold.testing import make_job

FAST, SLOW, SLOWEST = Link("infiniband", 48.0), Link("ethernet", 12.0), Link("ethernet", 4.0)


def blocks_and_racks() -> Cluster:
    """Return two blocks of two racks of four nodes with 8 GPUs each."""
    cluster = read_cluster("2 blocks of 2 racks of 4x8:A100")
    levels = (Level("block", SLOW), Level("rack", FAST))
    return msgspec.structs.replace(cluster, levels=levels, network=SLOWEST)


CLUSTER = blocks_and_racks()
ONE_RACK, TWO_RACKS, TWO_BLOCKS = (0, 1, 2, 3), (0, 1, 4, 5), (0, 1, 8, 9)
ALONE = (0, 1, 2, 4)
"""One node of the gang is alone in its rack."""


def on(nodes: tuple[int, ...], gpus: int = 8, plan: Plan | None = None) -> Allocation:
    return Allocation(tuple(Share(node, tuple(range(gpus))) for node in nodes), plan)


class _Across:
    """A policy that starts jobs across two racks."""

    name = "across"

    def decide(self, view: View) -> Decision:
        return Decision(starts=tuple(Start(job, on(TWO_RACKS)) for job in view.waiting))


def declares(share: float) -> Job:
    job = make_job(instances=4, gpus=8)
    demand = msgspec.structs.replace(job.demand, topology=TopologyRequest(communication=share))
    return msgspec.structs.replace(job, demand=demand)


@pytest.mark.parametrize(("nodes", "slowdown"), [(ONE_RACK, 1.0), (TWO_RACKS, 1.5), (ALONE, 2.5), (TWO_BLOCKS, 3.5)])
def test_declared_communication_takes_as_much_longer_as_bandwidth_is_lost(
    nodes: tuple[int, ...], slowdown: float
) -> None:
    assert Crossings(Speeds(CLUSTER), modelled=False).slowdown(declares(0.5), on(nodes)) == pytest.approx(slowdown)


def test_a_gang_that_fits_into_no_rack_is_not_slower_across_two() -> None:
    demand = msgspec.structs.replace(declares(0.5).demand, instances=6)
    job = msgspec.structs.replace(declares(0.5), demand=demand)
    crossings = Crossings(Speeds(CLUSTER))
    assert crossings.slowdown(job, on((0, 1, 2, 4, 5, 6))) == 1.0
    assert crossings.slowdown(job, on((0, 1, 2, 8, 9, 10))) == pytest.approx(2.0)


def test_a_job_that_declares_nothing_and_has_no_known_model_is_not_slower() -> None:
    job = make_job(instances=4, gpus=8, workload="unheard-of")
    assert Crossings(Speeds(CLUSTER)).slowdown(job, on(TWO_BLOCKS)) == 1.0


def test_a_model_is_slower_the_further_its_gradients_travel() -> None:
    job = make_job(instances=4, gpus=8, workload="llama-2-7b", batch=64)
    crossings = Crossings(Speeds(CLUSTER))
    slowdowns = [
        crossings.slowdown(job, on(nodes, plan=Plan(32, zero=3))) for nodes in (ONE_RACK, TWO_RACKS, TWO_BLOCKS)
    ]
    assert slowdowns[0] == 1.0
    assert slowdowns[0] < slowdowns[1] < slowdowns[2] <= 12.0


def test_only_groups_that_cross_a_level_use_its_links() -> None:
    """Tensor-parallel groups of two nodes lie within racks of two nodes each, but not across three and one."""
    job = make_job(instances=4, gpus=8, workload="llama-2-7b", batch=64)
    crossings, plan = Crossings(Speeds(CLUSTER)), Plan(2, 16)
    even, uneven = (crossings.slowdown(job, on(nodes, plan=plan)) for nodes in (TWO_RACKS, ALONE))
    assert even < 1.5
    assert uneven > 2 * even


def test_without_levels_nothing_is_slower() -> None:
    flat = msgspec.structs.replace(CLUSTER, levels=(), nodes=read_cluster("16x8:A100").nodes)
    assert Crossings(Speeds(flat)).slowdown(declares(0.9), on(TWO_BLOCKS)) == 1.0
    assert type(recorded_speeds(flat)) is RecordedSpeeds


@pytest.mark.parametrize(
    ("nodes", "domains"), [((0, 1, 2, 3), ()), (tuple(range(16)), (64,)), ((*range(8), *range(18, 26)), (32, 32))]
)
def test_nvlink_domains_are_the_racks_that_are_used(nodes: tuple[int, ...], domains: tuple[int, ...]) -> None:
    cluster = read_cluster("4 racks of 18x4:GB200")
    spread = spread_of(cluster, on(nodes, 4).placement)
    machines = ClusterMachines(cluster).get("GB200", (4,) * len(nodes), 0.0, spread)
    assert machines.domains == (domains or (16,))
    assert machines.crossings == ()


def test_without_a_placement_the_fewest_domains_are_assumed() -> None:
    machines = ClusterMachines(CLUSTER)
    assert machines.packed("A100", (8,) * 4) == ((32,), (32,))
    assert machines.packed("A100", (8,) * 6) == ((48,), (24, 24))
    assert machines.packed("A100", (8,) * 10) == ((40, 40), (32, 24, 24))


def test_a_simulated_run_across_racks_takes_longer() -> None:
    assert simulate([declares(0.5)], CLUSTER, _Across()).now == pytest.approx(150.0)


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_declared_communication_is_a_part(share: float) -> None:
    with pytest.raises(BadValue, match=r"expected a part of the step time, 0 to 1"):
        TopologyRequest(communication=share)


def test_a_speed_across_racks_is_not_taken_for_that_in_one() -> None:
    """The job is as fast across racks as modelled: so it is in one rack, too."""
    job = make_job(instances=4, gpus=8, workload="llama-2-7b", batch=64)
    plan = Plan(32, zero=3)
    speeds, layout = Speeds(CLUSTER), (8,) * 4
    modelled = speeds.with_plan(job, "A100", layout, 0.0, plan).steps_per_second
    slowdown = Crossings(speeds).slowdown(job, on(TWO_BLOCKS, plan=plan))
    for nodes, reported, expected in [
        (TWO_BLOCKS, modelled / slowdown, modelled),
        (TWO_BLOCKS, modelled / slowdown / 2, modelled / 2),
        (ONE_RACK, modelled / 2, modelled / 2),
    ]:
        learning = Speeds(CLUSTER)
        assert learning.learn({measured_shape(job, on(nodes, plan=plan), CLUSTER): reported})
        assert learning.with_plan(job, "A100", layout, 0.0, plan).steps_per_second == pytest.approx(expected)
        assert Crossings(learning).slowdown(job, on(TWO_BLOCKS, plan=plan)) == pytest.approx(slowdown)
