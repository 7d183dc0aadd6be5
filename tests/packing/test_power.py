"""What racks draw: worked out by hand, and against a plain reading of the model on random clusters in random states."""

from __future__ import annotations

from itertools import product
from math import inf

import pytest
from hypothesis import given, settings, strategies as some

from refold.errors import BadValue
from refold.model import Cluster, Demand, GpuType, Node, Placement, Rack, Share, Shortage
from refold.model.units import WHOLE
from refold.packing import Free, Placer
from refold.packing.power import SLACK, Power

A100 = GpuType("A100", idle_watts=60, busy_watts=400)
T4 = GpuType("T4", idle_watts=10, busy_watts=70)


def node(name: str, gpus: int, kind: str = "A100", rack: str = "", cpus: int = 64) -> Node:
    return Node(name, gpus, kind if gpus else "", cpus * WHOLE, 2**20, rack, idle_watts=500, busy_watts=1140)


LAB = Cluster(
    (node("a", 8, rack="left"), node("b", 8, rack="right"), node("t", 2, "T4", "right"), node("login", 0)),
    (A100, T4),
    (Rack("right", 5000.0), Rack("store", 100.0), Rack("left")),
)


def test_racks_come_in_the_order_of_the_cluster_and_nodes_without_one_last() -> None:
    power = Power(LAB)
    assert power.names == ("right", "left", "")
    assert power.rack_of.tolist() == [1, 0, 0, 2]
    assert power.limit.tolist() == [5000.0, inf, inf]
    assert power.idle.tolist() == [2 * 500 + 8 * 60 + 2 * 10, 500 + 8 * 60, 500]
    assert power.full.tolist() == [2 * 1140 + 8 * 400 + 2 * 70, 1140 + 8 * 400, 1140]


def test_racks_are_even_by_their_limits_and_without_one_by_what_they_can_draw() -> None:
    assert Power(LAB).scale.tolist() == [5000.0, 4340.0, inf]


def test_a_held_cpu_and_a_held_part_of_a_gpu_add_their_share_of_the_way_to_busy() -> None:
    power, free = Power(LAB), Free(LAB)
    idle = power.draw(free)
    placement: Placement = (Share(1, (0, 1), 500, cpu_milli=16 * WHOLE), Share(3, cpu_milli=64 * WHOLE))
    assert free.take(placement) is None
    added = {0: pytest.approx(2 * 0.5 * 340 + 16 / 64 * 640), 2: pytest.approx(640.0)}
    assert power.of_placement(placement) == added
    assert (power.draw(free) - idle).tolist() == [added[0], 0.0, added[2]]


def test_where_cpus_are_not_known_a_node_is_as_busy_as_its_gpus() -> None:
    cluster = Cluster((Node("n", 4, "A100", idle_watts=500, busy_watts=1140),), (A100,), cpus_known=False)
    power, free = Power(cluster), Free(cluster)
    assert free.take((Share(0, (0,), cpu_milli=3000),)) is None
    assert power.draw(free).tolist() == [pytest.approx(500 + 4 * 60 + 640 / 4 + 340)]
    assert power.full.tolist() == [1140 + 4 * 400]


def test_a_lost_node_counts_as_idle() -> None:
    power, free = Power(LAB), Free(LAB)
    free.set_up(0, False)
    assert power.draw(free).tolist() == power.idle.tolist()


def test_who_says_nothing_busy_draws_the_same_all_the_time() -> None:
    cluster = Cluster((Node("n", 2, "X", 8000, idle_watts=300, rack="r"),), (GpuType("X", idle_watts=25),))
    power = Power(cluster)
    assert (power.idle.tolist(), power.full.tolist(), power.scale.tolist()) == ([350.0], [350.0], [inf])
    assert power.known


