"""Taking, giving back and looking for room: compiled, over the arrays of `layout`."""

from __future__ import annotations

import numpy as np

from refold.model import WHOLE
from refold.packing.jit import compiled, inlined, trailing_zeros
from refold.packing.layout import (
    CPU_FREE,
    FIRST_GPU,
    GPUS,
    MEMORY_FREE,
    MILLI_FREE,
    MOST_FREE,
    SIGNATURE,
    TYPE_BIT,
    UP,
    WHOLE_FREE,
    Ints,
    Need,
    Words,
)

# What one thousandth of a CPU, one MiB, and one thousandth of GPU 0 (1, 2, …: its powers) adds to a node's signature:
# odd numbers without a pattern. Only unsigned words may overflow.
CPU_SIGN, MEMORY_SIGN = np.uint64(0x2545F4914F6CDD1D), np.uint64(0xD851F42D4C957F2D)
GPU_SIGN = np.uint64(0xB69DEA0F31A53F85)

# Which GPUs of a node are shared first.
FIRST, TIGHTEST, LOOSEST = range(3)

# What `take` answers.
TAKEN, NODE_DOWN, NO_SUCH_GPU, GPU_OVER, CPU_OVER, MEMORY_OVER = range(6)

# What `first_lack` answers, and where `count_lacks` counts it.
FITS, DOWN, WRONG_TYPE, TOO_SMALL, FEW_GPUS, FEW_CPUS, LITTLE_MEMORY, ROOM = range(8)


@inlined
def need_of(demands: Ints, row: int) -> Need:
    """A row of `demands` by the names of its entries."""
    return Need(demands[row, 0], demands[row, 1], demands[row, 2], demands[row, 3], demands[row, 4], demands[row, 5])


@inlined
def most_gpus(bits: Words) -> int:
    """The GPUs of the largest node, which is the highest row of `bits` with free counts."""
    return (bits.shape[0] - 3) >> 1


@inlined
def words_in(bits: Words) -> int:
    """How many words of a row of `bits` stand for nodes."""
    return bits.shape[1] - most_gpus(bits) - 2


@inlined
def nodes_with(bits: Words, whole: int) -> bool:
    """Whether any node has exactly `whole` GPUs free."""
    column = bits.shape[1] - 1
    return bits[whole, column] != bits[whole + 1, column]


@inlined
def nodes_of_size_with(bits: Words, size: int, whole: int) -> bool:
    """Whether any node that has `size` GPUs has exactly `whole` of them free."""
    column = words_in(bits) + size
    return bits[whole, column] != bits[whole + 1, column]


@inlined
def _move_bits(bits: Words, node: int, size: int, before: int, after: int) -> None:
    """Node `node` of `size` GPUs had `before` whole free ones and now has `after`; -1 stands for not being up."""
    word, bit = node >> 6, np.uint64(1) << np.uint64(node & 63)
    count, total = words_in(bits) + size, bits.shape[1] - 1
    for row in range(before + 1, after + 1):
        bits[row, word] |= bit
        bits[row, count] += np.uint64(1)
        bits[row, total] += np.uint64(1)
    for row in range(after + 1, before + 1):
        bits[row, word] &= ~bit
        bits[row, count] -= np.uint64(1)
        bits[row, total] -= np.uint64(1)


@inlined
def move(nodes: Ints, gpus: Ints, bits: Words, node: int, mask: int, milli: int, cpu: int, memory: int) -> None:
    """Give back amounts to a node (negative amounts: take them)."""
    nodes[node, CPU_FREE] += cpu
    nodes[node, MEMORY_FREE] += memory
    signature = np.uint64(nodes[node, SIGNATURE]) + np.uint64(cpu) * CPU_SIGN + np.uint64(memory) * MEMORY_SIGN
    if mask:
        sums = nodes.shape[0] - 1
        before, milli_before = nodes[node, WHOLE_FREE], nodes[node, MILLI_FREE]
        after = most = total = 0
        first, sign = nodes[node, FIRST_GPU], GPU_SIGN
        for gpu in range(nodes[node, GPUS]):
            free = gpus[first + gpu]
            if mask >> gpu & 1:
                free += milli
                gpus[first + gpu] = free
                signature += np.uint64(milli) * sign
            sign *= GPU_SIGN
            total += free
            most = max(most, free)
            after += free == WHOLE
        nodes[node, WHOLE_FREE] = after
        nodes[node, MOST_FREE] = most
        nodes[node, MILLI_FREE] = total
        if nodes[node, UP]:
            nodes[sums, WHOLE_FREE] += after - before
            nodes[sums, MILLI_FREE] += total - milli_before
            _move_bits(bits, node, nodes[node, GPUS], before, after)
    nodes[node, SIGNATURE] = np.int64(signature)


