"""The placement rules: which node one instance goes to, and which of its GPUs. Compiled.

Every rule sees only nodes where the instance fits, and breaks ties by the lowest node index.
"""

from __future__ import annotations

import numpy as np

from refold.model.units import WHOLE
from refold.packing.compiled import compiled
from refold.packing.fragments import fragments_after, node_fragments
from refold.packing.kernels import give_back, lowest_level, next_fitting, take_unchecked
from refold.packing.layout import (
    CPU_ALL,
    CPU_FREE,
    FIRST_GPU,
    GPU_MASK,
    GPUS,
    INSTANCES,
    MEMORY_ALL,
    MEMORY_FREE,
    MILLI_FREE,
    NEED_CPU,
    NEED_GPUS,
    NEED_MEMORY,
    NEED_MILLI,
    NODE,
    WHOLE_FREE,
    Floats,
    Ints,
    Words,
)

FIRST_FIT, BEST_FIT, WORST_FIT, ROUND_ROBIN, TETRIS, FGD, RANDOM = range(7)

# What a rule remembers between placements.
CURSOR, DRAWS, SEED = 0, 1, 2
MEMORY_ENTRIES = 3


@compiled
def _best_fit(nodes: Ints, gpus: Ints, bits: Words, demand: Ints) -> int:
    """The node that is left with the least: fewest whole free GPUs, then least free GPU."""
    none = bits.shape[0] - 1
    if demand[NEED_GPUS] > 0 and demand[NEED_MILLI] == WHOLE:
        for whole in range(demand[NEED_GPUS], none):
            best, least = -1, 0
            node = next_fitting(nodes, gpus, bits, whole, whole + 1, demand, 0)
            while node >= 0:
                free = nodes[node, MILLI_FREE]
                if free == whole * WHOLE:
                    return node  # no other GPU of it is in part free: none can be left with less
                if best < 0 or free < least:
                    best, least = node, free
                node = next_fitting(nodes, gpus, bits, whole, whole + 1, demand, node + 1)
            if best >= 0:
                return best
        return -1
    best, least = -1, 0
    node = next_fitting(nodes, gpus, bits, 0, none, demand, 0)
    while node >= 0:
        free = _free_of_interest(nodes, gpus, node, demand, True)
        if best < 0 or free < least:
            best, least = node, free
        node = next_fitting(nodes, gpus, bits, 0, none, demand, node + 1)
    return best


@compiled
def _worst_fit(nodes: Ints, gpus: Ints, bits: Words, demand: Ints) -> int:
    """The node that is left with the most."""
    low, none = lowest_level(demand), bits.shape[0] - 1
    best, most = -1, -1
    node = next_fitting(nodes, gpus, bits, low, none, demand, 0)
    while node >= 0:
        free = _free_of_interest(nodes, gpus, node, demand, False)
        if free > most:
            best, most = node, free
        node = next_fitting(nodes, gpus, bits, low, none, demand, node + 1)
    return best


@compiled
def _free_of_interest(nodes: Ints, gpus: Ints, node: int, demand: Ints, tightest: bool) -> int:
    """What best fit makes small and worst fit large: free CPU, free GPU of the node, or of the one GPU to be shared."""
    if demand[NEED_GPUS] == 0:
        return int(nodes[node, CPU_FREE])
    if demand[NEED_MILLI] == WHOLE:
        return int(nodes[node, MILLI_FREE])
    mask = _pick_gpus(nodes, gpus, node, 1, demand[NEED_MILLI], TIGHTEST if tightest else LOOSEST)
    gpu = 0
    while mask > 1:
        mask >>= 1
        gpu += 1
    return int(gpus[nodes[node, FIRST_GPU] + gpu])


@compiled
def _round_robin(nodes: Ints, gpus: Ints, bits: Words, demand: Ints, memory: Ints) -> int:
    """The next node after the last one used."""
    low, none = lowest_level(demand), bits.shape[0] - 1
    node = next_fitting(nodes, gpus, bits, low, none, demand, memory[CURSOR])
    if node < 0:
        node = next_fitting(nodes, gpus, bits, low, none, demand, 0)
    if node >= 0:
        memory[CURSOR] = node + 1
    return node


