"""A placement rule and the demands of a workload, as compiled loops take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from refold.jit import inlined
from refold.model import Demand
from refold.packing.demand_history import DemandHistory, ScoreCache, empty_demand_history, empty_score_cache
from refold.packing.free import FreeResources
from refold.packing.layout import FreeArrays, Ints
from refold.packing.lookahead import RackDraw, no_rack_draw
from refold.packing.placer import LEARNING_RULES, RULES
from refold.packing.rules import RULE_STATE_ENTRIES, SEED, place_instances


class PlacementRule(NamedTuple):
    """The number of a rule in `RULES`, demands as rows, and the state of the rule."""

    number: int
    demands: Ints
    state: Ints
    history: DemandHistory
    scores: ScoreCache
    racks: RackDraw

    @staticmethod
    def allocate(name: str, free: FreeResources, demands: Sequence[Demand], seed: int = 0) -> PlacementRule:
        """Return a rule that has placed nothing yet, for these demands by number."""
        number = RULES[name][0]
        state = np.zeros(RULE_STATE_ENTRIES, dtype=np.int64)
        state[SEED] = seed
        scores = empty_score_cache(len(demands) if number in LEARNING_RULES else 0, len(free.cluster.nodes))
        return PlacementRule(number, free.rows(demands), state, empty_demand_history(), scores, no_rack_draw())


@inlined
def place_demand(free: FreeArrays, rule: PlacementRule, demand: int, placements: Ints, first: int) -> bool:
    """Take resources for all instances of a demand and write them to `placements` from row `first` on.

    If they do not all fit, take nothing and return False.
    """
    return place_instances(
        rule.number,
        free.nodes,
        free.gpus,
        free.bits,
        rule.demands,
        demand,
        demand,
        rule.state,
        rule.history,
        rule.scores,
        rule.racks,
        placements,
        first,
    )
