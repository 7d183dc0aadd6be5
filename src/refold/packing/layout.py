"""The arrays that packing works on, and the meaning of their columns.

`nodes`  int64, one row per node and a last row with the sums over nodes that are up; columns as below.
`gpus`   int64, what is free of each GPU in thousandths; the GPUs of a node stand together.
`bits`   uint64, row k has bit n set if node n is up and has at least k whole free GPUs;
         one row more than the largest node needs, always zero, so that "exactly k" is row k without row k+1.
`demand` int64, one instance's demand and how many there are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
Floats = NDArray[np.float64]
Anys = NDArray[Any]

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
NODE_COLUMNS = 11

# Entries of `demand`.
INSTANCES = 0
NEED_GPUS = 1
NEED_MILLI = 2
NEED_CPU = 3
NEED_MEMORY = 4
NEED_TYPES = 5  # a bit per GPU type; -1: any
DEMAND_ENTRIES = 6

# Columns of a found placement, one row per instance.
NODE = 0
GPU_MASK = 1

UNLIMITED = 1 << 60
"""Stands for CPUs or memory that are not known and so not counted."""
