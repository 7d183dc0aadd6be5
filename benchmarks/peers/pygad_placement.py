"""The paper's genetic placement with PyGAD, the library that its authors used.

An individual is a pair of genes: a machine and a task of the window. The fittest pair is placed, then the next search
starts. Fitness is the gain in GPU utilisation of the machine if the task fits, else −1. Population 100, tournaments of
20, one-point crossover, elitism of 60 so that 40 children replace the rest, adaptive mutation with probabilities 0.25
and 0.1 as PyGAD interprets them (the first for children below the mean). For a fair comparison with PyGAD, feasibility
is computed beforehand by compiled code, so that evaluating the fitness is one table lookup.

`WindowSearch` implements the other interpretation of the paper: one gene per task, fitness is the sum of gains, −1 if
any task does not fit.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.pairwise import feasible, place_on
from refold.model import WHOLE, Demand, Placement, Share
from refold.placement import Floats, FreeResources

POPULATION = 100
GENERATIONS = 50
TOURNAMENT = 0.2
REPLACED = 0.4
MUTATION = (0.25, 0.1)
"""Mutation probabilities of individuals below and above the mean fitness of the generation."""

MISFIT = -1.0


class PairResult(NamedTuple):
    """The fittest pair found by a search."""

    machine: int
    task: int
    fitness: float


def gains(free: FreeResources, demands: Sequence[Demand]) -> Floats:
    """Return the gain in GPU utilisation of each machine (row) from one instance of each task (column) that fits.

    The paper does not define which utilisation. That of the cluster would be the same on every machine, so this uses
    the utilisation of the machine.
    """
    requested = np.array([demand.gpus * demand.gpu_milli for demand in demands], dtype=np.float64)
    capacity = np.array([node.gpus * WHOLE for node in free.cluster.nodes], dtype=np.float64)
    return np.where(feasible(free, demands), requested[None, :] / np.maximum(capacity, 1.0)[:, None], MISFIT)


class PairSearch:
    """Search for the fittest pair of a machine and a task."""

    def __init__(self, generations: int = GENERATIONS, population: int = POPULATION) -> None:
        self.generations = generations
        self.population = population

    def search(self, gain: Floats, seed: int) -> PairResult:
        """Find one pair, given the table of `gains`."""
        table = gain.tolist()  # element access is faster for lists than for arrays

        def fitness(_: Any, genes: NDArray[np.int64], __: Any) -> float:
            machine, task = genes.tolist()
            return float(table[machine][task])

        genes, best = _evolve(fitness, [range(size) for size in gain.shape], self.generations, self.population, seed)
        return PairResult(int(genes[0]), int(genes[1]), best)


class WindowSearch:
    """Search for machines for all tasks of the window at once: one gene per task."""

    def __init__(self, generations: int = GENERATIONS, population: int = POPULATION) -> None:
        self.generations = generations
        self.population = population

    def search(self, free: FreeResources, demands: Sequence[Demand], seed: int) -> float:
        """Return the best fitness: the total gain in cluster utilisation, or −1 if no individual was feasible."""
        gain = sum(demand.gpus * demand.gpu_milli for demand in demands) / (free.cluster.gpus * WHOLE)

        def fitness(_: Any, genes: NDArray[np.int64], __: Any) -> float:
            trial = free.copy()
            placed = (place_on(trial, int(node), demand) for node, demand in zip(genes, demands, strict=True))
            return gain if all(placed) else MISFIT

        spaces = [range(len(free.cluster.nodes))] * len(demands)
        return _evolve(fitness, spaces, self.generations, self.population, seed)[1]


def _evolve(
    fitness: Any, spaces: Sequence[range], generations: int, population: int, seed: int
) -> tuple[NDArray[np.int64], float]:
    import pygad  # optional dependency

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search = pygad.GA(
            num_generations=generations,
            num_parents_mating=round(REPLACED * population),
            fitness_func=fitness,
            sol_per_pop=population,
            num_genes=len(spaces),
            gene_space=list(spaces),
            gene_type=int,
            parent_selection_type="tournament",
            K_tournament=round(TOURNAMENT * population),
            keep_elitism=population - round(REPLACED * population),
            crossover_type="single_point",
            mutation_type="adaptive",
            mutation_probability=list(MUTATION),
            save_best_solutions=False,
            suppress_warnings=True,
            random_seed=seed,
        )
        search.run()
        genes, best, _ = search.best_solution(search.last_generation_fitness)
    return genes, float(best)


def place_all(
    free: FreeResources, demands: Sequence[Demand], seed: int, search: PairSearch | None = None
) -> list[Placement | None]:
    """Place a window, pair by pair, until a search finds no task that fits.

    The instances of a gang are separate tasks in the search. A gang that could not be placed completely is released.
    """
    pairs = search or PairSearch()
    unplaced = [index for index, demand in enumerate(demands) for _ in range(demand.instances)]
    shares: list[list[Share]] = [[] for _ in demands]
    searches = 0
    while unplaced:
        waiting = [demands[index] for index in unplaced]
        found = pairs.search(gains(free, waiting), seed * 100_003 + searches)
        searches += 1
        if found.fitness == MISFIT:
            break
        index = unplaced.pop(found.task)
        share = place_on(free, found.machine, demands[index])
        assert share is not None, "the search finds only tasks that fit"
        shares[index].append(share)
    placements: list[Placement | None] = []
    for demand, held in zip(demands, shares, strict=True):
        complete = len(held) == demand.instances
        if not complete:
            free.release(held)
        placements.append(tuple(held) if complete else None)
    return placements