@compiled
def sign(nodes: Ints, gpus: Ints) -> None:
    """Give every node the signature of what is free on it."""
    for node in range(nodes.shape[0] - 1):
        cpu, memory = np.uint64(nodes[node, CPU_FREE]), np.uint64(nodes[node, MEMORY_FREE])
        signature = np.uint64(1) + cpu * CPU_SIGN + memory * MEMORY_SIGN  # 0 is nobody's
        first, sign = nodes[node, FIRST_GPU], GPU_SIGN
        for gpu in range(nodes[node, GPUS]):
            signature += np.uint64(gpus[first + gpu]) * sign
            sign *= GPU_SIGN
        nodes[node, SIGNATURE] = np.int64(signature)


@inlined
def set_free(nodes: Ints, gpus: Ints, bits: Words, node: int, least: Ints, cpu: int, memory: int) -> None:
    """Let exactly so much be free on a node: of each GPU, of CPUs and of memory."""
    first, size, sums = nodes[node, FIRST_GPU], nodes[node, GPUS], nodes.shape[0] - 1
    same = nodes[node, CPU_FREE] == cpu and nodes[node, MEMORY_FREE] == memory
    for gpu in range(size):
        same = same and gpus[first + gpu] == least[gpu]
    if same:
        return
    before, milli_before = nodes[node, WHOLE_FREE], nodes[node, MILLI_FREE]
    signature = np.uint64(1) + np.uint64(cpu) * CPU_SIGN + np.uint64(memory) * MEMORY_SIGN
    after = most = total = 0
    sign = GPU_SIGN
    for gpu in range(size):
        free = least[gpu]
        gpus[first + gpu] = free
        signature += np.uint64(free) * sign
        sign *= GPU_SIGN
        total += free
        most = max(most, free)
        after += free == WHOLE
    nodes[node, CPU_FREE], nodes[node, MEMORY_FREE] = cpu, memory
    nodes[node, WHOLE_FREE], nodes[node, MOST_FREE], nodes[node, MILLI_FREE] = after, most, total
    nodes[node, SIGNATURE] = np.int64(signature)
    if nodes[node, UP]:
        nodes[sums, WHOLE_FREE] += after - before
        nodes[sums, MILLI_FREE] += total - milli_before
        _move_bits(bits, node, size, before, after)


@compiled
def give_back(nodes: Ints, gpus: Ints, bits: Words, node: int, mask: int, milli: int, cpu: int, memory: int) -> None:
    """Return what was taken with the same numbers."""
    move(nodes, gpus, bits, node, mask, milli, cpu, memory)


@compiled
def take_unchecked(
    nodes: Ints, gpus: Ints, bits: Words, node: int, mask: int, milli: int, cpu: int, memory: int
) -> None:
    """Take what is known to be free."""
    move(nodes, gpus, bits, node, mask, -milli, -cpu, -memory)


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
    move(nodes, gpus, bits, node, mask, -milli, -cpu, -memory)
    return TAKEN


@compiled
def set_up(nodes: Ints, bits: Words, node: int, up: int) -> None:
    """A node is lost, or has returned."""
    if nodes[node, UP] == up:
        return
    sign, sums = 2 * up - 1, nodes.shape[0] - 1
    for column in (WHOLE_FREE, MILLI_FREE):
        nodes[sums, column] += sign * nodes[node, column]
    nodes[node, UP] = up
    if up:
        _move_bits(bits, node, nodes[node, GPUS], -1, nodes[node, WHOLE_FREE])
    else:
        _move_bits(bits, node, nodes[node, GPUS], nodes[node, WHOLE_FREE], -1)