def test_a_cluster_that_says_nothing_of_power_is_not_known() -> None:
    assert not Power(Cluster((Node("n", 8, "A100", rack="r"),), racks=(Rack("r", 1000.0),))).known


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: GpuType("X", idle_watts=60, busy_watts=50), "GPU type 'X': busy_watts is 50, expected at least"),
        (lambda: Node("n", idle_watts=60, busy_watts=50), "node 'n': busy_watts is 50, expected at least its"),
        (lambda: Rack("r", -1.0), "rack 'r': limit_watts is -1, expected watts ≥ 0"),
        (lambda: Rack("r", inf), "rack 'r': limit_watts is inf, expected watts ≥ 0"),
        (lambda: Rack(""), "a rack needs a name"),
        (lambda: Cluster((Node("n"),), racks=(Rack("r"), Rack("r"))), "two racks of cluster 'cluster' have the same"),
    ],
)
def test_power_that_cannot_be_is_refused(make: object, problem: str) -> None:
    assert callable(make)
    with pytest.raises(BadValue) as refused:
        make()
    assert problem in str(refused.value)


def test_a_limit_below_what_a_rack_draws_when_idle_cannot_be_kept() -> None:
    Power(LAB).refuse_limits_below_idle()
    dark = Cluster((node("a", 8, rack="r"),), (A100,), (Rack("r", 900.0),))
    with pytest.raises(BadValue) as refused:
        Power(dark).refuse_limits_below_idle()
    assert "rack 'r' may draw 900 W (its limit_watts), but its nodes and GPUs draw 980 W" in str(refused.value)


TIGHT = Cluster(
    (node("a", 8, rack="r"), node("b", 8, rack="r"), node("c", 4, rack="s")),
    (A100,),
    (Rack("r", 2 * 980 + 5 * 340.0), Rack("s")),
)
"""Rack r has the power for five busy GPUs of its sixteen; s for all of its four."""


def test_a_node_with_free_gpus_whose_rack_is_at_its_limit_is_counted_as_such() -> None:
    power, free = Power(TIGHT), Free(TIGHT)
    assert free.take((Share(0, (0, 1, 2, 3)),)) is None
    two = Demand(instances=4, gpus=2)
    assert power.shortage(free, two) == Shortage(4, room=2, nodes=3, fit=1, at_power_limit=2)
    assert power.shortage(free, two).text("2 GPUs") == (
        "room for 2 of 4 instances, 1 of 3 nodes fit: 2 × rack at its power limit"
    )
    assert power.shortage(free, Demand(gpus=1)) == Shortage(1, room=1, nodes=3, fit=3)
    assert power.shortage(free, Demand(gpus=8)) == Shortage(nodes=3, too_small=1, few_gpus=1, at_power_limit=1)


def test_a_gang_that_racks_have_not_the_power_for_never_fits() -> None:
    power = Power(TIGHT)
    assert power.fits_when_empty(Demand(instances=9))
    assert not power.fits_when_empty(Demand(instances=10))
    assert Free(TIGHT).fits_when_empty(Demand(instances=10))


def test_a_gang_takes_the_nodes_first_that_add_least_power() -> None:
    mixed = Cluster((node("a", 8, rack="r"), node("t", 4, "T4", "r")), (A100, T4), (Rack("r", 980 + 540 + 400.0),))
    assert Power(mixed).shortage(Free(mixed), Demand(instances=8)) == Shortage(8, room=4, nodes=2, fit=2)
    assert Power(mixed).fits_when_empty(Demand(instances=4))


def test_limits_are_kept_up_to_the_last_watt() -> None:
    power, free = Power(TIGHT), Free(TIGHT)
    assert power.keeps_limits(free, (Share(0, (0, 1, 2)), Share(1, (0, 1)), Share(2, (0, 1, 2, 3))))
    assert not power.keeps_limits(free, (Share(0, (0, 1, 2)), Share(1, (0, 1, 2))))


# Random clusters, in plain Python.

WATTS = some.sampled_from([0.0, 10.0, 75.5, 400.0])


