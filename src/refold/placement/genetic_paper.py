"""Genetic placement as published (JIIBC 24-3, 2024), for comparison. Compiled; deterministic for a seed.

A solution is a pair of one machine and one waiting instance. Its fitness is the increase in the machine's GPU
utilisation if the instance fits there, and −1 otherwise. (The paper does not say whether machine or cluster
utilisation is meant; the latter is the same for every placement.) The population is 100 random pairs. In each
generation the 40 least fit are replaced by children: parents are selected by tournaments of 20; a child takes the
machine of one parent and the instance of the other, or equals the other (the crossover point lies before or after the
first of the two genes); each gene is then mutated with one of `MUTATION_PROBABILITIES`. The paper gives the larger
probability to solutions above the mean; PyGAD, which the authors used, gives it to those below, and so do we. After 50
generations the fittest pair is placed, on the fullest GPU where it fits, and the search restarts without it. It ends
when the fittest pair does not fit.
"""

from __future__ import annotations

import cython
import numpy as np

from refold.model import WHOLE
from refold.model.arrays import view
from refold.placement.layout import GPU_MASK, GPUS, LOOSEST, NODE, TIGHTEST, Bools, Floats, Ints

if not cython.compiled:
    from refold.placement.genetic_decoding import (
        PlacementState,
        Solution,
        Window,
        can_host,
        change_usage,
        mark_infeasible,
    )
    from refold.placement.genetic_operators import (
        Random,
        next_random,
        random_fraction,
        select_by_tournament,
        sort_by_keys,
    )
    from refold.placement.kernels import FreeArrays, need_at, pick_gpus

POPULATION = 100
TOURNAMENT = 20
CHILDREN = 40
GENERATIONS = 50
UNFIT_MUTATION, FIT_MUTATION = 0.25, 0.1
"""Mutation probabilities of solutions below the mean fitness, and of all others."""

MISFIT_FITNESS = -1.0


def pair_fitness(free: FreeArrays, machine: int, demands: Ints, row: int) -> float:
    """Return the increase in a machine's GPU utilisation, or -1 if the instance does not fit."""
    need = need_at(demands, row)
    if not can_host(free, machine, need):
        return MISFIT_FITNESS
    return float(need.gpus * need.milli) / (free.nodes[machine, GPUS] * WHOLE) if need.gpus > 0 else 0.0


def best_pair(free: FreeArrays, demands: Ints, tasks: Ints, generations: int, rng: Random) -> tuple[float, int, int]:
    """Run one search. Return fitness, machine, and index into `tasks` (rows of `demands`); ties: the first slot."""
    machines, count = free.nodes.shape[0] - 1, tasks.shape[0]
    machine, task = view(np.empty(POPULATION, dtype=np.int64)), view(np.empty(POPULATION, dtype=np.int64))
    order, scratch = view(np.empty(POPULATION, dtype=np.int64)), view(np.empty(POPULATION, dtype=np.int64))
    child_machine, child_task = view(np.empty(CHILDREN, dtype=np.int64)), view(np.empty(CHILDREN, dtype=np.int64))
    fitness, best = view(np.empty(POPULATION)), 0
    for member in range(POPULATION):
        machine[member] = next_random(rng) % machines
        task[member] = next_random(rng) % count
        fitness[member] = pair_fitness(free, machine[member], demands, tasks[task[member]])
    for _ in range(generations):
        for child in range(CHILDREN):
            mother = select_by_tournament(TOURNAMENT, fitness, rng)
            father = select_by_tournament(TOURNAMENT, fitness, rng)
            child_machine[child] = machine[mother] if next_random(rng) % 2 == 1 else machine[father]
            child_task[child] = task[father]
        sort_by_keys(fitness, 0, order, scratch)
        for child in range(CHILDREN):
            member = order[child]
            machine[member], task[member] = child_machine[child], child_task[child]
            fitness[member] = pair_fitness(free, machine[member], demands, tasks[task[member]])
        mean = _mean(fitness)
        for child in range(CHILDREN):
            member = order[child]
            probability = UNFIT_MUTATION if fitness[member] < mean else FIT_MUTATION
            if random_fraction(rng) < probability:
                machine[member] = next_random(rng) % machines
            if random_fraction(rng) < probability:
                task[member] = next_random(rng) % count
            fitness[member] = pair_fitness(free, machine[member], demands, tasks[task[member]])
    for member in range(1, POPULATION):
        if fitness[member] > fitness[best]:
            best = member
    return fitness[best], machine[best], task[best]


def _mean(values: Floats) -> float:
    total = 0.0
    for index in range(values.shape[0]):
        total += values[index]
    return total / values.shape[0]


def evolve_paper(state: PlacementState, window: Window, rng: Random, placements: Ints, placed: Bools) -> None:
    """Place pairs one by one, then release the jobs whose instances were not all placed.

    Jobs that do not fit even alone are excluded from the start, which only saves time.
    """
    jobs, solution = window.jobs.shape[0], Solution(window.demands.shape[0], placements, placed)
    instances = solution.placements.shape[0]
    tasks, job_of = view(np.empty(instances, dtype=np.int64)), view(np.empty(instances, dtype=np.int64))
    row_of_task, missing = view(np.arange(instances)), view(np.diff(window.first))
    mark_infeasible(state, window, solution)
    left = 0
    for job in range(jobs):
        for instance in range(window.first[job], window.first[job + 1]):
            job_of[instance] = job
            solution.placements[instance, NODE] = -1
            if not solution.infeasible[window.jobs[job]]:
                tasks[left], row_of_task[left] = window.jobs[job], instance
                left += 1
    while left > 0:
        fitness, machine, which = best_pair(state.free, window.demands, tasks[:left], GENERATIONS, rng)
        if fitness == MISFIT_FITNESS:
            break
        need, instance = need_at(window.demands, tasks[which]), row_of_task[which]
        mask = pick_gpus(state.free, machine, need, TIGHTEST if need.gpus == 1 else LOOSEST)
        change_usage(state, machine, mask, need, 1)
        solution.placements[instance, NODE], solution.placements[instance, GPU_MASK] = machine, mask
        missing[job_of[instance]] -= 1
        left -= 1
        tasks[which], row_of_task[which] = tasks[left], row_of_task[left]
    for job in range(jobs):
        solution.placed[job] = missing[job] == 0
        if not solution.placed[job]:
            need = need_at(window.demands, window.jobs[job])
            for instance in range(window.first[job], window.first[job + 1]):
                machine = solution.placements[instance, NODE]
                if machine >= 0:
                    change_usage(state, machine, solution.placements[instance, GPU_MASK], need, -1)
