"""The genetic search: which jobs of a waiting window start, and where. Compiled, seeded, the same every time.

A solution has a key per job and a node per instance. It is read in the order of its keys: an instance goes to its
node if it fits there, and otherwise, or if it has none, to the node that loses least worth (see `worth`), so that
every solution is feasible and leaves out nobody for whom there is room. Its fitness is

    GPUs that get work  −  0.01 × worth lost (with power, if racks matter)  +  0.002 × jobs placed

The first solutions are greedy ones: jobs in the order they came, the largest first, those first that make most of
what they take, and these again with some keys disturbed. Then the fittest of a few drawn by lot are crossed, job by
job, a few jobs are mutated (another key, and again the node that loses least), and each child replaces the least fit
solution if it is fitter. It ends when nothing has been gained for a while, or when enough was read; and if all jobs
have a place in the order they came, it does not begin.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from refold.model import WHOLE
from refold.packing.demand_history import DemandHistory, ScoreCache, row_of
from refold.packing.jit import compiled, inlined
from refold.packing.kernels import fits, move, need_of
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
from refold.packing.lookahead import RackPowerNow, least_loss, loss, power_cost, watts_of

POPULATION = 24
CPU_WEIGHTS = (0.0, 0.0, 0.06, 0.12, 0.25, 0.5)
"""What a job's part of the CPUs counts beside its part of the worth, in greedy orders by what it makes of them."""
GREEDY = 2 + len(CPU_WEIGHTS)
"""So many of the first solutions are greedy."""
TOURNAMENT = 5
MUTATIONS = 3.0
"""How many jobs of a child are mutated, on average."""
PATIENCE = 120
"""After so many children without a better one the search ends."""
EFFORT = 200_000
"""So many instances are read in all, and at least `LEAST_READ` solutions."""
LEAST_READ = 12

WORTH_WEIGHT = 0.01
JOB_WEIGHT = 0.002

FILLS = 0.1
"""What costs less worth than this fills gaps, and can wait for them."""

ANY_NODE = -1


class Window(NamedTuple):
    """The waiting jobs, in their order: of each its row in `demands`, and where its instances begin in `places`.

    `kinds` numbers the demands for `ScoreCache`. The first `urgent` jobs are placed before all others, in their order;
    with `in_order` all are, and nobody after the first that has no place.
    """

    jobs: Ints
    first: Ints
    demands: Ints
    kinds: Ints
    urgent: int
    in_order: bool


class PlacementState(NamedTuple):
    """What is free, what is expected, what racks draw."""

    nodes: Ints
    gpus: Ints
    bits: Words
    expected: DemandHistory
    known: ScoreCache
    racks: RackPowerNow


@inlined
def lot(memory: Ints) -> int:
    """The next number by lot, 0 … 2^53 - 1 (SplitMix64); `memory` holds its state."""
    word = np.uint64(memory[0]) + np.uint64(0x9E3779B97F4A7C15)
    memory[0] = np.int64(word)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int((word ^ (word >> np.uint64(31))) >> np.uint64(11))


@inlined
def chance(memory: Ints) -> float:
    """A number by lot, 0 to 1."""
    return lot(memory) / 9007199254740992.0


@compiled
def hosts(nodes: Ints, gpus: Ints, node: int, need: Need) -> bool:
    """Whether a node is up and has room for an instance."""
    return (
        nodes[node, UP] == 1
        and nodes[node, GPUS] >= need.gpus
        and (need.milli < WHOLE or nodes[node, WHOLE_FREE] >= need.gpus)
        and fits(nodes, gpus, node, need)
    )


@compiled
def take(books: PlacementState, node: int, mask: int, need: Need, sign: int) -> None:
    """Take (1) or give back (-1) a place, and the power that goes with it."""
    move(books.nodes, books.gpus, books.bits, node, mask, -sign * need.milli, -sign * need.cpu, -sign * need.memory)
    if books.racks.rack_of.shape[0] > 0:
        books.racks.draw[books.racks.rack_of[node]] += sign * watts_of(books.racks, node, need)


