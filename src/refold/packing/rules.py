"""The greedy placement rules: choose the node of one instance, and its GPUs there. Compiled.

A rule considers only nodes where the instance fits, and breaks ties by the lowest node index. First fit and best fit
use `bits` as an index. So do worst fit and Tetris while no GPU is partly free and no CPUs or memory are requested:
then the number of entirely free GPUs determines the score of a node. Otherwise all nodes are scanned.
"""

from __future__ import annotations

import numpy as np

from refold.jit import compiled_without_references, inlined, trailing_zeros
from refold.model import WHOLE
from refold.packing.demand_history import DemandHistory, ScoreCache, row_of
from refold.packing.kernels import (
    FIRST,
    LOOSEST,
    TIGHTEST,
    adjust_free,
    any_node_of_size_with_free,
    any_node_with_free,
    candidate_row,
    fits,
    max_gpus_per_node,
    need_at,
    next_fitting_node,
    pick_gpus,
    words_per_row,
)
from refold.packing.layout import (
    CPU_FREE,
    CPU_TOTAL,
    FIRST_GPU,
    GPU_MASK,
    GPUS,
    MAX_FREE,
    MEMORY_FREE,
    MEMORY_TOTAL,
    MILLI_FREE,
    NODE,
    UNLIMITED,
    WHOLE_FREE,
    Ints,
    Need,
    Words,
)
from refold.packing.lookahead import RackDraw, find_least_loss_node
from refold.packing.worth import CPU_PER_GPU, MEMORY_PER_GPU, update_type_prices

FIRST_FIT, BEST_FIT, WORST_FIT, ROUND_ROBIN, TETRIS, FGD, WORTH, RANDOM = range(8)

# Entries of `rule_state`, which persists between placements.
CURSOR, DRAW_COUNTER, SEED = 0, 1, 2
RULE_STATE_ENTRIES = 3


@inlined
def _only_whole_gpus_matter(nodes: Ints, need: Need) -> bool:
    """Whether no GPU is partly free and only whole GPUs are requested."""
    totals = nodes.shape[0] - 1
    return (
        nodes[totals, MILLI_FREE] == nodes[totals, WHOLE_FREE] * WHOLE
        and need.gpus > 0
        and need.milli == WHOLE
        and need.cpu == 0
        and need.memory == 0
    )


@inlined
def _is_worth_best_fit(nodes: Ints, need: Need, history: DemandHistory) -> bool:
    """Whether a node loses the less worth the fewer GPUs it has free, so that the faster rule chooses the same."""
    totals = nodes.shape[0] - 1
    return (
        nodes[totals, MILLI_FREE] == nodes[totals, WHOLE_FREE] * WHOLE
        and need.gpus > 0
        and need.milli == WHOLE
        and history.type_sets[0] == 0
        and (history.needs[CPU_PER_GPU] == 0.0 or nodes[0, CPU_TOTAL] == UNLIMITED)
        and (history.needs[MEMORY_PER_GPU] == 0.0 or nodes[0, MEMORY_TOTAL] == UNLIMITED)
    )


@compiled_without_references
def _best_fit(rule: int, nodes: Ints, gpus: Ints, bits: Words, need: Need, last: int, rule_state: Ints) -> int:
    """Return the node with the fewest entirely free GPUs; of those, the one with the least free GPU capacity."""
    if need.gpus == 0 or need.milli < WHOLE:
        return _lowest_score(rule, nodes, gpus, bits, need, rule_state)
    fewest, start, totals = need.gpus, 0, nodes.shape[0] - 1
    if last >= 0 and nodes[totals, MILLI_FREE] == nodes[totals, WHOLE_FREE] * WHOLE:
        # If no GPU is partly free, the search for the next instance continues at the node of the last one.
        fewest, start = nodes[last, WHOLE_FREE] + need.gpus, last + 1
    for whole in range(fewest, max_gpus_per_node(bits) + 1):
        if not any_node_with_free(bits, whole):
            start = 0
            continue
        best, least = -1, 0
        node = next_fitting_node(nodes, gpus, bits, whole, whole + 1, 0, need, start)
        while node >= 0:
            free = nodes[node, MILLI_FREE]
            if free == whole * WHOLE:
                return node  # none of its GPUs is partly free: no node can have less
            if best < 0 or free < least:
                best, least = node, free
            node = next_fitting_node(nodes, gpus, bits, whole, whole + 1, 0, need, node + 1)
        if best >= 0:
            return best
        start = 0
    return -1


