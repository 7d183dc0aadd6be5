"""The `Placer`: applies one placement rule and holds the state of that rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from refold.errors import UnknownName
from refold.model import Cluster, Demand, Job, Placement, Shortage
from refold.placement import layout
from refold.placement.demand_history import MAX_CACHED_DEMANDS, empty_demand_history, empty_score_cache, is_update_due
from refold.placement.fragmentation import update_typical_demands
from refold.placement.free import FreeResources, encode_demand
from refold.placement.genetic import evolve
from refold.placement.genetic_decoding import PlacementState, Window
from refold.placement.genetic_operators import Random
from refold.placement.genetic_paper import evolve_paper
from refold.placement.layout import DEMAND_ENTRIES, Ints
from refold.placement.lookahead import RackDraw, no_rack_draw
from refold.placement.power import Power
from refold.placement.rules import GreedyRule, build_placement
from refold.placement.worth import update_worth

RULES: dict[str, tuple[int, str]] = {
    "first-fit": (layout.FIRST_FIT, "first node where the instance fits"),
    "best-fit": (layout.BEST_FIT, "node that is left with the least free GPU capacity"),
    "worst-fit": (layout.WORST_FIT, "node that is left with the most free GPU capacity"),
    "round-robin": (layout.ROUND_ROBIN, "next node, after the last one used, where the instance fits"),
    "tetris": (layout.TETRIS, "node with the best alignment of demand and free resources (SIGCOMM'14)"),
    "fgd": (layout.FGD, "node whose expected fragmentation grows least (ATC'23)"),
    "worth": (layout.WORTH, "node that loses the least value for expected jobs, by cutting-stock prices (ours)"),
    "genetic": (layout.WORTH, "genetic search over a window of the queue, seeded with greedy solutions (ours)"),
    "genetic-power": (layout.WORTH, "like genetic, with rack power kept within limits and balanced (ours)"),
    "genetic-paper": (layout.FIRST_FIT, "genetic search over pairs of machine and instance (JIIBC 24-3, 2024)"),
    "random": (layout.RANDOM, "random node where the instance fits (seeded)"),
}
"""All placement rules by name: the kernel's rule number and a description."""


class PlacementChanges(Protocol):
    """The changes of a View, as far as rules use them."""

    @property
    def submitted(self) -> Sequence[Job]: ...


class PlacementView(Protocol):
    """A View, as far as rules use it."""

    @property
    def cluster(self) -> Cluster: ...

    @property
    def changes(self) -> PlacementChanges: ...


WINDOW_JOBS = 100
"""How many waiting jobs a genetic search places at once."""

LEARNING_RULES = frozenset({layout.FGD, layout.WORTH})
"""Rules that learn the mix of demands from submitted jobs."""

GENETIC = ("genetic", "genetic-power", "genetic-paper")


