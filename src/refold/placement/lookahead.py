"""Find the node with the lowest placement cost by FGD or worth; scores are cached per node state. Compiled."""

from __future__ import annotations

import cython
import numpy as np

from refold.model import WHOLE
from refold.model.arrays import view
from refold.placement.layout import FIRST_GPU, GPUS, LOOSEST, POWER_TOLERANCE_WATTS, SIGNATURE, TYPE_BIT, Floats, Ints

if not cython.compiled:
    from math import fmod

    from refold.placement.demand_history import DemandHistory, ScoreCache, row_of
    from refold.placement.fragmentation import fragmentation_after, node_fragmentation
    from refold.placement.kernels import (
        FreeArrays,
        candidate_row,
        fits,
        instances_on_node,
        max_gpus_per_node,
        need_at,
        pick_gpus,
        words_per_row,
    )
    from refold.placement.layout import Need, trailing_zeros
    from refold.placement.worth import loss_on

BALANCE_WEIGHT = 10.0
"""Cost, in GPUs, of a rack at its power limit. The cost is quadratic in the draw, which balances racks."""

ONE, INFINITE = 1, np.inf


class RackDraw:
    """Current power draw of the racks, for the kernels. Power is ignored if `rack_of` is empty. See `power.Power`."""

    def __init__(
        self,
        rack_of: Ints,
        watts_per_gpu_milli: Floats,
        watts_per_cpu_milli: Floats,
        draw: Floats,
        limit: Floats,
        scale: Floats,
    ) -> None:
        self.arrays = (rack_of, watts_per_gpu_milli, watts_per_cpu_milli, draw, limit, scale)
        self.rack_of, self.draw, self.limit, self.scale = view(rack_of), view(draw), view(limit), view(scale)
        self.watts_per_gpu_milli, self.watts_per_cpu_milli = view(watts_per_gpu_milli), view(watts_per_cpu_milli)

    def __reduce__(self) -> tuple[object, ...]:
        return RackDraw, self.arrays


def no_rack_draw() -> RackDraw:
    """Return a `RackDraw` with which power is ignored."""
    nothing = np.zeros(0)
    return RackDraw(np.zeros(0, dtype=np.int64), nothing, nothing, nothing, nothing, nothing)


def instance_watts(power: RackDraw, node: int, need: Need) -> float:
    return need.gpus * need.milli * power.watts_per_gpu_milli[node] + need.cpu * power.watts_per_cpu_milli[node]


def power_cost(power: RackDraw, node: int, need: Need) -> float:
    """Return the cost, in GPUs, of the power of an instance on a node: infinite above the limit of its rack."""
    rack, watts = power.rack_of[node], instance_watts(power, node, need)
    before, after = power.draw[rack], power.draw[rack] + watts
    if watts > 0.0 and after > power.limit[rack] + POWER_TOLERANCE_WATTS:
        return INFINITE
    return BALANCE_WEIGHT * (after * after - before * before) / (power.scale[rack] * power.scale[rack])


def count_within_limits(
    free: FreeArrays, demands: Ints, order: Ints, rack_of: Ints, watts: Floats, headroom: Floats, remaining: Floats
) -> tuple[int, int]:
    """Return how many nodes fit an instance but lack the rack power, and how many instances fit in total.

    Instances are identical, so filling the nodes with the lowest draw of each rack first gives the maximum. `remaining`
    is a copy of `headroom`.
    """
    need, over_limit, fitting = need_at(demands, 0), 0, 0
    for position in range(order.shape[0]):
        node = order[position]
        rack, count = rack_of[node], instances_on_node(free, node, need)
        if count > 0 and watts[node] > 0.0:
            if watts[node] > headroom[rack] + POWER_TOLERANCE_WATTS:
                over_limit += 1
                continue
            if remaining[rack] < INFINITE:
                left = max(0.0, remaining[rack] + POWER_TOLERANCE_WATTS)
                within = int((left - fmod(left, watts[node])) / watts[node] + 0.5)
                count = min(count, within)
                remaining[rack] -= count * watts[node]
        fitting += count
    return over_limit, fitting


