"""Demand statistics and score caches of the placement rules that learn from submitted jobs. Compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from refold.jit import compiled, inlined
from refold.model import MAX_GPU_TYPES, WHOLE
from refold.packing.fragmentation import MAX_TYPICAL_DEMANDS, update_typical_demands
from refold.packing.layout import DEMAND_ENTRIES, Floats, Ints
from refold.packing.worth import MAX_TYPE_SETS, NEED_ENTRIES, update_worth

MAX_CACHED_DEMANDS = 512
"""Rows of the score cache. Demands beyond this number share rows with others."""


class DemandHistory(NamedTuple):
    """Statistics of the demands submitted so far: `typical` and `weights` for FGD, the rest for the worth rule.

    `type_sets`: the sets of GPU types that jobs are limited to, one bit per type, then zeros; `limited_demand`: the
    part of the demand that is limited to each. `type_prices` follows from these and the free resources.
    """

    typical: Ints
    weights: Floats
    worth: Floats
    needs: Floats
    type_sets: Ints
    limited_demand: Floats
    type_prices: Floats


class ScoreCache(NamedTuple):
    """Cached placement scores: one row per demand, one column per node.

    `owner` is the demand ID that a row belongs to. A score is valid while `signatures` equals the node's signature,
    that is, while the node's free resources are unchanged.
    """

    owner: Ints
    signatures: Ints
    scores: Floats
    masks: Ints


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


@compiled
def update_demand_history(
    fgd: bool, shapes: Ints, counts: Ints, count: int, history: DemandHistory, cache: ScoreCache
) -> None:
    """Recompute the history from the first `count` shapes, submitted `counts` times each; clear the cache."""
    if fgd:
        update_typical_demands(shapes, counts, count, history.typical, history.weights)
    else:
        update_worth(shapes, counts, count, history.worth, history.needs, history.type_sets, history.limited_demand)
    cache.owner[:] = -1


@compiled
def is_update_due(total_seen: int) -> bool:
    """Whether to update the history: after 1, 2, 4, … jobs, and from 1,024 on after every 1,024."""
    return total_seen % 1024 == 0 or (total_seen < 1024 and total_seen & (total_seen - 1) == 0)


@inlined
def row_of(cache: ScoreCache, demand_id: int) -> int:
    """Return the cache row of a demand; clear the row if it belonged to another demand."""
    row = demand_id % cache.owner.shape[0]
    if cache.owner[row] != demand_id:
        cache.owner[row] = demand_id
        cache.signatures[row, :] = 0
    return row
