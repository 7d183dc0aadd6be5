"""The worth rule: prices against a linear program, and losses against a plain Python implementation."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import combinations, pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from plain_resources import PlainResources
from scipy.optimize import linprog

from refold.model import Cluster, Demand, Job, Node, Placement, Share
from refold.model.units import WHOLE
from refold.placement import FreeResources, Placer
from refold.placement.demand_history import MAX_CACHED_DEMANDS
from refold.placement.free import mask_from_indices
from refold.placement.layout import (
    CPU_FREE,
    CPU_HASH,
    FIRST_GPU,
    GPU_HASH,
    GPUS,
    MEMORY_FREE,
    MEMORY_HASH,
    SIGNATURE,
    SIGNATURE_BITS,
    WHOLE_FREE,
    Floats,
    Need,
)
from refold.placement.lookahead import loss
from refold.placement.worth import _cutting_prices
from refold.testing import make_cluster


class SubmittedJobs:
    """The part of a View that rules learn from."""

    def __init__(self, cluster: Cluster, demands: list[Demand]) -> None:
        self.cluster = cluster
        self.changes = self
        self.submitted = [Job(str(number), demand=demand) for number, demand in enumerate(demands)]


def worth_of_parts(demands: list[Demand]) -> list[float]:
    """The worth of each fraction of a GPU after these demands; their number is a power of two (see `is_update_due`)."""
    placer, cluster = Placer("worth"), make_cluster(4)
    placer.observe(SubmittedJobs(cluster, demands))
    return list(placer._greedy.history.worth)


# The worth of a fraction of a GPU.


@pytest.mark.parametrize(
    ("shares", "part", "expected"),
    [
        ([810], 190, 0.0),  # no job requests so little
        ([810], 810, 1.0),  # no job requests the rest
        ([500], 500, 0.5),  # halves come in pairs
        ([500], 499, 0.0),
        ([500], 999, 0.5),
        ([250], 749, 0.5),
        ([700, 700, 700, 300], 300, 0.0),  # the large ones need all GPUs, and the small ones fit beside them
        ([700, 300, 300, 300], 300, 1 / 3),  # now the small ones need GPUs of their own, three per GPU
        ([700, 300, 300, 300], 700, 2 / 3),
        ([1000], 999, 0.0),  # only whole GPUs are requested: a fraction is worth nothing
        ([1000], 1000, 1.0),
    ],
)
def test_the_worth_of_a_gpu_fraction_follows_from_the_requested_fractions(
    shares: list[int], part: int, expected: float
) -> None:
    demands = [Demand(1, 1, share) for share in shares] * (4 // len(shares))
    assert worth_of_parts(demands)[part] == pytest.approx(expected)


def test_without_history_the_worth_of_a_fraction_is_the_fraction() -> None:
    assert list(Placer("worth")._greedy.history.worth) == [part / WHOLE for part in range(WHOLE + 1)]


def fillings(sizes: tuple[int, ...], remaining: int) -> Iterator[tuple[int, ...]]:
    """Every way to cut a fraction of a GPU into pieces of these sizes: the count of each."""
    if not sizes:
        yield ()
        return
    for count in range(remaining // sizes[0] + 1):
        for others in fillings(sizes[1:], remaining - count * sizes[0]):
            yield (count, *others)


PIECES = st.dictionaries(st.integers(120, WHOLE - 1), st.integers(1, 40), min_size=1, max_size=4)


@settings(max_examples=60)
@given(PIECES)
def test_dual_prices_sum_to_the_optimum_of_the_cutting_stock_problem(pieces: dict[int, int]) -> None:
    sizes = tuple(sorted(pieces))
    priced = [pieces[size] for size in sizes]
    patterns = np.array(list(fillings(sizes, WHOLE)))
    fewest = linprog(np.ones(len(patterns)), A_ub=-patterns.T, b_ub=[-count for count in priced]).fun
    prices = np.asarray(_cutting_prices(np.array(sizes), np.array(priced, dtype=float)))
    assert float(prices @ priced) == pytest.approx(fewest, rel=1e-6)
    assert prices.min() >= -1e-9
    assert (patterns @ prices).max() <= 1.0 + 1e-6


@settings(max_examples=40)
@given(PIECES, st.integers(0, WHOLE))
def test_the_worth_of_a_fraction_is_its_best_filling(pieces: dict[int, int], part: int) -> None:
    sizes = tuple(sorted(pieces))
    total = 1 << sum(pieces.values()).bit_length()
    seen = [Demand(1, 1, size) for size in sizes for _ in range(pieces[size])]
    whole = [Demand()] * (total - len(seen))
    worth = worth_of_parts(seen + whole)
    prices = np.asarray(_cutting_prices(np.array(sizes), np.array([pieces[size] for size in sizes], dtype=float)))
    best = max(float(np.dot(filling, prices)) for filling in fillings(sizes, part))
    assert worth[part] == pytest.approx(1.0 if part == WHOLE else best, abs=1e-6)
    assert (worth[0], worth[WHOLE]) == (0.0, 1.0)
    assert all(more >= less for less, more in pairwise(worth))


def test_every_instance_and_gpu_of_a_demand_counts_as_a_piece() -> None:
    gang = [Demand(3, 1, 300), Demand(1, 1, 700)]
    assert worth_of_parts(gang) == pytest.approx(worth_of_parts([Demand(1, 1, 300)] * 3 + [Demand(1, 1, 700)]))
    assert worth_of_parts([Demand(1, 3, 300), Demand(1, 1, 700)]) == worth_of_parts(gang)


def test_with_many_sizes_no_gpu_is_worth_more_than_one() -> None:
    rng = random.Random(5)
    common = rng.sample(range(100, WHOLE), 50)
    worth = worth_of_parts([Demand(1, 1, size) for size in common for _ in range(10)] + [Demand(1, 1, 51)] * 12)
    assert worth[WHOLE] == 1.0
    assert max(worth) == 1.0
    assert all(more >= less for less, more in pairwise(worth))


# The worth of a node: the formula of the module in plain Python.

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


class PlainWorth:
    """The worth of a cluster, in plain Python."""

    def __init__(self, free: FreeResources, seen: list[Demand], worth: Floats) -> None:
        self.free, self.worth = free, worth
        self.nodes = free.cluster.nodes
        self.largest = max(node.gpus for node in self.nodes)
        on_gpus = [demand for demand in seen if demand.gpus]
        milli = sum(_milli(demand) for demand in on_gpus)
        priced = sum(demand.instances * demand.gpus * worth[demand.gpu_milli] for demand in on_gpus)
        self.cpu = sum(demand.instances * demand.cpu_milli for demand in on_gpus) / priced if priced else 0.0
        self.memory = sum(demand.instances * demand.memory_mib for demand in on_gpus) / priced if priced else 0.0
        multi_gpu = sum(_milli(demand) for demand in on_gpus if demand.gpus > 1)
        self.gang_weight = 0.3 * multi_gpu / milli if milli else 0.0
        self.limited = [(demand.gpu_types, _milli(demand) / milli) for demand in on_gpus if demand.gpu_types]

    def price(self, resources: WorthResources, kind: str) -> float:
        """The price of a GPU of a type: F · r² / (1 + r²)."""
        free = {
            name: sum(sum(resources.gpus[index]) for index, node in enumerate(self.nodes) if node.gpu_type == name)
            for name in KINDS
        }
        if not free.get(kind):
            return 0.0
        demanded = sum(
            part * free[kind] / sum(free[name] for name in kinds) for kinds, part in self.limited if kind in kinds
        )
        pressure = demanded / (free[kind] / sum(free.values()))
        free_part = sum(free.values()) / (WHOLE * sum(node.gpus for node in self.nodes))
        return free_part * pressure**2 / (1 + pressure**2)

    def of_node(self, node: int, gpus: list[int], cpu: int, memory: int) -> float:
        gpus_worth = sum(self.worth[free] for free in gpus)
        stranded = 0.0
        if gpus_worth > 1e-9 and self.cpu:
            stranded += (1 + cpu / (gpus_worth * self.cpu)) ** -12
        if gpus_worth > 1e-9 and self.memory:
            stranded += (1 + memory / (gpus_worth * self.memory)) ** -12 / 2
        whole = sum(free == WHOLE for free in gpus)
        return float(gpus_worth - gpus_worth * stranded + self.gang_weight * (whole / self.largest) ** 2)

    def lost(self, resources: WorthResources, node: int, gpus: tuple[int, ...], demand: Demand) -> float:
        """The decrease of W, plus 0.03 × the remaining free capacity of the GPUs, or an eighth of the node's."""
        before, cpu, memory = resources.gpus[node], resources.cpu[node], resources.memory[node]
        after = [free - demand.gpu_milli if gpu in gpus else free for gpu, free in enumerate(before)]
        loss_of_worth = self.of_node(node, before, cpu, memory)
        loss_of_worth -= self.of_node(node, after, cpu - demand.cpu_milli, memory - demand.memory_mib)
        whole = demand.gpus == 0 or demand.gpu_milli == WHOLE
        remainder = sum(after) // 8 if whole else sum(after[gpu] for gpu in gpus)
        return loss_of_worth + 0.03 * remainder / WHOLE


