"""Take and release resources, and find nodes where an instance fits. Compiled, over the arrays of `layout`."""

from __future__ import annotations

import numpy as np

from refold.jit import compiled, compiled_without_references, inlined, trailing_zeros
from refold.model import WHOLE
from refold.packing.layout import (
    CPU_FREE,
    FIRST_GPU,
    GPUS,
    MAX_FREE,
    MEMORY_FREE,
    MILLI_FREE,
    SIGNATURE,
    TYPE_BIT,
    UP,
    WHOLE_FREE,
    Ints,
    Need,
    Words,
)

# Hash multipliers of a node's signature: per thousandth of a CPU, per MiB, and per thousandth of a GPU (GPU i uses the
# power i + 1). They are odd random numbers, unsigned because only unsigned arithmetic may overflow.
CPU_HASH, MEMORY_HASH = np.uint64(0x2545F4914F6CDD1D), np.uint64(0xD851F42D4C957F2D)
GPU_HASH = np.uint64(0xB69DEA0F31A53F85)

# Which GPUs `pick_gpus` prefers: the lowest index, the least free capacity, the most free capacity.
FIRST, TIGHTEST, LOOSEST = range(3)

# Results of `take`.
TAKEN, NODE_DOWN, NO_SUCH_GPU, GPU_OVER, CPU_OVER, MEMORY_OVER = range(6)

# Results of `first_shortage`, and the entries of what `count_shortages` returns.
FITS, DOWN, WRONG_TYPE, TOO_SMALL, FEW_GPUS, FEW_CPUS, LITTLE_MEMORY, INSTANCES_THAT_FIT = range(8)


@inlined
def need_at(demands: Ints, row: int) -> Need:
    """Return a row of `demands` as a `Need`."""
    return Need(demands[row, 0], demands[row, 1], demands[row, 2], demands[row, 3], demands[row, 4], demands[row, 5])


@inlined
def max_gpus_per_node(bits: Words) -> int:
    """Return the number of GPUs of the largest node: the last row of `bits` with nodes by free GPUs."""
    return (bits.shape[0] - 3) >> 1


@inlined
def words_per_row(bits: Words) -> int:
    """Return how many words of a row of `bits` are node bits (counts follow them)."""
    return bits.shape[1] - max_gpus_per_node(bits) - 2


@inlined
def any_node_with_free(bits: Words, whole: int) -> bool:
    """Whether any node that is up has exactly `whole` entirely free GPUs."""
    column = bits.shape[1] - 1
    return bits[whole, column] != bits[whole + 1, column]


@inlined
def any_node_of_size_with_free(bits: Words, size: int, whole: int) -> bool:
    """Whether any node with `size` GPUs that is up has exactly `whole` of them entirely free."""
    column = words_per_row(bits) + size
    return bits[whole, column] != bits[whole + 1, column]


@inlined
def _update_bits(bits: Words, node: int, size: int, before: int, after: int) -> None:
    """Update `bits` for a node with `size` GPUs: `before` were entirely free, now `after` are; -1 means down."""
    word, bit = node >> 6, np.uint64(1) << np.uint64(node & 63)
    count, total = words_per_row(bits) + size, bits.shape[1] - 1
    for row in range(before + 1, after + 1):
        bits[row, word] |= bit
        bits[row, count] += np.uint64(1)
        bits[row, total] += np.uint64(1)
    for row in range(after + 1, before + 1):
        bits[row, word] &= ~bit
        bits[row, count] -= np.uint64(1)
        bits[row, total] -= np.uint64(1)


@inlined
def adjust_free(nodes: Ints, gpus: Ints, bits: Words, node: int, mask: int, milli: int, cpu: int, memory: int) -> None:
    """Add amounts to the free resources of a node; negative amounts are taken."""
    nodes[node, CPU_FREE] += cpu
    nodes[node, MEMORY_FREE] += memory
    signature = np.uint64(nodes[node, SIGNATURE]) + np.uint64(cpu) * CPU_HASH + np.uint64(memory) * MEMORY_HASH
    if mask:
        totals = nodes.shape[0] - 1
        before, milli_before = nodes[node, WHOLE_FREE], nodes[node, MILLI_FREE]
        after = max_free = total = 0
        first, sign = nodes[node, FIRST_GPU], GPU_HASH
        for gpu in range(nodes[node, GPUS]):
            free = gpus[first + gpu]
            if mask >> gpu & 1:
                free += milli
                gpus[first + gpu] = free
                signature += np.uint64(milli) * sign
            sign *= GPU_HASH
            total += max(free, 0)
            max_free = max(max_free, free)
            after += free == WHOLE
        nodes[node, WHOLE_FREE] = after
        nodes[node, MAX_FREE] = max_free
        nodes[node, MILLI_FREE] = total
        if nodes[node, UP]:
            nodes[totals, WHOLE_FREE] += after - before
            nodes[totals, MILLI_FREE] += total - milli_before
            _update_bits(bits, node, nodes[node, GPUS], before, after)
    nodes[node, SIGNATURE] = np.int64(signature)


