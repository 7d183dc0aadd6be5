"""A placement rule at work: what it remembers, and one verb."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from refold.errors import UnknownName
from refold.model import Cluster, Demand, Job, Placement, Share, Shortage
from refold.packing import genetic, rules
from refold.packing.demand_history import MOST_ROWS, nothing_expected, nothing_known, renew, time_to_renew
from refold.packing.free import Free, indices_of, vector_of
from refold.packing.genetic_paper import evolve_paper
from refold.packing.layout import DEMAND_ENTRIES, Ints
from refold.packing.lookahead import RackPowerNow, no_racks
from refold.packing.power import Power

RULES: dict[str, tuple[int, str]] = {
    "first-fit": (rules.FIRST_FIT, "the first node with room"),
    "best-fit": (rules.BEST_FIT, "the node that is left with the least free GPU"),
    "worst-fit": (rules.WORST_FIT, "the node that is left with the most free GPU"),
    "round-robin": (rules.ROUND_ROBIN, "the next node with room after the last one used"),
    "tetris": (rules.TETRIS, "the largest alignment of demand and free resources (SIGCOMM'14)"),
    "fgd": (rules.FGD, "the node whose expected fragments grow least (ATC'23)"),
    "worth": (rules.WORTH, "the node that loses least of what the jobs to be expected could make of it (ours)"),
    "genetic": (rules.WORTH, "a genetic search over the waiting window, seeded with greedy solutions (ours)"),
    "genetic-power": (rules.WORTH, "the same; racks are kept under their power limits, and even (ours)"),
    "genetic-paper": (rules.FIRST_FIT, "pairs of machine and instance by a genetic search (JIIBC 24-3, 2024)"),
    "random": (rules.RANDOM, "any node with room, by a seed"),
}
"""Every placement rule, with what it does."""


class PlacementChanges(Protocol):
    """The part of a View's changes that a rule may learn from."""

    @property
    def submitted(self) -> Sequence[Job]: ...


class PlacementView(Protocol):
    """The part of a View that a rule may learn from."""

    @property
    def cluster(self) -> Cluster: ...

    @property
    def changes(self) -> PlacementChanges: ...


WINDOW = 100
"""How many waiting jobs a genetic search sees at once."""

LOOK_AHEAD = frozenset({rules.FGD, rules.WORTH})
"""Rules that learn what is to be expected."""

GENETIC = ("genetic", "genetic-power", "genetic-paper")


