"""Genetic search: which jobs of a window of the queue start, and on which nodes. Compiled; deterministic for a seed.

Genomes, their decoding and their fitness are those of `genetic_decoding`. The initial population is greedy: jobs in
order of arrival, largest first, highest value per cost first, and mutations of the best of these. Then parents are
selected by tournament, crossed over job by job, and a few jobs of the child are mutated (a new key, and the gene
cleared); the child replaces the least fit member if it is fitter. The search ends after `MAX_STALE_CHILDREN` children
without improvement or when its decoding budget is spent. It is skipped if all jobs fit in order of arrival.

The best solution is improved node by node (`genetic_refill`). In large windows, where only few solutions can be
decoded, and with many shares this brings most of the gain.
"""

from __future__ import annotations

import cython
import numpy as np

from refold.model.arrays import view
from refold.placement.layout import CPU_FREE, FIRST_GPU, GPUS, MILLI_FREE, UP, Bools, Floats, Ints

if not cython.compiled:
    from refold.placement.demand_history import row_of
    from refold.placement.genetic_decoding import (
        ANY_NODE,
        Genome,
        PlacementState,
        Solution,
        Window,
        count_placed,
        decode,
        job_gpus,
        mark_infeasible,
        place_rest,
        release_all,
    )
    from refold.placement.genetic_operators import (
        Random,
        next_random,
        random_fraction,
        select_by_tournament,
        sort_by_keys,
    )
    from refold.placement.genetic_refill import refill_nodes
    from refold.placement.kernels import need_at
    from refold.placement.lookahead import find_least_loss_node
    from refold.placement.worth import update_type_prices

POPULATION = 24
CPU_WEIGHTS = (0.0, 0.0, 0.06, 0.12, 0.25, 0.5)
"""Weights of CPUs relative to worth in the cost of a job, one for each greedy order by value per cost."""
GREEDY_SOLUTIONS = 2 + len(CPU_WEIGHTS)
"""How many members of the initial population are greedy solutions."""
TOURNAMENT = 5
MEAN_MUTATIONS = 3.0
"""Average number of mutated jobs per child."""
MAX_STALE_CHILDREN = 120
"""The search ends after this many children in a row without improvement."""
MAX_DECODED_INSTANCES = 200_000
"""Decoding budget in instances; at least `MIN_DECODED_SOLUTIONS` solutions are decoded."""
MIN_DECODED_SOLUTIONS = 12

GAP_FILLER_WORTH = 0.1
"""Jobs that cost less worth than this fill gaps, and are ordered last."""

INFINITE, NODE_HASH = np.inf, 0x9E3779B1


def evolve(state: PlacementState, window: Window, rng: Random, placements: Ints, placed: Bools) -> None:
    """Search, and place the jobs of a window according to the fittest solution."""
    count, solution = window.jobs.shape[0], Solution(window.demands.shape[0], placements, placed)
    history = state.history
    update_type_prices(state.free, history.type_sets, history.limited_demand, history.type_prices)
    decode(state, window, Genome(count, solution.placements.shape[0]), solution)
    placeable = count_placed(solution)
    if placeable in (0, count):
        return
    release_all(state, window, solution)
    mark_infeasible(state, window, solution)
    decode(state, window, _search(state, window, placeable, rng, solution), solution)
    if not window.in_order:
        refill_nodes(state, window, rng, solution)
        place_rest(state, window, solution)


