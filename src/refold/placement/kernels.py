"""Take and release resources, and find nodes where an instance fits. Compiled, over the arrays of `layout`."""

from __future__ import annotations

import cython
import numpy as np

from refold.model import WHOLE
from refold.model.arrays import view
from refold.placement.layout import (
    CPU_FREE,
    CPU_HASH,
    CPU_OVER,
    DOWN,
    FEW_CPUS,
    FEW_GPUS,
    FIRST,
    FIRST_GPU,
    FITS,
    GPU_HASH,
    GPU_OVER,
    GPUS,
    INSTANCES_THAT_FIT,
    LITTLE_MEMORY,
    MAX_FREE,
    MEMORY_FREE,
    MEMORY_HASH,
    MEMORY_OVER,
    MILLI_FREE,
    NO_SUCH_GPU,
    NODE_DOWN,
    NOT_ALLOWED,
    PART,
    SIGNATURE,
    SIGNATURE_BITS,
    TAKEN,
    TIGHTEST,
    TOO_SMALL,
    TYPE_BIT,
    UP,
    WHOLE_FREE,
    WRONG_TYPE,
    Ints,
    Words,
)

if not cython.compiled:
    from refold.placement.allowed import AllowedRows, is_allowed
    from refold.placement.layout import Need, trailing_zeros

ONE, ALL_BITS = 1, (1 << 64) - 1


class FreeArrays:
    """The arrays of `FreeResources`, for kernels. They write to the arrays, so a copy has its own."""

    def __init__(self, nodes: Ints, gpus: Ints, bits: Words, room: Ints, allowed: AllowedRows) -> None:
        self.arrays, self.allowed = (nodes, gpus, bits, room), allowed
        self.nodes, self.gpus, self.bits, self.room = view(nodes), view(gpus), view(bits), view(room)

    def __reduce__(self) -> tuple[object, ...]:
        return FreeArrays, (*self.arrays, self.allowed)


class EncodedDemand:
    """A demand for kernels that are called for one demand: as a row of `demands`, it would cost more than they do."""

    def __init__(self, demands: Ints) -> None:
        self.demands = demands
        self.need = need_at(view(demands), 0)

    def __reduce__(self) -> tuple[object, ...]:
        return EncodedDemand, (self.demands,)


def need_at(demands: Ints, row: int) -> Need:
    """Return a row of `demands` as a `Need`."""
    return Need(
        demands[row, 0],
        demands[row, 1],
        demands[row, 2],
        demands[row, 3],
        demands[row, 4],
        demands[row, 5],
        demands[row, 6],
    )


def max_gpus_per_node(free: FreeArrays) -> int:
    """Return the number of GPUs of the largest node: the last row of `bits` with nodes by free GPUs."""
    return (free.bits.shape[0] - 3) >> 1


def words_per_row(free: FreeArrays) -> int:
    """Return how many words of a row of `bits` are node bits (counts follow them)."""
    return free.bits.shape[1] - max_gpus_per_node(free) - 2


def any_node_with_free(free: FreeArrays, whole: int) -> bool:
    """Whether any node that is up has exactly `whole` entirely free GPUs."""
    column = free.bits.shape[1] - 1
    return free.bits[whole, column] != free.bits[whole + 1, column]


def any_node_of_size_with_free(free: FreeArrays, size: int, whole: int) -> bool:
    """Whether any node with `size` GPUs that is up has exactly `whole` of them entirely free."""
    column = words_per_row(free) + size
    return free.bits[whole, column] != free.bits[whole + 1, column]


def _update_bits(free: FreeArrays, node: int, size: int, before: int, after: int) -> None:
    """Update `bits` for a node with `size` GPUs: `before` were entirely free, now `after` are; -1 means down."""
    word, bit = node >> 6, ONE << (node & 63)
    count, total = words_per_row(free) + size, free.bits.shape[1] - 1
    for row in range(before + 1, after + 1):
        free.bits[row, word] |= bit
        free.bits[row, count] += ONE
        free.bits[row, total] += ONE
    for row in range(after + 1, before + 1):
        free.bits[row, word] &= ~bit
        free.bits[row, count] -= ONE
        free.bits[row, total] -= ONE
    if free.room.shape[1]:
        domain = free.allowed.domain_of[free.allowed.domain_of.shape[0] - 1, node]
        if before >= 0:
            free.room[before, domain] -= 1
        if after >= 0:
            free.room[after, domain] += 1


