"""Every placement rule against a plain Python reading of its definition, on random clusters in random states."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, strategies as st

from refold.errors import UnknownName
from refold.model import Cluster, Demand, Job, Node, Placement, Share
from refold.model.units import WHOLE
from refold.packing import RULES, Free, Placer
from refold.packing.fragmentation import cluster_fragments
from refold.packing.layout import GPUS, MILLI_FREE, MOST_FREE, WHOLE_FREE
from refold.testing import make_cluster


class Plain:
    """What is free, in plain Python."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.gpus = [[WHOLE] * node.gpus for node in cluster.nodes]
        self.cpu = [node.cpu_milli for node in cluster.nodes]
        self.memory = [node.memory_mib for node in cluster.nodes]
        self.up = [True] * len(cluster.nodes)
        self.cursor = 0

    def move(self, placement: Placement, sign: int) -> None:
        for share in placement:
            for gpu in share.gpus:
                self.gpus[share.node][gpu] += sign * share.gpu_milli
            self.cpu[share.node] += sign * share.cpu_milli
            self.memory[share.node] += sign * share.memory_mib

    def fits(self, node: int, demand: Demand) -> bool:
        return (
            self.up[node]
            and (not demand.gpus or not demand.gpu_types or self.cluster.nodes[node].gpu_type in demand.gpu_types)
            and sum(free >= demand.gpu_milli for free in self.gpus[node]) >= demand.gpus
            and self.cpu[node] >= demand.cpu_milli
            and self.memory[node] >= demand.memory_mib
        )

    def key(self, rule: str, node: int, demand: Demand) -> tuple[float, ...]:
        """The lowest wins; the node's index breaks ties."""
        shared = demand.gpus and demand.gpu_milli < WHOLE
        room = [free for free in self.gpus[node] if free >= demand.gpu_milli]
        whole = sum(free == WHOLE for free in self.gpus[node])
        match rule:
            case "first-fit":
                return (node,)
            case "best-fit":
                tight = (
                    (self.cpu[node],) if not demand.gpus else (min(room),) if shared else (whole, sum(self.gpus[node]))
                )
                return (*tight, node)
            case "worst-fit":
                loose = self.cpu[node] if not demand.gpus else max(room) if shared else sum(self.gpus[node])
                return (-loose, node)
            case "round-robin":
                return (node < self.cursor, node)
            case "tetris":
                return (-self.alignment(node, demand), node)
        raise AssertionError(rule)

    def alignment(self, node: int, demand: Demand) -> float:
        machine, total = self.cluster.nodes[node], 0.0
        if demand.gpus:
            capacity = machine.gpus * WHOLE
            total += demand.gpus * demand.gpu_milli * sum(self.gpus[node]) / (capacity * capacity)
        if demand.cpu_milli:
            total += demand.cpu_milli / machine.cpu_milli * (self.cpu[node] / machine.cpu_milli)
        if demand.memory_mib:
            total += demand.memory_mib / machine.memory_mib * (self.memory[node] / machine.memory_mib)
        return total

    def pick(self, rule: str, node: int, demand: Demand) -> tuple[int, ...]:
        free = self.gpus[node]
        candidates = [gpu for gpu in range(len(free)) if free[gpu] >= demand.gpu_milli]
        if rule == "worst-fit" or (demand.gpus > 1 and demand.gpu_milli < WHOLE):
            candidates.sort(key=lambda gpu: -free[gpu])
        elif rule in ("best-fit", "tetris"):
            candidates.sort(key=lambda gpu: free[gpu])
        return tuple(sorted(candidates[: demand.gpus]))

    def place(self, rule: str, demand: Demand) -> Placement | None:
        taken: list[Share] = []
        cursor = self.cursor
        for _ in range(demand.instances):
            nodes = [node for node in range(len(self.gpus)) if self.fits(node, demand)]
            if not nodes:
                self.move(tuple(taken), 1)
                self.cursor = cursor
                return None
            node = min(nodes, key=lambda node: self.key(rule, node, demand))
            self.cursor = node + 1
            gpus = self.pick(rule, node, demand)
            share = Share(node, gpus, demand.gpu_milli, demand.cpu_milli, demand.memory_mib)
            self.move((share,), -1)
            taken.append(share)
        return tuple(taken)


def random_cluster(chance: random.Random) -> Cluster:
    kinds = ["A100", "T4"]
    return Cluster(
        tuple(
            Node(
                f"n{index}",
                gpus := chance.choice([0, 1, 2, 2, 4, 8]),
                chance.choice(kinds) if gpus else "",
                chance.choice([8, 16]) * WHOLE,
                chance.choice([16, 64]) * 1024,
            )
            for index in range(chance.choice([3, 9, 70, 130]))
        )
    )


