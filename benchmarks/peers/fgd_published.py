"""FGD as implemented in its authors' simulator (ATC'23; kubernetes-scheduler-simulator, `fgd_score.go`, `frag.go`).

It differs from an exact descent in two ways: a score is an integer from 0 to 100, so that many nodes tie and the first
is taken; and the typical pods are the most frequent ones that together make up 95 % of all pods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import exp

import numpy as np

from refold.jit import compiled
from refold.model import WHOLE, Cluster, Demand, Job, Placement, Share
from refold.packing import (
    FIRST_GPU,
    GPUS,
    Floats,
    FreeResources,
    Ints,
    Need,
    Words,
    adjust_free,
    candidate_row,
    encode_demand,
    fragmentation_after,
    indices_from_mask,
    max_gpus_per_node,
    need_at,
    next_fitting_node,
    node_fragmentation,
)

TYPICAL_SHARE = 0.95
"""Share of all pods that the typical pods make up."""

UNKNOWN = -2


class FgdAsPublished:
    """Places demands one by one on a cluster and caches the scores that are still valid."""

    def __init__(self, cluster: Cluster, jobs: Sequence[Job]) -> None:
        self._typical, self._weights = typical_pods(cluster, jobs)
        self._kinds: dict[Demand, int] = {}
        self._scores = np.full((len({job.demand for job in jobs}), len(cluster.nodes)), UNKNOWN, dtype=np.int64)
        self._masks = np.zeros_like(self._scores)

    def place(self, free: FreeResources, demand: Demand) -> Placement | None:
        """Allocate one instance from `free`. Nothing else may change `free` between calls."""
        assert demand.instances == 1, "pods of openb are single instances"
        vector, kind = free.vector(demand), self._kinds.setdefault(demand, len(self._kinds))
        cached = (self._scores, self._masks)
        node, mask = _place(free.nodes, free.gpus, free.bits, vector, kind, self._typical, self._weights, *cached)
        if node < 0:
            return None
        return (Share(node, indices_from_mask(mask), demand.gpu_milli, demand.cpu_milli, demand.memory_mib),)

    def place_all(self, free: FreeResources, demands: Sequence[Demand]) -> list[Placement | None]:
        """Place demands one after the other."""
        return [self.place(free, demand) for demand in demands]


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


@compiled
def _score(before: float, after: float) -> int:
    return int(100.0 / (1.0 + exp((after - before) / 1000.0)))


@compiled
def _best_gpus(nodes: Ints, gpus: Ints, node: int, need: Need, typical: Ints, weights: Floats) -> tuple[int, int]:
    """Return the score of a node and the mask of the GPUs with that score."""
    before = node_fragmentation(nodes, gpus, node, typical, weights)
    first, best, mask = nodes[node, FIRST_GPU], -1, 0
    if need.gpus == 1 and need.milli < WHOLE:
        for gpu in range(nodes[node, GPUS]):
            if gpus[first + gpu] >= need.milli:
                score = _score(before, fragmentation_after(nodes, gpus, node, 1 << gpu, need, typical, weights))
                if score > best:
                    best, mask = score, 1 << gpu
        return best, mask
    missing, gpu = need.gpus, 0
    while missing > 0:
        if gpus[first + gpu] >= need.milli:
            mask |= 1 << gpu
            missing -= 1
        gpu += 1
    return _score(before, fragmentation_after(nodes, gpus, node, mask, need, typical, weights)), mask


@compiled
def _place(
    nodes: Ints,
    gpus: Ints,
    bits: Words,
    demand: Ints,
    kind: int,
    typical: Ints,
    weights: Floats,
    scores: Ints,
    masks: Ints,
) -> tuple[int, int]:
    need = need_at(demand, 0)
    low, none = candidate_row(need), max_gpus_per_node(bits) + 1
    best, best_score = -1, -1
    node = next_fitting_node(nodes, gpus, bits, low, none, 0, need, 0)
    while node >= 0:
        if scores[kind, node] == UNKNOWN:
            scores[kind, node], masks[kind, node] = _best_gpus(nodes, gpus, node, need, typical, weights)
        if scores[kind, node] > best_score:
            best, best_score = node, scores[kind, node]
        node = next_fitting_node(nodes, gpus, bits, low, none, 0, need, node + 1)
    if best < 0:
        return -1, 0
    mask = masks[kind, best]
    adjust_free(nodes, gpus, bits, best, mask, -need.milli, -need.cpu, -need.memory)
    scores[:, best] = UNKNOWN
    return best, mask
