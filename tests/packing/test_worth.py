"""What is free is worth what the jobs to be expected could make of it: against a linear program, and read aloud."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings, strategies as some
from scipy.optimize import linprog

from refold.model import Cluster, Demand, Job, Node, Placement, Share
from refold.model.units import WHOLE
from refold.packing import Free, Placer
from refold.packing.demand_history import MOST_ROWS
from refold.packing.free import mask_of
from refold.packing.kernels import sign
from refold.packing.layout import SIGNATURE, Floats, Need
from refold.packing.lookahead import loss
from refold.packing.worth import _cutting_prices
from refold.testing import make_cluster


class Seen:
    """As much of a View as a rule may learn from."""

    def __init__(self, cluster: Cluster, demands: list[Demand]) -> None:
        self.cluster = cluster
        self.changes = self
        self.submitted = [Job(str(number), demand=demand) for number, demand in enumerate(demands)]


def worth_of_parts(demands: list[Demand]) -> list[float]:
    """What each part of a GPU is worth to one who has seen these demands; their number is a power of two."""
    placer, cluster = Placer("worth"), make_cluster(4)
    placer.observe(Seen(cluster, demands))
    parts: list[float] = placer._expected.worth.tolist()
    return parts


# The worth of a part of a GPU.


@pytest.mark.parametrize(
    ("shares", "part", "expected"),
    [
        ([810], 190, 0.0),  # nobody wants so little
        ([810], 810, 1.0),  # nobody wants what is left beside it
        ([500], 500, 0.5),  # halves come in pairs
        ([500], 499, 0.0),
        ([500], 999, 0.5),
        ([250], 749, 0.5),
        ([700, 700, 700, 300], 300, 0.0),  # the large ones need all the GPUs, and there is room beside them
        ([700, 300, 300, 300], 300, 1 / 3),  # now the small ones need some of their own, three to a GPU
        ([700, 300, 300, 300], 700, 2 / 3),
        ([1000], 999, 0.0),  # whole GPUs only: a part is worth nothing
        ([1000], 1000, 1.0),
    ],
)
def test_a_part_is_worth_what_comes_of_it(shares: list[int], part: int, expected: float) -> None:
    demands = [Demand(1, 1, share) for share in shares] * (4 // len(shares))
    assert worth_of_parts(demands)[part] == pytest.approx(expected)


def test_before_anything_was_seen_a_part_is_worth_what_it_is() -> None:
    assert Placer("worth")._expected.worth.tolist() == [part / WHOLE for part in range(WHOLE + 1)]


def fillings(sizes: tuple[int, ...], room: int) -> Iterator[tuple[int, ...]]:
    """Every way to cut a part of a GPU into pieces of these sizes: how many of each."""
    if not sizes:
        yield ()
        return
    for count in range(room // sizes[0] + 1):
        for others in fillings(sizes[1:], room - count * sizes[0]):
            yield (count, *others)


PIECES = some.dictionaries(some.integers(120, WHOLE - 1), some.integers(1, 40), min_size=1, max_size=4)


@settings(max_examples=60)
@given(PIECES)
def test_prices_add_up_to_the_fewest_gpus_that_hold_all_pieces(pieces: dict[int, int]) -> None:
    sizes = tuple(sorted(pieces))
    wanted = [pieces[size] for size in sizes]
    patterns = np.array(list(fillings(sizes, WHOLE)))
    fewest = linprog(np.ones(len(patterns)), A_ub=-patterns.T, b_ub=[-count for count in wanted]).fun
    prices = _cutting_prices(np.array(sizes), np.array(wanted, dtype=float))
    assert float(prices @ wanted) == pytest.approx(fewest, rel=1e-6)
    assert prices.min() >= -1e-9
    assert (patterns @ prices).max() <= 1.0 + 1e-6


@settings(max_examples=40)
@given(PIECES, some.integers(0, WHOLE))
def test_a_part_is_worth_its_best_filling(pieces: dict[int, int], part: int) -> None:
    sizes = tuple(sorted(pieces))
    total = 1 << sum(pieces.values()).bit_length()
    seen = [Demand(1, 1, size) for size in sizes for _ in range(pieces[size])]
    whole = [Demand()] * (total - len(seen))
    worth = worth_of_parts(seen + whole)
    prices = _cutting_prices(np.array(sizes), np.array([pieces[size] for size in sizes], dtype=float))
    best = max(float(np.dot(filling, prices)) for filling in fillings(sizes, part))
    assert worth[part] == pytest.approx(1.0 if part == WHOLE else best, abs=1e-6)
    assert (worth[0], worth[WHOLE]) == (0.0, 1.0)
    assert all(more >= less for less, more in pairwise(worth))


def test_instances_and_gpus_of_a_demand_are_pieces_too() -> None:
    gang = [Demand(3, 1, 300), Demand(1, 1, 700)]
    assert worth_of_parts(gang) == pytest.approx(worth_of_parts([Demand(1, 1, 300)] * 3 + [Demand(1, 1, 700)]))
    assert worth_of_parts([Demand(1, 3, 300), Demand(1, 1, 700)]) == worth_of_parts(gang)


def test_of_very_many_sizes_no_gpu_is_worth_more_than_one() -> None:
    chance = random.Random(5)
    common = chance.sample(range(100, WHOLE), 50)
    worth = worth_of_parts([Demand(1, 1, size) for size in common for _ in range(10)] + [Demand(1, 1, 51)] * 12)
    assert worth[WHOLE] == 1.0
    assert max(worth) == 1.0
    assert all(more >= less for less, more in pairwise(worth))


# The worth of a node: the module's formula, read aloud.

KINDS = ["A100", "T4"]

DEMANDS = [
    Demand(1, 1),
    Demand(1, 1, 500, 2000, 4096),
    Demand(2, 2, cpu_milli=4000),
    Demand(1, 1, 300, 1000, 1024, ("T4",)),
    Demand(1, 2, 400, 1000),
    Demand(3, 1, 250, 500, 2048, ("A100",)),
    Demand(1, 0, cpu_milli=3000, memory_mib=2048),
    Demand(1, 4, cpu_milli=8000, gpu_types=("A100",)),
]


class Reckoned:
    """What a cluster is worth, in plain Python."""

    def __init__(self, free: Free, seen: list[Demand], worth: Floats) -> None:
        self.free, self.worth = free, worth
        self.nodes = free.cluster.nodes
        self.largest = max(node.gpus for node in self.nodes)
        on_gpus = [demand for demand in seen if demand.gpus]
        milli = sum(_milli(demand) for demand in on_gpus)
        wanted = sum(demand.instances * demand.gpus * worth[demand.gpu_milli] for demand in on_gpus)
        self.cpu = sum(demand.instances * demand.cpu_milli for demand in on_gpus) / wanted if wanted else 0.0
        self.memory = sum(demand.instances * demand.memory_mib for demand in on_gpus) / wanted if wanted else 0.0
        several = sum(_milli(demand) for demand in on_gpus if demand.gpus > 1)
        self.together = 0.3 * several / milli if milli else 0.0
        self.scarcity = {kind: self._scarcity(kind, on_gpus, milli) for kind in KINDS}

    def _scarcity(self, kind: str, on_gpus: list[Demand], milli: int) -> float:
        have = {name: sum(node.gpus for node in self.nodes if node.gpu_type == name) for name in KINDS}
        if not have[kind]:
            return 0.0
        part = 0.0
        for demand in on_gpus:
            if kind in demand.gpu_types:
                part += _milli(demand) * have[kind] / sum(have[name] for name in demand.gpu_types) / milli
        return 0.03 * part / (have[kind] / sum(have.values()))

    def of_node(self, node: int, gpus: list[int], cpu: int, memory: int) -> float:
        machine = self.nodes[node]
        together = sum(self.worth[free] for free in gpus)
        scarce = self.scarcity[machine.gpu_type] if machine.gpus else 0.0
        idle = 0.0
        if together > 1e-9 and self.cpu:
            idle += (1 + cpu / (together * self.cpu)) ** -12
        if together > 1e-9 and self.memory:
            idle += (1 + memory / (together * self.memory)) ** -12 / 2
        whole = sum(free == WHOLE for free in gpus)
        return float((1 + scarce) * together - together * idle + self.together * (whole / self.largest) ** 2)

    def lost(self, books: Books, node: int, gpus: tuple[int, ...], demand: Demand) -> float:
        """How much W falls; and three hundredths of what stays free on the GPUs, or an eighth of it on the node."""
        before, cpu, memory = books.gpus[node], books.cpu[node], books.memory[node]
        after = [free - demand.gpu_milli if gpu in gpus else free for gpu, free in enumerate(before)]
        fall = self.of_node(node, before, cpu, memory)
        fall -= self.of_node(node, after, cpu - demand.cpu_milli, memory - demand.memory_mib)
        whole = demand.gpus == 0 or demand.gpu_milli == WHOLE
        beside = sum(after) // 8 if whole else sum(after[gpu] for gpu in gpus)
        return fall + 0.03 * beside / WHOLE


def _milli(demand: Demand) -> int:
    return demand.instances * demand.gpus * demand.gpu_milli


class Books:
    """What is free, in plain Python."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.gpus = [[WHOLE] * node.gpus for node in cluster.nodes]
        self.cpu = [node.cpu_milli for node in cluster.nodes]
        self.memory = [node.memory_mib for node in cluster.nodes]

    def move(self, placement: Placement, sign: int) -> None:
        for share in placement:
            for gpu in share.gpus:
                self.gpus[share.node][gpu] += sign * share.gpu_milli
            self.cpu[share.node] += sign * share.cpu_milli
            self.memory[share.node] += sign * share.memory_mib

    def choices(self, node: int, demand: Demand) -> list[tuple[int, ...]]:
        """Every set of GPUs of a node that has room for an instance."""
        machine = self.cluster.nodes[node]
        if self.cpu[node] < demand.cpu_milli or self.memory[node] < demand.memory_mib:
            return []
        if demand.gpus and demand.gpu_types and machine.gpu_type not in demand.gpu_types:
            return []
        with_room = [gpu for gpu, free in enumerate(self.gpus[node]) if free >= demand.gpu_milli]
        return list(combinations(with_room, demand.gpus))


