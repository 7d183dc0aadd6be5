"""Genetic search: which jobs of a window of the queue start, and on which nodes. Compiled; deterministic for a seed.

A genome has one key per job and one gene (a node, or none) per instance. Decoding places jobs in the order of their
keys: an instance goes to the node of its gene if it fits there, otherwise (repair) to the node that loses the least
worth (see `worth`). So every solution is feasible, and no job is left out that still fits. The fitness is

    GPUs put to use  −  0.01 × worth lost (plus the cost of power, if racks have limits)  +  0.002 × jobs placed

The initial population is greedy: jobs in order of arrival, largest first, highest value per cost first, and mutations
of the best of these. Then parents are selected by tournament, crossed over job by job, and a few jobs of the child are
mutated (a new key, and the gene cleared); the child replaces the least fit member if it is fitter. The search ends
after `MAX_STALE_CHILDREN` children without improvement or when its decoding budget is spent. It is skipped if all jobs
fit in order of arrival.

The best solution is improved node by node (`refill_nodes`): all jobs of the window with one instance leave a node, and
each of its GPUs is filled anew with these and the jobs that were left out, by a knapsack. In large windows, where only
few solutions can be decoded, and with many shares this brings most of the gain.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from refold.jit import compiled, inlined
from refold.model import WHOLE
from refold.packing.demand_history import DemandHistory, ScoreCache, row_of
from refold.packing.kernels import adjust_free, fits, need_at
from refold.packing.layout import (
    CPU_FREE,
    FIRST_GPU,
    GPU_MASK,
    GPUS,
    MILLI_FREE,
    NODE,
    UP,
    WHOLE_FREE,
    Bools,
    Floats,
    Ints,
    Need,
    Words,
)
from refold.packing.lookahead import RackDraw, find_least_loss_node, instance_watts, loss, power_cost, type_cost
from refold.packing.worth import update_type_prices

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

WORTH_WEIGHT = 0.01
JOB_WEIGHT = 0.002

GAP_FILLER_WORTH = 0.1
"""Jobs that cost less worth than this fill gaps, and are ordered last."""

MAX_REFILLS = 8
"""How often the nodes of a solution are filled anew."""
MAX_PIECES = 96
"""How many jobs at most are candidates for a GPU that is filled anew."""

TOLERANCE = 1e-9

ANY_NODE = -1


class Window(NamedTuple):
    """The waiting jobs in queue order: the row of each in `demands`, and its first row in the placements.

    `demand_ids` are the IDs of the demands in `ScoreCache`. The first `urgent` jobs are placed before all others, in
    queue order. With `in_order` all jobs are, and none after the first that does not fit.
    """

    jobs: Ints
    first: Ints
    demands: Ints
    demand_ids: Ints
    urgent: int
    in_order: bool


class PlacementState(NamedTuple):
    """Free resources, demand history, score cache, and power draw of racks."""

    nodes: Ints
    gpus: Ints
    bits: Words
    history: DemandHistory
    cache: ScoreCache
    power: RackDraw


@inlined
def next_random(rng: Ints) -> int:
    """Return the next random integer, 0 … 2^53 - 1 (SplitMix64); `rng[0]` is the generator's state."""
    word = np.uint64(rng[0]) + np.uint64(0x9E3779B97F4A7C15)
    rng[0] = np.int64(word)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int((word ^ (word >> np.uint64(31))) >> np.uint64(11))


@inlined
def random_fraction(rng: Ints) -> float:
    """Return a random number from 0 to 1."""
    return next_random(rng) / 9007199254740992.0


@compiled
def can_host(nodes: Ints, gpus: Ints, node: int, need: Need) -> bool:
    """Whether a node is up and an instance fits on it."""
    return (
        nodes[node, UP] == 1
        and nodes[node, GPUS] >= need.gpus
        and (need.milli < WHOLE or nodes[node, WHOLE_FREE] >= need.gpus)
        and fits(nodes, gpus, node, need)
    )


@compiled
def change_usage(state: PlacementState, node: int, mask: int, need: Need, sign: int) -> None:
    """Take (sign 1) or release (sign -1) the resources and power of an instance."""
    adjust_free(
        state.nodes, state.gpus, state.bits, node, mask, -sign * need.milli, -sign * need.cpu, -sign * need.memory
    )
    if state.power.rack_of.shape[0] > 0:
        state.power.draw[state.power.rack_of[node]] += sign * instance_watts(state.power, node, need)


