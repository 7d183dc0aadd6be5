"""Placements as rows of (node, GPU mask), one per instance: taken and released in compiled loops."""

from __future__ import annotations

from refold.jit import compiled_without_references, inlined
from refold.model import WHOLE
from refold.packing import GPU_MASK, NODE, TAKEN, FreeArrays, Ints, Need, adjust_free, take


@inlined
def change_rows(free: FreeArrays, need: Need, rows: Ints, first: int, sign: int) -> None:
    """Release a placement, from row `first` on (sign 1), or take it without checks (-1).

    Instances with whole GPUs on the same node are changed together.
    """
    row, end = first, first + need.instances
    while row < end:
        node, mask, instances_here = rows[row, NODE], rows[row, GPU_MASK], 1
        row += 1
        while need.milli == WHOLE and row < end and rows[row, NODE] == node:
            mask |= rows[row, GPU_MASK]
            instances_here += 1
            row += 1
        milli, count = sign * need.milli, sign * instances_here
        adjust_free(free.nodes, free.gpus, free.bits, node, mask, milli, count * need.cpu, count * need.memory)


@compiled_without_references
def take_rows(free: FreeArrays, need: Need, rows: Ints, first: int) -> bool:
    """Take a placement, from row `first` on; False, with nothing taken, if a part of it is not free."""
    nodes, gpus, bits = free
    for row in range(first, first + need.instances):
        if take(nodes, gpus, bits, rows[row, NODE], rows[row, GPU_MASK], need.milli, need.cpu, need.memory) != TAKEN:
            for taken in range(first, row):
                node, mask = rows[taken, NODE], rows[taken, GPU_MASK]
                adjust_free(nodes, gpus, bits, node, mask, need.milli, need.cpu, need.memory)
            return False
    return True