def chosen_gpus(books: Books, node: int, demand: Demand, worth: Floats) -> tuple[int, ...]:
    """Of one GPU the worth falls least, and then least stays free; of several, those with the most free are taken."""
    free = books.gpus[node]
    choices = books.choices(node, demand)
    if demand.gpus == 1:
        falls = {gpus: worth[free[gpus[0]]] - worth[free[gpus[0]] - demand.gpu_milli] for gpus in choices}
        least = min(falls.values())
        return min((gpus for gpus in choices if falls[gpus] <= least + 1e-9), key=lambda gpus: free[gpus[0]])
    return max(choices, key=lambda gpus: sorted((free[gpu] for gpu in gpus), reverse=True))


def random_machines(chance: random.Random, count: int) -> Cluster:
    nodes = [
        Node(
            f"n{index}",
            gpus := chance.choice([0, 1, 2, 4, 4]),
            chance.choice(KINDS) if gpus else "",
            chance.choice([6, 16]) * WHOLE,
            chance.choice([8, 32]) * 1024,
        )
        for index in range(count)
    ]
    return Cluster((*nodes, Node("last", 4, "A100", 16 * WHOLE, 32 * 1024)))


@settings(max_examples=40)
@given(some.integers(0, 2**32))
def test_worth_loses_least_and_what_it_says(seed: int) -> None:
    chance = random.Random(seed)
    cluster = random_machines(chance, 5)
    free, books, placer = Free(cluster), Books(cluster), Placer("worth")
    seen = [chance.choice(DEMANDS) for _ in range(8)]
    placer.observe(Seen(cluster, seen))
    reckoned = Reckoned(free, seen, placer._expected.worth)
    for _ in range(12):
        demand = chance.choice(DEMANDS)
        one = Demand(1, demand.gpus, demand.gpu_milli, demand.cpu_milli, demand.memory_mib, demand.gpu_types)
        need = Need(*free.vector(one)[0].tolist())
        lost = {}
        for node in range(len(cluster.nodes)):
            said, mask = np.inf, 0
            if one.gpu_milli < WHOLE or books.gpus[node].count(WHOLE) >= one.gpus:
                said, mask = loss(False, free.nodes, free.gpus, free.bits, node, need, placer._expected)
            assert (said == np.inf) == (not books.choices(node, one))
            if said < np.inf:
                gpus = chosen_gpus(books, node, one, reckoned.worth)
                assert mask == mask_of(gpus)
                lost[node] = reckoned.lost(books, node, gpus, one)
                assert said == pytest.approx(lost[node], abs=1e-9)
        placement = placer.place(free, one)
        assert (placement is None) == (not lost)
        if placement is not None:
            [share] = placement
            assert math.isclose(lost[share.node], min(lost.values()), abs_tol=1e-9)
            assert share.gpus == chosen_gpus(books, share.node, one, reckoned.worth)
            books.move(placement, -1)