class Placer:
    """Finds places by one rule. What it remembers comes only from what it was asked, so replay rebuilds it."""

    def __init__(self, name: str = "best-fit", seed: int = 0) -> None:
        if name not in RULES:
            raise UnknownName("placement", name, RULES)
        self.name = name
        self.rule = RULES[name][0]
        self.window = WINDOW if name in GENETIC else 1
        """How many waiting jobs it wants to see at once."""
        self.finds_all = name != "genetic-paper"
        """Whether who is left out of a window has no place."""
        self.minds_power = name == "genetic-power"
        """Whether racks are kept within their limits."""
        self._memory = np.zeros(rules.MEMORY_ENTRIES, dtype=np.int64)
        self._memory[rules.SEED] = seed
        if name in GENETIC:
            self._memory[rules.DRAWS] = seed  # where its draws begin
        self._found = np.zeros((64, 2), dtype=np.int64)
        self._expected = nothing_expected()
        self._known = nothing_known(1, 0)
        self._known_of: Cluster | None = None
        self._kinds: dict[Demand, int] = {}
        self._census = _DemandCounts() if self.rule in LOOK_AHEAD else None
        self._racks = no_racks()
        self._power: Power | None = None

    def observe(self, view: PlacementView) -> None:
        """Note what was submitted: rules that expect more of the same count it."""
        census = self._census
        if census is None:
            return
        for job in view.changes.submitted:
            census.count(job.demand, vector_of(job.demand, view.cluster))
            if time_to_renew(census.seen_in_all):
                fgd, nodes = self.rule == rules.FGD, Free(view.cluster).nodes
                renew(fgd, census.shapes, census.seen, census.known, nodes, self._expected, self._known)

    def place(self, free: Free, demand: Demand) -> Placement | None:
        """Take a place for every instance from `free`, or nothing."""
        if self.minds_power or not self.finds_all:
            [placement] = self._search(free, [demand], True, 0)
            if placement is not None or self.finds_all:
                return placement
        if demand.instances > len(self._found):
            self._found = np.zeros((demand.instances, 2), dtype=np.int64)
        placed = rules.place(
            self.rule,
            free.nodes,
            free.gpus,
            free.bits,
            free.vector(demand),
            0,
            self._kind_of(free, demand),
            self._memory,
            self._expected,
            self._known,
            self._racks,
            self._found,
            0,
        )
        return self._placement(demand, 0) if placed else None

    def place_all(
        self, free: Free, demands: Sequence[Demand], in_order: bool = False, urgent: int = 0
    ) -> list[Placement | None]:
        """Take places for as many of a window as is good, each wholly or not at all. None has no place in what is left.

        With `in_order` nobody behind the first without a place gets one. The first `urgent` are served before others.
        As published, `genetic-paper` may leave out some for which there is a place, and knows no order.
        """
        if not demands:
            return []
        if self.name not in GENETIC or (in_order and self.name == "genetic-paper"):
            return self._one_by_one(free, demands, in_order)
        return self._search(free, demands, in_order, urgent)

    def _search(self, free: Free, demands: Sequence[Demand], in_order: bool, urgent: int) -> list[Placement | None]:
        distinct = {demand: row for row, demand in enumerate(dict.fromkeys(demands))}
        kinds = np.array([self._kind_of(free, demand) for demand in distinct], dtype=np.int64)
        first = np.zeros(len(demands) + 1, dtype=np.int64)
        np.cumsum([demand.instances for demand in demands], out=first[1:])
        window = genetic.Window(
            np.array([distinct[demand] for demand in demands], dtype=np.int64),
            first,
            np.concatenate([free.vector(demand) for demand in distinct]),
            kinds,
            urgent,
            in_order,
        )
        books = genetic.PlacementState(
            free.nodes, free.gpus, free.bits, self._expected, self._known, self._racks_of(free)
        )
        if first[-1] > len(self._found):
            self._found = np.zeros((int(first[-1]), 2), dtype=np.int64)
        placed = np.zeros(len(demands), dtype=np.bool_)
        evolve = evolve_paper if self.name == "genetic-paper" else genetic.evolve
        evolve(books, window, self._memory[rules.DRAWS :], self._found[: first[-1]], placed)
        found: dict[Demand, list[Placement]] = {}
        for job, demand in enumerate(demands):
            if placed[job]:
                found.setdefault(demand, []).append(self._placement(demand, int(first[job])))
        for placements in found.values():
            placements.reverse()
        return [found[demand].pop() if found.get(demand) else None for demand in demands]

    def allows(self, free: Free, placement: Placement) -> bool:
        """Whether a placement may be taken, if it is free: racks have limits, if power matters."""
        power = self._power_of(free)
        return power is None or power.keeps_limits(free, placement)

    def shortage(self, free: Free, demand: Demand) -> Shortage:
        """How many nodes lack what for one instance of a demand."""
        power = self._power_of(free)
        return free.shortage(demand) if power is None else power.shortage(free, demand)

    def _power_of(self, free: Free) -> Power | None:
        if self.minds_power and (self._power is None or self._power.cluster is not free.cluster):
            self._power = Power(free.cluster)
        return self._power

    def _racks_of(self, free: Free) -> RackPowerNow:
        """Power as it is now, if it matters."""
        power = self._power_of(free)
        if power is None:
            return self._racks
        return RackPowerNow(
            power.rack_of,
            power.watts_per_gpu_milli,
            power.watts_per_cpu_milli,
            power.draw(free),
            power.limit,
            power.scale,
        )

    def _one_by_one(self, free: Free, demands: Sequence[Demand], in_order: bool) -> list[Placement | None]:
        found: list[Placement | None] = []
        hopeless: set[Demand] = set()
        for demand in demands:
            placement = None if demand in hopeless else self.place(free, demand)
            found.append(placement)
            if placement is None:
                hopeless.add(demand)
                if in_order:
                    break
        return found + [None] * (len(demands) - len(found))

    def _kind_of(self, free: Free, demand: Demand) -> int:
        """The number of a demand, with a row for what is reckoned of it."""
        if self._census is None and self.name not in GENETIC:
            return 0
        kind = self._kinds.setdefault(demand, len(self._kinds))
        nodes = len(free.nodes) - 1
        rows = len(self._known.owner)
        if self._known_of is not free.cluster or (kind >= rows and rows < MOST_ROWS):
            self._known_of = free.cluster
            self._known = nothing_known(max(16, 2 * rows), nodes)
        return kind

    def _placement(self, demand: Demand, first: int) -> Placement:
        if demand.instances == 1:
            node, mask = self._found.item(first, 0), self._found.item(first, 1)
            return (Share(node, indices_of(mask), demand.gpu_milli, demand.cpu_milli, demand.memory_mib),)
        return tuple(
            Share(node, indices_of(mask), demand.gpu_milli, demand.cpu_milli, demand.memory_mib)
            for node, mask in self._found[first : first + demand.instances].tolist()
        )


class _DemandCounts:
    """How often each demand was seen, in the order of first sight."""

    def __init__(self) -> None:
        self.shapes: Ints = np.zeros((64, DEMAND_ENTRIES), dtype=np.int64)
        self.seen: Ints = np.zeros(64, dtype=np.int64)
        self.known = 0
        self.seen_in_all = 0
        self._index: dict[Demand, int] = {}

    def count(self, demand: Demand, vector: Ints) -> None:
        index = self._index.get(demand)
        if index is None:
            index = self._index[demand] = self.known
            self.known += 1
            if self.known > len(self.seen):
                self.shapes = np.concatenate([self.shapes, np.zeros_like(self.shapes)])
                self.seen = np.concatenate([self.seen, np.zeros_like(self.seen)])
            self.shapes[index] = vector
        self.seen[index] += 1
        self.seen_in_all += 1
