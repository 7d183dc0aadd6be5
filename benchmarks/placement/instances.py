"""Single decisions: a part of openb's machines, filled to some level, and a window of tasks that wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from benchmarks.placement import world
from refold.model import WHOLE, Demand, Share
from refold.packing import Free, Placer

PATIENCE = 200
"""So many pods in a row that find no place, and the machines are full."""


FEWEST = 4
"""No window is smaller, however little is free."""


class Instance(NamedTuple):
    """What is free, and who waits."""

    free: Free
    demands: tuple[Demand, ...]

    @property
    def asked(self) -> int:
        """Thousandths of a GPU that the window asks for."""
        return sum(demand.total_gpu_milli for demand in self.demands)


def drawn(machines: int, tasks: int, level: float, seed: int, gangs: float = 0.0, pressing: float = 0.0) -> Instance:
    """Machines of openb that have GPUs, filled to `level` of their GPU, and a window of random GPU pods.

    `gangs`: which part of the tasks is a gang of two to four such pods. `pressing`: the window ends as soon as it asks
    for so many times what is free, if that is before `tasks`; 0: never.
    """
    chance = np.random.default_rng([seed, machines, tasks, round(1000 * level)])
    everything = world.openb(only_gpu_nodes=True)
    chosen = np.sort(chance.choice(len(everything.nodes), machines, replace=machines > len(everything.nodes)))
    nodes = [
        msgspec.structs.replace(everything.nodes[index], name=f"m{place}")
        for place, index in enumerate(chosen.tolist())
    ]
    free = Free(msgspec.structs.replace(everything, nodes=tuple(nodes)))
    demands = [job.demand for job in world.pods() if job.demand.gpus]
    fill(free, demands, level, chance)
    window = [demands[index] for index in chance.integers(len(demands), size=tasks).tolist()]
    if gangs:
        sizes = np.where(chance.random(tasks) < gangs, chance.integers(2, 5, size=tasks), 1).tolist()
        window = [msgspec.structs.replace(demand, instances=size) for demand, size in zip(window, sizes, strict=True)]
    return Instance(free, tuple(window[: _enough(window, pressing * free.gpu_milli) if pressing else tasks]))


def _enough(window: Sequence[Demand], gpu_milli: float) -> int:
    """How many of a window ask for so much GPU."""
    asked = np.cumsum([demand.total_gpu_milli for demand in window])
    return max(FEWEST, int(np.searchsorted(asked, gpu_milli)) + 1)


def fill(free: Free, demands: Sequence[Demand], level: float, chance: np.random.Generator) -> None:
    """Pods by best fit until hardly any has a place, all other GPU as shares without CPUs; then random pods leave.

    So holes are those that pods leave behind, of GPU and of CPUs and memory, at every level.
    """
    placer, held, in_vain = Placer("best-fit"), [], 0
    while in_vain < PATIENCE:
        placement = placer.place(free, demands[int(chance.integers(len(demands)))])
        in_vain = 0 if placement is not None else in_vain + 1
        if placement is not None:
            held.append(placement)
    for node in range(len(free.cluster.nodes)):
        for gpu, left in enumerate(free.gpu_milli_of(node)):
            if left:
                free.take((Share(node, (gpu,), left),))
    for index in chance.permutation(len(held)).tolist():
        if free.gpu_milli >= (1 - level) * free.cluster.gpus * WHOLE:
            return
        free.give_back(held[index])