def test_a_share_goes_beside_one_with_which_it_fills_a_gpu() -> None:
    free, placer = Free(make_cluster(2, 2)), Placer("worth")
    placer.observe(Seen(free.cluster, [Demand(1, 1, 700), Demand(1, 1, 300)] * 2))
    assert free.take((Share(0, (0,), 300), Share(1, (1,), 700))) is None
    assert placer.place(free, Demand(1, 1, 300)) == (Share(1, (1,), 300),)
    assert placer.place(free, Demand(1, 1, 700)) == (Share(0, (0,), 700),)


def test_gpus_beside_which_no_cpus_are_left_are_taken_first() -> None:
    # An instance with no CPUs of its own takes the GPU that nobody else could use.
    free, placer = Free(make_cluster(2, 2, cpus=8)), Placer("worth")
    placer.observe(Seen(free.cluster, [Demand(1, 1, cpu_milli=4000)]))
    assert free.take((Share(1, (0,), WHOLE, 8000),)) is None
    assert placer.place(free, Demand(1, 1)) == (Share(1, (1,)),)


def test_gpus_of_a_type_that_others_insist_on_are_spared() -> None:
    free, placer = Free(make_cluster(2, 2, types=["A100", "T4"])), Placer("worth")
    placer.observe(Seen(free.cluster, [Demand(1, 1, gpu_types=("A100",)), Demand(1, 1)]))
    assert placer.place(free, Demand(1, 1)) == (Share(1, (0,)),)


