"""The `Placer`: applies one placement rule and holds the state of that rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from refold.errors import UnknownName
from refold.model import Cluster, Demand, Job, Placement, Share, Shortage
from refold.packing import genetic, rules
from refold.packing.demand_history import (
    MAX_CACHED_DEMANDS,
    empty_demand_history,
    empty_score_cache,
    is_update_due,
    update_demand_history,
)
from refold.packing.free import FreeResources, encode_demand, indices_from_mask
from refold.packing.genetic_paper import evolve_paper
from refold.packing.layout import DEMAND_ENTRIES, Ints
from refold.packing.lookahead import RackDraw, no_rack_draw
from refold.packing.power import Power

RULES: dict[str, tuple[int, str]] = {
    "first-fit": (rules.FIRST_FIT, "first node where the instance fits"),
    "best-fit": (rules.BEST_FIT, "node that is left with the least free GPU capacity"),
    "worst-fit": (rules.WORST_FIT, "node that is left with the most free GPU capacity"),
    "round-robin": (rules.ROUND_ROBIN, "next node, after the last one used, where the instance fits"),
    "tetris": (rules.TETRIS, "node with the best alignment of demand and free resources (SIGCOMM'14)"),
    "fgd": (rules.FGD, "node whose expected fragmentation grows least (ATC'23)"),
    "worth": (rules.WORTH, "node that loses the least value for expected jobs, by cutting-stock prices (ours)"),
    "genetic": (rules.WORTH, "genetic search over a window of the queue, seeded with greedy solutions (ours)"),
    "genetic-power": (rules.WORTH, "like genetic, with rack power kept within limits and balanced (ours)"),
    "genetic-paper": (rules.FIRST_FIT, "genetic search over pairs of machine and instance (JIIBC 24-3, 2024)"),
    "random": (rules.RANDOM, "random node where the instance fits (seeded)"),
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

LEARNING_RULES = frozenset({rules.FGD, rules.WORTH})
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
        self._rule_state = np.zeros(rules.RULE_STATE_ENTRIES, dtype=np.int64)
        self._rule_state[rules.SEED] = seed
        if name in GENETIC:
            self._rule_state[rules.DRAW_COUNTER] = seed  # initial state of the random generator
        self._placement_rows = np.zeros((64, 2), dtype=np.int64)
        self._history = empty_demand_history()
        self._cache = empty_score_cache(1, 0)
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
        for job in view.changes.submitted:
            counts.count(job.demand, encode_demand(job.demand, view.cluster))
            if is_update_due(counts.total):
                fgd = self.rule == rules.FGD
                update_demand_history(
                    fgd, counts.shapes, counts.submissions, counts.distinct, self._history, self._cache
                )

    def place(self, free: FreeResources, demand: Demand) -> Placement | None:
        """Take a placement for all instances from `free`; None, with nothing taken, if they do not fit."""
        if self.respects_power_limits or not self.is_exhaustive:
            [placement] = self._search(free, [demand], True, 0)
            if placement is not None or self.is_exhaustive:
                return placement
        if demand.instances > len(self._placement_rows):
            self._placement_rows = np.zeros((demand.instances, 2), dtype=np.int64)
        placed = rules.place_instances(
            self.rule,
            free.nodes,
            free.gpus,
            free.bits,
            free.vector(demand),
            0,
            self._demand_id(free, demand),
            self._rule_state,
            self._history,
            self._cache,
            self._no_power,
            self._placement_rows,
            0,
        )
        return self._build_placement(demand, 0) if placed else None

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
        if self.name not in GENETIC or (in_order and self.name == "genetic-paper"):
            return self._place_one_by_one(free, demands, in_order)
        return self._search(free, demands, in_order, urgent)

    def _search(
        self, free: FreeResources, demands: Sequence[Demand], in_order: bool, urgent: int
    ) -> list[Placement | None]:
        distinct = {demand: row for row, demand in enumerate(dict.fromkeys(demands))}
        demand_ids = np.array([self._demand_id(free, demand) for demand in distinct], dtype=np.int64)
        first = np.zeros(len(demands) + 1, dtype=np.int64)
        np.cumsum([demand.instances for demand in demands], out=first[1:])
        window = genetic.Window(
            np.array([distinct[demand] for demand in demands], dtype=np.int64),
            first,
            np.concatenate([free.vector(demand) for demand in distinct]),
            demand_ids,
            urgent,
            in_order,
        )
        state = genetic.PlacementState(
            free.nodes, free.gpus, free.bits, self._history, self._cache, self._rack_draw(free)
        )
        if first[-1] > len(self._placement_rows):
            self._placement_rows = np.zeros((int(first[-1]), 2), dtype=np.int64)
        placed = np.zeros(len(demands), dtype=np.bool_)
        evolve = evolve_paper if self.name == "genetic-paper" else genetic.evolve
        evolve(state, window, self._rule_state[rules.DRAW_COUNTER :], self._placement_rows[: first[-1]], placed)
        found: dict[Demand, list[Placement]] = {}
        for job, demand in enumerate(demands):
            if placed[job]:
                found.setdefault(demand, []).append(self._build_placement(demand, int(first[job])))
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
        if self._demand_counts is None and self.name not in GENETIC:
            return 0
        demand_id = self._demand_ids.setdefault(demand, len(self._demand_ids))
        nodes = len(free.nodes) - 1
        rows = len(self._cache.owner)
        if self._cache_cluster is not free.cluster or (demand_id >= rows and rows < MAX_CACHED_DEMANDS):
            self._cache_cluster = free.cluster
            self._cache = empty_score_cache(max(16, 2 * rows), nodes)
        return demand_id

    def _build_placement(self, demand: Demand, first: int) -> Placement:
        if demand.instances == 1:
            node, mask = self._placement_rows.item(first, 0), self._placement_rows.item(first, 1)
            return (Share(node, indices_from_mask(mask), demand.gpu_milli, demand.cpu_milli, demand.memory_mib),)
        return tuple(
            Share(node, indices_from_mask(mask), demand.gpu_milli, demand.cpu_milli, demand.memory_mib)
            for node, mask in self._placement_rows[first : first + demand.instances].tolist()
        )


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
