"""FGD as its authors' simulator plays it (ATC'23; kubernetes-scheduler-simulator, `fgd_score.go`, `frag.go`).

It differs from an exact descent in two ways that matter: a score is a whole number from 0 to 100, so that many nodes
tie and the first of them is taken; and the typical pods are the most frequent ones that make up 95 % of all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import exp

import numpy as np

from refold.model import WHOLE, Cluster, Demand, Job, Placement, Share
from refold.packing import (
    FIRST_GPU,
    GPUS,
    Floats,
    Free,
    Ints,
    Need,
    Words,
    compiled,
    fragments_after,
    indices_of,
    lowest_row,
    most_gpus,
    move,
    need_of,
    next_fitting,
    node_fragments,
    vector_of,
)

POPULAR = 0.95
"""Which part of all pods the typical ones make up."""

UNKNOWN = -2


class FgdAsPublished:
    """Places one demand after the other on one cluster, of which it remembers the scores that still hold."""

    def __init__(self, cluster: Cluster, jobs: Sequence[Job]) -> None:
        self._typical, self._weights = typical_of(cluster, jobs)
        self._kinds: dict[Demand, int] = {}
        self._scores = np.full((len({job.demand for job in jobs}), len(cluster.nodes)), UNKNOWN, dtype=np.int64)
        self._masks = np.zeros_like(self._scores)

    def place(self, free: Free, demand: Demand) -> Placement | None:
        """Take a place for one instance from `free`, which nobody else changes."""
        assert demand.instances == 1, "openb's pods are single instances"
        vector, kind = free.vector(demand), self._kinds.setdefault(demand, len(self._kinds))
        known = (self._scores, self._masks)
        node, mask = _place(free.nodes, free.gpus, free.bits, vector, kind, self._typical, self._weights, *known)
        if node < 0:
            return None
        return (Share(node, indices_of(mask), demand.gpu_milli, demand.cpu_milli, demand.memory_mib),)

    def place_all(self, free: Free, demands: Sequence[Demand]) -> list[Placement | None]:
        """One after the other."""
        return [self.place(free, demand) for demand in demands]


def typical_of(cluster: Cluster, jobs: Sequence[Job]) -> tuple[Ints, Floats]:
    """The most frequent pods, as rows of demands, and how frequent they are; memory does not count."""
    shapes = Counter(Demand(1, d.gpus, d.gpu_milli, d.cpu_milli, 0, d.gpu_types) for d in (job.demand for job in jobs))
    rows: list[Ints] = []
    counts: list[int] = []
    for demand, count in shapes.most_common():
        if sum(counts) >= POPULAR * len(jobs):
            break
        rows.append(vector_of(demand, cluster)[0])
        counts.append(count)
    return np.array(rows, dtype=np.int64), np.array(counts) / sum(counts)


@compiled
def _score(before: float, after: float) -> int:
    return int(100.0 / (1.0 + exp((after - before) / 1000.0)))


@compiled
def _best_gpus(nodes: Ints, gpus: Ints, node: int, need: Need, typical: Ints, weights: Floats) -> tuple[int, int]:
    """The score of a node, and the GPUs that have it."""
    before = node_fragments(nodes, gpus, node, typical, weights)
    first, best, mask = nodes[node, FIRST_GPU], -1, 0
    if need.gpus == 1 and need.milli < WHOLE:
        for gpu in range(nodes[node, GPUS]):
            if gpus[first + gpu] >= need.milli:
                score = _score(before, fragments_after(nodes, gpus, node, 1 << gpu, need, typical, weights))
                if score > best:
                    best, mask = score, 1 << gpu
        return best, mask
    missing, gpu = need.gpus, 0
    while missing > 0:
        if gpus[first + gpu] >= need.milli:
            mask |= 1 << gpu
            missing -= 1
        gpu += 1
    return _score(before, fragments_after(nodes, gpus, node, mask, need, typical, weights)), mask


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
    need = need_of(demand, 0)
    low, none = lowest_row(need), most_gpus(bits) + 1
    best, best_score = -1, -1
    node = next_fitting(nodes, gpus, bits, low, none, 0, need, 0)
    while node >= 0:
        if scores[kind, node] == UNKNOWN:
            scores[kind, node], masks[kind, node] = _best_gpus(nodes, gpus, node, need, typical, weights)
        if scores[kind, node] > best_score:
            best, best_score = node, scores[kind, node]
        node = next_fitting(nodes, gpus, bits, low, none, 0, need, node + 1)
    if best < 0:
        return -1, 0
    mask = masks[kind, best]
    move(nodes, gpus, bits, best, mask, -need.milli, -need.cpu, -need.memory)
    scores[:, best] = UNKNOWN
    return best, mask
