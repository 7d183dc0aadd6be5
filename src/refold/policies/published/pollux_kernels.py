"""Pollux's genetic algorithm, compiled: crossover, mutation, repair and fitness of allocation matrices.

An allocation matrix has one row per job and one column per node; its entries are GPUs. An `AllocationProblem` holds the
constraints and speeds. All random numbers come from the generator passed in. Each is drawn in a statement of its own: C
may evaluate the parts of an expression in any order.
"""

from __future__ import annotations

from math import nan
from typing import Any, NamedTuple

import cython
import numpy as np
from numpy.typing import NDArray

from refold.placement import Bools, Floats, Ints

if not cython.compiled:
    from math import pow

    from refold.model.arrays import view

    def bits_of(generator: np.random.Generator) -> Any:
        return generator.bit_generator.ctypes

    def next_double(bits: Any) -> float:
        return float(bits.next_double(bits.state))

    def next_uint32(bits: Any) -> int:
        return int(bits.next_uint32(bits.state))


LOW_BITS = (1 << 32) - 1

Flags = NDArray[np.uint8]

RESET_PROBABILITY = 0.1
"""Probability that mutation resets a job's row to its current allocation (from Pollux's released code)."""

CLEAR_PROBABILITY = 0.01
"""Probability that mutation removes all GPUs of a job (from Pollux's released code: 0.1 × 0.1)."""

MEAN_RESIZED_JOBS = 2.0
"""Mean number of jobs per child that mutation resizes (not from Pollux)."""


class RandomNumbers:
    """The random numbers of a NumPy generator, drawn from its state."""

    def __init__(self, generator: np.random.Generator) -> None:
        self.generator = generator
        self.bits = bits_of(generator)

    def uniform(self) -> float:
        """Return the same as `generator.random()`."""
        return next_double(self.bits)

    def below(self, bound: int) -> int:
        """Return the same as `generator.integers(0, bound)`, which uses Lemire's method, for bounds below 2³²."""
        if bound == 1:
            return 0
        product = next_uint32(self.bits) * bound
        if product & LOW_BITS < bound:
            while product & LOW_BITS < (LOW_BITS + 1 - bound) % bound:
                product = next_uint32(self.bits) * bound
        return product >> 32


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


class ProblemArrays:
    """The arrays of an `AllocationProblem`, and arrays for temporary use, for kernels."""

    def __init__(self, problem: AllocationProblem) -> None:
        self.kind, self.max_gpus, self.choices = view(problem.kind), view(problem.max_gpus), view(problem.choices)
        self.capacity, self.need, self.free = view(problem.capacity), view(problem.need), view(problem.free)
        self.type_of, self.distributed = view(problem.type_of), view(problem.distributed.view(np.uint8))
        self.sizes, self.size_below, self.speed = view(problem.sizes), view(problem.size_below), view(problem.speed)
        self.fair_speed, self.current = view(problem.fair_speed), view(problem.current)
        self.is_running, self.restart_factor = view(problem.is_running.view(np.uint8)), view(problem.restart_factor)
        self.min_speedup, self.power = problem.min_speedup, problem.power
        jobs, nodes = problem.current.shape
        self.spans, self.distributed_jobs = (view(np.empty(jobs, dtype=np.int64)) for _ in range(2))
        self.preference, self.used = view(np.empty(nodes, dtype=np.int64)), view(np.empty_like(problem.free))


def evolve(problem: AllocationProblem, size: int, generations: int, rng: np.random.Generator) -> Ints:
    """Return the best allocation matrix found; the initial population is the current allocation and mutants of it."""
    arrays, random = ProblemArrays(problem), RandomNumbers(rng)
    matrices, fitnesses = np.tile(problem.current, (2 * size, 1, 1)), np.empty(2 * size)
    row_of, survivors = np.arange(2 * size), np.empty(size, dtype=np.int64)  # `row_of` each individual in `matrices`
    population, scores, rows, chosen = matrices, fitnesses, row_of, survivors
    favoured, is_chosen = np.zeros(len(problem.current), dtype=np.uint8), np.empty(2 * size, dtype=np.uint8)
    for index in range(size):
        if index > 0:
            mutate(arrays, population[index], favoured, random)
        repair(arrays, population[index], favoured, random)
        scores[index] = fitness(arrays, population[index])
    for _ in range(generations):
        for child in range(size, 2 * size):
            first_parent = _select_parent(scores, size, random)
            second_parent = _select_parent(scores, size, random)
            crossover(population, rows[first_parent], rows[second_parent], rows[child], random)
            mutate(arrays, population[rows[child]], favoured, random)
            repair(arrays, population[rows[child]], favoured, random)
            scores[child] = fitness(arrays, population[rows[child]])
        _choose_survivors(scores, chosen, is_chosen)
        fitnesses[:size] = fitnesses[survivors]
        row_of[:] = np.concatenate([row_of[survivors], np.delete(row_of, survivors)])
    best: Ints = matrices[row_of[np.argmax(fitnesses[:size])]].copy()
    return best


