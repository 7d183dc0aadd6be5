"""The Pareto front: settings that no others beat in all measures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from refold.placement import Floats
from refold.simulator.tuning.search import Evaluated
from refold.simulator.tuning.trade_off import Objective

MAX_POINTS = 8


def find_front(found: Sequence[Evaluated], objective: Objective) -> list[Evaluated]:
    """Return the settings on the front, best by the objective first; the first of `found`, the default, is left out.

    Of settings with the same values, the first stay. If there are many points, the best by each measure stay, then the
    best by the objective.
    """
    values = np.array([one.values for one in found])
    defined = values[:, ~np.isnan(values).any(axis=0)]
    scores = objective.scores(values, values[0])
    front = [
        row
        for row in range(1, len(found))
        if not _is_dominated(defined[row], np.delete(defined, row, axis=0))
        and not (defined[:row] == defined[row]).all(axis=1).any()
    ]
    if not front:
        return []
    by_objective = sorted(front, key=lambda row: scores[row])
    best = [min(front, key=lambda row: (defined[row, column], row)) for column in range(defined.shape[1])]
    kept = list(dict.fromkeys([by_objective[0], *best, *by_objective]))[:MAX_POINTS]
    return [found[row] for row in sorted(kept, key=lambda row: scores[row])]


def _is_dominated(values: Floats, others: Floats) -> bool:
    """Return whether others are better in one measure and not worse in any."""
    return bool(((others <= values).all(axis=1) & (others < values).any(axis=1)).any())