def _search(state: PlacementState, window: Window, placeable: int, rng: Random, solution: Solution) -> Genome:
    """Run the search and return the fittest genome.

    The population and the stale limit are smaller if only few jobs (`placeable`) fit.
    """
    count, instances, nodes = window.jobs.shape[0], solution.placements.shape[0], state.free.nodes.shape[0] - 1
    budget = max(MIN_DECODED_SOLUTIONS, MAX_DECODED_INSTANCES // instances)
    population = min(POPULATION, budget, GREEDY_SOLUTIONS + 4 * placeable)
    max_stale = min(MAX_STALE_CHILDREN, 30 * placeable)
    members = [Genome(count, instances) for _ in range(population)]
    fitness = view(np.full(population, -INFINITE))
    _seed_keys(state, window, members, solution)
    greedy = 1 if window.in_order else GREEDY_SOLUTIONS
    for member in range(population):
        child = members[member]
        if member >= greedy:
            fittest = members[_fittest(fitness)]
            child.keys[:], child.genes[:] = fittest.keys, fittest.genes
            _mutate(window, nodes, child, rng, MEAN_MUTATIONS / count + 0.2)
        fitness[member] = decode(state, window, child, solution)
        release_all(state, window, solution)
    budget -= population
    child, best, stale = Genome(count, instances), fitness[_fittest(fitness)], 0
    while budget > 0 and stale < max_stale:
        mother = members[select_by_tournament(TOURNAMENT, fitness, rng)]
        father = members[select_by_tournament(TOURNAMENT, fitness, rng)]
        _crossover(window, mother, father, rng, child)
        _mutate(window, nodes, child, rng, MEAN_MUTATIONS / count)
        found = decode(state, window, child, solution)
        release_all(state, window, solution)
        worst = _least_fit(fitness)
        if found > fitness[worst]:
            fitness[worst] = found
            members[worst], child = child, members[worst]
        stale = 0 if found > best + 1e-9 else stale + 1
        best = max(best, found)
        budget -= 1
    return members[_fittest(fitness)]


def _fittest(fitness: Floats) -> int:
    best = 0
    for member in range(1, fitness.shape[0]):
        if fitness[member] > fitness[best]:
            best = member
    return best


def _least_fit(fitness: Floats) -> int:
    worst = 0
    for member in range(1, fitness.shape[0]):
        if fitness[member] < fitness[worst]:
            worst = member
    return worst


def _crossover(window: Window, mother: Genome, father: Genome, rng: Random, child: Genome) -> None:
    """Write a child: jobs on a random half of the nodes from the mother, all other jobs from the father."""
    salt = next_random(rng)
    for job in range(window.jobs.shape[0]):
        node = mother.genes[window.first[job]]
        from_mother = node != ANY_NODE and (node * NODE_HASH ^ salt) >> 7 & 1
        child.keys[job] = mother.keys[job] if from_mother else father.keys[job]
        for instance in range(window.first[job], window.first[job + 1]):
            child.genes[instance] = mother.genes[instance] if from_mother else father.genes[instance]


def _mutate(window: Window, nodes: int, genome: Genome, rng: Random, share: float) -> None:
    """Give a share of the jobs a new random key, half of them an early one, and clear the genes of their instances.

    Keys are ignored with `in_order`; there, half of the mutated jobs get random nodes as genes instead.
    """
    for job in range(window.jobs.shape[0]):
        if random_fraction(rng) < share:
            genome.keys[job] = random_fraction(rng)
            if random_fraction(rng) >= 0.5:
                genome.keys[job] *= 0.1
            to_random_nodes = window.in_order and random_fraction(rng) < 0.5
            for instance in range(window.first[job], window.first[job + 1]):
                genome.genes[instance] = next_random(rng) % nodes if to_random_nodes else ANY_NODE


def _seed_keys(state: PlacementState, window: Window, members: list[Genome], solution: Solution) -> None:
    """Write the keys of the greedy orders besides arrival: largest first; and several by value per cost.

    The first of these orders by value per cost alone. The others begin with the jobs that fit in total, in order of
    arrival, so that demands of different kinds are mixed.
    """
    count, costs = window.jobs.shape[0], view(_demand_costs(state, window))
    capacity, cpus_per_gpu = _free_worth(state)
    genome = members[1]
    for job in range(count):
        need = need_at(window.demands, window.jobs[job])
        genome.keys[job] = -job_gpus(need) - 1e-9 * need.cpu
    sort_by_keys(genome.keys, 0, solution.order, solution.scratch)
    for rank in range(count):
        genome.keys[solution.order[rank]] = float(rank) / count
    for number in range(2, GREEDY_SOLUTIONS):
        genome, weight = members[number], CPU_WEIGHTS[number - 2] if cpus_per_gpu > 0.0 else 0.0
        for job in range(count):
            need, cost = need_at(window.demands, window.jobs[job]), costs[window.jobs[job]]
            fills_gaps = cost <= GAP_FILLER_WORTH
            if weight > 0.0:
                cost += weight * (need.instances * need.cpu) / cpus_per_gpu
            genome.keys[job] = 0.0 if fills_gaps else -job_gpus(need) / cost
        sort_by_keys(genome.keys, 0, solution.order, solution.scratch)
        taken = 0.0
        for rank in range(count):
            job = solution.order[rank]
            cost = costs[window.jobs[job]]
            taken += cost
            in_arrival_order = number > 2 and taken <= capacity and cost > GAP_FILLER_WORTH
            genome.keys[job] = 0.5 * job / count if in_arrival_order else 0.5 + 0.5 * rank / count


def _demand_costs(state: PlacementState, window: Window) -> Floats:
    """Return the cost of all instances of each demand at its cheapest node, as if it were alone."""
    result = np.full(window.demands.shape[0], INFINITE)
    costs = view(result)
    for row in range(window.demands.shape[0]):
        need, demand_id = need_at(window.demands, row), window.demand_ids[row]
        node = find_least_loss_node(False, state.free, need, demand_id, state.history, state.cache, state.power)
        if node != ANY_NODE:
            costs[row] = need.instances * state.cache.scores[row_of(state.cache, demand_id), node]
    return result


def _free_worth(state: PlacementState) -> tuple[float, float]:
    """Return the worth of all free GPUs, and the free CPUs per unit of it."""
    worth = cpu = 0.0
    for node in range(state.free.nodes.shape[0] - 1):
        if state.free.nodes[node, UP] == 1 and state.free.nodes[node, MILLI_FREE] > 0:
            first = state.free.nodes[node, FIRST_GPU]
            for gpu in range(first, first + state.free.nodes[node, GPUS]):
                worth += state.history.worth[max(state.free.gpus[gpu], 0)]
            cpu += state.free.nodes[node, CPU_FREE]
    return worth, cpu / worth if worth > 0.0 else 0.0