@compiled
def _cost(books: PlacementState, node: int, need: Need) -> tuple[float, int]:
    """Worth and power lost by an instance on a node that has room, and its GPUs there."""
    cost, mask = loss(False, books.nodes, books.gpus, books.bits, node, need, books.expected)
    if books.racks.rack_of.shape[0] > 0:
        cost += power_cost(books.racks, node, need)
    return cost, mask


@compiled
def _place_job(books: PlacementState, window: Window, job: int, genes: Ints, places: Ints) -> float:
    """Place all instances of a job; returns what they cost, or -inf, having placed none of them.

    A gang for which racks lack the power is tried again where it draws least.
    """
    cost = _place_instances(books, window, job, genes, places, False)
    if cost == -np.inf and books.racks.rack_of.shape[0] > 0 and window.demands[window.jobs[job], 0] > 1:
        cost = _place_instances(books, window, job, genes, places, True)
    return cost


@compiled
def _place_instances(
    books: PlacementState, window: Window, job: int, genes: Ints, places: Ints, thrifty: bool
) -> float:
    kind = window.jobs[job]
    need, number = need_of(window.demands, kind), window.kinds[kind]
    first, cost = window.first[job], 0.0
    for instance in range(first, first + need.instances):
        node, price, mask = genes[instance], np.inf, 0
        if thrifty:
            node = _least_watts(books, need)
        if node != ANY_NODE and hosts(books.nodes, books.gpus, node, need):
            price, mask = _cost(books, node, need)
        if price == np.inf and not thrifty:
            nodes, gpus, bits, expected, known, racks = books
            node = least_loss(False, nodes, gpus, bits, need, number, expected, known, racks)
            if node != ANY_NODE:
                price, mask = _cost(books, node, need)
        if price == np.inf:
            for taken in range(first, instance):
                take(books, places[taken, NODE], places[taken, GPU_MASK], need, -1)
            return -np.inf
        take(books, node, mask, need, 1)
        places[instance, NODE], places[instance, GPU_MASK] = node, mask
        cost += price
    return cost


@compiled
def _least_watts(books: PlacementState, need: Need) -> int:
    """Of the nodes that have room and power for an instance, the one where it draws least; or -1."""
    best, least = ANY_NODE, np.inf
    for node in range(books.nodes.shape[0] - 1):
        watts = watts_of(books.racks, node, need)
        has_power = watts < least and power_cost(books.racks, node, need) < np.inf
        if has_power and hosts(books.nodes, books.gpus, node, need):
            best, least = node, watts
    return best


@inlined
def _gain(need: Need) -> float:
    return need.instances * need.gpus * need.milli / WHOLE + JOB_WEIGHT


@compiled
def read(
    books: PlacementState, window: Window, keys: Floats, genes: Ints, places: Ints, placed: Bools, never: Bools
) -> float:
    """Place the jobs of a window as a solution says, and return its fitness. Genes become the nodes that were found.

    What is taken only grows, so that once a demand has found no place it is hopeless for the rest; and those that
    have none alone are so from the start (`never`).
    """
    count, fitness, hopeless = window.jobs.shape[0], 0.0, never.copy()
    order = np.arange(count)
    if not window.in_order:
        order[window.urgent :] = window.urgent + np.argsort(keys[window.urgent :], kind="mergesort")
    placed[:] = False
    for turn in range(count):
        job = int(order[turn])
        kind = window.jobs[job]
        if hopeless[kind]:
            if window.in_order:
                break
            continue
        cost = _place_job(books, window, job, genes, places)
        need = need_of(window.demands, kind)
        if cost == -np.inf:
            hopeless[kind] = True
            if window.in_order:
                break
            continue
        placed[job] = True
        fitness += _gain(need) - WORTH_WEIGHT * cost
        for instance in range(window.first[job], window.first[job] + need.instances):
            genes[instance] = places[instance, NODE]
    return fitness


@compiled
def undo(books: PlacementState, window: Window, places: Ints, placed: Bools) -> None:
    """Give back what a solution has taken."""
    for job in range(window.jobs.shape[0]):
        if placed[job]:
            _give_back(books, window, job, places)


@compiled
def _give_back(books: PlacementState, window: Window, job: int, places: Ints) -> None:
    need = need_of(window.demands, window.jobs[job])
    for instance in range(window.first[job], window.first[job] + need.instances):
        take(books, places[instance, NODE], places[instance, GPU_MASK], need, -1)