@compiled_without_references
def _worst_fit(rule: int, nodes: Ints, gpus: Ints, bits: Words, need: Need, rule_state: Ints) -> int:
    """Return the node with the most free GPU capacity; for a GPU fraction, the node with the freest single GPU."""
    if not _only_whole_gpus_matter(nodes, need):
        return _lowest_score(rule, nodes, gpus, bits, need, rule_state)
    for whole in range(max_gpus_per_node(bits), need.gpus - 1, -1):
        if not any_node_with_free(bits, whole):
            continue
        node = next_fitting_node(nodes, gpus, bits, whole, whole + 1, 0, need, 0)
        if node >= 0:
            return node
    return -1


@compiled_without_references
def _tetris(rule: int, nodes: Ints, gpus: Ints, bits: Words, need: Need, rule_state: Ints) -> int:
    """Return the node with the best alignment: demand · free, both as fractions of the node (SIGCOMM'14)."""
    if not _only_whole_gpus_matter(nodes, need):
        return _lowest_score(rule, nodes, gpus, bits, need, rule_state)
    largest = max_gpus_per_node(bits)
    best, lowest = -1, np.inf
    for size in range(need.gpus, largest + 1):  # among nodes of one size, the freest is best
        for whole in range(size, need.gpus - 1, -1):
            if not any_node_of_size_with_free(bits, size, whole):
                continue
            if float(need.gpus * whole) / float(size * size) < -lowest:
                break  # its alignment would be lower
            node = next_fitting_node(nodes, gpus, bits, whole, whole + 1, largest + 2 + size, need, 0)
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
        capacity = float(nodes[node, CPU_TOTAL])
        alignment += need.cpu / capacity * (nodes[node, CPU_FREE] / capacity)
    if need.memory > 0:
        capacity = float(nodes[node, MEMORY_TOTAL])
        alignment += need.memory / capacity * (nodes[node, MEMORY_FREE] / capacity)
    return alignment


@inlined
def _free_metric(nodes: Ints, gpus: Ints, node: int, need: Need, tightest: bool) -> int:
    """Return what best fit minimises and worst fit maximises: free CPU, or free GPU of the node or of one GPU."""
    if need.gpus == 0:
        return nodes[node, CPU_FREE]
    if need.milli == WHOLE:
        return nodes[node, MILLI_FREE]
    if not tightest:
        return nodes[node, MAX_FREE]
    least, first = WHOLE, nodes[node, FIRST_GPU]
    for gpu in range(first, first + nodes[node, GPUS]):
        if need.milli <= gpus[gpu] < least:
            least = gpus[gpu]
    return least


@inlined
def _hash(draw: int, node: int) -> float:
    """Return a pseudo-random hash of two numbers (the finaliser of SplitMix64)."""
    word = np.uint64(draw) * np.uint64(0xD1B54A32D192ED03) + np.uint64(node) * np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return float((word ^ (word >> np.uint64(31))) >> np.uint64(11))


@compiled_without_references
def _lowest_score(rule: int, nodes: Ints, gpus: Ints, bits: Words, need: Need, rule_state: Ints) -> int:
    """Scan all nodes where the instance fits and return the one with the lowest score."""
    best, lowest, low = -1, np.inf, candidate_row(need)
    if low > max_gpus_per_node(bits):
        return -1
    rule_state[DRAW_COUNTER] += 1
    for word in range(words_per_row(bits)):
        pending = bits[low, word]
        while pending != np.uint64(0):
            node = (word << 6) + trailing_zeros(pending)
            pending &= pending - np.uint64(1)
            if not fits(nodes, gpus, node, need):
                continue
            if rule == TETRIS:
                score = -_alignment(nodes, node, need)
            elif rule == RANDOM:  # every node has the lowest hash with equal probability
                score = _hash(rule_state[DRAW_COUNTER] + (rule_state[SEED] << 32), node)
            elif rule == BEST_FIT:
                score = float(_free_metric(nodes, gpus, node, need, True))
            else:
                score = -float(_free_metric(nodes, gpus, node, need, False))
            if score < lowest:
                best, lowest = node, score
    return best


@compiled_without_references
def _round_robin(nodes: Ints, gpus: Ints, bits: Words, need: Need, rule_state: Ints) -> int:
    """Return the next node after the last one used."""
    low, none = candidate_row(need), max_gpus_per_node(bits) + 1
    node = next_fitting_node(nodes, gpus, bits, low, none, 0, need, rule_state[CURSOR])
    if node < 0:
        node = next_fitting_node(nodes, gpus, bits, low, none, 0, need, 0)
    if node >= 0:
        rule_state[CURSOR] = node + 1
    return node