def _select_parent(scores: Floats, size: int, random: RandomNumbers) -> int:
    """Return the better of two random individuals (binary tournament)."""
    first = random.below(size)
    second = random.below(size)
    return first if scores[first] >= scores[second] else second


def _choose_survivors(scores: Floats, chosen: Ints, is_chosen: Flags) -> None:
    """Choose the best individuals, older ones first; equal scores survive only if distinct ones run out."""
    for index in range(scores.shape[0]):
        is_chosen[index] = False
    last = nan
    for count in range(chosen.shape[0]):
        best = _best_below(scores, is_chosen, last)
        if best < 0:  # only duplicates are left
            best = _best_below(scores, is_chosen, nan)
        is_chosen[best] = True
        last = scores[best]
        chosen[count] = best


def _best_below(scores: Floats, is_chosen: Flags, bound: float) -> int:
    """Return the best individual that is not chosen and has a score below the bound (nan: any); or -1."""
    best = -1
    for index in range(scores.shape[0]):
        if is_chosen[index] or scores[index] >= bound:
            continue
        if best < 0 or scores[index] > scores[best]:
            best = index
    return best


def crossover(population: Ints, first_parent: int, second_parent: int, child: int, random: RandomNumbers) -> None:
    """Uniform crossover: take each job's row from one of two parents."""
    for job in range(population.shape[1]):
        parent = first_parent if random.uniform() < 0.5 else second_parent
        for node in range(population.shape[2]):
            population[child, job, node] = population[parent, job, node]


def mutate(problem: ProblemArrays, matrix: Ints, favoured: Flags, random: RandomNumbers) -> None:
    """Reset some jobs to their current allocation, clear some, and resize some elsewhere: these are favoured."""
    jobs, nodes = matrix.shape[0], matrix.shape[1]
    resize_probability = MEAN_RESIZED_JOBS / jobs
    for job in range(jobs):
        favoured[job] = False
        draw = random.uniform()
        if draw < RESET_PROBABILITY:
            for node in range(nodes):
                matrix[job, node] = problem.current[job, node]
        elif draw < RESET_PROBABILITY + CLEAR_PROBABILITY:
            for node in range(nodes):
                matrix[job, node] = 0
        elif random.uniform() < resize_probability and problem.choices[job] > 0:
            _resize(problem, matrix, job, random)
            favoured[job] = True


def _resize(problem: ProblemArrays, matrix: Ints, job: int, random: RandomNumbers) -> None:
    """Give a job a random size on the nodes with the most free GPUs, or from a random node on; repair makes it fit."""
    jobs, nodes, preference = matrix.shape[0], matrix.shape[1], problem.preference
    gpus_left = problem.sizes[problem.kind[job], random.below(problem.choices[job])]
    first_node = random.below(nodes)
    by_free_gpus = random.uniform() < 0.5
    for node in range(nodes):
        matrix[job, node] = 0
        preference[node] = problem.free[node, 0] if by_free_gpus else -((node - first_node + nodes) % nodes)
    if by_free_gpus:
        for other in range(jobs):
            for node in range(nodes):
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


def repair(problem: ProblemArrays, matrix: Ints, favoured: Flags, random: RandomNumbers) -> None:
    """Make an allocation matrix feasible by removing GPUs only; favoured jobs keep theirs before others do."""
    _restrict_to_one_type(problem, matrix)
    _separate_distributed_jobs(problem, matrix, favoured, random)
    _restrict_to_capacity(problem, matrix, favoured, random)
    _round_down(problem, matrix)


def _restrict_to_one_type(problem: ProblemArrays, matrix: Ints) -> None:
    """Restrict each job to one GPU type, that of the node where it has the most GPUs, and count its nodes."""
    for job in range(matrix.shape[0]):
        most, kept_type, spans = 0, -1, 0
        for node in range(matrix.shape[1]):
            if matrix[job, node] > 0:
                matrix[job, node] = min(matrix[job, node], problem.capacity[job, node])
                if matrix[job, node] > most:
                    most, kept_type = matrix[job, node], problem.type_of[node]
        for node in range(matrix.shape[1]):
            if matrix[job, node] > 0:
                if problem.type_of[node] == kept_type:
                    spans += 1
                else:
                    matrix[job, node] = 0
        problem.spans[job] = spans