@compiled
def _seed_keys(books: PlacementState, window: Window, keys: Floats) -> None:
    """The greedy orders: as they came; largest first; and some by what a job makes of what it takes.

    Of these, the first goes by that alone; the others begin with those jobs for which there is room in sum, as they
    came, so that demands of different kinds mix.
    """
    count = window.jobs.shape[0]
    costs, cpus = _costs(books, window)
    capacity, cpus_per_gpu = _capacity(books)
    gains = np.empty(count)
    for job in range(count):
        need = need_of(window.demands, window.jobs[job])
        gains[job] = need.instances * need.gpus * need.milli / WHOLE
        keys[0, job] = job / count
        keys[1, job] = -gains[job] - 1e-9 * need.cpu
    keys[1, np.argsort(keys[1], kind="mergesort")] = np.arange(count) / count
    for order in range(2, GREEDY):
        weight = CPU_WEIGHTS[order - 2] if cpus_per_gpu > 0.0 else 0.0
        price = np.zeros(count)
        for job in range(count):
            cost = costs[job] + (weight * cpus[job] / cpus_per_gpu if weight > 0.0 else 0.0)
            price[job] = -gains[job] / cost if costs[job] > FILLS else 0.0
        taken = 0.0
        for rank, job in enumerate(np.argsort(price, kind="mergesort")):
            taken += costs[job]
            mixes = order > 2 and taken <= capacity and costs[job] > FILLS
            keys[order, job] = 0.5 * job / count if mixes else 0.5 + 0.5 * rank / count


@compiled
def _costs(books: PlacementState, window: Window) -> tuple[Floats, Floats]:
    """What each job would cost where it costs least, if it were alone; and its CPUs."""
    count, kinds = window.jobs.shape[0], window.demands.shape[0]
    nodes, gpus, bits, expected, known, racks = books
    of_kind = np.full(kinds, np.inf)
    costs, cpus = np.empty(count), np.empty(count)
    for kind in range(kinds):
        need = need_of(window.demands, kind)
        node = least_loss(False, nodes, gpus, bits, need, window.kinds[kind], expected, known, racks)
        if node != ANY_NODE:
            of_kind[kind] = need.instances * known.scores[row_of(known, window.kinds[kind]), node]
    for job in range(count):
        need = need_of(window.demands, window.jobs[job])
        costs[job], cpus[job] = of_kind[window.jobs[job]], need.instances * need.cpu
    return costs, cpus


@compiled
def _capacity(books: PlacementState) -> tuple[float, float]:
    """What all free GPUs are worth, and the free CPUs beside them for each of that."""
    worth = cpu = 0.0
    for node in range(books.nodes.shape[0] - 1):
        if books.nodes[node, UP] == 1 and books.nodes[node, MILLI_FREE] > 0:
            first = books.nodes[node, FIRST_GPU]
            for gpu in range(first, first + books.nodes[node, GPUS]):
                worth += books.expected.worth[books.gpus[gpu]]
            cpu += books.nodes[node, CPU_FREE]
    return worth, cpu / worth if worth > 0.0 else 0.0


@inlined
def fittest_of(some: int, fitness: Floats, memory: Ints) -> int:
    """The fittest of some that are drawn by lot."""
    best = lot(memory) % fitness.shape[0]
    for _ in range(some - 1):
        other = lot(memory) % fitness.shape[0]
        if fitness[other] > fitness[best]:
            best = other
    return best


@compiled
def _cross(
    window: Window, keys: Floats, genes: Ints, mother: int, father: int, memory: Ints, child_keys: Floats, child: Ints
) -> None:
    """On half of the nodes, by lot, the mother's jobs stay together; all other jobs are as the father has them."""
    salt = lot(memory)
    for job in range(window.jobs.shape[0]):
        first = window.first[job]
        node = genes[mother, first]
        parent = mother if node != ANY_NODE and (node * 0x9E3779B1 ^ salt) >> 7 & 1 else father
        child_keys[job] = keys[parent, job]
        for instance in range(first, first + window.demands[window.jobs[job], 0]):
            child[instance] = genes[parent, instance]