def _milli(demand: Demand) -> int:
    return demand.instances * demand.gpus * demand.gpu_milli


class WorthResources(PlainResources):
    """Free resources, and the choices of GPUs for an instance."""

    def choices(self, node: int, demand: Demand) -> list[tuple[int, ...]]:
        """Every set of GPUs of a node on which an instance fits."""
        machine = self.cluster.nodes[node]
        if self.cpu[node] < demand.cpu_milli or self.memory[node] < demand.memory_mib:
            return []
        if demand.gpus and demand.gpu_types and machine.gpu_type not in demand.gpu_types:
            return []
        fitting = [gpu for gpu, free in enumerate(self.gpus[node]) if free >= demand.gpu_milli]
        return list(combinations(fitting, demand.gpus))


def chosen_gpus(resources: WorthResources, node: int, demand: Demand, worth: Floats) -> tuple[int, ...]:
    """One GPU: the least loss of worth, then the least remaining; several GPUs: the freest."""
    free = resources.gpus[node]
    choices = resources.choices(node, demand)
    if demand.gpus == 1:
        losses = {gpus: worth[free[gpus[0]]] - worth[free[gpus[0]] - demand.gpu_milli] for gpus in choices}
        least = min(losses.values())
        return min((gpus for gpus in choices if losses[gpus] <= least + 1e-9), key=lambda gpus: free[gpus[0]])
    return max(choices, key=lambda gpus: sorted((free[gpu] for gpu in gpus), reverse=True))