@compiled
def _cost(state: PlacementState, node: int, need: Need) -> tuple[float, int]:
    """Return the cost of an instance on a node where it fits, in worth and power, and its GPU mask."""
    cost, mask = loss(False, state.nodes, state.gpus, state.bits, node, need, state.history)
    cost += type_cost(state.nodes, node, need, state.history.type_prices)
    if state.power.rack_of.shape[0] > 0:
        cost += power_cost(state.power, node, need)
    return cost, mask


@compiled
def _place_job(state: PlacementState, window: Window, job: int, genes: Ints, placements: Ints) -> float:
    """Place all instances of a job and return their cost; if they do not fit, place none and return -inf.

    If power is limited, a gang that does not fit is tried again on the nodes where it draws the least power.
    """
    cost = _place_instances(state, window, job, genes, placements, False)
    if cost == -np.inf and state.power.rack_of.shape[0] > 0 and window.demands[window.jobs[job], 0] > 1:
        cost = _place_instances(state, window, job, genes, placements, True)
    return cost


@compiled
def _place_instances(
    state: PlacementState, window: Window, job: int, genes: Ints, placements: Ints, least_power: bool
) -> float:
    row = window.jobs[job]
    need, demand_id = need_at(window.demands, row), window.demand_ids[row]
    first, cost = window.first[job], 0.0
    for instance in range(first, first + need.instances):
        node, instance_cost, mask = genes[instance], np.inf, 0
        if least_power:
            node = _find_least_watts_node(state, need)
        if node != ANY_NODE and can_host(state.nodes, state.gpus, node, need):
            instance_cost, mask = _cost(state, node, need)
        if instance_cost == np.inf and not least_power:
            nodes, gpus, bits, history, cache, power = state
            node = find_least_loss_node(False, nodes, gpus, bits, need, demand_id, history, cache, power)
            if node != ANY_NODE:
                instance_cost, mask = _cost(state, node, need)
        if instance_cost == np.inf:
            for taken in range(first, instance):
                change_usage(state, placements[taken, NODE], placements[taken, GPU_MASK], need, -1)
            return -np.inf
        change_usage(state, node, mask, need, 1)
        placements[instance, NODE], placements[instance, GPU_MASK] = node, mask
        cost += instance_cost
    return cost


@compiled
def _find_least_watts_node(state: PlacementState, need: Need) -> int:
    """Return the node where an instance draws least, of those with resources and power for it; or -1."""
    best, least = ANY_NODE, np.inf
    for node in range(state.nodes.shape[0] - 1):
        watts = instance_watts(state.power, node, need)
        within_limit = watts < least and power_cost(state.power, node, need) < np.inf
        if within_limit and can_host(state.nodes, state.gpus, node, need):
            best, least = node, watts
    return best


@inlined
def _job_value(need: Need) -> float:
    return need.instances * need.gpus * need.milli / WHOLE + JOB_WEIGHT


@compiled
def decode(
    state: PlacementState, window: Window, keys: Floats, genes: Ints, placements: Ints, placed: Bools, infeasible: Bools
) -> float:
    """Place the jobs of a window according to a genome and return its fitness; genes become the nodes used (repair).

    Usage only grows during decoding, so a demand that did not fit once is `exhausted` for the rest; demands that do
    not fit even alone are so from the start (`infeasible`).
    """
    count, fitness, exhausted = window.jobs.shape[0], 0.0, infeasible.copy()
    order = np.arange(count)
    if not window.in_order:
        order[window.urgent :] = window.urgent + np.argsort(keys[window.urgent :], kind="mergesort")
    placed[:] = False
    for position in range(count):
        job = int(order[position])
        row = window.jobs[job]
        if exhausted[row]:
            if window.in_order:
                break
            continue
        cost = _place_job(state, window, job, genes, placements)
        need = need_at(window.demands, row)
        if cost == -np.inf:
            exhausted[row] = True
            if window.in_order:
                break
            continue
        placed[job] = True
        fitness += _job_value(need) - WORTH_WEIGHT * cost
        for instance in range(window.first[job], window.first[job] + need.instances):
            genes[instance] = placements[instance, NODE]
    return fitness


@compiled
def release_all(state: PlacementState, window: Window, placements: Ints, placed: Bools) -> None:
    """Release the resources of all placed jobs."""
    for job in range(window.jobs.shape[0]):
        if placed[job]:
            _release_job(state, window, job, placements)