@some.composite
def clusters(draw: some.DrawFn) -> Cluster:
    def watts() -> tuple[float, float]:
        idle = draw(WATTS)
        return idle, draw(some.sampled_from([0.0, idle, idle + 30.0, idle + 333.3]))

    kinds = [GpuType(name, 0.0, 1.0, *watts()) for name in ("A", "B")]
    nodes = [
        Node(
            f"n{index}",
            gpus,
            draw(some.sampled_from(["A", "B"])) if gpus else "",
            draw(some.integers(0, 8)) * WHOLE,
            8192,
            draw(some.sampled_from(["", "r", "s"])),
            Node("any").inside,
            *watts(),
        )
        for index, gpus in enumerate(draw(some.lists(some.integers(0, 4), min_size=1, max_size=5)))
    ]
    racks = [Rack(name, draw(some.sampled_from([0.0, 500.0, 1500.0, 4000.0]))) for name in ("s", "r")]
    return Cluster(tuple(nodes), tuple(kinds), tuple(racks), cpus_known=draw(some.booleans()))


DEMANDS = some.builds(
    Demand,
    instances=some.integers(1, 5),
    gpus=some.integers(0, 3),
    gpu_milli=some.sampled_from([WHOLE, 500, 300]),
    cpu_milli=some.sampled_from([0, WHOLE, 2500]),
).filter(lambda demand: demand.gpus or demand.cpu_milli)


def drawn_by(cluster: Cluster, index: int, held: list[Share]) -> float:
    """What a node draws, as the model says it."""
    machine, mine = cluster.nodes[index], [share for share in held if share.node == index]
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


def filled(cluster: Cluster, demands: list[Demand]) -> tuple[Free, list[Share]]:
    free, placer = Free(cluster), Placer("random", seed=1)
    placed = [placer.place(free, demand) for demand in demands]
    return free, [share for placement in placed if placement is not None for share in placement]


@given(clusters(), some.lists(DEMANDS, max_size=6))
def test_racks_draw_what_their_nodes_do(cluster: Cluster, demands: list[Demand]) -> None:
    power = Power(cluster)
    free, held = filled(cluster, demands)
    expected = [0.0] * len(power.names)
    for index, machine in enumerate(cluster.nodes):
        expected[power.names.index(machine.rack)] += drawn_by(cluster, index, held)
    assert power.draw(free).tolist() == pytest.approx(expected)
    added = power.of_placement(tuple(held))
    assert (power.draw(free) - power.idle).tolist() == pytest.approx(
        [added.get(rack, 0.0) for rack in range(len(power.names))]
    )


def room_by_trying(power: Power, free: Free, demand: Demand) -> int:
    """Every way to put so many instances on each node."""
    one = Demand(1, demand.gpus, demand.gpu_milli, demand.cpu_milli)
    now, watts = power.draw(free).tolist(), power.of_instance(demand).tolist()
    most = []
    for index in range(len(power.cluster.nodes)):
        alone = free.copy()
        for other in range(len(power.cluster.nodes)):
            alone.set_up(other, other == index)
        most.append(alone.shortage(Demand(5, one.gpus, one.gpu_milli, one.cpu_milli)).room)
    best = 0
    for counts in product(*(range(count + 1) for count in most)):
        after = list(now)
        for index, count in enumerate(counts):
            after[power.rack_of[index]] += count * watts[index]
        touched = {int(power.rack_of[index]) for index, count in enumerate(counts) if count * watts[index] > 0}
        if all(after[rack] <= power.limit[rack] + SLACK for rack in touched):
            best = max(best, sum(counts))
    return min(best, demand.instances)


@settings(max_examples=60)
@given(clusters(), some.lists(DEMANDS, max_size=4), DEMANDS)
def test_room_within_limits_is_as_much_as_there_can_be(cluster: Cluster, held: list[Demand], demand: Demand) -> None:
    power = Power(cluster)
    free, _ = filled(cluster, held)
    found, before = power.shortage(free, demand), free.shortage(demand)
    assert found.room == room_by_trying(power, free, demand)
    assert found.fit + found.at_power_limit == before.fit
    assert power.fits_when_empty(demand) == (room_by_trying(power, Free(cluster), demand) == demand.instances)
