"""The greedy placement rules: choose the node of one instance, and its GPUs there. Compiled.

A rule considers only nodes where the instance fits, and breaks ties by the lowest node index. First fit and best fit
use `bits` as an index. So do worst fit and Tetris while no GPU is partly free and no CPUs or memory are requested:
then the number of entirely free GPUs determines the score of a node. Otherwise all nodes are scanned.
"""

from __future__ import annotations

import cython
import numpy as np

from refold.model import WHOLE, Placement, Share
from refold.model.arrays import view
from refold.placement.demand_history import CPU_PER_GPU, MEMORY_PER_GPU
from refold.placement.free import indices_from_mask
from refold.placement.layout import (
    BEST_FIT,
    CPU_FREE,
    CPU_TOTAL,
    FGD,
    FIRST,
    FIRST_FIT,
    FIRST_GPU,
    GPU_MASK,
    GPUS,
    LOOSEST,
    MAX_FREE,
    MEMORY_FREE,
    MEMORY_TOTAL,
    MILLI_FREE,
    NODE,
    PART,
    RANDOM,
    ROUND_ROBIN,
    TETRIS,
    TIGHTEST,
    UNLIMITED,
    WHOLE_FREE,
    WORST_FIT,
    WORTH,
    Ints,
)
from refold.placement.lookahead import no_rack_draw

if not cython.compiled:
    from refold.placement.allowed import allow_part, has_request
    from refold.placement.demand_history import DemandHistory, ScoreCache, row_of
    from refold.placement.domains import Parts, choose_domains
    from refold.placement.kernels import (
        EncodedDemand,
        FreeArrays,
        adjust_free,
        any_node_of_size_with_free,
        any_node_with_free,
        candidate_row,
        fits,
        max_gpus_per_node,
        next_fitting_node,
        pick_gpus,
        words_per_row,
    )
    from refold.placement.layout import Need, trailing_zeros
    from refold.placement.lookahead import find_least_loss_node
    from refold.placement.worth import update_type_prices

ONE, ALL_BITS, INFINITE = 1, (1 << 64) - 1, np.inf
DRAW_HASH, NODE_HASH = 0xD1B54A32D192ED03, 0x9E3779B97F4A7C15
FIRST_MIX, SECOND_MIX = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


class GreedyRule:
    """A rule and its state, which persists between placements.

    `cursor` is the node after the last one used (round robin), `draws` the number of random choices made.
    """

    def __init__(
        self, number: int, seed: int, history: DemandHistory, cache: ScoreCache, cursor: int = 0, draws: int = 0
    ) -> None:
        self.number, self.seed, self.cursor, self.draws = number, seed, cursor, draws
        self.history, self.cache = history, cache
        self.no_power = no_rack_draw()
        self.placements, self.parts = view(np.zeros((64, 2), dtype=np.int64)), Parts()

    def __reduce__(self) -> tuple[object, ...]:
        return GreedyRule, (self.number, self.seed, self.history, self.cache, self.cursor, self.draws)

    def make_room(self, instances: int) -> None:
        if instances > self.placements.shape[0]:
            self.placements = view(np.zeros((instances, 2), dtype=np.int64))
            self.parts.make_room(instances)

    def place(self, free: FreeArrays, demand: EncodedDemand, demand_id: int) -> Placement | None:
        """Take a placement for all instances; None, with nothing taken, if they do not fit.

        `demand_id` identifies the demand in the score cache.
        """
        self.make_room(demand.need.instances)
        if not place_instances(self, free, demand.need, demand_id):
            return None
        return build_placement(demand, self.placements, 0)


def build_placement(demand: EncodedDemand, rows: Ints, first: int) -> Placement:
    """Return the placement of a demand whose instances have the nodes and GPU masks of these rows."""
    shares = []
    for row in range(first, first + demand.need.instances):
        gpus = indices_from_mask(rows[row, GPU_MASK])
        shares.append(Share(rows[row, NODE], gpus, demand.need.milli, demand.need.cpu, demand.need.memory))
    return tuple(shares)