@inlined
def _choose_node(
    rule: int,
    nodes: Ints,
    gpus: Ints,
    bits: Words,
    need: Need,
    last: int,
    rule_state: Ints,
    demand_id: int,
    history: DemandHistory,
    cache: ScoreCache,
    power: RackDraw,
) -> int:
    """Return the node for the next instance of a gang. `last` is the node of the previous instance, or -1."""
    shared = need.gpus == 0 or need.milli < WHOLE  # otherwise the last node was filled by `_fill_node`
    if rule == FIRST_FIT and shared and last >= 0 and fits(nodes, gpus, last, need):
        return last  # it is still the first node that fits
    if rule == FIRST_FIT:
        return next_fitting_node(nodes, gpus, bits, candidate_row(need), max_gpus_per_node(bits) + 1, 0, need, last + 1)
    if rule == BEST_FIT:
        return _best_fit(rule, nodes, gpus, bits, need, last, rule_state)
    if rule == WORST_FIT:
        return _worst_fit(rule, nodes, gpus, bits, need, rule_state)
    if rule == ROUND_ROBIN:
        return _round_robin(nodes, gpus, bits, need, rule_state)
    if rule == TETRIS:
        return _tetris(rule, nodes, gpus, bits, need, rule_state)
    if rule in (FGD, WORTH):
        return find_least_loss_node(rule == FGD, nodes, gpus, bits, need, demand_id, history, cache, power)
    return _lowest_score(rule, nodes, gpus, bits, need, rule_state)


@inlined
def _choose_gpus(rule: int, nodes: Ints, gpus: Ints, node: int, need: Need, demand_id: int, cache: ScoreCache) -> int:
    if rule in (FGD, WORTH):
        return cache.masks[row_of(cache, demand_id), node]
    which = FIRST
    if rule == WORST_FIT or need.gpus > 1:
        which = LOOSEST  # fractions of several GPUs: this maximises the instances per node
    elif rule in (BEST_FIT, TETRIS):
        which = TIGHTEST
    return pick_gpus(nodes, gpus, node, need, which)


@compiled_without_references
def place_instances(
    rule: int,
    nodes: Ints,
    gpus: Ints,
    bits: Words,
    demands: Ints,
    row: int,
    demand_id: int,
    rule_state: Ints,
    history: DemandHistory,
    cache: ScoreCache,
    power: RackDraw,
    placements: Ints,
    first: int,
) -> bool:
    """Take resources for all instances of a demand and write them to `placements` from row `first` on.

    If they do not all fit, take nothing and return False. `demand_id` identifies the demand in the score cache.
    """
    need, totals = need_at(demands, row), nodes.shape[0] - 1
    if nodes[totals, MILLI_FREE] < need.instances * need.gpus * need.milli:
        return False
    if need.milli == WHOLE and nodes[totals, WHOLE_FREE] < need.instances * need.gpus:
        return False
    if rule == WORTH:
        if _is_worth_best_fit(nodes, need, history):
            rule = BEST_FIT
        else:
            update_type_prices(nodes, history.type_sets, history.limited_demand, history.type_prices)
    cursor, draws = rule_state[CURSOR], rule_state[DRAW_COUNTER]
    last, instance, end = -1, first, first + need.instances
    while instance < end:
        node = _choose_node(rule, nodes, gpus, bits, need, last, rule_state, demand_id, history, cache, power)
        if node < 0:
            for taken in range(first, instance):
                node, mask = placements[taken, NODE], placements[taken, GPU_MASK]
                adjust_free(nodes, gpus, bits, node, mask, need.milli, need.cpu, need.memory)
            rule_state[CURSOR], rule_state[DRAW_COUNTER] = cursor, draws
            return False
        last = node
        if rule <= BEST_FIT and need.gpus > 0 and need.milli == WHOLE:
            instance += _fill_node(nodes, gpus, bits, node, need, placements, instance, end)
            continue
        mask = _choose_gpus(rule, nodes, gpus, node, need, demand_id, cache)
        adjust_free(nodes, gpus, bits, node, mask, -need.milli, -need.cpu, -need.memory)
        placements[instance, NODE] = node
        placements[instance, GPU_MASK] = mask
        instance += 1
    return True


@inlined
def _fill_node(
    nodes: Ints, gpus: Ints, bits: Words, node: int, need: Need, placements: Ints, instance: int, end: int
) -> int:
    """Place as many instances with whole GPUs on a node as fit, up to `end`; return how many."""
    count = min(end - instance, nodes[node, WHOLE_FREE] // need.gpus)
    if need.cpu > 0:
        count = min(count, nodes[node, CPU_FREE] // need.cpu)
    if need.memory > 0:
        count = min(count, nodes[node, MEMORY_FREE] // need.memory)
    first, gpu, taken = nodes[node, FIRST_GPU], 0, 0
    for row in range(instance, instance + count):
        mask, missing = 0, need.gpus
        while missing > 0:
            if gpus[first + gpu] == WHOLE:
                mask |= 1 << gpu
                missing -= 1
            gpu += 1
        placements[row, NODE] = node
        placements[row, GPU_MASK] = mask
        taken |= mask
    adjust_free(nodes, gpus, bits, node, taken, -WHOLE, -count * need.cpu, -count * need.memory)
    return count
