"""Instances of single placement decisions: some machines of openb, filled to a level, and a window of waiting tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from benchmarks.placement import workloads
from refold.model import WHOLE, Demand, Share
from refold.placement import FreeResources, Placer

MAX_FAILURES = 200
"""The machines count as full after this many pods in a row that do not fit."""


MIN_WINDOW = 4
"""Minimum window size, however little is free."""


class Instance(NamedTuple):
    """The free resources and the requests of the waiting tasks."""

    free: FreeResources
    demands: tuple[Demand, ...]

    @property
    def requested(self) -> int:
        """Total request of the window, in thousandths of a GPU."""
        return sum(demand.total_gpu_milli for demand in self.demands)


def draw_instance(
    machines: int, tasks: int, level: float, seed: int, gangs: float = 0.0, pressure: float = 0.0
) -> Instance:
    """Draw machines of openb with GPUs, filled to `level` of their GPU capacity, and a window of random GPU pods.

    `gangs`: the share of tasks that are gangs of two to four such pods. `pressure`: the window ends when its requests
    reach this many times the free GPU capacity, if that is before `tasks`; 0: no such limit.
    """
    rng = np.random.default_rng([seed, machines, tasks, round(1000 * level)])
    cluster = workloads.openb(only_gpu_nodes=True)
    chosen = np.sort(rng.choice(len(cluster.nodes), machines, replace=machines > len(cluster.nodes)))
    nodes = [
        msgspec.structs.replace(cluster.nodes[index], name=f"m{number}") for number, index in enumerate(chosen.tolist())
    ]
    free = FreeResources(msgspec.structs.replace(cluster, nodes=tuple(nodes)))
    demands = [job.demand for job in workloads.pods() if job.demand.gpus]
    fill(free, demands, level, rng)
    window = [demands[index] for index in rng.integers(len(demands), size=tasks).tolist()]
    if gangs:
        sizes = np.where(rng.random(tasks) < gangs, rng.integers(2, 5, size=tasks), 1).tolist()
        window = [msgspec.structs.replace(demand, instances=size) for demand, size in zip(window, sizes, strict=True)]
    return Instance(free, tuple(window[: _count_requesting(window, pressure * free.gpu_milli) if pressure else tasks]))


def _count_requesting(window: Sequence[Demand], gpu_milli: float) -> int:
    """Return how many tasks of the window together request `gpu_milli`, but at least MIN_WINDOW."""
    requested = np.cumsum([demand.total_gpu_milli for demand in window])
    return max(MIN_WINDOW, int(np.searchsorted(requested, gpu_milli)) + 1)


def fill(free: FreeResources, demands: Sequence[Demand], level: float, rng: np.random.Generator) -> None:
    """Fill the machines to `level`: place pods by best fit until none fits, allocate the rest, remove random pods.

    The rest is allocated as GPU shares without CPUs. So at every level, the free GPUs, CPUs and memory are gaps left
    by pods.
    """
    placer, held, failures = Placer("best-fit"), [], 0
    while failures < MAX_FAILURES:
        placement = placer.place(free, demands[int(rng.integers(len(demands)))])
        failures = 0 if placement is not None else failures + 1
        if placement is not None:
            held.append(placement)
    for node in range(len(free.cluster.nodes)):
        for gpu, left in enumerate(free.gpu_milli_of(node)):
            if left:
                free.take((Share(node, (gpu,), left),))
    for index in rng.permutation(len(held)).tolist():
        if free.gpu_milli >= (1 - level) * free.cluster.gpus * WHOLE:
            return
        free.release(held[index])
