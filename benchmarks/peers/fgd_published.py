"""FGD as implemented in its authors' simulator (ATC'23; kubernetes-scheduler-simulator, `fgd_score.go`, `frag.go`).

It differs from an exact descent in two ways: a score is an integer from 0 to 100, so that many nodes tie and the first
is taken; and the typical pods are the most frequent ones that together make up 95 % of all pods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import exp

import numpy as np

from benchmarks.peers.pairwise import fitting_nodes
from refold.model import WHOLE, Cluster, Demand, Job, Placement, Share
from refold.placement import (
    DemandHistory,
    Floats,
    FreeResources,
    Ints,
    empty_demand_history,
    encode_demand,
    fragmentation_after,
    indices_from_mask,
    mask_from_indices,
    node_fragmentation,
)

TYPICAL_SHARE = 0.95
"""Share of all pods that the typical pods make up."""

UNKNOWN = -2


class FgdAsPublished:
    """Places demands one by one on a cluster and caches the scores that are still valid."""

    def __init__(self, cluster: Cluster, jobs: Sequence[Job]) -> None:
        arrays = (*typical_pods(cluster, jobs), *empty_demand_history().arrays[2:])
        self._history = DemandHistory(*arrays)
        self._kinds: dict[Demand, int] = {}
        self._scores = np.full((len({job.demand for job in jobs}), len(cluster.nodes)), UNKNOWN, dtype=np.int64)
        self._masks = np.zeros_like(self._scores)

    def place(self, free: FreeResources, demand: Demand) -> Placement | None:
        """Allocate one instance from `free`. Nothing else may change `free` between calls."""
        assert demand.instances == 1, "pods of openb are single instances"
        kind = self._kinds.setdefault(demand, len(self._kinds))
        scores, masks = self._scores[kind], self._masks[kind]
        fitting = np.flatnonzero(fitting_nodes(free, demand))
        if not len(fitting):
            return None
        for node in fitting[scores[fitting] == UNKNOWN].tolist():
            scores[node], masks[node] = self._best_gpus(free, node, demand)
        best = int(fitting[scores[fitting].argmax()])
        gpus = indices_from_mask(int(masks[best]))
        placement = (Share(best, gpus, demand.gpu_milli, demand.cpu_milli, demand.memory_mib),)
        free.retake(placement)
        self._scores[:, best] = UNKNOWN
        return placement

    def place_all(self, free: FreeResources, demands: Sequence[Demand]) -> list[Placement | None]:
        """Place demands one after the other."""
        return [self.place(free, demand) for demand in demands]

    def _best_gpus(self, free: FreeResources, node: int, demand: Demand) -> tuple[int, int]:
        """Return the score of a node and the mask of the GPUs with that score."""
        usable = [gpu for gpu, left in enumerate(free.gpu_milli_of(node)) if left >= demand.gpu_milli]
        masks = [mask_from_indices(tuple(usable[: demand.gpus]))]
        if demand.gpus == 1 and demand.gpu_milli < WHOLE:
            masks = [1 << gpu for gpu in usable]
        before, milli, cpu = node_fragmentation(free.arrays, node, self._history), demand.gpu_milli, demand.cpu_milli
        after = [fragmentation_after(free.arrays, node, mask, milli, cpu, self._history) for mask in masks]
        scores = [int(100.0 / (1.0 + exp((left - before) / 1000.0))) for left in after]
        return max(scores), masks[scores.index(max(scores))]


def typical_pods(cluster: Cluster, jobs: Sequence[Job]) -> tuple[Ints, Floats]:
    """Return the most frequent pods as encoded demands, and their frequencies. Memory is ignored."""
    shapes = Counter(Demand(1, d.gpus, d.gpu_milli, d.cpu_milli, 0, d.gpu_types) for d in (job.demand for job in jobs))
    rows: list[Ints] = []
    counts: list[int] = []
    for demand, count in shapes.most_common():
        if sum(counts) >= TYPICAL_SHARE * len(jobs):
            break
        rows.append(encode_demand(demand, cluster)[0])
        counts.append(count)
    return np.array(rows, dtype=np.int64), np.array(counts) / sum(counts)
