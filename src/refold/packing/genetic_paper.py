"""The genetic placement as it was published (JIIBC 24-3, 2024), for comparison. Compiled, seeded.

A solution is a pair: one machine, one waiting instance. Its fitness is the increase of the machine's GPU utilisation
if the instance fits there, and −1 otherwise; the paper does not say whose utilisation, and that of the cluster is
the same wherever an instance goes. 100 pairs by lot; in each generation 40 of them, the least fit, are replaced:
parents are the fittest of 20 drawn by lot, a child has the machine of one and the instance of the other, or is the
other (the point of the crossover lies before or behind the first of two genes), and each gene is then drawn anew with
the probability `MUTATES`. The paper's text gives the larger probability to solutions above the mean; PyGAD, with which
it was made, to those below, and so do we. After 50 generations the fittest pair is placed, on the fullest GPU with
room, and the search begins again without it; it ends when the fittest pair does not fit.
"""

from __future__ import annotations

import numpy as np

from refold.model import WHOLE
from refold.packing.genetic import PlacementState, Window, chance, fittest_of, hosts, lot, mark_hopeless, take
from refold.packing.jit import compiled, inlined
from refold.packing.kernels import LOOSEST, TIGHTEST, need_of, pick_gpus
from refold.packing.layout import GPU_MASK, GPUS, NODE, Bools, Ints, Need

POPULATION = 100
TOURNAMENT = 20
CHILDREN = 40
GENERATIONS = 50
MUTATES = (0.25, 0.1)
"""The probability for solutions below the mean fitness, and for the others."""

MISFIT = -1.0


@inlined
def fitness_of(nodes: Ints, gpus: Ints, machine: int, need: Need) -> float:
    """The increase of a machine's GPU utilisation, or -1."""
    if not hosts(nodes, gpus, machine, need):
        return MISFIT
    return need.gpus * need.milli / (nodes[machine, GPUS] * WHOLE) if need.gpus > 0 else 0.0


@compiled
def best_pair(
    nodes: Ints, gpus: Ints, demands: Ints, tasks: Ints, generations: int, memory: Ints
) -> tuple[float, int, int]:
    """One search: fitness, machine, and which of `tasks` (rows of `demands`). Of equals, that in the first slot."""
    machines, count = nodes.shape[0] - 1, tasks.shape[0]
    machine, task = np.empty(POPULATION, dtype=np.int64), np.empty(POPULATION, dtype=np.int64)
    fitness, weakest_first = np.empty(POPULATION), np.empty(POPULATION, dtype=np.int64)
    child_machine, child_task = np.empty(CHILDREN, dtype=np.int64), np.empty(CHILDREN, dtype=np.int64)
    for one in range(POPULATION):
        machine[one], task[one] = lot(memory) % machines, lot(memory) % count
        fitness[one] = fitness_of(nodes, gpus, machine[one], need_of(demands, tasks[task[one]]))
    for _ in range(generations):
        for child in range(CHILDREN):
            mother, father = fittest_of(TOURNAMENT, fitness, memory), fittest_of(TOURNAMENT, fitness, memory)
            child_machine[child] = machine[mother] if lot(memory) % 2 == 1 else machine[father]
            child_task[child] = task[father]
        weakest_first[:] = np.argsort(fitness, kind="mergesort")
        for child in range(CHILDREN):
            one = weakest_first[child]
            machine[one], task[one] = child_machine[child], child_task[child]
            fitness[one] = fitness_of(nodes, gpus, machine[one], need_of(demands, tasks[task[one]]))
        mean = fitness.mean()
        for child in range(CHILDREN):
            one = weakest_first[child]
            mutates = MUTATES[0] if fitness[one] < mean else MUTATES[1]
            if chance(memory) < mutates:
                machine[one] = lot(memory) % machines
            if chance(memory) < mutates:
                task[one] = lot(memory) % count
            fitness[one] = fitness_of(nodes, gpus, machine[one], need_of(demands, tasks[task[one]]))
    best = np.argmax(fitness)
    return fitness[best], machine[best], task[best]


@compiled
def evolve_paper(books: PlacementState, window: Window, memory: Ints, places: Ints, placed: Bools) -> None:
    """Place pair after pair; then give back the jobs of which some instances found no place.

    Those for whom there is no place even if they were alone are left out from the start: to search for them would
    only take longer.
    """
    jobs, instances = window.jobs.shape[0], places.shape[0]
    tasks, job_of = np.empty(instances, dtype=np.int64), np.empty(instances, dtype=np.int64)
    row_of_task = np.arange(instances)
    missing, never = np.zeros(jobs, dtype=np.int64), np.zeros(window.demands.shape[0], dtype=np.bool_)
    mark_hopeless(books, window, places, never)
    left = 0
    for job in range(jobs):
        missing[job] = window.first[job + 1] - window.first[job]
        for instance in range(window.first[job], window.first[job + 1]):
            job_of[instance] = job
            if not never[window.jobs[job]]:
                tasks[left], row_of_task[left] = window.jobs[job], instance
                left += 1
    places[:, NODE] = -1
    while left > 0:
        fitness, machine, which = best_pair(books.nodes, books.gpus, window.demands, tasks[:left], GENERATIONS, memory)
        if fitness == MISFIT:
            break
        need, instance = need_of(window.demands, tasks[which]), row_of_task[which]
        mask = pick_gpus(books.nodes, books.gpus, machine, need, TIGHTEST if need.gpus == 1 else LOOSEST)
        take(books, machine, mask, need, 1)
        places[instance, NODE], places[instance, GPU_MASK] = machine, mask
        missing[job_of[instance]] -= 1
        left -= 1
        tasks[which], row_of_task[which] = tasks[left], row_of_task[left]
    for job in range(jobs):
        placed[job] = missing[job] == 0
        if not placed[job]:
            need = need_of(window.demands, window.jobs[job])
            for instance in range(window.first[job], window.first[job + 1]):
                if places[instance, NODE] >= 0:
                    take(books, places[instance, NODE], places[instance, GPU_MASK], need, -1)