@compiled
def _release_job(state: PlacementState, window: Window, job: int, placements: Ints) -> None:
    need = need_at(window.demands, window.jobs[job])
    for instance in range(window.first[job], window.first[job] + need.instances):
        change_usage(state, placements[instance, NODE], placements[instance, GPU_MASK], need, -1)


@compiled
def _seed_keys(state: PlacementState, window: Window, keys: Floats) -> None:
    """Write the keys of the greedy orders: arrival; largest first; and several by value per cost.

    The first of these orders by value per cost alone. The others begin with the jobs that fit in total, in order of
    arrival, so that demands of different kinds are mixed.
    """
    count = window.jobs.shape[0]
    costs, cpus = _job_costs(state, window)
    capacity, cpus_per_gpu = _free_worth(state)
    gains = np.empty(count)
    for job in range(count):
        need = need_at(window.demands, window.jobs[job])
        gains[job] = need.instances * need.gpus * need.milli / WHOLE
        keys[0, job] = job / count
        keys[1, job] = -gains[job] - 1e-9 * need.cpu
    keys[1, np.argsort(keys[1], kind="mergesort")] = np.arange(count) / count
    for order in range(2, GREEDY_SOLUTIONS):
        weight = CPU_WEIGHTS[order - 2] if cpus_per_gpu > 0.0 else 0.0
        sort_key = np.zeros(count)
        for job in range(count):
            cost = costs[job] + (weight * cpus[job] / cpus_per_gpu if weight > 0.0 else 0.0)
            sort_key[job] = -gains[job] / cost if costs[job] > GAP_FILLER_WORTH else 0.0
        taken = 0.0
        for rank, job in enumerate(np.argsort(sort_key, kind="mergesort")):
            taken += costs[job]
            in_arrival_order = order > 2 and taken <= capacity and costs[job] > GAP_FILLER_WORTH
            keys[order, job] = 0.5 * job / count if in_arrival_order else 0.5 + 0.5 * rank / count


@compiled
def _job_costs(state: PlacementState, window: Window) -> tuple[Floats, Floats]:
    """Return the cost of each job at its cheapest node, as if it were alone, and its CPUs."""
    count, rows = window.jobs.shape[0], window.demands.shape[0]
    nodes, gpus, bits, history, cache, power = state
    row_costs = np.full(rows, np.inf)
    costs, cpus = np.empty(count), np.empty(count)
    for row in range(rows):
        need = need_at(window.demands, row)
        node = find_least_loss_node(False, nodes, gpus, bits, need, window.demand_ids[row], history, cache, power)
        if node != ANY_NODE:
            row_costs[row] = need.instances * cache.scores[row_of(cache, window.demand_ids[row]), node]
    for job in range(count):
        need = need_at(window.demands, window.jobs[job])
        costs[job], cpus[job] = row_costs[window.jobs[job]], need.instances * need.cpu
    return costs, cpus


@compiled
def _free_worth(state: PlacementState) -> tuple[float, float]:
    """Return the worth of all free GPUs, and the free CPUs per unit of it."""
    worth = cpu = 0.0
    for node in range(state.nodes.shape[0] - 1):
        if state.nodes[node, UP] == 1 and state.nodes[node, MILLI_FREE] > 0:
            first = state.nodes[node, FIRST_GPU]
            for gpu in range(first, first + state.nodes[node, GPUS]):
                worth += state.history.worth[max(state.gpus[gpu], 0)]
            cpu += state.nodes[node, CPU_FREE]
    return worth, cpu / worth if worth > 0.0 else 0.0


@inlined
def select_by_tournament(size: int, fitness: Floats, rng: Ints) -> int:
    """Return the fittest of `size` random members of the population."""
    best = next_random(rng) % fitness.shape[0]
    for _ in range(size - 1):
        other = next_random(rng) % fitness.shape[0]
        if fitness[other] > fitness[best]:
            best = other
    return best


@compiled
def _crossover(
    window: Window, keys: Floats, genes: Ints, mother: int, father: int, rng: Ints, child_keys: Floats, child: Ints
) -> None:
    """Write a child: jobs on a random half of the nodes from the mother, all other jobs from the father."""
    salt = next_random(rng)
    for job in range(window.jobs.shape[0]):
        first = window.first[job]
        node = genes[mother, first]
        parent = mother if node != ANY_NODE and (node * 0x9E3779B1 ^ salt) >> 7 & 1 else father
        child_keys[job] = keys[parent, job]
        for instance in range(first, first + window.demands[window.jobs[job], 0]):
            child[instance] = genes[parent, instance]