def random_machines(rng: random.Random, count: int) -> Cluster:
    nodes = [
        Node(
            f"n{index}",
            gpus := rng.choice([0, 1, 2, 4, 4]),
            rng.choice(KINDS) if gpus else "",
            rng.choice([6, 16]) * WHOLE,
            rng.choice([8, 32]) * 1024,
        )
        for index in range(count)
    ]
    return Cluster((*nodes, Node("last", 4, "A100", 16 * WHOLE, 32 * 1024)))


def loss_on_node(placer: Placer, free: FreeResources, node: int, demand: Demand) -> tuple[float, int]:
    """The loss of worth by an instance on a node, and its GPU mask."""
    need: Any = Need(*free.vector(demand)[0].tolist())._asdict()  # what becomes the struct of the kernel
    return loss(False, free.arrays, node, need, placer._greedy.history)


@settings(max_examples=40)
@given(st.integers(0, 2**32))
def test_worth_takes_the_least_loss_and_computes_it_correctly(seed: int) -> None:
    rng = random.Random(seed)
    cluster = random_machines(rng, 5)
    free, resources, placer = FreeResources(cluster), WorthResources(cluster), Placer("worth")
    seen = [rng.choice(DEMANDS) for _ in range(8)]
    placer.observe(SubmittedJobs(cluster, seen))
    plain_worth = PlainWorth(free, seen, np.asarray(placer._greedy.history.worth))
    for _ in range(12):
        demand = rng.choice(DEMANDS)
        single = Demand(1, demand.gpus, demand.gpu_milli, demand.cpu_milli, demand.memory_mib, demand.gpu_types)
        lost = {}
        for node in range(len(cluster.nodes)):
            computed, mask = np.inf, 0
            if single.gpu_milli < WHOLE or resources.gpus[node].count(WHOLE) >= single.gpus:
                computed, mask = loss_on_node(placer, free, node, single)
            assert (computed == np.inf) == (not resources.choices(node, single))
            if computed < np.inf:
                gpus = chosen_gpus(resources, node, single, plain_worth.worth)
                assert mask == mask_from_indices(gpus)
                lost[node] = plain_worth.lost(resources, node, gpus, single)
                assert computed == pytest.approx(lost[node], abs=1e-9)
                price = plain_worth.price(resources, cluster.nodes[node].gpu_type)
                lost[node] += price * single.gpus * single.gpu_milli / WHOLE
        placement = placer.place(free, single)
        assert (placement is None) == (not lost)
        if placement is not None:
            [share] = placement
            assert math.isclose(lost[share.node], min(lost.values()), abs_tol=1e-9)
            assert share.gpus == chosen_gpus(resources, share.node, single, plain_worth.worth)
            resources.add(placement, -1)


