"""The arrays that packing works on, and the meaning of their columns.

`nodes`  int64, one row per node, then one row with the totals of all nodes that are up; columns as below.
`gpus`   int64, the free capacity of each GPU in thousandths; the GPUs of a node are adjacent. The entry of a GPU that
         is down is lower by `WHOLE`, thus at most 0: nothing fits on it, and releases need not know that it is down.
`bits`   uint64, one bit per node. With L the number of GPUs of the largest node: row k of 0 … L is the set of nodes
         that are up and have at least k entirely free GPUs; row L+1 is always empty, so that "exactly k" is row k
         minus row k+1; row L+2+g is the set of nodes with g GPUs, which never changes. The words of row k are
         followed by L+2 counts: the nodes with g = 0 … L GPUs in that row, and all nodes in it.
`room`   int64, for each number of entirely free GPUs, how many nodes of each innermost domain are up and have exactly
         so many; without levels it has no columns.
`demands` int64, one row per demand: the number of instances, and the need of one. Inside kernels a row is a `Need`.
`allowed` uint64, one row per set of nodes that demands are limited to, with one bit per node; row 0 stands for all
         nodes and is not used, row 1 for the part of a gang that is placed in one domain. `requests` has, for the same
         rows, what is requested of domains. The resources of a cluster and all copies of them have the same rows
         (`AllowedRows`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

# Columns of `nodes`.
FIRST_GPU = 0
GPUS = 1
WHOLE_FREE = 2  # number of entirely free GPUs
MAX_FREE = 3  # the largest free capacity of any one GPU, in thousandths
MILLI_FREE = 4  # free capacity of all GPUs together, in thousandths
CPU_FREE = 5
MEMORY_FREE = 6
TYPE_BIT = 7
UP = 8
CPU_TOTAL = 9
MEMORY_TOTAL = 10
SIGNATURE = 11  # hash of the free resources: nodes with the same GPUs and signature are interchangeable
NODE_COLUMNS = 12


class Need(NamedTuple):
    """A row of `demands`: the number of instances, and what each needs: GPUs, thousandths of each, CPUs, memory, …"""

    instances: int
    gpus: int
    milli: int
    cpu: int
    memory: int
    types: int
    """One bit per GPU type; -1: any type."""
    allowed: int
    """The row of `allowed` with the nodes and domains in which instances may be placed; 0: all nodes."""


DEMAND_ENTRIES = len(Need._fields)


# Hash multipliers of a node's signature: per thousandth of a CPU, per MiB, and per thousandth of a GPU (GPU i uses the
# power i + 1). They are odd random numbers. A signature has 63 bits, so that it fits into a column of `nodes`.
CPU_HASH, MEMORY_HASH, GPU_HASH = 0x2545F4914F6CDD1D, 0xD851F42D4C957F2D, 0xB69DEA0F31A53F85
SIGNATURE_BITS = (1 << 63) - 1

# Columns of `requests`: levels by number, 1 for the outermost and 0 for none, instances per segment, the most domains
# of the required level, and 1 if instances may be placed on all nodes. A row whose segment is 0 requests nothing, and
# its instances are placed without regard to domains.
REQUIRED, PREFERRED, SEGMENT_LEVEL, SEGMENT, MOST, ON_ALL_NODES = range(6)
REQUEST_COLUMNS = 6
NO_SUCH_LEVEL = -1

PART = 1
"""The row of `allowed` for the part of a gang that is placed in one domain."""

# Columns of `domains`: the domain of the next outer level that contains a domain, and its first and last node.
PARENT, FIRST_NODE, LAST_NODE = range(3)

# Columns of a placement, one row per instance.
NODE = 0
GPU_MASK = 1

UNLIMITED = 1 << 60
"""CPUs or memory of a node whose amount is unknown, and therefore not limited."""

POWER_TOLERANCE_WATTS = 1e-6
"""A rack exceeds its limit only by more than this; smaller differences are rounding errors of sums."""

# Which GPUs `pick_gpus` prefers: the lowest index, the least free capacity, the most free capacity.
FIRST, TIGHTEST, LOOSEST = range(3)

# Columns of an interval of the timetable.
WHOLE_MASK = 0  # entirely free GPUs, as bits
INTERVAL_CPU = 1
INTERVAL_MEMORY = 2
FIRST_GPU_FREE = 3  # this and the following columns: free capacity of each GPU, in thousandths

# Results of `take`.
TAKEN, NODE_DOWN, NO_SUCH_GPU, GPU_OVER, CPU_OVER, MEMORY_OVER = range(6)

# Results of `first_shortage`, and the entries of what `count_shortages` returns.
FITS, DOWN, WRONG_TYPE, NOT_ALLOWED, TOO_SMALL, FEW_GPUS, FEW_CPUS, LITTLE_MEMORY, INSTANCES_THAT_FIT = range(9)

# The greedy rules by number.
FIRST_FIT, BEST_FIT, WORST_FIT, ROUND_ROBIN, TETRIS, FGD, WORTH, RANDOM = range(8)


def trailing_zeros(word: int) -> int:
    """Return the index of the lowest set bit of a word that is not 0."""
    return (int(word) & -int(word)).bit_length() - 1


def count_ones(word: int) -> int:
    return int(word).bit_count()