@inlined
def set_free(nodes: Ints, gpus: Ints, bits: Words, node: int, gpu_free: Ints, cpu: int, memory: int) -> None:
    """Set the free resources of a node: of each GPU in thousandths, CPUs and memory."""
    first, size, totals = nodes[node, FIRST_GPU], nodes[node, GPUS], nodes.shape[0] - 1
    same = nodes[node, CPU_FREE] == cpu and nodes[node, MEMORY_FREE] == memory
    for gpu in range(size):
        same = same and gpus[first + gpu] == gpu_free[gpu]
    if same:
        return
    before, milli_before = nodes[node, WHOLE_FREE], nodes[node, MILLI_FREE]
    signature = np.uint64(1) + np.uint64(cpu) * CPU_HASH + np.uint64(memory) * MEMORY_HASH
    after = max_free = total = 0
    sign = GPU_HASH
    for gpu in range(size):
        free = gpu_free[gpu]
        gpus[first + gpu] = free
        signature += np.uint64(free) * sign
        sign *= GPU_HASH
        total += free
        max_free = max(max_free, free)
        after += free == WHOLE
    nodes[node, CPU_FREE], nodes[node, MEMORY_FREE] = cpu, memory
    nodes[node, WHOLE_FREE], nodes[node, MAX_FREE], nodes[node, MILLI_FREE] = after, max_free, total
    nodes[node, SIGNATURE] = np.int64(signature)
    if nodes[node, UP]:
        nodes[totals, WHOLE_FREE] += after - before
        nodes[totals, MILLI_FREE] += total - milli_before
        _update_bits(bits, node, size, before, after)


@compiled_without_references
def release(nodes: Ints, gpus: Ints, bits: Words, node: int, mask: int, milli: int, cpu: int, memory: int) -> None:
    """Release amounts that were taken."""
    adjust_free(nodes, gpus, bits, node, mask, milli, cpu, memory)


@compiled_without_references
def take_unchecked(
    nodes: Ints, gpus: Ints, bits: Words, node: int, mask: int, milli: int, cpu: int, memory: int
) -> None:
    """Take amounts without checking that they are free."""
    adjust_free(nodes, gpus, bits, node, mask, -milli, -cpu, -memory)


@compiled_without_references
def take(nodes: Ints, gpus: Ints, bits: Words, node: int, mask: int, milli: int, cpu: int, memory: int) -> int:
    """Take amounts if they are free. Otherwise change nothing; the result says what is short."""
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
    adjust_free(nodes, gpus, bits, node, mask, -milli, -cpu, -memory)
    return TAKEN


@compiled_without_references
def set_node_up(nodes: Ints, bits: Words, node: int, up: int) -> None:
    """Mark a node up (1) or down (0)."""
    if nodes[node, UP] == up:
        return
    sign, totals = 2 * up - 1, nodes.shape[0] - 1
    for column in (WHOLE_FREE, MILLI_FREE):
        nodes[totals, column] += sign * nodes[node, column]
    nodes[node, UP] = up
    if up:
        _update_bits(bits, node, nodes[node, GPUS], -1, nodes[node, WHOLE_FREE])
    else:
        _update_bits(bits, node, nodes[node, GPUS], nodes[node, WHOLE_FREE], -1)


@inlined
def count_gpus_with(nodes: Ints, gpus: Ints, node: int, milli: int) -> int:
    """Return how many GPUs of a node have at least `milli` thousandths free."""
    first, count = nodes[node, FIRST_GPU], 0
    for gpu in range(first, first + nodes[node, GPUS]):
        count += gpus[gpu] >= milli
    return count


@inlined
def fits(nodes: Ints, gpus: Ints, node: int, need: Need) -> bool:
    """Whether one instance fits on a node, given that the node is up and has the entirely free GPUs it needs."""
    fitting = nodes[node, CPU_FREE] >= need.cpu and nodes[node, MEMORY_FREE] >= need.memory
    if fitting and need.gpus > 0:
        fitting = nodes[node, TYPE_BIT] & need.types != 0
        if fitting and need.milli < WHOLE:
            fitting = nodes[node, MAX_FREE] >= need.milli
            if fitting and need.gpus > 1:
                fitting = count_gpus_with(nodes, gpus, node, need.milli) >= need.gpus
    return fitting


@compiled_without_references
def pick_gpus(nodes: Ints, gpus: Ints, node: int, need: Need, which: int) -> int:
    """Return a mask of the GPUs that an instance takes on a node where it fits; ties go to the lowest index."""
    first, mask, count = nodes[node, FIRST_GPU], 0, need.gpus
    if need.milli == WHOLE or which == FIRST:
        gpu = 0
        while count > 0:
            if gpus[first + gpu] >= need.milli:
                mask |= 1 << gpu
                count -= 1
            gpu += 1
        return mask
    for _ in range(count):
        best, best_free = -1, 0
        for gpu in range(nodes[node, GPUS]):
            free = gpus[first + gpu]
            if free < need.milli or mask >> gpu & 1:
                continue
            if best < 0 or (free < best_free if which == TIGHTEST else free > best_free):
                best, best_free = gpu, free
        mask |= 1 << best
    return mask