@compiled
def _mutate(window: Window, node_count: int, keys: Floats, genes: Ints, rng: Ints, share: float) -> None:
    """Give a share of the jobs a new random key, half of them an early one, and clear the genes of their instances.

    Keys are ignored with `in_order`; there, half of the mutated jobs get random nodes as genes instead.
    """
    for job in range(window.jobs.shape[0]):
        if random_fraction(rng) < share:
            keys[job] = random_fraction(rng) * (1.0 if random_fraction(rng) < 0.5 else 0.1)
            to_random_nodes = window.in_order and random_fraction(rng) < 0.5
            need = need_at(window.demands, window.jobs[job])
            for instance in range(window.first[job], window.first[job] + need.instances):
                genes[instance] = next_random(rng) % node_count if to_random_nodes else ANY_NODE


@compiled
def evolve(state: PlacementState, window: Window, rng: Ints, placements: Ints, placed: Bools) -> None:
    """Search, and place the jobs of a window according to the fittest solution."""
    count, instances = window.jobs.shape[0], placements.shape[0]
    infeasible = np.zeros(window.demands.shape[0], dtype=np.bool_)
    history = state.history
    update_type_prices(state.nodes, history.type_sets, history.limited_demand, history.type_prices)
    keys, genes = np.arange(count) / count, np.full(instances, ANY_NODE)
    decode(state, window, keys, genes, placements, placed, infeasible)
    if placed.all() or count == 1 or not placed.any():
        return
    placeable = placed.sum()
    release_all(state, window, placements, placed)
    mark_infeasible(state, window, placements, infeasible)
    keys, genes = _search(state, window, placeable, rng, placements, placed, infeasible)
    decode(state, window, keys, genes, placements, placed, infeasible)
    if not window.in_order:
        refill_nodes(state, window, rng, placements, placed)
        _place_rest(state, window, placements, placed, infeasible)


@compiled
def _place_rest(state: PlacementState, window: Window, placements: Ints, placed: Bools, infeasible: Bools) -> None:
    """Place the jobs that still fit, in queue order."""
    exhausted, no_genes = infeasible.copy(), np.full(placements.shape[0], ANY_NODE)
    for job in range(window.jobs.shape[0]):
        row = window.jobs[job]
        if not placed[job] and not exhausted[row]:
            placed[job] = _place_job(state, window, job, no_genes, placements) > -np.inf
            exhausted[row] = not placed[job]


class Pool(NamedTuple):
    """The jobs of a window that are not placed, and may be: a stack for each row of `demands`.

    `jobs` has the stacks one after the other, row r from `first[r]` on, with `size[r]` jobs now. `head` is the first
    movable job on each node, or -1, and `following` the next one on the same node.
    """

    jobs: Ints
    first: Ints
    size: Ints
    head: Ints
    following: Ints


@inlined
def _is_movable(window: Window, job: int) -> bool:
    need = need_at(window.demands, window.jobs[job])
    return job >= window.urgent and need.instances == 1 and need.gpus > 0


@compiled
def _build_pool(window: Window, node_count: int, placements: Ints, placed: Bools) -> Pool:
    count, rows = window.jobs.shape[0], window.demands.shape[0]
    first, size = np.zeros(rows + 1, dtype=np.int64), np.zeros(rows, dtype=np.int64)
    for job in range(count):
        first[window.jobs[job] + 1] += 1
    first = np.cumsum(first)
    pool = Pool(np.empty(count, dtype=np.int64), first, size, np.full(node_count, -1), np.full(count, -1))
    for job in range(count):
        if not _is_movable(window, job):
            continue
        if placed[job]:
            node = placements[window.first[job], NODE]
            pool.following[job], pool.head[node] = pool.head[node], job
        else:
            _push(pool, window.jobs[job], job)
    return pool


@inlined
def _push(pool: Pool, row: int, job: int) -> None:
    pool.jobs[pool.first[row] + pool.size[row]] = job
    pool.size[row] += 1