def adjust_free(free: FreeArrays, node: int, mask: int, milli: int, cpu: int, memory: int) -> None:
    """Add amounts to the free resources of a node; negative amounts are taken."""
    free.nodes[node, CPU_FREE] += cpu
    free.nodes[node, MEMORY_FREE] += memory
    signature = free.nodes[node, SIGNATURE] + cpu * CPU_HASH + memory * MEMORY_HASH
    if mask:
        totals = free.nodes.shape[0] - 1
        before, milli_before = free.nodes[node, WHOLE_FREE], free.nodes[node, MILLI_FREE]
        after = max_free = total = 0
        first, sign = free.nodes[node, FIRST_GPU], GPU_HASH
        for gpu in range(free.nodes[node, GPUS]):
            left = free.gpus[first + gpu]
            if mask >> gpu & 1:
                left += milli
                free.gpus[first + gpu] = left
                signature += milli * sign
            sign = sign * GPU_HASH & SIGNATURE_BITS
            total += max(left, 0)
            max_free = max(max_free, left)
            if left == WHOLE:
                after += 1
        free.nodes[node, WHOLE_FREE] = after
        free.nodes[node, MAX_FREE] = max_free
        free.nodes[node, MILLI_FREE] = total
        if free.nodes[node, UP]:
            free.nodes[totals, WHOLE_FREE] += after - before
            free.nodes[totals, MILLI_FREE] += total - milli_before
            _update_bits(free, node, free.nodes[node, GPUS], before, after)
    free.nodes[node, SIGNATURE] = signature & SIGNATURE_BITS


def set_free(free: FreeArrays, node: int, gpu_free: Ints, cpu: int, memory: int) -> None:
    """Set the free resources of a node: of each GPU in thousandths, CPUs and memory."""
    first, size, totals = free.nodes[node, FIRST_GPU], free.nodes[node, GPUS], free.nodes.shape[0] - 1
    same = free.nodes[node, CPU_FREE] == cpu and free.nodes[node, MEMORY_FREE] == memory
    for gpu in range(size):
        same = same and free.gpus[first + gpu] == gpu_free[gpu]
    if same:
        return
    before, milli_before = free.nodes[node, WHOLE_FREE], free.nodes[node, MILLI_FREE]
    signature = 1 + cpu * CPU_HASH + memory * MEMORY_HASH
    after = max_free = total = 0
    sign = GPU_HASH
    for gpu in range(size):
        left = gpu_free[gpu]
        free.gpus[first + gpu] = left
        signature += left * sign
        sign = sign * GPU_HASH & SIGNATURE_BITS
        total += left
        max_free = max(max_free, left)
        if left == WHOLE:
            after += 1
    free.nodes[node, CPU_FREE], free.nodes[node, MEMORY_FREE] = cpu, memory
    free.nodes[node, WHOLE_FREE], free.nodes[node, MAX_FREE], free.nodes[node, MILLI_FREE] = after, max_free, total
    free.nodes[node, SIGNATURE] = signature & SIGNATURE_BITS
    if free.nodes[node, UP]:
        free.nodes[totals, WHOLE_FREE] += after - before
        free.nodes[totals, MILLI_FREE] += total - milli_before
        _update_bits(free, node, size, before, after)


def release(free: FreeArrays, node: int, mask: int, milli: int, cpu: int, memory: int) -> None:
    adjust_free(free, node, mask, milli, cpu, memory)


def take_unchecked(free: FreeArrays, node: int, mask: int, milli: int, cpu: int, memory: int) -> None:
    """Take amounts without checking that they are free."""
    adjust_free(free, node, mask, -milli, -cpu, -memory)


