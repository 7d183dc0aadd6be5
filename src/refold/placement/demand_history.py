"""Demand statistics and score caches of the placement rules that learn from submitted jobs. Compiled."""

from __future__ import annotations

import numpy as np

from refold.model import MAX_GPU_TYPES, WHOLE
from refold.model.arrays import view
from refold.placement.layout import DEMAND_ENTRIES, Floats, Ints

MAX_TYPICAL_DEMANDS = 48
"""How many of the most frequent demands are taken as typical."""

MAX_TYPE_SETS = 64
"""Only this many sets of GPU types that jobs are limited to are considered, the first ones submitted."""

# Entries of `needs`: statistics of the demand besides the worth of GPU fractions.
CPU_PER_GPU, MEMORY_PER_GPU, GANG_WEIGHT = range(3)
NEED_ENTRIES = 3

MAX_CACHED_DEMANDS = 512
"""Rows of the score cache. Demands beyond this number share rows with others."""


class DemandHistory:
    """Statistics of the demands submitted so far: `typical` and `weights` for FGD, the rest for the worth rule.

    `type_sets`: the sets of GPU types that jobs are limited to, one bit per type, then zeros; `limited_demand`: the
    part of the demand that is limited to each. `type_prices` follows from these and the free resources.
    """

    def __init__(
        self,
        typical: Ints,
        weights: Floats,
        worth: Floats,
        needs: Floats,
        type_sets: Ints,
        limited_demand: Floats,
        type_prices: Floats,
    ) -> None:
        self.arrays = (typical, weights, worth, needs, type_sets, limited_demand, type_prices)
        self.typical, self.weights = view(typical), view(weights)
        self.worth, self.needs = view(worth), view(needs)
        self.type_sets, self.limited_demand, self.type_prices = view(type_sets), view(limited_demand), view(type_prices)

    def __reduce__(self) -> tuple[object, ...]:
        return DemandHistory, self.arrays


class ScoreCache:
    """Cached placement scores: one row per demand, one column per node.

    `owner` is the demand ID that a row belongs to. A score is valid while `signatures` equals the node's signature,
    that is, while the node's free resources are unchanged.
    """

    def __init__(self, owner: Ints, signatures: Ints, scores: Floats, masks: Ints) -> None:
        self.arrays = (owner, signatures, scores, masks)
        self.owner, self.signatures, self.scores, self.masks = view(owner), view(signatures), view(scores), view(masks)

    def __reduce__(self) -> tuple[object, ...]:
        return ScoreCache, self.arrays

    @property
    def rows(self) -> int:
        """How many demands have a row of their own."""
        return self.owner.shape[0]

    def clear(self) -> None:
        for row in range(self.owner.shape[0]):
            self.owner[row] = -1


def empty_demand_history() -> DemandHistory:
    """Return the initial history: without demands, the worth of a GPU fraction is the fraction itself."""
    return DemandHistory(
        np.zeros((MAX_TYPICAL_DEMANDS, DEMAND_ENTRIES), dtype=np.int64),
        np.zeros(MAX_TYPICAL_DEMANDS),
        np.arange(WHOLE + 1) / WHOLE,
        np.zeros(NEED_ENTRIES),
        np.zeros(MAX_TYPE_SETS, dtype=np.int64),
        np.zeros(MAX_TYPE_SETS),
        np.zeros(MAX_GPU_TYPES),
    )


def empty_score_cache(rows: int, nodes: int) -> ScoreCache:
    """Return an empty cache for `rows` demands, at most `MAX_CACHED_DEMANDS`."""
    rows = min(rows, MAX_CACHED_DEMANDS)
    return ScoreCache(
        np.full(rows, -1, dtype=np.int64),
        np.zeros((rows, nodes), dtype=np.int64),
        np.zeros((rows, nodes)),
        np.zeros((rows, nodes), dtype=np.int64),
    )


def is_update_due(total_seen: int) -> bool:
    """Whether to update the history: after 1, 2, 4, … jobs, and from 1,024 on after every 1,024."""
    return total_seen % 1024 == 0 or (total_seen < 1024 and total_seen & (total_seen - 1) == 0)


def row_of(cache: ScoreCache, demand_id: int) -> int:
    """Return the cache row of a demand; clear the row if it belonged to another demand."""
    row = demand_id % cache.owner.shape[0]
    if cache.owner[row] != demand_id:
        cache.owner[row] = demand_id
        for node in range(cache.signatures.shape[1]):
            cache.signatures[row, node] = 0
    return row