class Placer:
    """Finds placements by one rule. Its state derives only from the calls made to it, so a replay rebuilds it."""

    def __init__(self, name: str = "best-fit", seed: int = 0) -> None:
        if name not in RULES:
            raise UnknownName("placement", name, RULES)
        self.name = name
        self.rule = RULES[name][0]
        self.window = WINDOW_JOBS if name in GENETIC else 1
        """How many waiting jobs to pass to `place_all` at once."""
        self.is_exhaustive = name != "genetic-paper"
        """Whether every job that `place_all` leaves out does not fit."""
        self.respects_power_limits = name == "genetic-power"
        """Whether racks are kept within their power limits."""
        self._greedy = GreedyRule(self.rule, seed, empty_demand_history(), empty_score_cache(1, 0))
        self._random = Random(seed)
        self._cache_cluster: Cluster | None = None
        self._demand_ids: dict[Demand, int] = {}
        self._demand_counts = _DemandCounts() if self.rule in LEARNING_RULES else None
        self._no_power = no_rack_draw()
        self._power: Power | None = None

    def observe(self, view: PlacementView) -> None:
        """Count the demands of submitted jobs, for rules that learn from them."""
        counts = self._demand_counts
        if counts is None:
            return
        update = update_typical_demands if self.rule == layout.FGD else update_worth
        for job in view.changes.submitted:
            counts.count(job.demand, encode_demand(job.demand, view.cluster))
            if is_update_due(counts.total):
                update(counts.shapes, counts.submissions, counts.distinct, self._greedy.history)
                self._greedy.cache.clear()

    def place(self, free: FreeResources, demand: Demand) -> Placement | None:
        """Take a placement for all instances from `free`; None, with nothing taken, if they do not fit.

        Genetic searches do not know domains: on clusters with levels, their greedy rule is used.
        """
        if (self.respects_power_limits or not self.is_exhaustive) and not free.cluster.levels:
            [placement] = self._search(free, [demand], True, 0)
            if placement is not None or self.is_exhaustive:
                return placement
        demand_id = 0 if self._demand_counts is None else self._demand_id(free, demand)
        found = self._greedy.place(free.arrays, free.encoded(demand), demand_id)
        if found is not None and self.respects_power_limits:
            free.release(found)
            if not self.allows(free, found):
                return None
            free.retake(found)
        return found

    def place_all(
        self, free: FreeResources, demands: Sequence[Demand], in_order: bool = False, urgent: int = 0
    ) -> list[Placement | None]:
        """Take placements for a window of demands, each completely or not at all (None).

        A demand that gets None does not fit beside the others, except with `genetic-paper`, which as published may
        leave out demands that fit, and ignores order. With `in_order`, no demand after the first that does not fit is
        placed. The first `urgent` demands are placed before all others.
        """
        if not demands:
            return []
        if self.name not in GENETIC or free.cluster.levels or (in_order and self.name == "genetic-paper"):
            return self._place_one_by_one(free, demands, in_order)
        return self._search(free, demands, in_order, urgent)

    def _search(
        self, free: FreeResources, demands: Sequence[Demand], in_order: bool, urgent: int
    ) -> list[Placement | None]:
        distinct = {demand: row for row, demand in enumerate(dict.fromkeys(demands))}
        demand_ids = np.array([self._demand_id(free, demand) for demand in distinct], dtype=np.int64)
        first = np.zeros(len(demands) + 1, dtype=np.int64)
        np.cumsum([demand.instances for demand in demands], out=first[1:])
        window = Window(
            np.array([distinct[demand] for demand in demands], dtype=np.int64),
            first,
            np.concatenate([free.vector(demand) for demand in distinct]),
            demand_ids,
            urgent,
            in_order,
        )
        state = PlacementState(free.arrays, self._greedy.history, self._greedy.cache, self._rack_draw(free))
        rows, placed = np.zeros((int(first[-1]), 2), dtype=np.int64), np.zeros(len(demands), dtype=np.bool_)
        search = evolve_paper if self.name == "genetic-paper" else evolve
        search(state, window, self._random, rows, placed)
        found: dict[Demand, list[Placement]] = {}
        for job, demand in enumerate(demands):
            if placed[job]:
                found.setdefault(demand, []).append(build_placement(free.encoded(demand), rows, int(first[job])))
        for placements in found.values():
            placements.reverse()
        return [found[demand].pop() if found.get(demand) else None for demand in demands]

    def allows(self, free: FreeResources, placement: Placement) -> bool:
        """Whether a free placement respects the power limits of racks, if this rule observes them."""
        power = self._power_for(free)
        return power is None or power.within_limits(free, placement)

    def shortage(self, free: FreeResources, demand: Demand) -> Shortage:
        """Count the nodes that cannot host one instance of a demand, by the first resource they lack."""
        power = self._power_for(free)
        return free.shortage(demand) if power is None else power.shortage(free, demand)

    def _power_for(self, free: FreeResources) -> Power | None:
        if self.respects_power_limits and (self._power is None or self._power.cluster is not free.cluster):
            self._power = Power(free.cluster)
        return self._power

    def _rack_draw(self, free: FreeResources) -> RackDraw:
        """Return the current draw of racks, or one with which power is ignored."""
        power = self._power_for(free)
        if power is None:
            return self._no_power
        return RackDraw(
            power.rack_of,
            power.watts_per_gpu_milli,
            power.watts_per_cpu_milli,
            power.draw(free),
            power.limit,
            power.scale,
        )

    def _place_one_by_one(
        self, free: FreeResources, demands: Sequence[Demand], in_order: bool
    ) -> list[Placement | None]:
        found: list[Placement | None] = []
        exhausted: set[Demand] = set()
        for demand in demands:
            placement = None if demand in exhausted else self.place(free, demand)
            found.append(placement)
            if placement is None:
                exhausted.add(demand)
                if in_order:
                    break
        return found + [None] * (len(demands) - len(found))

    def _demand_id(self, free: FreeResources, demand: Demand) -> int:
        """Return the ID of a demand, after making sure that the score cache is large enough for it."""
        demand_id = self._demand_ids.setdefault(demand, len(self._demand_ids))
        rows = self._greedy.cache.rows
        if self._cache_cluster is not free.cluster or (demand_id >= rows and rows < MAX_CACHED_DEMANDS):
            self._cache_cluster = free.cluster
            self._greedy.cache = empty_score_cache(max(16, 2 * rows), len(free.nodes) - 1)
        return demand_id


class _DemandCounts:
    """How often each demand was submitted, in order of first submission."""

    def __init__(self) -> None:
        self.shapes: Ints = np.zeros((64, DEMAND_ENTRIES), dtype=np.int64)
        self.submissions: Ints = np.zeros(64, dtype=np.int64)
        self.distinct = 0
        self.total = 0
        self._index: dict[Demand, int] = {}

    def count(self, demand: Demand, vector: Ints) -> None:
        index = self._index.get(demand)
        if index is None:
            index = self._index[demand] = self.distinct
            self.distinct += 1
            if self.distinct > len(self.submissions):
                self.shapes = np.concatenate([self.shapes, np.zeros_like(self.shapes)])
                self.submissions = np.concatenate([self.submissions, np.zeros_like(self.submissions)])
            self.shapes[index] = vector
        self.submissions[index] += 1
        self.total += 1