def take(free: FreeArrays, node: int, mask: int, milli: int, cpu: int, memory: int) -> int:
    """Take amounts if they are free. Otherwise change nothing; the result says what is short."""
    if not free.nodes[node, UP]:
        return NODE_DOWN
    if mask >> free.nodes[node, GPUS]:
        return NO_SUCH_GPU
    first, left, gpu = free.nodes[node, FIRST_GPU], mask, 0
    while left:
        if left & 1 and free.gpus[first + gpu] < milli:
            return GPU_OVER
        left >>= 1
        gpu += 1
    if free.nodes[node, CPU_FREE] < cpu:
        return CPU_OVER
    if free.nodes[node, MEMORY_FREE] < memory:
        return MEMORY_OVER
    adjust_free(free, node, mask, -milli, -cpu, -memory)
    return TAKEN


def set_node_up(free: FreeArrays, node: int, up: int) -> None:
    """Mark a node up (1) or down (0)."""
    if free.nodes[node, UP] == up:
        return
    sign, totals = 2 * up - 1, free.nodes.shape[0] - 1
    free.nodes[totals, WHOLE_FREE] += sign * free.nodes[node, WHOLE_FREE]
    free.nodes[totals, MILLI_FREE] += sign * free.nodes[node, MILLI_FREE]
    free.nodes[node, UP] = up
    if up:
        _update_bits(free, node, free.nodes[node, GPUS], -1, free.nodes[node, WHOLE_FREE])
    else:
        _update_bits(free, node, free.nodes[node, GPUS], free.nodes[node, WHOLE_FREE], -1)


def count_gpus_with(free: FreeArrays, node: int, milli: int) -> int:
    """Return how many GPUs of a node have at least `milli` thousandths free."""
    first, count = free.nodes[node, FIRST_GPU], 0
    for gpu in range(first, first + free.nodes[node, GPUS]):
        if free.gpus[gpu] >= milli:
            count += 1
    return count


def fits(free: FreeArrays, node: int, need: Need) -> bool:
    """Whether one instance fits on a node, given that the node is up and has the entirely free GPUs it needs."""
    if free.nodes[node, CPU_FREE] < need.cpu or free.nodes[node, MEMORY_FREE] < need.memory:
        return False
    if not is_allowed(free.allowed, node, need):
        return False
    if need.gpus == 0:
        return True
    if not free.nodes[node, TYPE_BIT] & need.types:
        return False
    if need.milli == WHOLE:
        return True
    if free.nodes[node, MAX_FREE] < need.milli:
        return False
    return need.gpus == 1 or count_gpus_with(free, node, need.milli) >= need.gpus


def pick_gpus(free: FreeArrays, node: int, need: Need, which: int) -> int:
    """Return a mask of the GPUs that an instance takes on a node where it fits; ties go to the lowest index."""
    first, mask, count = free.nodes[node, FIRST_GPU], 0, need.gpus
    if need.milli == WHOLE or which == FIRST:
        gpu = 0
        while count > 0:
            if free.gpus[first + gpu] >= need.milli:
                mask |= 1 << gpu
                count -= 1
            gpu += 1
        return mask
    for _ in range(count):
        best, best_free = -1, 0
        for gpu in range(free.nodes[node, GPUS]):
            left = free.gpus[first + gpu]
            if left < need.milli or mask >> gpu & 1:
                continue
            if best < 0 or (left < best_free if which == TIGHTEST else left > best_free):
                best, best_free = gpu, left
        mask |= 1 << best
    return mask


def candidate_row(need: Need) -> int:
    """Return the row of `bits` that contains every node where an instance may fit."""
    return need.gpus if need.milli == WHOLE else 0