@compiled
def _disturb(window: Window, machines: int, keys: Floats, genes: Ints, memory: Ints, share: float) -> None:
    """Give some jobs another key, half of them an early one, and their instances no node: they will choose again.

    Where the order is given keys do not count; there every other job is sent to nodes by lot.
    """
    for job in range(window.jobs.shape[0]):
        if chance(memory) < share:
            keys[job] = chance(memory) * (1.0 if chance(memory) < 0.5 else 0.1)
            by_lot = window.in_order and chance(memory) < 0.5
            need = need_of(window.demands, window.jobs[job])
            for instance in range(window.first[job], window.first[job] + need.instances):
                genes[instance] = lot(memory) % machines if by_lot else ANY_NODE


@compiled
def evolve(books: PlacementState, window: Window, memory: Ints, places: Ints, placed: Bools) -> None:
    """Search, and place the jobs of a window as the fittest solution says."""
    count, instances = window.jobs.shape[0], places.shape[0]
    never = np.zeros(window.demands.shape[0], dtype=np.bool_)
    keys, genes = np.arange(count) / count, np.full(instances, ANY_NODE)
    read(books, window, keys, genes, places, placed, never)
    if placed.all() or count == 1 or not placed.any():
        return
    freedom = placed.sum()
    undo(books, window, places, placed)
    mark_hopeless(books, window, places, never)
    keys, genes = _fittest(books, window, freedom, memory, places, placed, never)
    read(books, window, keys, genes, places, placed, never)


@compiled
def mark_hopeless(books: PlacementState, window: Window, places: Ints, never: Bools) -> None:
    """Which demands have no place even alone."""
    nowhere = np.full(places.shape[0], ANY_NODE)
    seen = np.zeros(never.shape[0], dtype=np.bool_)
    for job in range(window.jobs.shape[0]):
        kind = window.jobs[job]
        if seen[kind]:
            continue
        seen[kind] = True
        never[kind] = _place_job(books, window, job, nowhere, places) == -np.inf
        if not never[kind]:
            _give_back(books, window, job, places)


@compiled
def _fittest(
    books: PlacementState, window: Window, freedom: int, memory: Ints, places: Ints, placed: Bools, never: Bools
) -> tuple[Floats, Ints]:
    """The search itself: the keys and genes of the fittest solution found.

    Where only `freedom` jobs have a place there is less to search.
    """
    count, instances, machines = window.jobs.shape[0], places.shape[0], books.nodes.shape[0] - 1
    to_read = max(LEAST_READ, EFFORT // instances)
    population = min(POPULATION, to_read, GREEDY + 4 * freedom)
    patience = min(PATIENCE, 30 * freedom)
    keys, genes = np.zeros((population, count)), np.full((population, instances), ANY_NODE)
    fitness = np.full(population, -np.inf)
    _seed_keys(books, window, keys)
    greedy = 1 if window.in_order else GREEDY
    for one in range(population):
        if one >= greedy:
            fittest = np.argmax(fitness)
            keys[one], genes[one] = keys[fittest], genes[fittest]
            _disturb(window, machines, keys[one], genes[one], memory, MUTATIONS / count + 0.2)
        fitness[one] = read(books, window, keys[one], genes[one], places, placed, never)
        undo(books, window, places, placed)
    to_read -= population
    child_keys, child = np.empty(count), np.empty(instances, dtype=np.int64)
    best, in_vain = fitness.max(), 0
    while to_read > 0 and in_vain < patience:
        mother, father = fittest_of(TOURNAMENT, fitness, memory), fittest_of(TOURNAMENT, fitness, memory)
        _cross(window, keys, genes, mother, father, memory, child_keys, child)
        _disturb(window, machines, child_keys, child, memory, MUTATIONS / count)
        found = read(books, window, child_keys, child, places, placed, never)
        undo(books, window, places, placed)
        worst = np.argmin(fitness)
        if found > fitness[worst]:
            keys[worst], genes[worst], fitness[worst] = child_keys, child, found
        in_vain = 0 if found > best + 1e-9 else in_vain + 1
        best = max(best, found)
        to_read -= 1
    fittest = np.argmax(fitness)
    return keys[fittest], genes[fittest]