def test_a_fraction_is_placed_where_it_fills_a_gpu() -> None:
    free, placer = FreeResources(make_cluster(2, 2)), Placer("worth")
    placer.observe(SubmittedJobs(free.cluster, [Demand(1, 1, 700), Demand(1, 1, 300)] * 2))
    assert free.take((Share(0, (0,), 300), Share(1, (1,), 700))) is None
    assert placer.place(free, Demand(1, 1, 300)) == (Share(1, (1,), 300),)
    assert placer.place(free, Demand(1, 1, 700)) == (Share(0, (0,), 700),)


def test_gpus_of_nodes_without_free_cpus_are_taken_first() -> None:
    # An instance without CPUs takes the GPU that no other job could use.
    free, placer = FreeResources(make_cluster(2, 2, cpus=8)), Placer("worth")
    placer.observe(SubmittedJobs(free.cluster, [Demand(1, 1, cpu_milli=4000)]))
    assert free.take((Share(1, (0,), WHOLE, 8000),)) is None
    assert placer.place(free, Demand(1, 1)) == (Share(1, (1,)),)


def test_gpus_of_a_requested_type_are_spared() -> None:
    free, placer = FreeResources(make_cluster(2, 2, types=["A100", "T4"])), Placer("worth")
    placer.observe(SubmittedJobs(free.cluster, [Demand(1, 1, gpu_types=("A100",)), Demand(1, 1)]))
    assert placer.place(free, Demand(1, 1)) == (Share(1, (0,)),)


def test_a_type_is_left_to_the_jobs_that_are_limited_to_it_even_where_it_would_fit_better() -> None:
    # Half of the demand is limited to the T4, which are a third of the GPUs. The gap on the T4 would fit tightly.
    free, placer = FreeResources(make_cluster(4, 2, types=["A100", "T4"])), Placer("worth")
    placer.observe(SubmittedJobs(free.cluster, [Demand(1, 1, gpu_types=("T4",)), Demand()]))
    assert free.take((Share(1, (0,)),)) is None
    assert [placer.place(free, Demand()) for _ in range(4)] == [(Share(0, (gpu,)),) for gpu in range(4)]
    assert placer.place(free, Demand()) == (Share(1, (1,)),)


