"""Pollux's genetic algorithm, compiled: crossover, mutation, repair and fitness of allocation matrices.

An allocation matrix has one row per job and one column per node; its entries are GPUs. An `AllocationProblem` holds the
constraints and speeds. All random numbers come from the generator passed in.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from refold.jit import compiled
from refold.packing import Bools, Floats, Ints

RESET_PROBABILITY = 0.1
"""Probability that mutation resets a job's row to its current allocation (from Pollux's released code)."""

CLEAR_PROBABILITY = 0.01
"""Probability that mutation removes all GPUs of a job (from Pollux's released code: 0.1 × 0.1)."""

MEAN_RESIZED_JOBS = 2.0
"""Mean number of jobs per child that mutation resizes (not from Pollux)."""


class AllocationProblem(NamedTuple):
    """Constraints of an allocation matrix, and the speeds that determine its fitness.

    Jobs of one `kind` have the same speeds. The sizes of a kind are its possible numbers of GPUs.
    """

    kind: Ints
    """Kind of each job."""
    max_gpus: Ints
    """Maximum number of GPUs of each job."""
    choices: Ints
    """Number of sizes up to `max_gpus`, for each job."""
    capacity: Ints
    """Number of GPUs that each job could have on each node if it were alone: jobs × nodes."""
    need: Ints
    """GPUs, CPUs and memory per GPU of each job: jobs × 3."""
    free: Ints
    """Free GPUs, CPUs and memory of each node: nodes × 3."""
    type_of: Ints
    """GPU type of each node."""
    distributed: Bools
    """Whether each node has a distributed job that is not part of the search."""
    sizes: Ints
    """Kinds × sizes, ascending, padded with 0."""
    size_below: Ints
    """Kinds × GPUs: the largest size not above this number of GPUs."""
    speed: Floats
    """Kinds × types × nodes × GPUs; 0 where impossible."""
    fair_speed: Floats
    """Speed of each job on a fair share."""
    current: Ints
    """Current allocation: jobs × nodes."""
    is_running: Bools
    """Whether each job has GPUs now."""
    restart_factor: Floats
    """Restart factor of each job, applied to its speedup if its allocation changes."""
    min_speedup: float
    """Speedup of a job without GPUs."""
    power: float
    """Exponent of the power mean over jobs."""


@compiled
def evolve(problem: AllocationProblem, size: int, generations: int, rng: np.random.Generator) -> Ints:
    """Return the best allocation matrix found; the initial population is the current allocation and mutants of it."""
    jobs, nodes = problem.current.shape
    population = np.empty((2 * size, jobs, nodes), dtype=np.int64)
    scores = np.empty(2 * size, dtype=np.float64)
    favoured = np.zeros(jobs, dtype=np.bool_)
    for index in range(size):
        population[index] = problem.current
        favoured[:] = False
        if index > 0:
            mutate(problem, population[index], favoured, rng)
        repair(problem, population[index], favoured, rng)
        scores[index] = fitness(problem, population[index])
    for _ in range(generations):
        for child in range(size, 2 * size):
            crossover(population, _select_parent(scores, size, rng), _select_parent(scores, size, rng), child, rng)
            favoured[:] = False
            mutate(problem, population[child], favoured, rng)
            repair(problem, population[child], favoured, rng)
            scores[child] = fitness(problem, population[child])
        _select_survivors(population, scores, size)
    best: Ints = population[np.argmax(scores[:size])].copy()
    return best


@compiled
def _select_parent(scores: Floats, size: int, rng: np.random.Generator) -> int:
    """Return the better of two random individuals (binary tournament)."""
    first, second = rng.integers(0, size), rng.integers(0, size)
    return int(first if scores[first] >= scores[second] else second)


@compiled
def _select_survivors(population: Ints, scores: Floats, size: int) -> None:
    """Keep the best individuals, older ones first; equal scores survive only if distinct ones run out."""
    chosen = np.empty(size, dtype=np.int64)
    is_chosen = np.zeros(2 * size, dtype=np.bool_)
    count, last = 0, np.inf
    while count < size:
        best = _best_below(scores, is_chosen, last)
        if best < 0:  # only duplicates are left
            best = _best_below(scores, is_chosen, np.inf)
        is_chosen[best] = True
        last = scores[best]
        chosen[count] = best
        count += 1
    survivors, survivor_scores = population[chosen], scores[chosen]
    for index in range(size):
        population[index] = survivors[index]
        scores[index] = survivor_scores[index]


@compiled
def _best_below(scores: Floats, is_chosen: Bools, bound: float) -> int:
    best = -1
    for index in range(scores.shape[0]):
        if not is_chosen[index] and scores[index] < bound and (best < 0 or scores[index] > scores[best]):
            best = index
    return best


@compiled
def crossover(population: Ints, first_parent: int, second_parent: int, child: int, rng: np.random.Generator) -> None:
    """Uniform crossover: take each job's row from one of two parents."""
    _, jobs, nodes = population.shape
    for job in range(jobs):
        parent = first_parent if rng.random() < 0.5 else second_parent
        for node in range(nodes):
            population[child, job, node] = population[parent, job, node]


@compiled
def mutate(problem: AllocationProblem, matrix: Ints, favoured: Bools, rng: np.random.Generator) -> None:
    """Reset some jobs to their current allocation, clear some, and resize some elsewhere."""
    jobs = matrix.shape[0]
    resize_probability = MEAN_RESIZED_JOBS / jobs
    for job in range(jobs):
        draw = rng.random()
        if draw < RESET_PROBABILITY:
            matrix[job] = problem.current[job]
        elif draw < RESET_PROBABILITY + CLEAR_PROBABILITY:
            matrix[job] = 0
        elif rng.random() < resize_probability and problem.choices[job] > 0:
            _resize(problem, matrix, job, rng)
            favoured[job] = True


@compiled
def _resize(problem: AllocationProblem, matrix: Ints, job: int, rng: np.random.Generator) -> None:
    """Give a job a random size on the nodes with the most free GPUs, or from a random node on; repair makes it fit."""
    jobs, nodes = matrix.shape
    gpus_left = problem.sizes[problem.kind[job], rng.integers(0, problem.choices[job])]
    first_node, by_free_gpus = rng.integers(0, nodes), rng.random() < 0.5
    preference = np.empty(nodes, dtype=np.int64)
    for node in range(nodes):
        matrix[job, node] = 0
        preference[node] = -((node - first_node) % nodes)
        if by_free_gpus:
            preference[node] = problem.free[node, 0]
            for other in range(jobs):
                preference[node] -= matrix[other, node]
    gpu_type = -1
    while gpus_left > 0:
        best = -1
        for node in range(nodes):
            is_open = matrix[job, node] == 0 and problem.capacity[job, node] > 0
            fits_type = gpu_type < 0 or problem.type_of[node] == gpu_type
            if is_open and fits_type and (best < 0 or preference[node] > preference[best]):
                best = node
        if best < 0:
            return
        matrix[job, best] = min(gpus_left, problem.capacity[job, best])
        gpus_left -= matrix[job, best]
        gpu_type = problem.type_of[best]


@compiled
def repair(problem: AllocationProblem, matrix: Ints, favoured: Bools, rng: np.random.Generator) -> None:
    """Make an allocation matrix feasible by removing GPUs only; favoured jobs keep theirs before others do."""
    _restrict_to_one_type(problem, matrix)
    _separate_distributed_jobs(problem, matrix, favoured, rng)
    _restrict_to_capacity(problem, matrix, favoured, rng)
    _round_down(problem, matrix)


@compiled
def _restrict_to_one_type(problem: AllocationProblem, matrix: Ints) -> None:
    """Restrict each job to one GPU type: the type of the node where it has the most GPUs."""
    jobs, nodes = matrix.shape
    for job in range(jobs):
        most, kept_type = 0, -1
        for node in range(nodes):
            matrix[job, node] = min(matrix[job, node], problem.capacity[job, node])
            if matrix[job, node] > most:
                most, kept_type = matrix[job, node], problem.type_of[node]
        for node in range(nodes):
            if problem.type_of[node] != kept_type:
                matrix[job, node] = 0


@compiled
def _separate_distributed_jobs(
    problem: AllocationProblem, matrix: Ints, favoured: Bools, rng: np.random.Generator
) -> None:
    """Leave at most one distributed job per node: two would share the node's network."""
    jobs, nodes = matrix.shape
    spans = np.zeros(jobs, dtype=np.int64)
    for job in range(jobs):
        for node in range(nodes):
            spans[job] += matrix[job, node] > 0
    for node in range(nodes):
        keeper, seen = -1, 0
        for job in range(jobs):
            if spans[job] < 2 or matrix[job, node] == 0:
                continue
            seen += 1
            loser = job
            if not problem.distributed[node]:
                keeper_stays = keeper >= 0 and (
                    rng.random() >= 1.0 / seen if favoured[job] == favoured[keeper] else favoured[keeper]
                )
                loser, keeper = (job, keeper) if keeper_stays else (keeper, job)
            if loser >= 0:
                matrix[loser, node] = 0
                spans[loser] -= 1


@compiled
def _restrict_to_capacity(problem: AllocationProblem, matrix: Ints, favoured: Bools, rng: np.random.Generator) -> None:
    """Remove GPUs of random jobs on each node until its capacity suffices."""
    for node in range(matrix.shape[1]):
        excess = _excess_gpus(problem.need, problem.free, matrix, node)
        while excess > 0:
            victim = _victim(matrix, node, favoured, rng)
            matrix[victim, node] -= min(matrix[victim, node], excess)
            excess = _excess_gpus(problem.need, problem.free, matrix, node)


@compiled
def _excess_gpus(need: Ints, free: Ints, matrix: Ints, node: int) -> int:
    """Return the number of GPUs above a node's capacity; at least 1 if CPUs or memory do not suffice."""
    gpus, cpus, memory = 0, 0, 0
    for job in range(matrix.shape[0]):
        if matrix[job, node] > 0:
            gpus += matrix[job, node] * need[job, 0]
            cpus += matrix[job, node] * need[job, 1]
            memory += matrix[job, node] * need[job, 2]
    short = gpus > 0 and (cpus > free[node, 1] or memory > free[node, 2])
    return int(max(gpus - free[node, 0], 1 if short else 0))


@compiled
def _victim(matrix: Ints, node: int, favoured: Bools, rng: np.random.Generator) -> int:
    """Return a random job on the node; a favoured one only if there are no others."""
    victim, seen, ordinary = -1, 0, False
    for job in range(matrix.shape[0]):
        if matrix[job, node] == 0 or (ordinary and favoured[job]):
            continue
        if not ordinary and not favoured[job]:
            ordinary, seen = True, 0
        seen += 1
        if rng.random() < 1.0 / seen:
            victim = job
    return victim


@compiled
def _round_down(problem: AllocationProblem, matrix: Ints) -> None:
    """Round each job down to its next possible size, removing GPUs from the node where it has fewest first."""
    jobs, nodes = matrix.shape
    for job in range(jobs):
        total = 0
        for node in range(nodes):
            total += matrix[job, node]
        excess = total - problem.size_below[problem.kind[job], min(total, problem.max_gpus[job])]
        while excess > 0:
            fewest = -1
            for node in range(nodes):
                if matrix[job, node] > 0 and (fewest < 0 or matrix[job, node] < matrix[job, fewest]):
                    fewest = node
            removed = min(excess, matrix[job, fewest])
            matrix[job, fewest] -= removed
            excess -= removed


@compiled
def fitness(problem: AllocationProblem, matrix: Ints) -> float:
    """Return the power mean of all speedups relative to a fair share, restart factors included."""
    jobs, nodes = matrix.shape
    sum_of_powers = 0.0
    for job in range(jobs):
        total, spans, gpu_type, changed = 0, 0, 0, False
        for node in range(nodes):
            changed = changed or matrix[job, node] != problem.current[job, node]
            if matrix[job, node] > 0:
                total += matrix[job, node]
                spans += 1
                gpu_type = problem.type_of[node]
        speedup = 0.0
        if 0 < spans < problem.speed.shape[2]:
            speedup = problem.speed[problem.kind[job], gpu_type, spans, total] / problem.fair_speed[job]
        if changed and problem.is_running[job]:
            speedup *= problem.restart_factor[job]
        sum_of_powers += max(problem.min_speedup, speedup) ** problem.power
    return float((sum_of_powers / jobs) ** (1.0 / problem.power))