@inlined
def gpus_with_room(nodes: Ints, gpus: Ints, node: int, milli: int) -> int:
    """How many GPUs of a node have at least `milli` free."""
    first, count = nodes[node, FIRST_GPU], 0
    for gpu in range(first, first + nodes[node, GPUS]):
        count += gpus[gpu] >= milli
    return count


@inlined
def fits(nodes: Ints, gpus: Ints, node: int, need: Need) -> bool:
    """Whether one instance fits on a node that is up and has the whole free GPUs it needs, if it needs such."""
    room = nodes[node, CPU_FREE] >= need.cpu and nodes[node, MEMORY_FREE] >= need.memory
    if room and need.gpus > 0:
        room = nodes[node, TYPE_BIT] & need.types != 0
        if room and need.milli < WHOLE:
            room = nodes[node, MOST_FREE] >= need.milli
            if room and need.gpus > 1:
                room = gpus_with_room(nodes, gpus, node, need.milli) >= need.gpus
    return room


@compiled
def pick_gpus(nodes: Ints, gpus: Ints, node: int, need: Need, which: int) -> int:
    """As many GPUs of a node as an instance needs, with room for it, as a mask; ties go to the lowest index."""
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
def lowest_row(need: Need) -> int:
    """The row of `bits` that holds every node where an instance could fit."""
    return need.gpus if need.milli == WHOLE else 0


@compiled
def next_fitting(nodes: Ints, gpus: Ints, bits: Words, low: int, above: int, only: int, need: Need, start: int) -> int:
    """The first node from `start` on where an instance fits, in row `low`, not in `above`, in `only`; or -1."""
    words = words_in(bits)
    word = start >> 6
    if low > most_gpus(bits) or word >= words:
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


@compiled
def any_fitting(nodes: Ints, gpus: Ints, bits: Words, demands: Ints) -> bool:
    """Whether there is a node with room for one instance of the first demand."""
    need = need_of(demands, 0)
    return next_fitting(nodes, gpus, bits, lowest_row(need), most_gpus(bits) + 1, 0, need, 0) >= 0


@compiled
def first_lack(nodes: Ints, gpus: Ints, node: int, need: Need) -> int:
    """The first thing a node lacks for one instance, for the counted reason."""
    if not nodes[node, UP]:
        return DOWN
    if nodes[node, GPUS] < need.gpus:
        return TOO_SMALL
    if need.gpus and not nodes[node, TYPE_BIT] & need.types:
        return WRONG_TYPE
    if gpus_with_room(nodes, gpus, node, need.milli) < need.gpus:
        return FEW_GPUS
    if nodes[node, CPU_FREE] < need.cpu:
        return FEW_CPUS
    if nodes[node, MEMORY_FREE] < need.memory:
        return LITTLE_MEMORY
    return FITS


@inlined
def _instances_with_room(nodes: Ints, gpus: Ints, node: int, need: Need) -> int:
    """How many instances would fit on a node that has room for one."""
    room = need.instances
    if need.gpus > 0:
        parts, first = need.gpus * (WHOLE + 1) * nodes[node, GPUS], nodes[node, FIRST_GPU]
        while room > 0 and parts > 0:  # so many instances take one part of as many different GPUs each
            parts = 0
            for gpu in range(first, first + nodes[node, GPUS]):
                parts += min(room, gpus[gpu] // need.milli)
            if parts >= room * need.gpus:
                break
            room = parts // need.gpus
    if need.cpu > 0:
        room = min(room, nodes[node, CPU_FREE] // need.cpu)
    if need.memory > 0:
        room = min(room, nodes[node, MEMORY_FREE] // need.memory)
    return room


@compiled
def count_lacks(nodes: Ints, gpus: Ints, demands: Ints, row: int) -> Ints:
    """How many nodes lack what, each counted once under the first thing it lacks; last, room for how many instances."""
    need = need_of(demands, row)
    counts = np.zeros(ROOM + 1, dtype=np.int64)
    for node in range(nodes.shape[0] - 1):
        lack = first_lack(nodes, gpus, node, need)
        counts[lack] += 1
        if lack == FITS:
            counts[ROOM] += _instances_with_room(nodes, gpus, node, need)
    counts[ROOM] = min(counts[ROOM], need.instances)
    return counts