@compiled
def _put(
    state: PlacementState, window: Window, pool: Pool, row: int, node: int, mask: int, placements: Ints, placed: Bools
) -> None:
    """Place a job of a row of the pool on the GPUs of a mask."""
    pool.size[row] -= 1
    job = pool.jobs[pool.first[row] + pool.size[row]]
    change_usage(state, node, mask, need_at(window.demands, row), 1)
    placements[window.first[job], NODE], placements[window.first[job], GPU_MASK] = node, mask
    placed[job] = True
    pool.following[job], pool.head[node] = pool.head[node], job


@compiled
def _clear_node(
    state: PlacementState, window: Window, pool: Pool, node: int, placements: Ints, placed: Bools, found: Ints
) -> tuple[int, float]:
    """Return all movable jobs of a node to the pool; write their rows and masks to `found`, return count and value."""
    count, value, job = 0, 0.0, pool.head[node]
    while job >= 0:
        row, mask = window.jobs[job], placements[window.first[job], GPU_MASK]
        need = need_at(window.demands, row)
        change_usage(state, node, mask, need, -1)
        placed[job] = False
        _push(pool, row, job)
        found[count, 0], found[count, 1] = row, mask
        count, value, job = count + 1, value + _job_value(need), pool.following[job]
    pool.head[node] = -1
    return count, value


@compiled
def refill_nodes(state: PlacementState, window: Window, rng: Ints, placements: Ints, placed: Bools) -> None:
    """Improve a solution node by node: fill each GPU anew with the jobs of the node and those not placed (knapsack).

    A node keeps its jobs if the new ones are not worth more. Ends after a round without improvement.
    """
    node_count, count = state.nodes.shape[0] - 1, window.jobs.shape[0]
    pool = _build_pool(window, node_count, placements, placed)
    used = np.flatnonzero(pool.head >= 0)
    before, after = np.empty((count, 2), dtype=np.int64), np.empty((count, 2), dtype=np.int64)
    take = np.zeros((MAX_PIECES, WHOLE + 1), dtype=np.bool_)
    for _ in range(MAX_REFILLS):
        improved = False
        for position in range(used.shape[0] - 1, 0, -1):
            other = next_random(rng) % (position + 1)
            used[position], used[other] = used[other], used[position]
        for index in range(used.shape[0]):
            node = int(used[index])
            kept, value = _clear_node(state, window, pool, node, placements, placed, before)
            _fill_gpus(state, window, pool, node, rng, placements, placed, take)
            new_value, job = 0.0, pool.head[node]
            while job >= 0:
                new_value += _job_value(need_at(window.demands, window.jobs[job]))
                job = pool.following[job]
            if new_value > value + 1e-9:
                improved = True
                continue
            _clear_node(state, window, pool, node, placements, placed, after)
            for old in range(kept - 1, -1, -1):
                _put(state, window, pool, before[old, 0], node, before[old, 1], placements, placed)
        if not improved:
            break


@compiled
def _fill_gpus(
    state: PlacementState,
    window: Window,
    pool: Pool,
    node: int,
    rng: Ints,
    placements: Ints,
    placed: Bools,
    take: Bools,
) -> None:
    """Place jobs of the pool on a node: of several GPUs first, then the best filling of each GPU."""
    nodes, gpus, rows = state.nodes, state.gpus, window.demands.shape[0]
    start = next_random(rng) % rows
    for offset in range(rows):
        row = (start + offset) % rows
        need = need_at(window.demands, row)
        while need.gpus > 1 and pool.size[row] > 0 and can_host(nodes, gpus, node, need):
            cost, mask = _cost(state, node, need)
            if cost == np.inf:
                break
            _put(state, window, pool, row, node, mask, placements, placed)
    first, cpu_weight = nodes[node, FIRST_GPU], random_fraction(rng)
    for gpu in range(nodes[node, GPUS]):
        if gpus[first + gpu] > 0:
            _fill_gpu(state, window, pool, node, gpu, cpu_weight, start, placements, placed, take)