def type_cost(free: FreeArrays, node: int, need: Need, prices: Floats) -> float:
    """Return the cost of taking GPUs of a node's type from the jobs that are limited to it."""
    if need.gpus == 0:
        return 0.0
    return prices[trailing_zeros(free.nodes[node, TYPE_BIT])] * need.gpus * need.milli / WHOLE


def find_least_loss_node(
    fgd: bool,
    free: FreeArrays,
    need: Need,
    demand_id: int,
    history: DemandHistory,
    cache: ScoreCache,
    power: RackDraw,
) -> int:
    """Return the node where an instance costs least (ties: the lowest index), or -1 if it fits nowhere.

    Afterwards `cache` holds the costs of all nodes that were considered, without power and the prices of GPU types.
    """
    best, least, low, last = -1, INFINITE, candidate_row(need), -1
    if low > max_gpus_per_node(free):
        return -1
    row, power_counts, types_count = row_of(cache, demand_id), power.rack_of.shape[0] > 0, history.type_sets[0] != 0
    for word in range(words_per_row(free)):
        pending = free.bits[low, word]
        if need.allowed:
            pending &= free.allowed.words[need.allowed, word]
        while pending:
            node = (word << 6) + trailing_zeros(pending)
            pending &= pending - ONE
            if cache.signatures[row, node] != free.nodes[node, SIGNATURE]:
                if last >= 0 and _interchangeable(free, node, last):
                    score, mask = cache.scores[row, last], cache.masks[row, last]
                else:
                    score, mask = loss(fgd, free, node, need, history)
                    last = node
                cache.scores[row, node], cache.masks[row, node] = score, mask
                cache.signatures[row, node] = free.nodes[node, SIGNATURE]
            score = cache.scores[row, node]
            if score >= least:
                continue  # the other costs are not negative
            if types_count:
                score += type_cost(free, node, need, history.type_prices)
            if power_counts:
                score += power_cost(power, node, need)
            if score < least:
                best, least = node, score
    return best


def loss(fgd: bool, free: FreeArrays, node: int, need: Need, history: DemandHistory) -> tuple[float, int]:
    """Return the cost of an instance on a node that is up (infinite where it does not fit), and its GPU mask.

    Without power and the prices of GPU types.
    """
    if not fits(free, node, need):
        return INFINITE, 0
    if fgd:
        mask = _fgd_gpus(free, node, need, history)
        before = node_fragmentation(free, node, history)
        return fragmentation_after(free, node, mask, need.milli, need.cpu, history) - before, mask
    return loss_on(free, node, need, history)


def _interchangeable(free: FreeArrays, node: int, other: int) -> bool:
    """Whether two nodes have the same GPUs and the same free resources."""
    return (
        free.nodes[node, SIGNATURE] == free.nodes[other, SIGNATURE]
        and free.nodes[node, GPUS] == free.nodes[other, GPUS]
        and free.nodes[node, TYPE_BIT] == free.nodes[other, TYPE_BIT]
    )


def _fgd_gpus(free: FreeArrays, node: int, need: Need, history: DemandHistory) -> int:
    """Return a GPU mask: for a fraction of one GPU, the GPU that leaves the least fragmentation; else the freest."""
    if need.gpus != 1 or need.milli == WHOLE:
        return pick_gpus(free, node, need, LOOSEST)
    best, least, first = 0, INFINITE, free.nodes[node, FIRST_GPU]
    for gpu in range(free.nodes[node, GPUS]):
        if free.gpus[first + gpu] < need.milli or (gpu > 0 and free.gpus[first + gpu] == free.gpus[first + gpu - 1]):
            continue  # same free capacity as its neighbour: same fragmentation
        left = fragmentation_after(free, node, 1 << gpu, need.milli, need.cpu, history)
        if left < least:
            best, least = 1 << gpu, left
    return best
