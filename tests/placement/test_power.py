"""Power draw of racks: worked examples, and against a plain Python model on random clusters."""

from __future__ import annotations

from itertools import product
from math import inf

import pytest
from hypothesis import given, settings, strategies as st

from refold.errors import BadValue
from refold.model import Cluster, Demand, GpuType, Node, Placement, Rack, Share, Shortage
from refold.model.units import WHOLE
from refold.placement import FreeResources, Placer
from refold.placement.layout import POWER_TOLERANCE_WATTS
from refold.placement.power import Power

A100 = GpuType("A100", idle_watts=60, busy_watts=400)
T4 = GpuType("T4", idle_watts=10, busy_watts=70)


def node(name: str, gpus: int, kind: str = "A100", rack: str = "", cpus: int = 64) -> Node:
    return Node(name, gpus, kind if gpus else "", cpus * WHOLE, 2**20, rack, idle_watts=500, busy_watts=1140)


LAB = Cluster(
    (node("a", 8, rack="left"), node("b", 8, rack="right"), node("t", 2, "T4", "right"), node("login", 0)),
    (A100, T4),
    (Rack("right", 5000.0), Rack("store", 100.0), Rack("left")),
)


def test_racks_are_in_cluster_order_and_nodes_without_a_rack_are_last() -> None:
    power = Power(LAB)
    assert power.names == ("right", "left", "")
    assert power.rack_of.tolist() == [1, 0, 0, 2]
    assert power.limit.tolist() == [5000.0, inf, inf]
    assert power.idle.tolist() == [2 * 500 + 8 * 60 + 2 * 10, 500 + 8 * 60, 500]
    assert power.full.tolist() == [2 * 1140 + 8 * 400 + 2 * 70, 1140 + 8 * 400, 1140]


def test_racks_are_balanced_relative_to_their_limit_or_full_draw() -> None:
    assert Power(LAB).scale.tolist() == [5000.0, 4340.0, inf]


def test_allocated_cpus_and_gpu_fractions_add_a_linear_share_of_the_busy_draw() -> None:
    power, free = Power(LAB), FreeResources(LAB)
    idle = power.draw(free)
    placement: Placement = (Share(1, (0, 1), 500, cpu_milli=16 * WHOLE), Share(3, cpu_milli=64 * WHOLE))
    assert free.take(placement) is None
    added = {0: pytest.approx(2 * 0.5 * 340 + 16 / 64 * 640), 2: pytest.approx(640.0)}
    assert power.placement_watts(placement) == added
    assert (power.draw(free) - idle).tolist() == [added[0], 0.0, added[2]]


def test_if_cpus_are_unknown_the_node_draw_follows_its_gpus() -> None:
    cluster = Cluster((Node("n", 4, "A100", idle_watts=500, busy_watts=1140),), (A100,), cpus_known=False)
    power, free = Power(cluster), FreeResources(cluster)
    assert free.take((Share(0, (0,), cpu_milli=3000),)) is None
    assert power.draw(free).tolist() == [pytest.approx(500 + 4 * 60 + 640 / 4 + 340)]
    assert power.full.tolist() == [1140 + 4 * 400]


def test_a_node_that_is_down_counts_as_idle() -> None:
    power, free = Power(LAB), FreeResources(LAB)
    free.set_node_up(0, False)
    assert power.draw(free).tolist() == power.idle.tolist()


def test_a_gpu_that_is_down_draws_what_its_runs_use() -> None:
    power, free = Power(LAB), FreeResources(LAB)
    assert free.take((Share(1, (0,), 500),)) is None
    with_run = power.draw(free)
    free.set_gpu_up(1, 0, False)
    free.set_gpu_up(1, 1, False)
    assert power.draw(free).tolist() == with_run.tolist()
    free.release((Share(1, (0,), 500),))
    assert power.draw(free).tolist() == power.idle.tolist()


def test_without_busy_watts_the_draw_is_constant() -> None:
    cluster = Cluster((Node("n", 2, "X", 8000, idle_watts=300, rack="r"),), (GpuType("X", idle_watts=25),))
    power = Power(cluster)
    assert (power.idle.tolist(), power.full.tolist(), power.scale.tolist()) == ([350.0], [350.0], [inf])
    assert power.is_modelled