def next_fitting_node(free: FreeArrays, low: int, above: int, only: int, need: Need, start: int) -> int:
    """Return the first node ≥ `start` where an instance fits, in rows `low` and `only` but not `above`; or -1."""
    words = words_per_row(free)
    if need.allowed == PART:
        start, words = max(start, free.allowed.part_first), (free.allowed.part_last >> 6) + 1
    word = start >> 6
    if low > max_gpus_per_node(free) or word >= words:
        return -1
    pending = free.bits[low, word] & ~free.bits[above, word] & free.bits[only, word] & (ALL_BITS << (start & 63))
    while True:
        if need.allowed:
            pending &= free.allowed.words[need.allowed, word]
        while pending:
            node = (word << 6) + trailing_zeros(pending)
            if fits(free, node, need):
                return node
            pending &= pending - ONE
        word += 1
        if word >= words:
            return -1
        pending = free.bits[low, word] & ~free.bits[above, word] & free.bits[only, word]


def any_node_fits(free: FreeArrays, demand: EncodedDemand) -> bool:
    return next_fitting_node(free, candidate_row(demand.need), max_gpus_per_node(free) + 1, 0, demand.need, 0) >= 0


def first_shortage(free: FreeArrays, node: int, need: Need) -> int:
    """Return the first reason why one instance does not fit on a node, or `FITS`."""
    if not free.nodes[node, UP]:
        return DOWN
    if not is_allowed(free.allowed, node, need):
        return NOT_ALLOWED
    if free.nodes[node, GPUS] < need.gpus:
        return TOO_SMALL
    if need.gpus and not free.nodes[node, TYPE_BIT] & need.types:
        return WRONG_TYPE
    if count_gpus_with(free, node, need.milli) < need.gpus:
        return FEW_GPUS
    if free.nodes[node, CPU_FREE] < need.cpu:
        return FEW_CPUS
    if free.nodes[node, MEMORY_FREE] < need.memory:
        return LITTLE_MEMORY
    return FITS


def instances_that_fit(free: FreeArrays, node: int, need: Need) -> int:
    """Return how many instances fit on a node where at least one fits, at most `need.instances`."""
    fitting = need.instances
    if need.gpus > 0 and need.milli == WHOLE:
        fitting = min(fitting, free.nodes[node, WHOLE_FREE] // need.gpus)
    elif need.gpus > 0:
        parts, first = need.gpus * (WHOLE + 1) * free.nodes[node, GPUS], free.nodes[node, FIRST_GPU]
        while fitting > 0 and parts > 0:  # every instance takes one part of each of `need.gpus` different GPUs
            parts = 0
            for gpu in range(first, first + free.nodes[node, GPUS]):
                parts += min(fitting, max(free.gpus[gpu], 0) // need.milli)
            if parts >= fitting * need.gpus:
                break
            fitting = parts // need.gpus
    if need.cpu > 0:
        fitting = min(fitting, free.nodes[node, CPU_FREE] // need.cpu)
    if need.memory > 0:
        fitting = min(fitting, free.nodes[node, MEMORY_FREE] // need.memory)
    return fitting


def instances_on_node(free: FreeArrays, node: int, need: Need) -> int:
    """Return how many instances fit on a node, at most `need.instances`."""
    return instances_that_fit(free, node, need) if first_shortage(free, node, need) == FITS else 0


def count_shortages(free: FreeArrays, demands: Ints, row: int) -> Ints:
    """Count nodes by their first shortage. The last entry is how many instances fit on all nodes together."""
    counts = np.zeros((1, INSTANCES_THAT_FIT + 1), dtype=np.int64)
    write_shortages(free, need_at(demands, row), counts, 0)
    return counts[0]


def write_shortages(free: FreeArrays, need: Need, counts: Ints, row: int) -> None:
    """Add to a row of zeros what `count_shortages` returns."""
    for node in range(free.nodes.shape[0] - 1):
        shortage = first_shortage(free, node, need)
        counts[row, shortage] += 1
        if shortage == FITS:
            counts[row, INSTANCES_THAT_FIT] += instances_that_fit(free, node, need)
    counts[row, INSTANCES_THAT_FIT] = min(counts[row, INSTANCES_THAT_FIT], need.instances)
