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

import numpy as np

from refold.jit import compiled, inlined
from refold.model import WHOLE
from refold.packing.genetic import (
    PlacementState,
    Window,
    can_host,
    change_usage,
    mark_infeasible,
    next_random,
    random_fraction,
    select_by_tournament,
)
from refold.packing.kernels import LOOSEST, TIGHTEST, need_at, pick_gpus
from refold.packing.layout import GPU_MASK, GPUS, NODE, Bools, Ints, Need

POPULATION = 100
TOURNAMENT = 20
CHILDREN = 40
GENERATIONS = 50
MUTATION_PROBABILITIES = (0.25, 0.1)
"""Mutation probability of solutions below the mean fitness, and of all others."""

MISFIT_FITNESS = -1.0


@inlined
def pair_fitness(nodes: Ints, gpus: Ints, machine: int, need: Need) -> float:
    """Return the increase in a machine's GPU utilisation, or -1 if the instance does not fit."""
    if not can_host(nodes, gpus, machine, need):
        return MISFIT_FITNESS
    return need.gpus * need.milli / (nodes[machine, GPUS] * WHOLE) if need.gpus > 0 else 0.0


@compiled
def best_pair(
    nodes: Ints, gpus: Ints, demands: Ints, tasks: Ints, generations: int, rng: Ints
) -> tuple[float, int, int]:
    """Run one search. Return fitness, machine, and index into `tasks` (rows of `demands`); ties: the first slot."""
    machines, count = nodes.shape[0] - 1, tasks.shape[0]
    machine, task = np.empty(POPULATION, dtype=np.int64), np.empty(POPULATION, dtype=np.int64)
    fitness, weakest_first = np.empty(POPULATION), np.empty(POPULATION, dtype=np.int64)
    child_machine, child_task = np.empty(CHILDREN, dtype=np.int64), np.empty(CHILDREN, dtype=np.int64)
    for member in range(POPULATION):
        machine[member], task[member] = next_random(rng) % machines, next_random(rng) % count
        fitness[member] = pair_fitness(nodes, gpus, machine[member], need_at(demands, tasks[task[member]]))
    for _ in range(generations):
        for child in range(CHILDREN):
            mother, father = (
                select_by_tournament(TOURNAMENT, fitness, rng),
                select_by_tournament(TOURNAMENT, fitness, rng),
            )
            child_machine[child] = machine[mother] if next_random(rng) % 2 == 1 else machine[father]
            child_task[child] = task[father]
        weakest_first[:] = np.argsort(fitness, kind="mergesort")
        for child in range(CHILDREN):
            member = weakest_first[child]
            machine[member], task[member] = child_machine[child], child_task[child]
            fitness[member] = pair_fitness(nodes, gpus, machine[member], need_at(demands, tasks[task[member]]))
        mean = fitness.mean()
        for child in range(CHILDREN):
            member = weakest_first[child]
            probability = MUTATION_PROBABILITIES[0] if fitness[member] < mean else MUTATION_PROBABILITIES[1]
            if random_fraction(rng) < probability:
                machine[member] = next_random(rng) % machines
            if random_fraction(rng) < probability:
                task[member] = next_random(rng) % count
            fitness[member] = pair_fitness(nodes, gpus, machine[member], need_at(demands, tasks[task[member]]))
    best = np.argmax(fitness)
    return fitness[best], machine[best], task[best]


@compiled
def evolve_paper(state: PlacementState, window: Window, rng: Ints, placements: Ints, placed: Bools) -> None:
    """Place pairs one by one, then release the jobs whose instances were not all placed.

    Jobs that do not fit even alone are excluded from the start, which only saves time.
    """
    jobs, instances = window.jobs.shape[0], placements.shape[0]
    tasks, job_of = np.empty(instances, dtype=np.int64), np.empty(instances, dtype=np.int64)
    row_of_task = np.arange(instances)
    missing, infeasible = np.zeros(jobs, dtype=np.int64), np.zeros(window.demands.shape[0], dtype=np.bool_)
    mark_infeasible(state, window, placements, infeasible)
    left = 0
    for job in range(jobs):
        missing[job] = window.first[job + 1] - window.first[job]
        for instance in range(window.first[job], window.first[job + 1]):
            job_of[instance] = job
            if not infeasible[window.jobs[job]]:
                tasks[left], row_of_task[left] = window.jobs[job], instance
                left += 1
    placements[:, NODE] = -1
    while left > 0:
        fitness, machine, which = best_pair(state.nodes, state.gpus, window.demands, tasks[:left], GENERATIONS, rng)
        if fitness == MISFIT_FITNESS:
            break
        need, instance = need_at(window.demands, tasks[which]), row_of_task[which]
        mask = pick_gpus(state.nodes, state.gpus, machine, need, TIGHTEST if need.gpus == 1 else LOOSEST)
        change_usage(state, machine, mask, need, 1)
        placements[instance, NODE], placements[instance, GPU_MASK] = machine, mask
        missing[job_of[instance]] -= 1
        left -= 1
        tasks[which], row_of_task[which] = tasks[left], row_of_task[left]
    for job in range(jobs):
        placed[job] = missing[job] == 0
        if not placed[job]:
            need = need_at(window.demands, window.jobs[job])
            for instance in range(window.first[job], window.first[job + 1]):
                if placements[instance, NODE] >= 0:
                    change_usage(state, placements[instance, NODE], placements[instance, GPU_MASK], need, -1)