def test_a_cluster_without_power_data_is_not_modelled() -> None:
    assert not Power(Cluster((Node("n", 8, "A100", rack="r"),), racks=(Rack("r", 1000.0),))).is_modelled


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: GpuType("X", idle_watts=60, busy_watts=50), "GPU type 'X': busy_watts is 50, expected at least"),
        (
            lambda: Node("n", idle_watts=60, busy_watts=50),
            "node 'n': busy_watts is 50, expected at least idle_watts, 60",
        ),
        (lambda: Rack("r", -1.0), "rack 'r': limit_watts is -1, expected watts ≥ 0"),
        (lambda: Rack("r", inf), "rack 'r': limit_watts is inf, expected watts ≥ 0"),
        (lambda: Rack(""), "a rack needs a name"),
        (lambda: Cluster((Node("n"),), racks=(Rack("r"), Rack("r"))), "two racks of cluster 'cluster' have the same"),
    ],
)
def test_invalid_power_values_are_rejected(make: object, problem: str) -> None:
    assert callable(make)
    with pytest.raises(BadValue) as raised:
        make()
    assert problem in str(raised.value)


def test_a_limit_below_the_idle_draw_is_rejected() -> None:
    Power(LAB).reject_limits_below_idle()
    dark = Cluster((node("a", 8, rack="r"),), (A100,), (Rack("r", 900.0),))
    with pytest.raises(BadValue) as raised:
        Power(dark).reject_limits_below_idle()
    assert "rack 'r': limit_watts is 900 W, but its nodes and GPUs draw 980 W" in str(raised.value)


TIGHT = Cluster(
    (node("a", 8, rack="r"), node("b", 8, rack="r"), node("c", 4, rack="s")),
    (A100,),
    (Rack("r", 2 * 980 + 5 * 340.0), Rack("s")),
)
"""Rack r has power for five busy GPUs of its sixteen; rack s for all of its four."""


def test_nodes_whose_rack_is_at_its_limit_are_counted() -> None:
    power, free = Power(TIGHT), FreeResources(TIGHT)
    assert free.take((Share(0, (0, 1, 2, 3)),)) is None
    two = Demand(instances=4, gpus=2)
    assert power.shortage(free, two) == Shortage(4, instances_fit=2, nodes=3, nodes_fit=1, at_power_limit=2)
    assert power.shortage(free, two).text(Demand(gpus=2)) == (
        "2 of 4 instances fit on 1 of 3 nodes: 2 are at the power limit of the rack"
    )
    assert power.shortage(free, Demand(gpus=1)) == Shortage(1, instances_fit=1, nodes=3, nodes_fit=3)
    assert power.shortage(free, Demand(gpus=8)) == Shortage(nodes=3, too_small=1, too_few_gpus=1, at_power_limit=1)


def test_a_gang_beyond_the_power_of_the_racks_never_fits() -> None:
    power = Power(TIGHT)
    assert power.fits_when_empty(Demand(instances=9))
    assert not power.fits_when_empty(Demand(instances=10))
    assert FreeResources(TIGHT).fits_when_empty(Demand(instances=10))


def test_instances_are_counted_on_the_nodes_with_the_lowest_draw_first() -> None:
    mixed = Cluster((node("a", 8, rack="r"), node("t", 4, "T4", "r")), (A100, T4), (Rack("r", 980 + 540 + 400.0),))
    assert Power(mixed).shortage(FreeResources(mixed), Demand(instances=8)) == Shortage(
        8, instances_fit=4, nodes=2, nodes_fit=2
    )
    assert Power(mixed).fits_when_empty(Demand(instances=4))


def test_limits_may_be_used_up_to_the_last_watt() -> None:
    power, free = Power(TIGHT), FreeResources(TIGHT)
    assert power.within_limits(free, (Share(0, (0, 1, 2)), Share(1, (0, 1)), Share(2, (0, 1, 2, 3))))
    assert not power.within_limits(free, (Share(0, (0, 1, 2)), Share(1, (0, 1, 2))))


# Random clusters against a plain Python model.

WATTS = st.sampled_from([0.0, 10.0, 75.5, 400.0])


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    def watts() -> tuple[float, float]:
        idle = draw(WATTS)
        return idle, draw(st.sampled_from([0.0, idle, idle + 30.0, idle + 333.3]))

    kinds = [GpuType(name, 0.0, 1.0, *watts()) for name in ("A", "B")]
    nodes = [
        Node(
            f"n{index}",
            gpus,
            draw(st.sampled_from(["A", "B"])) if gpus else "",
            draw(st.integers(0, 8)) * WHOLE,
            8192,
            draw(st.sampled_from(["", "r", "s"])),
            Node("any").inside,
            *watts(),
        )
        for index, gpus in enumerate(draw(st.lists(st.integers(0, 4), min_size=1, max_size=5)))
    ]
    racks = [Rack(name, draw(st.sampled_from([0.0, 500.0, 1500.0, 4000.0]))) for name in ("s", "r")]
    return Cluster(tuple(nodes), tuple(kinds), tuple(racks), cpus_known=draw(st.booleans()))