def test_a_type_that_few_jobs_are_limited_to_costs_little_more_than_others() -> None:
    # One of 64 jobs is limited to the T4, of which one of five free GPUs is left: the tight fit decides.
    free, placer = FreeResources(make_cluster(4, 4, types=["A100", "T4"])), Placer("worth")
    placer.observe(SubmittedJobs(free.cluster, [Demand(1, 1, gpu_types=("T4",)), *[Demand()] * 63]))
    assert free.take((Share(1, (0, 1, 2)),)) is None
    assert placer.place(free, Demand()) == (Share(1, (3,)),)


def test_the_price_of_a_type_grows_as_others_take_it() -> None:
    free, placer = FreeResources(make_cluster(4, 4, types=["A100", "T4"])), Placer("worth")
    placer.observe(SubmittedJobs(free.cluster, [Demand(1, 1, gpu_types=("T4",)), Demand()]))

    def price_of_t4() -> float:
        placer.place(free.copy(), Demand(1, 1, gpu_types=("T4",)))
        return float(placer._greedy.history.type_prices[free.cluster.type_names.index("T4")])

    assert price_of_t4() == pytest.approx(1 / 2)  # all is free, and half of the demand is limited to half of the GPUs
    assert free.take((Share(0, (0, 1)), Share(1, (0, 1, 2)))) is None
    assert price_of_t4() == pytest.approx(3 / 8 * 1.5**2 / (1 + 1.5**2))


@given(st.integers(0, 2**32))
def test_with_whole_gpus_alone_the_node_with_the_fewest_free_gpus_loses_least(seed: int) -> None:
    # Then the rule takes the shortcut of best fit; the node must be the one that the losses give. The CPUs of the nodes
    # are not known, so it does not matter that some jobs request them.
    rng = random.Random(seed)
    cluster = make_cluster(*(rng.choice([1, 2, 4, 8]) for _ in range(rng.choice([3, 12]))), 8)
    cluster = msgspec.structs.replace(cluster, cpus_known=False)
    free, placer, best_fit = FreeResources(cluster), Placer("worth"), Placer("best-fit")
    placed: list[Placement] = []
    for _ in range(40):
        demand = Demand(rng.choice([1, 1, 2, 3]), rng.choice([1, 2, 4]), cpu_milli=rng.choice([0, 4000]))
        placer.observe(SubmittedJobs(cluster, [demand]))
        if placed and rng.random() < 0.4:
            free.release(placed.pop(rng.randrange(len(placed))))
        one = Demand(1, demand.gpus)
        expected = best_fit.place(free.copy(), demand)
        found = placer.place(free, demand)
        assert found == expected
        if found is not None:
            placed.append(found)
        losses = [
            (loss_on_node(placer, free, node, one)[0], node)
            for node in range(len(cluster.nodes))
            if free.nodes[node, WHOLE_FREE] >= one.gpus
        ]
        if losses:
            assert best_fit.place(free.copy(), one)[0].node == min(losses)[1]  # type: ignore[index]


# Signatures and cached scores.


def toggle_gpu(rng: random.Random, free: FreeResources) -> None:
    gpus = [(node, gpu) for node, kind in enumerate(free.cluster.nodes) for gpu in range(kind.gpus)]
    node, gpu = rng.choice(gpus)
    free.set_gpu_up(node, gpu, not free.is_gpu_up(node, gpu))


@given(st.integers(0, 2**32))
def test_a_signature_depends_only_on_the_free_resources(seed: int) -> None:
    rng = random.Random(seed)
    cluster = random_machines(rng, 6)
    free, placer = FreeResources(cluster), Placer("random", seed)
    placed: list[Placement] = []
    for _ in range(40):
        if placed and rng.random() < 0.4:
            free.release(placed.pop(rng.randrange(len(placed))))
        elif rng.random() < 0.1:
            free.set_node_up(rng.randrange(len(cluster.nodes)), rng.random() < 0.5)
        elif rng.random() < 0.1:
            toggle_gpu(rng, free)
        elif (placement := placer.place(free, rng.choice(DEMANDS))) is not None:
            placed.append(placement)
    signatures = [signature_of(free, node) for node in range(len(cluster.nodes))]
    assert free.nodes[:-1, SIGNATURE].tolist() == signatures


