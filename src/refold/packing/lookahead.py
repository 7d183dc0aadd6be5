"""Where an instance costs least, as FGD or worth counts; a node is reckoned once while it is as it was. Compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from refold.model import WHOLE
from refold.packing.demand_history import DemandHistory, ScoreCache, row_of
from refold.packing.fragmentation import fragments_after, node_fragments
from refold.packing.jit import compiled, inlined, trailing_zeros
from refold.packing.kernels import LOOSEST, fits, lowest_row, most_gpus, pick_gpus, words_in
from refold.packing.layout import FIRST_GPU, GPUS, SIGNATURE, TYPE_BIT, Floats, Ints, Need, Words
from refold.packing.worth import loss_on

SLACK = 1e-6
"""Watts: dust of sums does not count."""

EVENNESS = 10.0
"""What it costs, in GPUs, to draw all of a rack's limit; half of it costs a quarter, so that racks are evened out."""


class RackPowerNow(NamedTuple):
    """Power as it is now, for the kernels; no nodes in `rack_of`: power does not matter. See `power.Power`."""

    rack_of: Ints
    watts_per_gpu_milli: Floats
    watts_per_cpu_milli: Floats
    draw: Floats
    limit: Floats
    scale: Floats


def no_racks() -> RackPowerNow:
    """Power does not matter."""
    nothing = np.zeros(0)
    return RackPowerNow(np.zeros(0, dtype=np.int64), nothing, nothing, nothing, nothing, nothing)


@inlined
def watts_of(racks: RackPowerNow, node: int, need: Need) -> float:
    """What an instance adds to the draw of a node's rack."""
    return need.gpus * need.milli * racks.watts_per_gpu_milli[node] + need.cpu * racks.watts_per_cpu_milli[node]


@compiled
def power_cost(racks: RackPowerNow, node: int, need: Need) -> float:
    """What the power of an instance on a node costs, in GPUs: endlessly much above the limit of its rack."""
    rack, watts = racks.rack_of[node], watts_of(racks, node, need)
    before, after = racks.draw[rack], racks.draw[rack] + watts
    if watts > 0.0 and after > racks.limit[rack] + SLACK:
        return np.inf
    return EVENNESS * (after * after - before * before) / (racks.scale[rack] * racks.scale[rack])


@compiled
def least_loss(
    fgd: bool,
    nodes: Ints,
    gpus: Ints,
    bits: Words,
    need: Need,
    kind: int,
    expected: DemandHistory,
    known: ScoreCache,
    racks: RackPowerNow,
) -> int:
    """The node where an instance costs least; of equals the first; -1 if it fits nowhere.

    Afterwards `known` has the costs of all nodes that were looked at, without power.
    """
    best, least, low, last = -1, np.inf, lowest_row(need), -1
    if low > most_gpus(bits):
        return -1
    row, with_power = row_of(known, kind), racks.rack_of.shape[0] > 0
    signatures, scores, masks = known.signatures[row], known.scores[row], known.masks[row]
    for word in range(words_in(bits)):
        pending = bits[low, word]
        while pending != np.uint64(0):
            node = (word << 6) + trailing_zeros(pending)
            pending &= pending - np.uint64(1)
            if signatures[node] != nodes[node, SIGNATURE]:
                if last >= 0 and _alike(nodes, node, last):
                    scores[node], masks[node] = scores[last], masks[last]
                else:
                    scores[node], masks[node] = loss(fgd, nodes, gpus, bits, node, need, expected)
                    last = node
                signatures[node] = nodes[node, SIGNATURE]
            score = scores[node]
            if with_power and score < np.inf:
                score += power_cost(racks, node, need)
            if score < least:
                best, least = node, score
    return best


@compiled
def loss(
    fgd: bool, nodes: Ints, gpus: Ints, bits: Words, node: int, need: Need, expected: DemandHistory
) -> tuple[float, int]:
    """What an instance costs on a node that is up, and on which of its GPUs; endlessly much where it does not fit."""
    if not fits(nodes, gpus, node, need):
        return np.inf, 0
    if fgd:
        mask = _fgd_gpus(nodes, gpus, node, need, expected.typical, expected.weights)
        before = node_fragments(nodes, gpus, node, expected.typical, expected.weights)
        return fragments_after(nodes, gpus, node, mask, need, expected.typical, expected.weights) - before, mask
    largest = most_gpus(bits)
    return loss_on(nodes, gpus, largest, node, need, expected.worth, expected.needs, expected.scarcity)


@inlined
def _alike(nodes: Ints, node: int, other: int) -> bool:
    """Whether as much is free on two nodes of the same kind."""
    return (
        nodes[node, SIGNATURE] == nodes[other, SIGNATURE]
        and nodes[node, GPUS] == nodes[other, GPUS]
        and nodes[node, TYPE_BIT] == nodes[other, TYPE_BIT]
    )


@compiled
def _fgd_gpus(nodes: Ints, gpus: Ints, node: int, need: Need, typical: Ints, weights: Floats) -> int:
    """For a share of one GPU the GPU that leaves the fewest fragments; else those with the most free."""
    if need.gpus != 1 or need.milli == WHOLE:
        return pick_gpus(nodes, gpus, node, need, LOOSEST)
    best, least, first = 0, np.inf, nodes[node, FIRST_GPU]
    for gpu in range(nodes[node, GPUS]):
        if gpus[first + gpu] < need.milli or (gpu > 0 and gpus[first + gpu] == gpus[first + gpu - 1]):
            continue  # a GPU as free as its neighbour leaves the same fragments
        left = fragments_after(nodes, gpus, node, 1 << gpu, need, typical, weights)
        if left < least:
            best, least = 1 << gpu, left
    return best
