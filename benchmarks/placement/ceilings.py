"""What no placement can exceed: two ceilings for a stream of pods that arrive and never leave.

*One machine* is the first model of the genetic paper: all nodes are one logical machine, with their GPUs, CPUs and
memory as sums; pods come in order, and one that does not fit is turned away. It does not see fragments.

*Every GPU a bin* sees fragments of GPUs but nothing else: CPUs, memory, types and nodes do not count, so that a pod
of several GPUs takes as many bins wherever they are. What is left is cutting stock: a GPU is cut by a pattern of
shares. The linear relaxation over all patterns, solved by column generation, is at least what any placement holds.
It is asked two things: how much of what has arrived fits at most (whoever is turned away), and how much has been
placed when, at the latest, the first pod must be turned away.
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
"""How many shares of each size are cut from one GPU."""

TOLERANCE = 1e-7


def one_machine(arrivals: Sequence[Job], cluster: Cluster) -> float:
    """The part of all GPU that is held if the cluster were one machine."""
    gpu, cpu, memory = cluster.gpus * WHOLE, cluster.cpu_milli, cluster.memory_mib
    for job in arrivals:
        demand = job.demand
        wanted = (demand.total_gpu_milli, demand.instances * demand.cpu_milli, demand.instances * demand.memory_mib)
        if wanted[0] <= gpu and wanted[1] <= cpu and wanted[2] <= memory:
            gpu, cpu, memory = gpu - wanted[0], cpu - wanted[1], memory - wanted[2]
    return 1.0 - gpu / (cluster.gpus * WHOLE)


def most_in_bins(arrivals: Sequence[Job], gpus: int) -> float:
    """The part of `gpus` GPUs that the best choice of these pods could hold."""
    shares, whole = _asked(arrivals)
    wholes = min(whole, gpus)
    if not shares:
        return wholes / gpus
    sizes = sorted(shares)
    supply = np.array([shares[size] for size in sizes], dtype=np.float64)
    patterns = _single_sizes(sizes)
    while True:
        # Variables: how many GPUs are cut by each pattern, and how many go whole.
        cuts = np.array([*patterns, (0,) * len(sizes)], dtype=np.float64).T
        holds = np.append(np.array(patterns, dtype=np.float64) @ sizes, WHOLE)
        rows = np.vstack([cuts, np.ones(len(holds))])
        bounds = [(0.0, None)] * len(patterns) + [(0.0, float(whole))]
        best = linprog(-holds, A_ub=rows, b_ub=np.append(supply, gpus), bounds=bounds, method="highs")
        prices = -best.ineqlin.marginals
        pattern, worth = _best_pattern(sizes, np.array(sizes, dtype=np.float64) - prices[:-1])
        if worth <= prices[-1] + TOLERANCE * WHOLE:
            return float(-best.fun) / (gpus * WHOLE)
        patterns.append(pattern)


def held_at_first_refusal(arrivals: Sequence[Job], gpus: int) -> float:
    """The part of `gpus` GPUs that is held when the best placement has to turn away its first pod."""
    low, high = 0, len(arrivals)
    while low < high:
        middle = (low + high + 1) // 2
        if gpus_needed(arrivals[:middle]) <= gpus + TOLERANCE:
            low = middle
        else:
            high = middle - 1
    return sum(job.demand.total_gpu_milli for job in arrivals[:low]) / (gpus * WHOLE)


def gpus_needed(arrivals: Sequence[Job]) -> float:
    """How many GPUs all of them need at least."""
    shares, whole = _asked(arrivals)
    if not shares:
        return float(whole)
    sizes = sorted(shares)
    counts = np.array([shares[size] for size in sizes], dtype=np.float64)
    patterns = _single_sizes(sizes)
    while True:
        cuts = np.array(patterns, dtype=np.float64).T
        best = linprog(np.ones(len(patterns)), A_ub=-cuts, b_ub=-counts, method="highs")
        pattern, worth = _best_pattern(sizes, -best.ineqlin.marginals)
        if worth <= 1.0 + TOLERANCE:
            return whole + float(best.fun)
        patterns.append(pattern)


def _asked(arrivals: Sequence[Job]) -> tuple[Counter[int], int]:
    """How many shares of each size are asked for, and how many whole GPUs."""
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
    """As many shares of one size as a GPU has room for: patterns to begin with."""
    return [
        tuple(WHOLE // size if place == other else 0 for other in range(len(sizes))) for place, size in enumerate(sizes)
    ]


def _best_pattern(sizes: Sequence[int], values: Floats) -> tuple[Pattern, float]:
    """The pattern of one GPU that is worth most: a knapsack in which each size may be taken many times."""
    unit = reduce(gcd, sizes, WHOLE)
    steps = [size // unit for size in sizes]
    worth = [0.0] * (WHOLE // unit + 1)
    last = [-1] * len(worth)
    for room in range(1, len(worth)):
        worth[room] = worth[room - 1]
        for place, step in enumerate(steps):
            if step <= room and worth[room - step] + values[place] > worth[room] + 1e-12:
                worth[room], last[room] = worth[room - step] + float(values[place]), place
    taken = [0] * len(sizes)
    room = len(worth) - 1
    while room > 0:
        if last[room] < 0:
            room -= 1
        else:
            taken[last[room]] += 1
            room -= steps[last[room]]
    return tuple(taken), worth[-1]