def _only_whole_gpus_matter(free: FreeArrays, need: Need) -> bool:
    """Whether no GPU is partly free and only whole GPUs are requested."""
    totals = free.nodes.shape[0] - 1
    return (
        free.nodes[totals, MILLI_FREE] == free.nodes[totals, WHOLE_FREE] * WHOLE
        and need.gpus > 0
        and need.milli == WHOLE
        and need.cpu == 0
        and need.memory == 0
    )


def _is_worth_best_fit(free: FreeArrays, need: Need, history: DemandHistory) -> bool:
    """Whether a node loses the less worth the fewer GPUs it has free, so that the faster rule chooses the same."""
    totals = free.nodes.shape[0] - 1
    return (
        free.nodes[totals, MILLI_FREE] == free.nodes[totals, WHOLE_FREE] * WHOLE
        and need.gpus > 0
        and need.milli == WHOLE
        and history.type_sets[0] == 0
        and (history.needs[CPU_PER_GPU] == 0.0 or free.nodes[0, CPU_TOTAL] == UNLIMITED)
        and (history.needs[MEMORY_PER_GPU] == 0.0 or free.nodes[0, MEMORY_TOTAL] == UNLIMITED)
    )


def _best_fit(free: FreeArrays, need: Need, last: int) -> int:
    """Return the node with the fewest entirely free GPUs; of those, the one with the least free GPU capacity."""
    if need.gpus == 0 or need.milli < WHOLE:
        return _lowest_score(BEST_FIT, free, need, 0)
    fewest, start, totals = need.gpus, 0, free.nodes.shape[0] - 1
    if last >= 0 and free.nodes[totals, MILLI_FREE] == free.nodes[totals, WHOLE_FREE] * WHOLE:
        # If no GPU is partly free, the search for the next instance continues at the node of the last one.
        fewest, start = free.nodes[last, WHOLE_FREE] + need.gpus, last + 1
    for whole in range(fewest, max_gpus_per_node(free) + 1):
        if not any_node_with_free(free, whole):
            start = 0
            continue
        best, least = -1, 0
        node = next_fitting_node(free, whole, whole + 1, 0, need, start)
        while node >= 0:
            left = free.nodes[node, MILLI_FREE]
            if left == whole * WHOLE:
                return node  # none of its GPUs is partly free: no node can have less
            if best < 0 or left < least:
                best, least = node, left
            node = next_fitting_node(free, whole, whole + 1, 0, need, node + 1)
        if best >= 0:
            return best
        start = 0
    return -1


def _worst_fit(free: FreeArrays, need: Need) -> int:
    """Return the node with the most free GPU capacity; for a GPU fraction, the node with the freest single GPU."""
    if not _only_whole_gpus_matter(free, need):
        return _lowest_score(WORST_FIT, free, need, 0)
    for whole in range(max_gpus_per_node(free), need.gpus - 1, -1):
        if not any_node_with_free(free, whole):
            continue
        node = next_fitting_node(free, whole, whole + 1, 0, need, 0)
        if node >= 0:
            return node
    return -1


def _tetris(free: FreeArrays, need: Need) -> int:
    """Return the node with the best alignment: demand · free, both as fractions of the node (SIGCOMM'14)."""
    if not _only_whole_gpus_matter(free, need):
        return _lowest_score(TETRIS, free, need, 0)
    largest = max_gpus_per_node(free)
    best, lowest = -1, INFINITE
    for size in range(need.gpus, largest + 1):  # among nodes of one size, the freest is best
        for whole in range(size, need.gpus - 1, -1):
            if not any_node_of_size_with_free(free, size, whole):
                continue
            if float(need.gpus * whole) / float(size * size) < -lowest:
                break  # its alignment would be lower
            node = next_fitting_node(free, whole, whole + 1, largest + 2 + size, need, 0)
            if node >= 0:
                score = -_alignment(free, node, need)
                if score < lowest or (score == lowest and node < best):
                    best, lowest = node, score
                break
    return best