@compiled
def _tetris(nodes: Ints, gpus: Ints, bits: Words, demand: Ints) -> int:
    """The largest alignment: the dot product of demand and free, each as a share of the node (SIGCOMM'14)."""
    low, none = lowest_level(demand), bits.shape[0] - 1
    need = float(demand[NEED_GPUS] * demand[NEED_MILLI])
    best, largest = -1, -1.0
    node = next_fitting(nodes, gpus, bits, low, none, demand, 0)
    while node >= 0:
        alignment = 0.0
        if nodes[node, GPUS]:
            capacity = float(nodes[node, GPUS] * WHOLE)
            alignment += need / capacity * (nodes[node, MILLI_FREE] / capacity)
        if nodes[node, CPU_ALL]:
            capacity = float(nodes[node, CPU_ALL])
            alignment += demand[NEED_CPU] / capacity * (nodes[node, CPU_FREE] / capacity)
        if nodes[node, MEMORY_ALL]:
            capacity = float(nodes[node, MEMORY_ALL])
            alignment += demand[NEED_MEMORY] / capacity * (nodes[node, MEMORY_FREE] / capacity)
        if alignment > largest:
            best, largest = node, alignment
        node = next_fitting(nodes, gpus, bits, low, none, demand, node + 1)
    return best


@compiled
def _fgd(nodes: Ints, gpus: Ints, bits: Words, demand: Ints, typical: Ints, weights: Floats) -> int:
    """The node whose expected fragments grow least (ATC'23)."""
    low, none = lowest_level(demand), bits.shape[0] - 1
    best, least = -1, np.inf
    node = next_fitting(nodes, gpus, bits, low, none, demand, 0)
    while node >= 0:
        mask = _fgd_gpus(nodes, gpus, node, demand, typical, weights)
        growth = fragments_after(nodes, gpus, node, mask, demand, typical, weights) - node_fragments(
            nodes, gpus, node, typical, weights
        )
        if growth < least:
            best, least = node, growth
        node = next_fitting(nodes, gpus, bits, low, none, demand, node + 1)
    return best


@compiled
def _fgd_gpus(nodes: Ints, gpus: Ints, node: int, demand: Ints, typical: Ints, weights: Floats) -> int:
    """For a share of one GPU the GPU that leaves the fewest fragments; else the tightest ones."""
    need, milli = demand[NEED_GPUS], demand[NEED_MILLI]
    if need != 1 or milli == WHOLE:
        return int(_pick_gpus(nodes, gpus, node, need, milli, TIGHTEST))
    best, least, first = 0, np.inf, nodes[node, FIRST_GPU]
    for gpu in range(nodes[node, GPUS]):
        if gpus[first + gpu] < milli or (gpu > 0 and gpus[first + gpu] == gpus[first + gpu - 1]):
            continue  # a GPU as free as its neighbour leaves the same fragments
        left = fragments_after(nodes, gpus, node, 1 << gpu, demand, typical, weights)
        if left < least:
            best, least = 1 << gpu, left
    return best


@compiled
def _random(nodes: Ints, gpus: Ints, bits: Words, demand: Ints, memory: Ints) -> int:
    """Any node, each with the same chance: the one whose hash is lowest."""
    low, none = lowest_level(demand), bits.shape[0] - 1
    best, lowest = -1, np.uint64(0)
    node = next_fitting(nodes, gpus, bits, low, none, demand, 0)
    while node >= 0:
        draw = _mixed(memory[SEED], memory[DRAWS], node)
        if best < 0 or draw < lowest:
            best, lowest = node, draw
        node = next_fitting(nodes, gpus, bits, low, none, demand, node + 1)
    memory[DRAWS] += 1
    return best


@compiled
def _mixed(seed: int, draw: int, node: int) -> np.uint64:
    """A hash of three numbers that looks like chance (SplitMix64's finisher)."""
    word = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(draw)
    word = word * np.uint64(0xD1B54A32D192ED03) + np.uint64(node)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.uint64(word ^ (word >> np.uint64(31)))