def random_demand(chance: random.Random, whole_only: bool) -> Demand:
    gpus = chance.choice([1, 1, 1, 2, 4, 8]) if whole_only else chance.choice([0, 1, 1, 1, 2, 4])
    milli = WHOLE if whole_only or gpus == 0 else chance.choice([WHOLE, WHOLE, 500, 250, 300])
    cpu = 0 if whole_only else chance.choice([0, 1000, 4000])
    memory = 0 if whole_only else chance.choice([0, 2048])
    types = chance.choice([(), (), ("T4",), ("A100", "T4")])
    return Demand(chance.choice([1, 1, 2, 5]), gpus, milli, cpu, memory, types)


@pytest.mark.parametrize("rule", ["first-fit", "best-fit", "worst-fit", "round-robin", "tetris"])
@given(seed=st.integers(0, 2**32), whole_only=st.booleans())
def test_a_rule_places_as_it_is_defined(rule: str, seed: int, whole_only: bool) -> None:
    chance = random.Random(seed)
    cluster = random_cluster(chance)
    free, plain, placer = Free(cluster), Plain(cluster), Placer(rule)
    running: list[Placement] = []
    for _ in range(60):
        if running and chance.random() < 0.35:
            gone = running.pop(chance.randrange(len(running)))
            free.give_back(gone)
            plain.move(gone, 1)
        elif chance.random() < 0.1:
            node = chance.randrange(len(cluster.nodes))
            plain.up[node] = not plain.up[node]
            free.set_up(node, plain.up[node])
        else:
            demand = random_demand(chance, whole_only)
            expected = plain.place(rule, demand)
            assert placer.place(free, demand) == expected
            if expected:
                running.append(expected)
    assert_books_agree(free, plain)


def assert_books_agree(free: Free, plain: Plain) -> None:
    count = len(plain.gpus)
    most = max(node.gpus for node in free.cluster.nodes)
    for node in range(count):
        assert free.gpu_milli_of(node) == tuple(plain.gpus[node])
        row = free.nodes[node]
        whole = sum(gpu == WHOLE for gpu in plain.gpus[node])
        assert (row[WHOLE_FREE], row[MOST_FREE], row[MILLI_FREE]) == (
            whole,
            max(plain.gpus[node], default=0),
            sum(plain.gpus[node]),
        )
        for level in range(most + 2):
            bit = int(free.bits[level, node >> 6]) >> (node & 63) & 1
            assert bit == (plain.up[node] and whole >= level and level <= most)
    words = (count + 63) // 64
    for level in range(most + 1):
        in_row = [node for node in range(count) if plain.up[node] and free.nodes[node, WHOLE_FREE] >= level]
        sizes = np.bincount(free.nodes[in_row, GPUS], minlength=most + 1) if in_row else np.zeros(most + 1)
        assert free.bits[level, words:].tolist() == [*sizes, len(in_row)]
    assert free.gpu_milli == sum(sum(gpus) for gpus, up in zip(plain.gpus, plain.up, strict=True) if up)


@given(seed=st.integers(0, 2**32))
def test_giving_back_everything_leaves_the_cluster_as_it_was(seed: int) -> None:
    chance = random.Random(seed)
    cluster = random_cluster(chance)
    free, empty = Free(cluster), Free(cluster)
    placers = [Placer(rule, seed=3) for rule in RULES]
    placed = [placer.place(free, random_demand(chance, False)) for placer in placers * 3]
    for placement in placed:
        free.give_back(placement or ())
    assert np.array_equal(free.nodes, empty.nodes)
    assert np.array_equal(free.gpus, empty.gpus)
    assert np.array_equal(free.bits, empty.bits)


@pytest.mark.parametrize("rule", RULES)
@given(seed=st.integers(0, 2**32))
def test_room_in_an_empty_cluster_is_found_exactly(rule: str, seed: int) -> None:
    chance = random.Random(seed)
    cluster = make_cluster(*(chance.choice([0, 1, 2, 3]) for _ in range(3)), cpus=4, memory_gib=4)
    demand = Demand(
        chance.randint(1, 8),
        chance.randint(0, 3),
        chance.choice([WHOLE, 500, 300, 250]),
        chance.choice([0, 1000]),
        chance.choice([0, 2048]),
    )
    free = Free(cluster)
    most = most_instances(cluster, demand)
    assert free.shortage(demand).room == min(most, demand.instances)
    assert free.fits_when_empty(demand) == (most >= demand.instances)
    assert (Placer(rule).place(free, demand) is not None) == (most >= demand.instances)