def _alignment(free: FreeArrays, node: int, need: Need) -> float:
    alignment = 0.0
    if need.gpus > 0:
        gpu_milli = free.nodes[node, GPUS] * WHOLE
        alignment += float(need.gpus * need.milli * free.nodes[node, MILLI_FREE]) / float(gpu_milli * gpu_milli)
    if need.cpu > 0:
        cpu = float(free.nodes[node, CPU_TOTAL])
        alignment += need.cpu / cpu * (free.nodes[node, CPU_FREE] / cpu)
    if need.memory > 0:
        memory = float(free.nodes[node, MEMORY_TOTAL])
        alignment += need.memory / memory * (free.nodes[node, MEMORY_FREE] / memory)
    return alignment


def _free_metric(free: FreeArrays, node: int, need: Need, tightest: bool) -> int:
    """Return what best fit minimises and worst fit maximises: free CPU, or free GPU of the node or of one GPU."""
    if need.gpus == 0:
        return free.nodes[node, CPU_FREE]
    if need.milli == WHOLE:
        return free.nodes[node, MILLI_FREE]
    if not tightest:
        return free.nodes[node, MAX_FREE]
    least, first = WHOLE, free.nodes[node, FIRST_GPU]
    for gpu in range(first, first + free.nodes[node, GPUS]):
        if need.milli <= free.gpus[gpu] < least:
            least = free.gpus[gpu]
    return least


def _hash(draw: int, node: int) -> float:
    """Return a pseudo-random hash of two numbers (the finaliser of SplitMix64)."""
    word = (draw * DRAW_HASH + node * NODE_HASH) & ALL_BITS
    word = (word ^ (word >> 30)) * FIRST_MIX & ALL_BITS
    word = (word ^ (word >> 27)) * SECOND_MIX & ALL_BITS
    return float((word ^ (word >> 31)) >> 11)


def _lowest_score(rule: int, free: FreeArrays, need: Need, draw: int) -> int:
    """Scan all nodes where the instance fits and return the one with the lowest score."""
    best, lowest, low = -1, INFINITE, candidate_row(need)
    if low > max_gpus_per_node(free):
        return -1
    milli = need.milli if need.gpus > 0 else 0
    for word in range(words_per_row(free)):
        pending = free.bits[low, word]
        if need.allowed:
            pending &= free.allowed.words[need.allowed, word]
        while pending:
            node = (word << 6) + trailing_zeros(pending)
            pending &= pending - ONE
            if free.nodes[node, MAX_FREE] < milli:
                continue
            if rule == TETRIS:
                score = -_alignment(free, node, need)
            elif rule == RANDOM:  # every node has the lowest hash with equal probability
                score = _hash(draw, node)
            elif rule == BEST_FIT:
                score = float(_free_metric(free, node, need, True))
            else:
                score = -float(_free_metric(free, node, need, False))
            if score < lowest and fits(free, node, need):
                best, lowest = node, score
    return best


def _round_robin(rule: GreedyRule, free: FreeArrays, need: Need) -> int:
    """Return the next node after the last one used."""
    low, none = candidate_row(need), max_gpus_per_node(free) + 1
    node = next_fitting_node(free, low, none, 0, need, rule.cursor)
    if node < 0:
        node = next_fitting_node(free, low, none, 0, need, 0)
    if node >= 0:
        rule.cursor = node + 1
    return node


def _choose_node(rule: GreedyRule, number: int, free: FreeArrays, need: Need, last: int, demand_id: int) -> int:
    """Return the node for the next instance of a gang. `last` is the node of the previous instance, or -1."""
    shared = need.gpus == 0 or need.milli < WHOLE  # otherwise the last node was filled by `_fill_node`
    if number == FIRST_FIT and shared and last >= 0 and fits(free, last, need):
        return last  # it is still the first node that fits
    if number == FIRST_FIT:
        return next_fitting_node(free, candidate_row(need), max_gpus_per_node(free) + 1, 0, need, last + 1)
    if number == BEST_FIT:
        return _best_fit(free, need, last)
    if number == WORST_FIT:
        return _worst_fit(free, need)
    if number == ROUND_ROBIN:
        return _round_robin(rule, free, need)
    if number == TETRIS:
        return _tetris(free, need)
    if number == RANDOM:
        rule.draws += 1
        return _lowest_score(RANDOM, free, need, rule.draws + (rule.seed << 32))
    return find_least_loss_node(number == FGD, free, need, demand_id, rule.history, rule.cache, rule.no_power)