# What is remembered of nodes that are as they were.


@given(some.integers(0, 2**32))
def test_a_signature_tells_what_is_free_whatever_happened_before(seed: int) -> None:
    chance = random.Random(seed)
    cluster = random_machines(chance, 6)
    free, placer = Free(cluster), Placer("random", seed)
    held: list[Placement] = []
    for _ in range(40):
        if held and chance.random() < 0.4:
            free.give_back(held.pop(chance.randrange(len(held))))
        elif chance.random() < 0.1:
            free.set_up(chance.randrange(len(cluster.nodes)), chance.random() < 0.5)
        elif (placement := placer.place(free, chance.choice(DEMANDS))) is not None:
            held.append(placement)
    signed = free.nodes.copy()
    signed[:, SIGNATURE] = 0
    sign(signed, free.gpus)
    assert signed[:-1, SIGNATURE].tolist() == free.nodes[:-1, SIGNATURE].tolist()


def test_nodes_with_different_things_free_have_different_signatures() -> None:
    free = Free(make_cluster(*[4] * 200, cpus=64))
    for node in range(1, 200):
        assert free.take((Share(node, (node % 4,), 1 + node // 4, node % 3 * 1000),)) is None
    assert len({int(signature) for signature in free.nodes[:-1, SIGNATURE]}) == 200


def fresh(rule: str, cluster: Cluster, seen: list[Demand]) -> Placer:
    placer = Placer(rule)
    placer.observe(Seen(cluster, seen))
    return placer


@pytest.mark.parametrize("rule", ["fgd", "worth"])
@settings(max_examples=25)
@given(seed=some.integers(0, 2**32))
def test_what_is_remembered_changes_no_placement(rule: str, seed: int) -> None:
    """Not when nodes fall and return, nor when more is seen, nor when two copies of the cluster take turns."""
    chance = random.Random(seed)
    cluster = random_machines(chance, 9)
    copies, placer = [Free(cluster), Free(cluster)], Placer(rule)
    held: list[list[Placement]] = [[], []]
    seen: list[Demand] = []
    for _ in range(50):
        which = chance.randrange(2)
        free, mine = copies[which], held[which]
        match chance.choice(["place"] * 6 + ["give back"] * 2 + ["fall or return", "see"]):
            case "place":
                demand = chance.choice(DEMANDS)
                expected = fresh(rule, cluster, seen).place(free.copy(), demand)
                assert placer.place(free, demand) == expected
                mine += [expected] if expected else []
            case "give back" if mine:
                free.give_back(mine.pop(chance.randrange(len(mine))))
            case "fall or return":
                node = chance.randrange(len(cluster.nodes))
                free.set_up(node, not free.is_up(node))
            case "see":
                more = [chance.choice(DEMANDS)] * chance.choice([1, 3])
                placer.observe(Seen(cluster, more))
                seen += more


@pytest.mark.parametrize("rule", ["fgd", "worth"])
def test_demands_that_share_a_row_do_not_mix(rule: str) -> None:
    chance, cluster = random.Random(1), make_cluster(4, 2, 4, 2, cpus=16)
    seen = [Demand(1, 1, 300, 1000), Demand(1, 1, 700), Demand(1, 2), Demand(1, 1, 450, 3000)]
    many = [Demand(1, 1, 101 + number % 800, number // 800 * 1000) for number in range(MOST_ROWS + 40)]
    share_a_row = [many[number] for first in range(40) for number in (first, first + MOST_ROWS, first)]
    placer = fresh(rule, cluster, seen)
    for demands in [many, *[share_a_row] * 5]:
        free = Free(cluster)
        for node, machine in enumerate(cluster.nodes):
            for gpu in range(machine.gpus):
                assert free.take((Share(node, (gpu,), chance.randint(1, WHOLE)),)) is None
        for demand in demands:
            answer = placer.place(free, demand)
            free.give_back(answer or ())
            assert answer == fresh(rule, cluster, seen).place(free.copy(), demand)
