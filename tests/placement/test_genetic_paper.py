"""The genetic placement as published: fitness, results, and limitations."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from refold.model import Demand, Placement, Share
from refold.model.units import WHOLE
from refold.placement import FreeResources, Placer
from refold.placement.genetic_operators import Random
from refold.placement.genetic_paper import GENERATIONS, best_pair, pair_fitness
from refold.placement.layout import Ints
from refold.testing import make_cluster

DEMANDS = [
    Demand(1, 1),
    Demand(1, 1, 500, 2000),
    Demand(1, 1, 250, 1000, 2048),
    Demand(1, 2, cpu_milli=4000),
    Demand(1, 1, 700, gpu_types=("T4",)),
    Demand(1, 4, cpu_milli=8000, gpu_types=("A100",)),
    Demand(1, 2, 300),
    Demand(1, 0, cpu_milli=3000),
]


def random_state(rng: random.Random, machines: int, full: float) -> FreeResources:
    """Machines of two GPU types with a fraction `full` of the GPU capacity allocated."""
    sizes = [rng.choice([0, 1, 2, 4, 8]) for _ in range(machines - 1)] + [4]
    free = FreeResources(make_cluster(*sizes, types=[rng.choice(["A100", "T4"]) for _ in sizes], cpus=32))
    total, others = free.gpu_milli, Placer("random", rng.randrange(1000))
    tried = 0
    while free.gpu_milli > (1 - full) * total and tried < 20 * machines:
        others.place(free, Demand(1, 1, rng.choice([WHOLE, 600, 300, 150, 100])))
        tried += 1
    return free


def fitness_by_definition(free: FreeResources, node: int, demand: Demand) -> float:
    """The increase in a machine's GPU utilisation; -1 if the demand does not fit or the machine is down."""
    machine = free.cluster.nodes[node]
    alone = free.copy()
    for other in range(len(free.cluster.nodes)):
        alone.set_node_up(other, other == node and free.is_up(node))
    if Placer("first-fit").place(alone, demand) is None:
        return -1.0
    return demand.gpus * demand.gpu_milli / (machine.gpus * WHOLE) if demand.gpus else 0.0


def rows_of(free: FreeResources, demands: list[Demand]) -> Ints:
    return np.concatenate([free.vector(demand) for demand in demands])


@settings(max_examples=40)
@given(st.integers(0, 2**32))
def test_fitness_is_the_gain_in_utilisation_of_the_machine_or_minus_one(seed: int) -> None:
    rng = random.Random(seed)
    free = random_state(rng, 5, rng.choice([0.3, 0.8]))
    free.set_node_up(rng.randrange(5), False)
    for demand in DEMANDS:
        found = [pair_fitness(free.arrays, node, free.vector(demand), 0) for node in range(5)]
        assert found == [fitness_by_definition(free, node, demand) for node in range(5)]


@pytest.mark.parametrize("full", [0.2, 0.7, 0.9])
def test_on_small_instances_the_fittest_pair_is_found(full: float) -> None:
    for seed in range(15):
        rng = random.Random(seed)
        free = random_state(rng, 10, full)
        waiting = [rng.choice(DEMANDS) for _ in range(10)]
        best = max(fitness_by_definition(free, node, demand) for node in range(10) for demand in set(waiting))
        tasks = np.arange(10)
        found, node, task = best_pair(free.arrays, rows_of(free, waiting), tasks, 400, Random(seed))
        assert found == best
        assert fitness_by_definition(free, int(node), waiting[int(task)]) == best


def test_if_nothing_fits_the_best_fitness_is_minus_one() -> None:
    free = FreeResources(make_cluster(1, 2))
    found, _, _ = best_pair(free.arrays, free.vector(Demand(1, 4)), np.arange(1), 50, Random(0))
    assert found == -1.0


def mean_share_of_the_optimum(full: float) -> float:
    """Mean over ten seeds, with 200 machines and 60 tasks; a misfit counts as 0."""
    demand_kinds, shares = [Demand(1, 1, 250), Demand(1, 1, 500), Demand(), Demand(1, 2)], []
    for seed in range(10):
        rng, others = random.Random(seed), Placer("random", seed)
        free = FreeResources(make_cluster(*[8] * 200))
        while free.gpu_milli > (1 - full) * 200 * 8 * WHOLE:
            others.place(free, Demand(1, 1, rng.choice([WHOLE, 500])))
        waiting = [rng.choice(demand_kinds) for _ in range(60)]
        rows = rows_of(free, demand_kinds)
        best = max(pair_fitness(free.arrays, node, rows, row) for node in range(200) for row in range(len(rows)))
        found, _, _ = best_pair(free.arrays, rows_of(free, waiting), np.arange(60), GENERATIONS, Random(seed))
        shares.append(max(0.0, found) / best)
    return sum(shares) / len(shares)


def test_on_a_full_cluster_the_search_misses_pairs_that_fit() -> None:
    assert mean_share_of_the_optimum(0.7) == 1.0
    assert mean_share_of_the_optimum(0.99) < 0.9


def test_a_partly_placed_gang_is_released() -> None:
    free, before = FreeResources(make_cluster(3)), FreeResources(make_cluster(3))
    assert Placer("genetic-paper").place_all(free, [Demand(4)]) == [None]
    assert np.array_equal(free.nodes, before.nodes)
    assert np.array_equal(free.gpus, before.gpus)
    assert np.array_equal(free.bits, before.bits)


@given(st.integers(0, 50))
def test_only_complete_gangs_are_placed_and_nothing_else_is_taken(seed: int) -> None:
    rng = random.Random(seed)
    free = FreeResources(make_cluster(4, 4, 2))
    replayed, gangs = free.copy(), [Demand(rng.randint(2, 5), rng.choice([1, 2])) for _ in range(6)]
    found = Placer("genetic-paper").place_all(free, gangs)
    for gang, placement in zip(gangs, found, strict=True):
        assert placement is None or (len(placement) == gang.instances and replayed.take(placement) is None)
    assert np.array_equal(free.nodes, replayed.nodes)
    assert np.array_equal(free.gpus, replayed.gpus)


@pytest.mark.parametrize(
    ("taken", "demand", "expected"),
    [
        ([0, 400, 700], Demand(1, 1, 300), (2,)),
        ([0, 400, 701], Demand(1, 1, 300), (1,)),
        ([700, 400, 700], Demand(1, 1, 300), (0,)),
        ([400, 0, 0], Demand(1, 1), (1,)),
        ([100, 0, 300], Demand(1, 2, 500), (0, 1)),
    ],
)
def test_one_gpu_is_the_fullest_that_fits_and_several_are_the_emptiest(
    taken: list[int], demand: Demand, expected: tuple[int, ...]
) -> None:
    free = FreeResources(make_cluster(3))
    for gpu, milli in enumerate(taken):
        assert not milli or free.take((Share(0, (gpu,), milli),)) is None
    [placement] = Placer("genetic-paper").place_all(free, [demand])
    assert placement is not None and placement[0].gpus == expected


def test_a_single_demand_falls_back_to_first_fit_if_the_search_misses() -> None:
    # Only one of 2,000 machines is free: a hundred random pairs and their children hardly find it.
    free = FreeResources(make_cluster(*[1] * 2000))
    for node in range(2000):
        assert node == 1234 or free.take((Share(node, (0,)),)) is None
    there: Placement = (Share(1234, (0,)),)
    assert Placer("genetic-paper").place_all(free.copy(), [Demand()]) == [None]
    assert Placer("genetic-paper").place(free, Demand()) == there