def _separate_distributed_jobs(problem: ProblemArrays, matrix: Ints, favoured: Flags, random: RandomNumbers) -> None:
    """Leave at most one distributed job per node: two would share the node's network."""
    spans, distributed_jobs, count = problem.spans, problem.distributed_jobs, 0
    for job in range(matrix.shape[0]):
        if spans[job] > 1:
            distributed_jobs[count] = job
            count += 1
    for node in range(matrix.shape[1]):
        keeper, seen = -1, 0
        for index in range(count):
            job = distributed_jobs[index]
            if spans[job] < 2 or matrix[job, node] == 0:
                continue
            seen += 1
            loser = job
            if not problem.distributed[node]:
                keeper_stays = keeper >= 0 and (
                    random.uniform() >= 1.0 / seen if favoured[job] == favoured[keeper] else favoured[keeper] == 1
                )
                if not keeper_stays:
                    loser, keeper = keeper, job
            if loser >= 0:
                matrix[loser, node] = 0
                spans[loser] -= 1


def _restrict_to_capacity(problem: ProblemArrays, matrix: Ints, favoured: Flags, random: RandomNumbers) -> None:
    """Remove GPUs of random jobs on each node until its capacity suffices."""
    used = problem.used
    for node in range(matrix.shape[1]):
        used[node, 0] = used[node, 1] = used[node, 2] = 0
    for job in range(matrix.shape[0]):
        for node in range(matrix.shape[1]):
            if matrix[job, node] > 0:
                _use(problem, job, node, matrix[job, node])
    for node in range(matrix.shape[1]):
        excess = _excess_gpus(problem, node)
        while excess > 0:
            victim = _victim(matrix, node, favoured, random)
            removed = min(matrix[victim, node], excess)
            matrix[victim, node] -= removed
            _use(problem, victim, node, -removed)
            excess = _excess_gpus(problem, node)


def _use(problem: ProblemArrays, job: int, node: int, gpus: int) -> None:
    """Count the resources that a job uses on a node with so many GPUs."""
    for resource in range(3):
        problem.used[node, resource] += gpus * problem.need[job, resource]


def _excess_gpus(problem: ProblemArrays, node: int) -> int:
    """Return the number of GPUs above a node's capacity; at least 1 if CPUs or memory do not suffice."""
    used, free = problem.used, problem.free
    short = used[node, 0] > 0 and (used[node, 1] > free[node, 1] or used[node, 2] > free[node, 2])
    return int(max(used[node, 0] - free[node, 0], 1 if short else 0))


def _victim(matrix: Ints, node: int, favoured: Flags, random: RandomNumbers) -> int:
    """Return a random job on the node; a favoured one only if there are no others."""
    victim, seen, ordinary = -1, 0, False
    for job in range(matrix.shape[0]):
        if matrix[job, node] == 0 or (ordinary and favoured[job]):
            continue
        if not ordinary and not favoured[job]:
            ordinary, seen = True, 0
        seen += 1
        if random.uniform() < 1.0 / seen:
            victim = job
    return victim


def _round_down(problem: ProblemArrays, matrix: Ints) -> None:
    """Round each job down to its next possible size, removing GPUs from the node where it has fewest first."""
    jobs, nodes = matrix.shape[0], matrix.shape[1]
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


def fitness(problem: ProblemArrays, matrix: Ints) -> float:
    """Return the power mean of all speedups relative to a fair share, restart factors included."""
    jobs, nodes = matrix.shape[0], matrix.shape[1]
    sum_of_powers = 0.0
    for job in range(jobs):
        total, spans, gpu_type, changed = 0, 0, 0, False
        for node in range(nodes):
            if matrix[job, node] != problem.current[job, node]:
                changed = True
            if matrix[job, node] > 0:
                total += matrix[job, node]
                spans += 1
                gpu_type = problem.type_of[node]
        speedup = 0.0
        if 0 < spans < problem.speed.shape[2]:
            speedup = problem.speed[problem.kind[job], gpu_type, spans, total] / problem.fair_speed[job]
        if changed and problem.is_running[job]:
            speedup *= problem.restart_factor[job]
        sum_of_powers += pow(max(problem.min_speedup, speedup), problem.power)
    return pow(sum_of_powers / jobs, 1.0 / problem.power)
