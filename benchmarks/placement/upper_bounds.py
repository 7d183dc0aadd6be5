"""Upper bounds of the GPU allocation for a stream of pods that arrive and never leave.

*One machine* is the first model of the genetic paper: all nodes are one logical machine with the sums of their GPUs,
CPUs and memory; pods arrive in order, and a pod that does not fit is rejected. It ignores fragmentation.

*GPUs as bins* considers the fragmentation of GPUs only: CPUs, memory, types and nodes are ignored, so that a pod of
several GPUs takes as many bins anywhere. This is a cutting-stock problem: a GPU is cut into shares by a pattern. The
linear relaxation over all patterns, solved by column generation, is an upper bound for any placement. It bounds two
quantities: how much of the arrived pods can be allocated (any pod may be rejected), and how much is allocated when the
first pod must be rejected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import reduce
from math import gcd

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from refold.model import WHOLE, Cluster, Job

Floats = NDArray[np.float64]
Pattern = tuple[int, ...]
"""Number of shares of each size that are cut from one GPU."""

TOLERANCE = 1e-7


def one_machine(arrivals: Sequence[Job], cluster: Cluster) -> float:
    """Return the allocated share of the GPU capacity if the cluster were one machine."""
    gpu, cpu, memory = cluster.gpus * WHOLE, cluster.cpu_milli, cluster.memory_mib
    for job in arrivals:
        demand = job.demand
        request = (demand.total_gpu_milli, demand.instances * demand.cpu_milli, demand.instances * demand.memory_mib)
        if request[0] <= gpu and request[1] <= cpu and request[2] <= memory:
            gpu, cpu, memory = gpu - request[0], cpu - request[1], memory - request[2]
    return 1.0 - gpu / (cluster.gpus * WHOLE)


def max_in_bins(arrivals: Sequence[Job], gpus: int) -> float:
    """Return the share of `gpus` GPUs that the best selection of these pods could allocate."""
    shares, whole = _requested(arrivals)
    if not shares:
        return min(whole, gpus) / gpus
    sizes = sorted(shares)
    supply = np.array([shares[size] for size in sizes], dtype=np.float64)
    patterns = _single_sizes(sizes)
    while True:
        # Variables: the number of GPUs cut by each pattern, and the number of GPUs used whole.
        cuts = np.array([*patterns, (0,) * len(sizes)], dtype=np.float64).T
        allocated = np.append(np.array(patterns, dtype=np.float64) @ sizes, WHOLE)
        rows = np.vstack([cuts, np.ones(len(allocated))])
        bounds = [(0.0, None)] * len(patterns) + [(0.0, float(whole))]
        best = linprog(-allocated, A_ub=rows, b_ub=np.append(supply, gpus), bounds=bounds, method="highs")
        prices = -best.ineqlin.marginals
        pattern, value = _best_pattern(sizes, np.array(sizes, dtype=np.float64) - prices[:-1])
        if value <= prices[-1] + TOLERANCE * WHOLE:
            return float(-best.fun) / (gpus * WHOLE)
        patterns.append(pattern)


def allocated_at_first_rejection(arrivals: Sequence[Job], gpus: int) -> float:
    """Return the allocated share of `gpus` GPUs when the best placement must reject a pod for the first time."""
    low, high = 0, len(arrivals)
    while low < high:
        middle = (low + high + 1) // 2
        if gpus_needed(arrivals[:middle]) <= gpus + TOLERANCE:
            low = middle
        else:
            high = middle - 1
    return sum(job.demand.total_gpu_milli for job in arrivals[:low]) / (gpus * WHOLE)


def gpus_needed(arrivals: Sequence[Job]) -> float:
    """Return a lower bound of the number of GPUs that all these pods need."""
    shares, whole = _requested(arrivals)
    if not shares:
        return float(whole)
    sizes = sorted(shares)
    counts = np.array([shares[size] for size in sizes], dtype=np.float64)
    patterns = _single_sizes(sizes)
    while True:
        cuts = np.array(patterns, dtype=np.float64).T
        best = linprog(np.ones(len(patterns)), A_ub=-cuts, b_ub=-counts, method="highs")
        pattern, value = _best_pattern(sizes, -best.ineqlin.marginals)
        if value <= 1.0 + TOLERANCE:
            return whole + float(best.fun)
        patterns.append(pattern)


def _requested(arrivals: Sequence[Job]) -> tuple[Counter[int], int]:
    """Return the number of requested GPU shares by size, and the number of requested whole GPUs."""
    shares: Counter[int] = Counter()
    whole = 0
    for job in arrivals:
        parts = job.demand.instances * job.demand.gpus
        if job.demand.gpu_milli == WHOLE:
            whole += parts
        elif parts:
            shares[job.demand.gpu_milli] += parts
    return shares, whole


def _single_sizes(sizes: Sequence[int]) -> list[Pattern]:
    """Return the initial patterns: as many shares of a single size as fit on a GPU."""
    return [
        tuple(WHOLE // size if index == other else 0 for other in range(len(sizes))) for index, size in enumerate(sizes)
    ]


def _best_pattern(sizes: Sequence[int], values: Floats) -> tuple[Pattern, float]:
    """Return the most valuable pattern of one GPU and its value: an unbounded knapsack problem."""
    unit = reduce(gcd, sizes, WHOLE)
    steps = [size // unit for size in sizes]
    best = [0.0] * (WHOLE // unit + 1)
    last = [-1] * len(best)
    for capacity in range(1, len(best)):
        best[capacity] = best[capacity - 1]
        for index, step in enumerate(steps):
            if step <= capacity and best[capacity - step] + values[index] > best[capacity] + 1e-12:
                best[capacity], last[capacity] = best[capacity - step] + float(values[index]), index
    counts = [0] * len(sizes)
    capacity = len(best) - 1
    while capacity > 0:
        if last[capacity] < 0:
            capacity -= 1
        else:
            counts[last[capacity]] += 1
            capacity -= steps[last[capacity]]
    return tuple(counts), best[-1]