FIRST, TIGHTEST, LOOSEST = 0, 1, 2


@compiled
def _pick_gpus(nodes: Ints, gpus: Ints, node: int, count: int, milli: int, which: int) -> int:
    """`count` GPUs of a node with room for `milli` each, as a mask; ties go to the lowest index."""
    first, mask = nodes[node, FIRST_GPU], 0
    if milli == WHOLE or which == FIRST:
        for gpu in range(nodes[node, GPUS]):
            if count > 0 and gpus[first + gpu] >= milli:
                mask |= 1 << gpu
                count -= 1
        return mask
    for _ in range(count):
        best, best_free = -1, 0
        for gpu in range(nodes[node, GPUS]):
            free = gpus[first + gpu]
            if free < milli or mask >> gpu & 1:
                continue
            if best < 0 or (free < best_free if which == TIGHTEST else free > best_free):
                best, best_free = gpu, free
        mask |= 1 << best
    return mask


@compiled
def _choose_node(
    rule: int,
    nodes: Ints,
    gpus: Ints,
    bits: Words,
    demand: Ints,
    memory: Ints,
    typical: Ints,
    weights: Floats,
) -> int:
    if rule == FIRST_FIT:
        return next_fitting(nodes, gpus, bits, lowest_level(demand), bits.shape[0] - 1, demand, 0)
    if rule == BEST_FIT:
        return _best_fit(nodes, gpus, bits, demand)
    if rule == WORST_FIT:
        return _worst_fit(nodes, gpus, bits, demand)
    if rule == ROUND_ROBIN:
        return _round_robin(nodes, gpus, bits, demand, memory)
    if rule == TETRIS:
        return _tetris(nodes, gpus, bits, demand)
    if rule == FGD:
        return _fgd(nodes, gpus, bits, demand, typical, weights)
    return _random(nodes, gpus, bits, demand, memory)


@compiled
def _choose_gpus(rule: int, nodes: Ints, gpus: Ints, node: int, demand: Ints, typical: Ints, weights: Floats) -> int:
    if rule == FGD:
        return _fgd_gpus(nodes, gpus, node, demand, typical, weights)
    which = FIRST
    if rule in (BEST_FIT, TETRIS):
        which = TIGHTEST
    elif rule == WORST_FIT:
        which = LOOSEST
    return _pick_gpus(nodes, gpus, node, demand[NEED_GPUS], demand[NEED_MILLI], which)


@compiled
def place(
    rule: int,
    nodes: Ints,
    gpus: Ints,
    bits: Words,
    demand: Ints,
    memory: Ints,
    typical: Ints,
    weights: Floats,
    found: Ints,
) -> bool:
    """Take a place for every instance and write it to `found`; if one has none, take nothing."""
    instances, sums = demand[INSTANCES], nodes.shape[0] - 1
    milli, cpu, mem = demand[NEED_MILLI], demand[NEED_CPU], demand[NEED_MEMORY]
    if nodes[sums, MILLI_FREE] < instances * demand[NEED_GPUS] * milli:
        return False
    if milli == WHOLE and nodes[sums, WHOLE_FREE] < instances * demand[NEED_GPUS]:
        return False
    cursor, draws = memory[CURSOR], memory[DRAWS]
    for instance in range(instances):
        node = _choose_node(rule, nodes, gpus, bits, demand, memory, typical, weights)
        if node < 0:
            for taken in range(instance):
                give_back(nodes, gpus, bits, found[taken, NODE], found[taken, GPU_MASK], milli, cpu, mem)
            memory[CURSOR], memory[DRAWS] = cursor, draws
            return False
        mask = _choose_gpus(rule, nodes, gpus, node, demand, typical, weights)
        take_unchecked(nodes, gpus, bits, node, mask, milli, cpu, mem)
        found[instance, NODE] = node
        found[instance, GPU_MASK] = mask
    return True
