"""Taking, giving back and looking for room: compiled, over the arrays of `layout`."""

from __future__ import annotations

import numpy as np

from refold.model.units import WHOLE
from refold.packing.compiled import compiled, trailing_zeros
from refold.packing.layout import (
    CPU_FREE,
    FIRST_GPU,
    GPUS,
    MEMORY_FREE,
    MILLI_FREE,
    MOST_FREE,
    NEED_CPU,
    NEED_GPUS,
    NEED_MEMORY,
    NEED_MILLI,
    NEED_TYPES,
    TYPE_BIT,
    UP,
    WHOLE_FREE,
    Ints,
    Words,
)

# What `take` answers.
TAKEN, NODE_DOWN, NO_SUCH_GPU, GPU_OVER, CPU_OVER, MEMORY_OVER = range(6)

# What `first_lack` answers, in the order of model.waiting.Shortage.
FITS, DOWN, WRONG_TYPE, TOO_SMALL, FEW_GPUS, FEW_CPUS, LITTLE_MEMORY = range(7)


@compiled
def _move_bits(bits: Words, node: int, before: int, after: int) -> None:
    """Node `node` had `before` whole free GPUs and now has `after`; -1 stands for not being up."""
    word, bit = node >> 6, np.uint64(1) << np.uint64(node & 63)
    for row in range(before + 1, after + 1):
        bits[row, word] |= bit
    for row in range(after + 1, before + 1):
        bits[row, word] &= ~bit


@compiled
def _recount(nodes: Ints, gpus: Ints, node: int) -> None:
    """Renew what a node's row says of its GPUs."""
    whole = most = total = 0
    first = nodes[node, FIRST_GPU]
    for gpu in range(first, first + nodes[node, GPUS]):
        free = gpus[gpu]
        total += free
        most = max(most, free)
        whole += free == WHOLE
    nodes[node, WHOLE_FREE] = whole
    nodes[node, MOST_FREE] = most
    nodes[node, MILLI_FREE] = total


@compiled
def _move(nodes: Ints, gpus: Ints, bits: Words, node: int, mask: int, milli: int, cpu: int, memory: int) -> None:
    """Give back amounts to a node (negative amounts: take them)."""
    before, milli_before = nodes[node, WHOLE_FREE], nodes[node, MILLI_FREE]
    first, left, gpu = nodes[node, FIRST_GPU], mask, 0
    while left:
        if left & 1:
            gpus[first + gpu] += milli
        left >>= 1
        gpu += 1
    nodes[node, CPU_FREE] += cpu
    nodes[node, MEMORY_FREE] += memory
    if mask:
        _recount(nodes, gpus, node)
    if nodes[node, UP]:
        after, sums = nodes[node, WHOLE_FREE], nodes.shape[0] - 1
        nodes[sums, WHOLE_FREE] += after - before
        nodes[sums, MILLI_FREE] += nodes[node, MILLI_FREE] - milli_before
        nodes[sums, CPU_FREE] += cpu
        nodes[sums, MEMORY_FREE] += memory
        if after != before:
            _move_bits(bits, node, before, after)


@compiled
def give_back(nodes: Ints, gpus: Ints, bits: Words, node: int, mask: int, milli: int, cpu: int, memory: int) -> None:
    """Return what was taken with the same numbers."""
    _move(nodes, gpus, bits, node, mask, milli, cpu, memory)


@compiled
def take_unchecked(
    nodes: Ints, gpus: Ints, bits: Words, node: int, mask: int, milli: int, cpu: int, memory: int
) -> None:
    """Take what is known to be free."""
    _move(nodes, gpus, bits, node, mask, -milli, -cpu, -memory)


@compiled
def take(nodes: Ints, gpus: Ints, bits: Words, node: int, mask: int, milli: int, cpu: int, memory: int) -> int:
    """Take amounts if they are free; otherwise change nothing and say what is short."""
    if not nodes[node, UP]:
        return NODE_DOWN
    if mask >> nodes[node, GPUS]:
        return NO_SUCH_GPU
    first, left, gpu = nodes[node, FIRST_GPU], mask, 0
    while left:
        if left & 1 and gpus[first + gpu] < milli:
            return GPU_OVER
        left >>= 1
        gpu += 1
    if nodes[node, CPU_FREE] < cpu:
        return CPU_OVER
    if nodes[node, MEMORY_FREE] < memory:
        return MEMORY_OVER
    _move(nodes, gpus, bits, node, mask, -milli, -cpu, -memory)
    return TAKEN