def most_instances(cluster: Cluster, demand: Demand) -> int:
    """By trying every number: so many instances fit a node if its GPUs have as many parts, one of each for each."""
    total = 0
    for node in cluster.nodes:
        room = 0
        while room < 100 and _has_room(node, demand, room + 1):
            room += 1
        total += room
    return total


def _has_room(node: Node, demand: Demand, instances: int) -> bool:
    parts = sum(min(instances, WHOLE // demand.gpu_milli) for _ in range(node.gpus))
    return (
        parts >= instances * demand.gpus
        and instances * demand.cpu_milli <= node.cpu_milli
        and instances * demand.memory_mib <= node.memory_mib
    )


def fragments_by_definition(plain: Plain, typical: list[tuple[Demand, float]]) -> float:
    """FGD's definition, read aloud."""
    total = 0.0
    for node, gpus in enumerate(plain.gpus):
        for demand, weight in typical:
            kind = plain.cluster.nodes[node].gpu_type
            hosts = (
                demand.gpus > 0
                and plain.cpu[node] >= demand.cpu_milli
                and (not demand.gpu_types or kind in demand.gpu_types)
                and sum(free >= demand.gpu_milli for free in gpus) >= demand.gpus
            )
            total += weight * (sum(free for free in gpus if free < demand.gpu_milli) if hosts else sum(gpus))
    return total


class _Seen:
    """As much of a View as a rule may learn from."""

    def __init__(self, cluster: Cluster, demands: list[Demand]) -> None:
        self.cluster = cluster
        self.changes = self
        self.submitted = [Job(str(number), demand=demand) for number, demand in enumerate(demands)]


@given(seed=st.integers(0, 2**32))
def test_fgd_grows_the_expected_fragments_least(seed: int) -> None:
    chance = random.Random(seed)
    cluster = make_cluster(*(chance.choice([1, 2, 4]) for _ in range(5)), cpus=16)
    demands = [Demand(1, 1), Demand(1, 1, 500, 2000), Demand(1, 2, cpu_milli=4000), Demand(1, 1, 300)]
    seen = [chance.choice(demands) for _ in range(8)]
    free, plain, placer = Free(cluster), Plain(cluster), Placer("fgd")
    placer.observe(_Seen(cluster, seen))
    typical = [(demand, seen.count(demand) / len(seen)) for demand in demands]
    for _ in range(12):
        demand = chance.choice(demands)
        options = [
            Share(
                node, (gpu,) if demand.gpu_milli < WHOLE else plain.pick("first-fit", node, demand), *_amounts(demand)
            )
            for node in range(len(plain.gpus))
            if plain.fits(node, demand)
            for gpu in (range(len(plain.gpus[node])) if demand.gpu_milli < WHOLE else [0])
            if plain.gpus[node][gpu] >= demand.gpu_milli or demand.gpu_milli == WHOLE
        ]
        before = fragments_by_definition(plain, typical)
        growths = {}
        for share in options:
            plain.move((share,), -1)
            growths[share] = fragments_by_definition(plain, typical) - before
            plain.move((share,), 1)
        placement = placer.place(free, demand)
        assert (placement is None) == (not options)
        if placement is None:
            return
        assert math.isclose(growths[placement[0]], min(growths.values()), abs_tol=1e-6)
        plain.move(placement, -1)
        measured = cluster_fragments(free.nodes, free.gpus, placer._expected.typical, placer._expected.weights)
        assert math.isclose(measured, fragments_by_definition(plain, typical), abs_tol=1e-6)


def _amounts(demand: Demand) -> tuple[int, int, int]:
    return demand.gpu_milli, demand.cpu_milli, demand.memory_mib


def test_random_gives_every_node_its_turn_and_follows_its_seed() -> None:
    cluster = make_cluster(*[8] * 10)

    def nodes(seed: int) -> list[int]:
        free, placer = Free(cluster), Placer("random", seed)
        placements = [placer.place(free, Demand()) for _ in range(40)]
        return [placement[0].node for placement in placements if placement]

    assert nodes(1) == nodes(1)
    assert nodes(1) != nodes(2)
    counts = np.bincount([node for seed in range(50) for node in nodes(seed)], minlength=10)
    assert counts.min() > 150  # 200 are expected of each; 50 fewer would be four standard deviations
    assert counts.max() < 250


def test_a_rule_that_does_not_exist_is_named() -> None:
    with pytest.raises(UnknownName, match="no placement 'tetri'; did you mean 'tetris'"):
        Placer("tetri")
