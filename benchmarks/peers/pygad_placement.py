"""The genetic placement of the paper on PyGAD, the library that its authors name.

An individual is a pair of genes, a machine and a task of the window; the fittest pair is placed, and the next search
begins. Fitness is the gain in GPU utilisation of the machine if the task fits there, else −1. Population 100,
tournaments of 20, one-point crossover, 60 elders kept so that 40 children replace the others, adaptive mutation with
PyGAD's reading of 0.25 and 0.1 (the first for children below the mean). To be fair to PyGAD, who fits where is worked
out beforehand (compiled), so that a fitness costs one look-up.

`Whole` is the other reading of the paper: one gene for each task, the sum of gains, −1 if any task does not fit.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.pairwise import all_fit, feasible, placed_on
from refold.model import WHOLE, Demand, Placement, Share
from refold.packing import Floats, Free

POPULATION = 100
GENERATIONS = 50
TOURNAMENT = 0.2
REPLACED = 0.4
MUTATION = (0.25, 0.1)
"""Below the mean of the generation, and above it."""

MISFIT = -1.0


class Found(NamedTuple):
    """The fittest pair of a search."""

    machine: int
    task: int
    fitness: float


def gains(free: Free, demands: Sequence[Demand]) -> Floats:
    """By how much one instance of each task (column) raises the GPU utilisation of each machine (row) if it fits there.

    The paper does not say whose utilisation; the cluster's would be the same wherever a task goes.
    """
    asked = np.array([demand.gpus * demand.gpu_milli for demand in demands], dtype=np.float64)
    owned = np.array([node.gpus * WHOLE for node in free.cluster.nodes], dtype=np.float64)
    return np.where(feasible(free, demands), asked[None, :] / np.maximum(owned, 1.0)[:, None], MISFIT)


class Pairs:
    """Searches for the fittest pair of a machine and a task."""

    def __init__(self, generations: int = GENERATIONS, population: int = POPULATION) -> None:
        self.generations = generations
        self.population = population

    def search(self, gain: Floats, seed: int) -> Found:
        """One decision, from the table of `gains`."""
        table = gain.tolist()  # lists answer faster than arrays to one index at a time

        def fitness(_: Any, genes: NDArray[np.int64], __: Any) -> float:
            machine, task = genes.tolist()
            return float(table[machine][task])

        genes, best = _evolved(fitness, [range(size) for size in gain.shape], self.generations, self.population, seed)
        return Found(int(genes[0]), int(genes[1]), best)


class Whole:
    """Searches for machines for all tasks at once: one gene for each."""

    def __init__(self, generations: int = GENERATIONS, population: int = POPULATION) -> None:
        self.generations = generations
        self.population = population

    def search(self, free: Free, demands: Sequence[Demand], seed: int) -> float:
        """The best fitness: the gain of all tasks in the cluster's utilisation; −1 if all individuals had a misfit."""
        vectors = np.concatenate([free.vector(demand) for demand in demands])
        gain = sum(demand.gpus * demand.gpu_milli for demand in demands) / (free.cluster.gpus * WHOLE)

        def fitness(_: Any, genes: NDArray[np.int64], __: Any) -> float:
            trial = free.copy()
            return gain if all_fit(trial.nodes, trial.gpus, trial.bits, vectors, genes.astype(np.int64)) else MISFIT

        spaces = [range(len(free.cluster.nodes))] * len(demands)
        return _evolved(fitness, spaces, self.generations, self.population, seed)[1]


def _evolved(
    fitness: Any, spaces: Sequence[range], generations: int, population: int, seed: int
) -> tuple[NDArray[np.int64], float]:
    import pygad  # only who measures it needs it

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


def place_all(free: Free, demands: Sequence[Demand], seed: int, search: Pairs | None = None) -> list[Placement | None]:
    """A whole window, pair by pair, until a search finds nobody who fits. A gang keeps its places only if it is whole.

    The instances of a gang are tasks of their own in the search; its places are given back if it does not get all.
    """
    pairs = search or Pairs()
    left = [index for index, demand in enumerate(demands) for _ in range(demand.instances)]
    shares: list[list[Share]] = [[] for _ in demands]
    turn = 0
    while left:
        waiting = [demands[index] for index in left]
        found = pairs.search(gains(free, waiting), seed * 100_003 + turn)
        turn += 1
        if found.fitness == MISFIT:
            break
        index = left.pop(found.task)
        shares[index].append(placed_on(free, found.machine, demands[index]))
    answers: list[Placement | None] = []
    for demand, held in zip(demands, shares, strict=True):
        whole = len(held) == demand.instances
        if not whole:
            free.give_back(held)
        answers.append(tuple(held) if whole else None)
    return answers