def _choose_gpus(rule: GreedyRule, number: int, free: FreeArrays, node: int, need: Need, demand_id: int) -> int:
    if number in (FGD, WORTH):
        return rule.cache.masks[row_of(rule.cache, demand_id), node]
    which = FIRST
    if number == WORST_FIT or need.gpus > 1:
        which = LOOSEST  # fractions of several GPUs: this maximises the instances per node
    elif number in (BEST_FIT, TETRIS):
        which = TIGHTEST
    return pick_gpus(free, node, need, which)


def place_instances(rule: GreedyRule, free: FreeArrays, need: Need, demand_id: int) -> bool:
    """Take resources for all instances and write them to `rule.placements`; if they do not all fit, take nothing."""
    number, totals = rule.number, free.nodes.shape[0] - 1
    if free.nodes[totals, MILLI_FREE] < need.instances * need.gpus * need.milli:
        return False
    if need.milli == WHOLE and free.nodes[totals, WHOLE_FREE] < need.instances * need.gpus:
        return False
    if number == WORTH:
        if _is_worth_best_fit(free, need, rule.history):
            number = BEST_FIT
        else:
            update_type_prices(free, rule.history.type_sets, rule.history.limited_demand, rule.history.type_prices)
    if not has_request(free.allowed, need):
        return _place_part(rule, number, free, need, 0, demand_id)
    if not choose_domains(free, free.allowed, need, rule.parts):
        return False
    placed, level = 0, free.allowed.number.shape[0] - 1
    for part in range(rule.parts.size):
        allow_part(free.allowed, need.allowed, level, rule.parts.domain[part])
        until = placed + rule.parts.instances[part]
        of_part = Need(until, need.gpus, need.milli, need.cpu, need.memory, need.types, PART)
        if not _place_part(rule, number, free, of_part, placed, demand_id):
            return False
        placed = until
    return True


def _place_part(rule: GreedyRule, number: int, free: FreeArrays, need: Need, placed: int, demand_id: int) -> bool:
    """Place the instances after those that are placed; if they do not all fit, release these as well."""
    cursor, draws, last, instance = rule.cursor, rule.draws, -1, placed
    while instance < need.instances:
        node = _choose_node(rule, number, free, need, last, demand_id)
        if node < 0:
            for taken in range(instance):
                node, mask = rule.placements[taken, NODE], rule.placements[taken, GPU_MASK]
                adjust_free(free, node, mask, need.milli, need.cpu, need.memory)
            rule.cursor, rule.draws = cursor, draws
            return False
        last = node
        if number <= BEST_FIT and need.gpus > 0 and need.milli == WHOLE:
            instance += _fill_node(rule, free, node, need, instance)
            continue
        mask = _choose_gpus(rule, number, free, node, need, demand_id)
        adjust_free(free, node, mask, -need.milli, -need.cpu, -need.memory)
        rule.placements[instance, NODE], rule.placements[instance, GPU_MASK] = node, mask
        instance += 1
    return True


def _fill_node(rule: GreedyRule, free: FreeArrays, node: int, need: Need, instance: int) -> int:
    """Place as many of the instances from `instance` on with whole GPUs on a node as fit; return how many."""
    count = min(need.instances - instance, free.nodes[node, WHOLE_FREE] // need.gpus)
    if need.cpu > 0:
        count = min(count, free.nodes[node, CPU_FREE] // need.cpu)
    if need.memory > 0:
        count = min(count, free.nodes[node, MEMORY_FREE] // need.memory)
    first, gpu, taken = free.nodes[node, FIRST_GPU], 0, 0
    for row in range(instance, instance + count):
        mask, missing = 0, need.gpus
        while missing > 0:
            if free.gpus[first + gpu] == WHOLE:
                mask |= 1 << gpu
                missing -= 1
            gpu += 1
        rule.placements[row, NODE], rule.placements[row, GPU_MASK] = node, mask
        taken |= mask
    adjust_free(free, node, taken, -WHOLE, -count * need.cpu, -count * need.memory)
    return count