@inlined
def candidate_row(need: Need) -> int:
    """Return the row of `bits` that contains every node where an instance may fit."""
    return need.gpus if need.milli == WHOLE else 0


@compiled_without_references
def next_fitting_node(
    nodes: Ints, gpus: Ints, bits: Words, low: int, above: int, only: int, need: Need, start: int
) -> int:
    """Return the first node ≥ `start` where an instance fits, in rows `low` and `only` but not `above`; or -1."""
    words = words_per_row(bits)
    word = start >> 6
    if low > max_gpus_per_node(bits) or word >= words:
        return -1
    pending = bits[low, word] & ~bits[above, word] & bits[only, word] & (~np.uint64(0) << np.uint64(start & 63))
    while True:
        while pending != np.uint64(0):
            node = (word << 6) + trailing_zeros(pending)
            if fits(nodes, gpus, node, need):
                return node
            pending &= pending - np.uint64(1)
        word += 1
        if word >= words:
            return -1
        pending = bits[low, word] & ~bits[above, word] & bits[only, word]


@compiled_without_references
def any_node_fits(nodes: Ints, gpus: Ints, bits: Words, demands: Ints) -> bool:
    """Whether one instance of the first demand fits on any node."""
    need = need_at(demands, 0)
    return next_fitting_node(nodes, gpus, bits, candidate_row(need), max_gpus_per_node(bits) + 1, 0, need, 0) >= 0


@compiled_without_references
def first_shortage(nodes: Ints, gpus: Ints, node: int, need: Need) -> int:
    """Return the first reason why one instance does not fit on a node, or `FITS`."""
    if not nodes[node, UP]:
        return DOWN
    if nodes[node, GPUS] < need.gpus:
        return TOO_SMALL
    if need.gpus and not nodes[node, TYPE_BIT] & need.types:
        return WRONG_TYPE
    if count_gpus_with(nodes, gpus, node, need.milli) < need.gpus:
        return FEW_GPUS
    if nodes[node, CPU_FREE] < need.cpu:
        return FEW_CPUS
    if nodes[node, MEMORY_FREE] < need.memory:
        return LITTLE_MEMORY
    return FITS


@inlined
def _instances_that_fit(nodes: Ints, gpus: Ints, node: int, need: Need) -> int:
    """Return how many instances fit on a node where at least one fits, at most `need.instances`."""
    fitting = need.instances
    if need.gpus > 0:
        parts, first = need.gpus * (WHOLE + 1) * nodes[node, GPUS], nodes[node, FIRST_GPU]
        while fitting > 0 and parts > 0:  # every instance takes one part of each of `need.gpus` different GPUs
            parts = 0
            for gpu in range(first, first + nodes[node, GPUS]):
                parts += min(fitting, max(gpus[gpu], 0) // need.milli)
            if parts >= fitting * need.gpus:
                break
            fitting = parts // need.gpus
    if need.cpu > 0:
        fitting = min(fitting, nodes[node, CPU_FREE] // need.cpu)
    if need.memory > 0:
        fitting = min(fitting, nodes[node, MEMORY_FREE] // need.memory)
    return fitting


@inlined
def instances_on_node(nodes: Ints, gpus: Ints, node: int, need: Need) -> int:
    """Return how many instances fit on a node, at most `need.instances`."""
    return _instances_that_fit(nodes, gpus, node, need) if first_shortage(nodes, gpus, node, need) == FITS else 0


@compiled
def count_instances(nodes: Ints, gpus: Ints, bits: Words, demands: Ints, row: int) -> int:
    """Return how many instances of a demand fit on all nodes together, at most as many as it has."""
    need = need_at(demands, row)
    low, none, count = candidate_row(need), max_gpus_per_node(bits) + 1, 0
    node = next_fitting_node(nodes, gpus, bits, low, none, 0, need, 0)
    while node >= 0 and count < need.instances:
        count += _instances_that_fit(nodes, gpus, node, need)
        node = next_fitting_node(nodes, gpus, bits, low, none, 0, need, node + 1)
    return min(count, need.instances)


@compiled
def count_shortages(nodes: Ints, gpus: Ints, demands: Ints, row: int) -> Ints:
    """Count nodes by their first shortage. The last entry is how many instances fit on all nodes together."""
    need = need_at(demands, row)
    counts = np.zeros(INSTANCES_THAT_FIT + 1, dtype=np.int64)
    for node in range(nodes.shape[0] - 1):
        shortage = first_shortage(nodes, gpus, node, need)
        counts[shortage] += 1
        if shortage == FITS:
            counts[INSTANCES_THAT_FIT] += _instances_that_fit(nodes, gpus, node, need)
    counts[INSTANCES_THAT_FIT] = min(counts[INSTANCES_THAT_FIT], need.instances)
    return counts