@compiled
def set_up(nodes: Ints, bits: Words, node: int, up: int) -> None:
    """A node is lost, or has returned."""
    if nodes[node, UP] == up:
        return
    sign, sums = 2 * up - 1, nodes.shape[0] - 1
    for column in (WHOLE_FREE, MILLI_FREE, CPU_FREE, MEMORY_FREE):
        nodes[sums, column] += sign * nodes[node, column]
    nodes[node, UP] = up
    if up:
        _move_bits(bits, node, -1, nodes[node, WHOLE_FREE])
    else:
        _move_bits(bits, node, nodes[node, WHOLE_FREE], -1)


@compiled
def gpus_with_room(nodes: Ints, gpus: Ints, node: int, milli: int) -> int:
    """How many GPUs of a node have at least `milli` free."""
    first, count = nodes[node, FIRST_GPU], 0
    for gpu in range(first, first + nodes[node, GPUS]):
        count += gpus[gpu] >= milli
    return count


@compiled
def fits(nodes: Ints, gpus: Ints, node: int, demand: Ints) -> bool:
    """Whether one instance fits on a node that is up."""
    if nodes[node, CPU_FREE] < demand[NEED_CPU] or nodes[node, MEMORY_FREE] < demand[NEED_MEMORY]:
        return False
    need = demand[NEED_GPUS]
    if need == 0:
        return True
    if not nodes[node, TYPE_BIT] & demand[NEED_TYPES]:
        return False
    if demand[NEED_MILLI] == WHOLE:
        return bool(nodes[node, WHOLE_FREE] >= need)
    if need == 1:
        return bool(nodes[node, MOST_FREE] >= demand[NEED_MILLI])
    return bool(gpus_with_room(nodes, gpus, node, demand[NEED_MILLI]) >= need)


@compiled
def lowest_level(demand: Ints) -> int:
    """The row of `bits` that holds every node where an instance could fit."""
    return int(demand[NEED_GPUS]) if demand[NEED_MILLI] == WHOLE else 0


@compiled
def next_fitting(nodes: Ints, gpus: Ints, bits: Words, low: int, above: int, demand: Ints, start: int) -> int:
    """The first node from `start` on with at least `low` and fewer than `above` whole free GPUs where it fits; or -1."""
    if low >= bits.shape[0]:
        return -1
    words = bits.shape[1]
    word = start >> 6
    if word >= words:
        return -1
    pending = bits[low, word] & ~bits[above, word] & (~np.uint64(0) << np.uint64(start & 63))
    while True:
        while pending != np.uint64(0):
            node = (word << 6) + trailing_zeros(pending)
            if fits(nodes, gpus, node, demand):
                return node
            pending &= pending - np.uint64(1)
        word += 1
        if word >= words:
            return -1
        pending = bits[low, word] & ~bits[above, word]


@compiled
def first_lack(nodes: Ints, gpus: Ints, node: int, demand: Ints) -> int:
    """The first thing a node lacks for one instance, for the counted reason."""
    need = demand[NEED_GPUS]
    if not nodes[node, UP]:
        return DOWN
    if nodes[node, GPUS] < need:
        return TOO_SMALL
    if need and not nodes[node, TYPE_BIT] & demand[NEED_TYPES]:
        return WRONG_TYPE
    if gpus_with_room(nodes, gpus, node, demand[NEED_MILLI]) < need:
        return FEW_GPUS
    if nodes[node, CPU_FREE] < demand[NEED_CPU]:
        return FEW_CPUS
    if nodes[node, MEMORY_FREE] < demand[NEED_MEMORY]:
        return LITTLE_MEMORY
    return FITS


@compiled
def count_lacks(nodes: Ints, gpus: Ints, demand: Ints) -> Ints:
    """How many nodes lack what: each counted once, under the first thing it lacks."""
    counts = np.zeros(LITTLE_MEMORY + 1, dtype=np.int64)
    for node in range(nodes.shape[0] - 1):
        counts[first_lack(nodes, gpus, node, demand)] += 1
    return counts
