"""The placement rules: which node one instance goes to, and which of its GPUs. Compiled.

Every rule sees only nodes where the instance fits, and breaks ties by the lowest node index. First fit and best
fit use the bits as an index; so do worst fit and Tetris while no GPU is in part free and no CPUs or memory are
asked for, which makes a node's number of whole free GPUs all there is to know. Otherwise they look at each node.
"""

from __future__ import annotations

import numpy as np

from refold.model import WHOLE
from refold.packing.demand_history import DemandHistory, ScoreCache, row_of
from refold.packing.jit import compiled, inlined, trailing_zeros
from refold.packing.kernels import (
    FIRST,
    LOOSEST,
    TIGHTEST,
    fits,
    lowest_row,
    most_gpus,
    move,
    need_of,
    next_fitting,
    nodes_of_size_with,
    nodes_with,
    pick_gpus,
    words_in,
)
from refold.packing.layout import (
    CPU_ALL,
    CPU_FREE,
    FIRST_GPU,
    GPU_MASK,
    GPUS,
    MEMORY_ALL,
    MEMORY_FREE,
    MILLI_FREE,
    MOST_FREE,
    NODE,
    WHOLE_FREE,
    Ints,
    Need,
    Words,
)
from refold.packing.lookahead import RackPowerNow, least_loss

FIRST_FIT, BEST_FIT, WORST_FIT, ROUND_ROBIN, TETRIS, FGD, WORTH, RANDOM = range(8)

# What a rule remembers between placements.
CURSOR, DRAWS, SEED = 0, 1, 2
MEMORY_ENTRIES = 3


@inlined
def _only_whole_gpus_matter(nodes: Ints, need: Need) -> bool:
    """No GPU is in part free, and only whole GPUs are asked for."""
    sums = nodes.shape[0] - 1
    return (
        nodes[sums, MILLI_FREE] == nodes[sums, WHOLE_FREE] * WHOLE
        and need.gpus > 0
        and need.milli == WHOLE
        and need.cpu == 0
        and need.memory == 0
    )


@compiled
def _best_fit(rule: int, nodes: Ints, gpus: Ints, bits: Words, need: Need, last: int, memory: Ints) -> int:
    """The node with the fewest whole free GPUs, and of those the one with the least free GPU."""
    if need.gpus == 0 or need.milli < WHOLE:
        return _lowest_score(rule, nodes, gpus, bits, need, memory)
    fewest, start, sums = need.gpus, 0, nodes.shape[0] - 1
    if last >= 0 and nodes[sums, MILLI_FREE] == nodes[sums, WHOLE_FREE] * WHOLE:
        # Where no GPU is in part free, the search for the next instance goes on where the last one was found.
        fewest, start = nodes[last, WHOLE_FREE] + need.gpus, last + 1
    for whole in range(fewest, most_gpus(bits) + 1):
        if not nodes_with(bits, whole):
            start = 0
            continue
        best, least = -1, 0
        node = next_fitting(nodes, gpus, bits, whole, whole + 1, 0, need, start)
        while node >= 0:
            free = nodes[node, MILLI_FREE]
            if free == whole * WHOLE:
                return node  # no other GPU of it is in part free: none can be left with less
            if best < 0 or free < least:
                best, least = node, free
            node = next_fitting(nodes, gpus, bits, whole, whole + 1, 0, need, node + 1)
        if best >= 0:
            return best
        start = 0
    return -1


@compiled
def _worst_fit(rule: int, nodes: Ints, gpus: Ints, bits: Words, need: Need, memory: Ints) -> int:
    """The node with the most free GPU; for a share of a GPU, the one with the GPU that has most free."""
    if not _only_whole_gpus_matter(nodes, need):
        return _lowest_score(rule, nodes, gpus, bits, need, memory)
    for whole in range(most_gpus(bits), need.gpus - 1, -1):
        if not nodes_with(bits, whole):
            continue
        node = next_fitting(nodes, gpus, bits, whole, whole + 1, 0, need, 0)
        if node >= 0:
            return node
    return -1


