"""Find the node with the lowest placement cost by FGD or worth; scores are cached per node state. Compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from refold.jit import compiled_without_references, inlined, trailing_zeros
from refold.model import WHOLE
from refold.packing.demand_history import DemandHistory, ScoreCache, row_of
from refold.packing.fragmentation import fragmentation_after, node_fragmentation
from refold.packing.kernels import LOOSEST, candidate_row, fits, max_gpus_per_node, pick_gpus, words_per_row
from refold.packing.layout import (
    FIRST_GPU,
    GPUS,
    POWER_TOLERANCE_WATTS,
    SIGNATURE,
    TYPE_BIT,
    Floats,
    Ints,
    Need,
    Words,
)
from refold.packing.worth import loss_on

BALANCE_WEIGHT = 10.0
"""Cost, in GPUs, of a rack at its power limit. The cost is quadratic in the draw, which balances racks."""


class RackDraw(NamedTuple):
    """Current power draw of the racks, for the kernels. Power is ignored if `rack_of` is empty. See `power.Power`."""

    rack_of: Ints
    watts_per_gpu_milli: Floats
    watts_per_cpu_milli: Floats
    draw: Floats
    limit: Floats
    scale: Floats


def no_rack_draw() -> RackDraw:
    """Return a `RackDraw` with which power is ignored."""
    nothing = np.zeros(0)
    return RackDraw(np.zeros(0, dtype=np.int64), nothing, nothing, nothing, nothing, nothing)


@inlined
def instance_watts(power: RackDraw, node: int, need: Need) -> float:
    """Return the watts that an instance adds to the rack of a node."""
    return need.gpus * need.milli * power.watts_per_gpu_milli[node] + need.cpu * power.watts_per_cpu_milli[node]


@compiled_without_references
def power_cost(power: RackDraw, node: int, need: Need) -> float:
    """Return the cost, in GPUs, of the power of an instance on a node: infinite above the limit of its rack."""
    rack, watts = power.rack_of[node], instance_watts(power, node, need)
    before, after = power.draw[rack], power.draw[rack] + watts
    if watts > 0.0 and after > power.limit[rack] + POWER_TOLERANCE_WATTS:
        return np.inf
    return BALANCE_WEIGHT * (after * after - before * before) / (power.scale[rack] * power.scale[rack])


@inlined
def type_cost(nodes: Ints, node: int, need: Need, prices: Floats) -> float:
    """Return the cost of taking GPUs of a node's type from the jobs that are limited to it."""
    if need.gpus == 0:
        return 0.0
    return prices[trailing_zeros(np.uint64(nodes[node, TYPE_BIT]))] * need.gpus * need.milli / WHOLE


@compiled_without_references
def find_least_loss_node(
    fgd: bool,
    nodes: Ints,
    gpus: Ints,
    bits: Words,
    need: Need,
    demand_id: int,
    history: DemandHistory,
    cache: ScoreCache,
    power: RackDraw,
) -> int:
    """Return the node where an instance costs least (ties: the lowest index), or -1 if it fits nowhere.

    Afterwards `cache` holds the costs of all nodes that were considered, without power and the prices of GPU types.
    """
    best, least, low, last = -1, np.inf, candidate_row(need), -1
    if low > max_gpus_per_node(bits):
        return -1
    row, power_counts, types_count = row_of(cache, demand_id), power.rack_of.shape[0] > 0, history.type_sets[0] != 0
    signatures, scores, masks = cache.signatures[row], cache.scores[row], cache.masks[row]
    for word in range(words_per_row(bits)):
        pending = bits[low, word]
        while pending != np.uint64(0):
            node = (word << 6) + trailing_zeros(pending)
            pending &= pending - np.uint64(1)
            if signatures[node] != nodes[node, SIGNATURE]:
                if last >= 0 and _interchangeable(nodes, node, last):
                    scores[node], masks[node] = scores[last], masks[last]
                else:
                    scores[node], masks[node] = loss(fgd, nodes, gpus, bits, node, need, history)
                    last = node
                signatures[node] = nodes[node, SIGNATURE]
            score = scores[node]
            if types_count:
                score += type_cost(nodes, node, need, history.type_prices)
            if power_counts and score < np.inf:
                score += power_cost(power, node, need)
            if score < least:
                best, least = node, score
    return best


@compiled_without_references
def loss(
    fgd: bool, nodes: Ints, gpus: Ints, bits: Words, node: int, need: Need, history: DemandHistory
) -> tuple[float, int]:
    """Return the cost of an instance on a node that is up (infinite where it does not fit), and its GPU mask.

    Without power and the prices of GPU types.
    """
    if not fits(nodes, gpus, node, need):
        return np.inf, 0
    if fgd:
        mask = _fgd_gpus(nodes, gpus, node, need, history.typical, history.weights)
        before = node_fragmentation(nodes, gpus, node, history.typical, history.weights)
        return fragmentation_after(nodes, gpus, node, mask, need, history.typical, history.weights) - before, mask
    largest = max_gpus_per_node(bits)
    return loss_on(nodes, gpus, largest, node, need, history.worth, history.needs)


@inlined
def _interchangeable(nodes: Ints, node: int, other: int) -> bool:
    """Whether two nodes have the same GPUs and the same free resources."""
    return (
        nodes[node, SIGNATURE] == nodes[other, SIGNATURE]
        and nodes[node, GPUS] == nodes[other, GPUS]
        and nodes[node, TYPE_BIT] == nodes[other, TYPE_BIT]
    )


@compiled_without_references
def _fgd_gpus(nodes: Ints, gpus: Ints, node: int, need: Need, typical: Ints, weights: Floats) -> int:
    """Return a GPU mask: for a fraction of one GPU, the GPU that leaves the least fragmentation; else the freest."""
    if need.gpus != 1 or need.milli == WHOLE:
        return pick_gpus(nodes, gpus, node, need, LOOSEST)
    best, least, first = 0, np.inf, nodes[node, FIRST_GPU]
    for gpu in range(nodes[node, GPUS]):
        if gpus[first + gpu] < need.milli or (gpu > 0 and gpus[first + gpu] == gpus[first + gpu - 1]):
            continue  # same free capacity as its neighbour: same fragmentation
        left = fragmentation_after(nodes, gpus, node, 1 << gpu, need, typical, weights)
        if left < least:
            best, least = 1 << gpu, left
    return best