DEMANDS = st.builds(
    Demand,
    instances=st.integers(1, 5),
    gpus=st.integers(0, 3),
    gpu_milli=st.sampled_from([WHOLE, 500, 300]),
    cpu_milli=st.sampled_from([0, WHOLE, 2500]),
).filter(lambda demand: demand.gpus or demand.cpu_milli)


def node_draw(cluster: Cluster, index: int, allocated: list[Share]) -> float:
    """The draw of a node by the definition of the model."""
    machine, mine = cluster.nodes[index], [share for share in allocated if share.node == index]
    gpus = sum(len(share.gpus) * share.gpu_milli for share in mine) / WHOLE
    watts = machine.idle_watts
    rise = max(0.0, machine.busy_watts - machine.idle_watts)
    if cluster.cpus_known and machine.cpu_milli:
        watts += rise * sum(share.cpu_milli for share in mine) / machine.cpu_milli
    elif machine.gpus:
        watts += rise * gpus / machine.gpus
    if machine.gpus:
        kind = cluster.gpu_type(machine.gpu_type)
        watts += machine.gpus * kind.idle_watts + gpus * max(0.0, kind.busy_watts - kind.idle_watts)
    return watts


def allocate_demands(cluster: Cluster, demands: list[Demand]) -> tuple[FreeResources, list[Share]]:
    free, placer = FreeResources(cluster), Placer("random", seed=1)
    placed = [placer.place(free, demand) for demand in demands]
    return free, [share for placement in placed if placement is not None for share in placement]


@given(clusters(), st.lists(DEMANDS, max_size=6))
def test_the_draw_of_a_rack_is_the_sum_of_its_nodes(cluster: Cluster, demands: list[Demand]) -> None:
    power = Power(cluster)
    free, allocated = allocate_demands(cluster, demands)
    expected = [0.0] * len(power.names)
    for index, machine in enumerate(cluster.nodes):
        expected[power.names.index(machine.rack)] += node_draw(cluster, index, allocated)
    assert power.draw(free).tolist() == pytest.approx(expected)
    added = power.placement_watts(tuple(allocated))
    assert (power.draw(free) - power.idle).tolist() == pytest.approx(
        [added.get(rack, 0.0) for rack in range(len(power.names))]
    )


def max_instances_by_search(power: Power, free: FreeResources, demand: Demand) -> int:
    """The maximum number of instances, by exhaustive search over counts per node."""
    single = Demand(1, demand.gpus, demand.gpu_milli, demand.cpu_milli)
    now, watts = power.draw(free).tolist(), power.instance_watts(demand).tolist()
    max_instances = []
    for index in range(len(power.cluster.nodes)):
        alone = free.copy()
        for other in range(len(power.cluster.nodes)):
            alone.set_node_up(other, other == index)
        max_instances.append(alone.shortage(Demand(5, single.gpus, single.gpu_milli, single.cpu_milli)).instances_fit)
    best = 0
    for counts in product(*(range(count + 1) for count in max_instances)):
        after = list(now)
        for index, count in enumerate(counts):
            after[power.rack_of[index]] += count * watts[index]
        touched = {int(power.rack_of[index]) for index, count in enumerate(counts) if count * watts[index] > 0}
        if all(after[rack] <= power.limit[rack] + POWER_TOLERANCE_WATTS for rack in touched):
            best = max(best, sum(counts))
    return min(best, demand.instances)


@settings(max_examples=60)
@given(clusters(), st.lists(DEMANDS, max_size=4), DEMANDS)
def test_the_number_of_instances_within_limits_is_the_maximum(
    cluster: Cluster, allocated: list[Demand], demand: Demand
) -> None:
    power = Power(cluster)
    free, _ = allocate_demands(cluster, allocated)
    found, before = power.shortage(free, demand), free.shortage(demand)
    assert found.instances_fit == max_instances_by_search(power, free, demand)
    assert found.nodes_fit + found.at_power_limit == before.nodes_fit
    assert power.fits_when_empty(demand) == (
        max_instances_by_search(power, FreeResources(cluster), demand) == demand.instances
    )