@compiled
def _tetris(rule: int, nodes: Ints, gpus: Ints, bits: Words, need: Need, memory: Ints) -> int:
    """The largest alignment: the dot product of demand and free, each as a share of the node (SIGCOMM'14)."""
    if not _only_whole_gpus_matter(nodes, need):
        return _lowest_score(rule, nodes, gpus, bits, need, memory)
    largest = most_gpus(bits)
    best, lowest = -1, np.inf
    for size in range(need.gpus, largest + 1):  # of nodes with as many GPUs, the one with most free
        for whole in range(size, need.gpus - 1, -1):
            if not nodes_of_size_with(bits, size, whole):
                continue
            if float(need.gpus * whole) / float(size * size) < -lowest:
                break  # that would be its alignment
            node = next_fitting(nodes, gpus, bits, whole, whole + 1, largest + 2 + size, need, 0)
            if node >= 0:
                score = -_alignment(nodes, node, need)
                if score < lowest or (score == lowest and node < best):
                    best, lowest = node, score
                break
    return best


@inlined
def _alignment(nodes: Ints, node: int, need: Need) -> float:
    alignment = 0.0
    if need.gpus > 0:
        capacity = nodes[node, GPUS] * WHOLE
        alignment += float(need.gpus * need.milli * nodes[node, MILLI_FREE]) / float(capacity * capacity)
    if need.cpu > 0:
        capacity = float(nodes[node, CPU_ALL])
        alignment += need.cpu / capacity * (nodes[node, CPU_FREE] / capacity)
    if need.memory > 0:
        capacity = float(nodes[node, MEMORY_ALL])
        alignment += need.memory / capacity * (nodes[node, MEMORY_FREE] / capacity)
    return alignment


@inlined
def _free_of_interest(nodes: Ints, gpus: Ints, node: int, need: Need, tightest: bool) -> int:
    """What best fit makes small and worst fit large: free CPU, free GPU of the node, or of the GPU to be shared."""
    if need.gpus == 0:
        return nodes[node, CPU_FREE]
    if need.milli == WHOLE:
        return nodes[node, MILLI_FREE]
    if not tightest:
        return nodes[node, MOST_FREE]
    least, first = WHOLE, nodes[node, FIRST_GPU]
    for gpu in range(first, first + nodes[node, GPUS]):
        if need.milli <= gpus[gpu] < least:
            least = gpus[gpu]
    return least


@inlined
def _mixed(draw: int, node: int) -> float:
    """A hash of two numbers that looks like chance (SplitMix64's finisher)."""
    word = np.uint64(draw) * np.uint64(0xD1B54A32D192ED03) + np.uint64(node) * np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return float((word ^ (word >> np.uint64(31))) >> np.uint64(11))


@compiled
def _lowest_score(rule: int, nodes: Ints, gpus: Ints, bits: Words, need: Need, memory: Ints) -> int:
    """Of all nodes where it fits, the one a rule likes best; a lower score is better."""
    best, lowest, low = -1, np.inf, lowest_row(need)
    if low > most_gpus(bits):
        return -1
    memory[DRAWS] += 1
    for word in range(words_in(bits)):
        pending = bits[low, word]
        while pending != np.uint64(0):
            node = (word << 6) + trailing_zeros(pending)
            pending &= pending - np.uint64(1)
            if not fits(nodes, gpus, node, need):
                continue
            if rule == TETRIS:
                score = -_alignment(nodes, node, need)
            elif rule == RANDOM:  # each node has the same chance to have the lowest hash
                score = _mixed(memory[DRAWS] + (memory[SEED] << 32), node)
            elif rule == BEST_FIT:
                score = float(_free_of_interest(nodes, gpus, node, need, True))
            else:
                score = -float(_free_of_interest(nodes, gpus, node, need, False))
            if score < lowest:
                best, lowest = node, score
    return best


@compiled
def _round_robin(nodes: Ints, gpus: Ints, bits: Words, need: Need, memory: Ints) -> int:
    """The next node after the last one used."""
    low, none = lowest_row(need), most_gpus(bits) + 1
    node = next_fitting(nodes, gpus, bits, low, none, 0, need, memory[CURSOR])
    if node < 0:
        node = next_fitting(nodes, gpus, bits, low, none, 0, need, 0)
    if node >= 0:
        memory[CURSOR] = node + 1
    return node