def signature_of(free: FreeResources, node: int) -> int:
    """Return the signature of a node, computed from all that is free on it."""
    row = free.nodes[node].tolist()
    gpu_free = free.gpus[row[FIRST_GPU] : row[FIRST_GPU] + row[GPUS]].tolist()
    signature: int = 1 + row[CPU_FREE] * CPU_HASH + row[MEMORY_FREE] * MEMORY_HASH
    signature += sum(amount * GPU_HASH ** (gpu + 1) for gpu, amount in enumerate(gpu_free))
    return signature & SIGNATURE_BITS


def test_nodes_with_different_free_resources_have_different_signatures() -> None:
    free = FreeResources(make_cluster(*[4] * 200, cpus=64))
    for node in range(1, 200):
        assert free.take((Share(node, (node % 4,), 1 + node // 4, node % 3 * 1000),)) is None
    assert len({int(signature) for signature in free.nodes[:-1, SIGNATURE]}) == 200


def new_placer(rule: str, cluster: Cluster, seen: list[Demand]) -> Placer:
    placer = Placer(rule)
    placer.observe(SubmittedJobs(cluster, seen))
    return placer


@pytest.mark.parametrize("rule", ["fgd", "worth"])
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32))
def test_cached_scores_do_not_change_placements(rule: str, seed: int) -> None:
    """Neither with nodes going down and up, nor new demands, nor two copies of the cluster used in turns."""
    rng = random.Random(seed)
    cluster = random_machines(rng, 9)
    copies, placer = [FreeResources(cluster), FreeResources(cluster)], Placer(rule)
    placed: list[list[Placement]] = [[], []]
    seen: list[Demand] = []
    for _ in range(50):
        which = rng.randrange(2)
        free, placed_here = copies[which], placed[which]
        match rng.choice(["place"] * 6 + ["release"] * 2 + ["toggle node", "toggle GPU", "submit"]):
            case "place":
                demand = rng.choice(DEMANDS)
                expected = new_placer(rule, cluster, seen).place(free.copy(), demand)
                assert placer.place(free, demand) == expected
                placed_here += [expected] if expected else []
            case "release" if placed_here:
                free.release(placed_here.pop(rng.randrange(len(placed_here))))
            case "toggle node":
                node = rng.randrange(len(cluster.nodes))
                free.set_node_up(node, not free.is_up(node))
            case "toggle GPU":
                toggle_gpu(rng, free)
            case "submit":
                more = [rng.choice(DEMANDS)] * rng.choice([1, 3])
                placer.observe(SubmittedJobs(cluster, more))
                seen += more


@pytest.mark.parametrize("rule", ["fgd", "worth"])
def test_demands_that_share_a_cache_row_do_not_mix(rule: str) -> None:
    rng, cluster = random.Random(1), make_cluster(4, 2, 4, 2, cpus=16)
    seen = [Demand(1, 1, 300, 1000), Demand(1, 1, 700), Demand(1, 2), Demand(1, 1, 450, 3000)]
    demands_in_cache = [
        Demand(1, 1, 101 + number % 800, number // 800 * 1000) for number in range(MAX_CACHED_DEMANDS + 40)
    ]
    share_a_row = [
        demands_in_cache[number] for first in range(40) for number in (first, first + MAX_CACHED_DEMANDS, first)
    ]
    placer = new_placer(rule, cluster, seen)
    for demands in [demands_in_cache, *[share_a_row] * 5]:
        free = FreeResources(cluster)
        for node, machine in enumerate(cluster.nodes):
            for gpu in range(machine.gpus):
                assert free.take((Share(node, (gpu,), rng.randint(1, WHOLE)),)) is None
        for demand in demands:
            placement = placer.place(free, demand)
            free.release(placement or ())
            assert placement == new_placer(rule, cluster, seen).place(free.copy(), demand)
