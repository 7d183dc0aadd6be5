"""What jobs are to be expected, and what was reckoned from it: the memory of the rules that look ahead. Compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from refold.model import MAX_GPU_TYPES, WHOLE
from refold.packing.fragmentation import TYPICAL, renew_typical
from refold.packing.jit import compiled, inlined
from refold.packing.layout import DEMAND_ENTRIES, Floats, Ints
from refold.packing.worth import NEEDS, renew_worth

MOST_ROWS = 512
"""For so many demands scores are kept; others share their rows."""


class DemandHistory(NamedTuple):
    """The demands seen so far, as FGD (`typical`, `weights`) and worth (the rest) read them."""

    typical: Ints
    weights: Floats
    worth: Floats
    needs: Floats
    scarcity: Floats


class ScoreCache(NamedTuple):
    """Scores that hold as long as a node is as it was: a row per demand, a column per node.

    `owner` says whose row it is; a score counts while `signatures` has the node's signature.
    """

    owner: Ints
    signatures: Ints
    scores: Floats
    masks: Ints


def nothing_expected() -> DemandHistory:
    """Before anything was seen: a part of a GPU is worth what it is."""
    return DemandHistory(
        np.zeros((TYPICAL, DEMAND_ENTRIES), dtype=np.int64),
        np.zeros(TYPICAL),
        np.arange(WHOLE + 1) / WHOLE,
        np.zeros(NEEDS),
        np.zeros(MAX_GPU_TYPES),
    )


def nothing_known(rows: int, nodes: int) -> ScoreCache:
    """Room for the scores of so many demands."""
    rows = min(rows, MOST_ROWS)
    return ScoreCache(
        np.full(rows, -1, dtype=np.int64),
        np.zeros((rows, nodes), dtype=np.int64),
        np.zeros((rows, nodes)),
        np.zeros((rows, nodes), dtype=np.int64),
    )


@compiled
def renew(
    fgd: bool, shapes: Ints, seen: Ints, count: int, nodes: Ints, expected: DemandHistory, known: ScoreCache
) -> None:
    """Expect more of what the first `count` shapes were: `seen` says how often each was."""
    if fgd:
        renew_typical(shapes, seen, count, expected.typical, expected.weights)
    else:
        renew_worth(shapes, seen, count, nodes, expected.worth, expected.needs, expected.scarcity)
    known.owner[:] = -1


@compiled
def time_to_renew(seen_in_all: int) -> bool:
    """When the demands are counted anew: at 1, 2, 4, … jobs, and from 1,024 on every 1,024."""
    return seen_in_all % 1024 == 0 or (seen_in_all < 1024 and seen_in_all & (seen_in_all - 1) == 0)


@inlined
def row_of(known: ScoreCache, kind: int) -> int:
    """The row with the scores of a demand; emptied, if it was another's."""
    row = kind % known.owner.shape[0]
    if known.owner[row] != kind:
        known.owner[row] = kind
        known.signatures[row, :] = 0
    return row