@inlined
def _choose_node(
    rule: int,
    nodes: Ints,
    gpus: Ints,
    bits: Words,
    need: Need,
    last: int,
    memory: Ints,
    kind: int,
    expected: DemandHistory,
    known: ScoreCache,
    racks: RackPowerNow,
) -> int:
    """The node for the next instance of a gang, whose last instance was put on node `last` (-1: the first one)."""
    shared = need.gpus == 0 or need.milli < WHOLE  # else the last node was filled
    if rule == FIRST_FIT and shared and last >= 0 and fits(nodes, gpus, last, need):
        return last  # what was first still is
    if rule == FIRST_FIT:
        return next_fitting(nodes, gpus, bits, lowest_row(need), most_gpus(bits) + 1, 0, need, last + 1)
    if rule == BEST_FIT:
        return _best_fit(rule, nodes, gpus, bits, need, last, memory)
    if rule == WORST_FIT:
        return _worst_fit(rule, nodes, gpus, bits, need, memory)
    if rule == ROUND_ROBIN:
        return _round_robin(nodes, gpus, bits, need, memory)
    if rule == TETRIS:
        return _tetris(rule, nodes, gpus, bits, need, memory)
    if rule in (FGD, WORTH):
        return least_loss(rule == FGD, nodes, gpus, bits, need, kind, expected, known, racks)
    return _lowest_score(rule, nodes, gpus, bits, need, memory)


@inlined
def _choose_gpus(rule: int, nodes: Ints, gpus: Ints, node: int, need: Need, kind: int, known: ScoreCache) -> int:
    if rule in (FGD, WORTH):
        return known.masks[row_of(known, kind), node]
    which = FIRST
    if rule == WORST_FIT or need.gpus > 1:
        which = LOOSEST  # shares of several GPUs each: only so does a node hold as many instances as it can
    elif rule in (BEST_FIT, TETRIS):
        which = TIGHTEST
    return pick_gpus(nodes, gpus, node, need, which)


@compiled
def place(
    rule: int,
    nodes: Ints,
    gpus: Ints,
    bits: Words,
    demands: Ints,
    row: int,
    kind: int,
    memory: Ints,
    expected: DemandHistory,
    known: ScoreCache,
    racks: RackPowerNow,
    places: Ints,
    first: int,
) -> bool:
    """Take a place for every instance of a demand and write it to `places` from row `first` on; or take nothing.

    `kind` numbers the demand for rules that keep what they reckoned.
    """
    need, sums = need_of(demands, row), nodes.shape[0] - 1
    if nodes[sums, MILLI_FREE] < need.instances * need.gpus * need.milli:
        return False
    if need.milli == WHOLE and nodes[sums, WHOLE_FREE] < need.instances * need.gpus:
        return False
    cursor, draws = memory[CURSOR], memory[DRAWS]
    last, instance, end = -1, first, first + need.instances
    while instance < end:
        node = _choose_node(rule, nodes, gpus, bits, need, last, memory, kind, expected, known, racks)
        if node < 0:
            for taken in range(first, instance):
                node, mask = places[taken, NODE], places[taken, GPU_MASK]
                move(nodes, gpus, bits, node, mask, need.milli, need.cpu, need.memory)
            memory[CURSOR], memory[DRAWS] = cursor, draws
            return False
        last = node
        if rule <= BEST_FIT and need.gpus > 0 and need.milli == WHOLE:
            instance += _fill(nodes, gpus, bits, node, need, places, instance, end)
            continue
        mask = _choose_gpus(rule, nodes, gpus, node, need, kind, known)
        move(nodes, gpus, bits, node, mask, -need.milli, -need.cpu, -need.memory)
        places[instance, NODE] = node
        places[instance, GPU_MASK] = mask
        instance += 1
    return True


@inlined
def _fill(nodes: Ints, gpus: Ints, bits: Words, node: int, need: Need, places: Ints, instance: int, end: int) -> int:
    """Put as many instances with whole GPUs on a node as it has room for; returns how many."""
    room = min(end - instance, nodes[node, WHOLE_FREE] // need.gpus)
    if need.cpu > 0:
        room = min(room, nodes[node, CPU_FREE] // need.cpu)
    if need.memory > 0:
        room = min(room, nodes[node, MEMORY_FREE] // need.memory)
    first, gpu, taken = nodes[node, FIRST_GPU], 0, 0
    for row in range(instance, instance + room):
        mask, missing = 0, need.gpus
        while missing > 0:
            if gpus[first + gpu] == WHOLE:
                mask |= 1 << gpu
                missing -= 1
            gpu += 1
        places[row, NODE] = node
        places[row, GPU_MASK] = mask
        taken |= mask
    move(nodes, gpus, bits, node, taken, -WHOLE, -room * need.cpu, -room * need.memory)
    return room