@compiled
def _fill_gpu(
    state: PlacementState,
    window: Window,
    pool: Pool,
    node: int,
    gpu: int,
    cpu_weight: float,
    start: int,
    placements: Ints,
    placed: Bools,
    take: Bools,
) -> None:
    """Fill one GPU with jobs of the pool: a knapsack problem with the GPU capacity as the limit."""
    nodes, rows = state.nodes, window.demands.shape[0]
    capacity = state.gpus[nodes[node, FIRST_GPU] + gpu]
    cpu_price = cpu_weight * nodes[node, MILLI_FREE] / max(nodes[node, CPU_FREE], 1)
    best, piece_rows, pieces = np.zeros(capacity + 1), np.empty(MAX_PIECES, dtype=np.int64), 0
    for offset in range(rows):
        row = (start + offset) % rows
        need = need_at(window.demands, row)
        if need.gpus != 1 or need.milli > capacity or not can_host(state.nodes, state.gpus, node, need):
            continue
        value = need.milli + JOB_WEIGHT * WHOLE - min(cpu_price * need.cpu, 0.5 * need.milli)
        for _ in range(min(pool.size[row], capacity // need.milli)):
            if pieces == MAX_PIECES:
                break
            for part in range(capacity, need.milli - 1, -1):
                take[pieces, part] = best[part - need.milli] + value > best[part] + TOLERANCE
                if take[pieces, part]:
                    best[part] = best[part - need.milli] + value
            for part in range(need.milli):
                take[pieces, part] = False
            piece_rows[pieces] = row
            pieces += 1
    left = capacity
    for piece in range(pieces - 1, -1, -1):
        if take[piece, left]:
            need = need_at(window.demands, piece_rows[piece])
            left -= need.milli
            fitting = pool.size[piece_rows[piece]] > 0 and can_host(state.nodes, state.gpus, node, need)
            if fitting and _allows(state, node, need):
                _put(state, window, pool, piece_rows[piece], node, 1 << gpu, placements, placed)


@inlined
def _allows(state: PlacementState, node: int, need: Need) -> bool:
    return state.power.rack_of.shape[0] == 0 or power_cost(state.power, node, need) < np.inf


@compiled
def mark_infeasible(state: PlacementState, window: Window, placements: Ints, infeasible: Bools) -> None:
    """Mark the demands that do not fit even alone."""
    no_genes = np.full(placements.shape[0], ANY_NODE)
    seen = np.zeros(infeasible.shape[0], dtype=np.bool_)
    for job in range(window.jobs.shape[0]):
        row = window.jobs[job]
        if seen[row]:
            continue
        seen[row] = True
        infeasible[row] = _place_job(state, window, job, no_genes, placements) == -np.inf
        if not infeasible[row]:
            _release_job(state, window, job, placements)


@compiled
def _search(
    state: PlacementState, window: Window, placeable: int, rng: Ints, placements: Ints, placed: Bools, infeasible: Bools
) -> tuple[Floats, Ints]:
    """Run the search and return the keys and genes of the fittest solution.

    The population and the stale limit are smaller if only few jobs (`placeable`) fit.
    """
    count, instances, node_count = window.jobs.shape[0], placements.shape[0], state.nodes.shape[0] - 1
    budget = max(MIN_DECODED_SOLUTIONS, MAX_DECODED_INSTANCES // instances)
    population = min(POPULATION, budget, GREEDY_SOLUTIONS + 4 * placeable)
    max_stale = min(MAX_STALE_CHILDREN, 30 * placeable)
    keys, genes = np.zeros((population, count)), np.full((population, instances), ANY_NODE)
    fitness = np.full(population, -np.inf)
    _seed_keys(state, window, keys)
    greedy = 1 if window.in_order else GREEDY_SOLUTIONS
    for member in range(population):
        if member >= greedy:
            fittest = np.argmax(fitness)
            keys[member], genes[member] = keys[fittest], genes[fittest]
            _mutate(window, node_count, keys[member], genes[member], rng, MEAN_MUTATIONS / count + 0.2)
        fitness[member] = decode(state, window, keys[member], genes[member], placements, placed, infeasible)
        release_all(state, window, placements, placed)
    budget -= population
    child_keys, child = np.empty(count), np.empty(instances, dtype=np.int64)
    best, stale = fitness.max(), 0
    while budget > 0 and stale < max_stale:
        mother, father = select_by_tournament(TOURNAMENT, fitness, rng), select_by_tournament(TOURNAMENT, fitness, rng)
        _crossover(window, keys, genes, mother, father, rng, child_keys, child)
        _mutate(window, node_count, child_keys, child, rng, MEAN_MUTATIONS / count)
        found = decode(state, window, child_keys, child, placements, placed, infeasible)
        release_all(state, window, placements, placed)
        worst = np.argmin(fitness)
        if found > fitness[worst]:
            keys[worst], genes[worst], fitness[worst] = child_keys, child, found
        stale = 0 if found > best + 1e-9 else stale + 1
        best = max(best, found)
        budget -= 1
    fittest = np.argmax(fitness)
    return keys[fittest], genes[fittest]
