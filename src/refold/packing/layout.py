"""The arrays that packing works on, and the meaning of their columns.

`nodes`  int64, one row per node and a last row with the free GPUs of all nodes that are up; columns as below.
`gpus`   int64, what is free of each GPU in thousandths; the GPUs of a node stand together.
`bits`   uint64, a bit per node. With L the GPUs of the largest node: row k of 0 … L has the nodes that are up
         and have at least k whole free GPUs; row L+1 is always empty, so that "exactly k" is row k without
         row k+1; row L+2+g has the nodes with g GPUs, which never changes. Behind the words of row k stand
         L+2 counts: how many nodes with g = 0 … L GPUs are in that row, and how many in all.
`demands` int64, a row per demand: how many instances, and what one needs. Inside kernels a row is a `Need`.
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
WHOLE_FREE = 2  # how many GPUs are wholly free
MOST_FREE = 3  # the most that is free of any one GPU, in thousandths
MILLI_FREE = 4  # what is free of all its GPUs together
CPU_FREE = 5
MEMORY_FREE = 6
TYPE_BIT = 7
UP = 8
CPU_ALL = 9
MEMORY_ALL = 10
SIGNATURE = 11  # a hash of what is free: nodes of one make with the same signature are alike
NODE_COLUMNS = 12


class Need(NamedTuple):
    """A row of `demands`: so many instances, each with GPUs, thousandths of each, CPUs and memory."""

    instances: int
    gpus: int
    milli: int
    cpu: int
    memory: int
    types: int
    """A bit per GPU type; -1: any."""


DEMAND_ENTRIES = len(Need._fields)

# Columns of a found placement, one row per instance.
NODE = 0
GPU_MASK = 1

UNLIMITED = 1 << 60
"""Stands for CPUs or memory that are not known and so not counted."""
