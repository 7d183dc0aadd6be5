"""A placement rule at work: what it remembers, and one verb."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from refold.errors import UnknownName
from refold.model import Cluster, Demand, Job, Placement, Share
from refold.packing import rules
from refold.packing.fragments import no_typical, renew_typical, time_to_renew
from refold.packing.free import Free, indices_of, vector_of
from refold.packing.layout import DEMAND_ENTRIES, Ints

RULES: dict[str, tuple[int, str]] = {
    "first-fit": (rules.FIRST_FIT, "the first node with room"),
    "best-fit": (rules.BEST_FIT, "the node that is left with the least free GPU"),
    "worst-fit": (rules.WORST_FIT, "the node that is left with the most free GPU"),
    "round-robin": (rules.ROUND_ROBIN, "the next node with room after the last one used"),
    "tetris": (rules.TETRIS, "the largest alignment of demand and free resources (SIGCOMM'14)"),
    "fgd": (rules.FGD, "the node whose expected fragments grow least (ATC'23)"),
    "random": (rules.RANDOM, "any node with room, by a seed"),
}
"""Every placement rule, with what it does."""


class Submissions(Protocol):
    """The part of a View's changes that a rule may learn from."""

    @property
    def submitted(self) -> Sequence[Job]: ...


class Arrivals(Protocol):
    """The part of a View that a rule may learn from."""

    @property
    def cluster(self) -> Cluster: ...

    @property
    def changes(self) -> Submissions: ...


class Placer:
    """Finds places by one rule. What it remembers comes only from what it was asked, so replay rebuilds it."""

    def __init__(self, name: str = "best-fit", seed: int = 0) -> None:
        if name not in RULES:
            raise UnknownName("placement", name, RULES)
        self.name = name
        self.rule = RULES[name][0]
        self._memory = np.zeros(rules.MEMORY_ENTRIES, dtype=np.int64)
        self._memory[rules.SEED] = seed
        self._found = np.zeros((64, 2), dtype=np.int64)
        self._typical, self._weights = no_typical()
        self._census = _Census() if self.rule == rules.FGD else None

    def observe(self, view: Arrivals) -> None:
        """Note what was submitted: rules that expect more of the same count it."""
        if self._census is None:
            return
        for job in view.changes.submitted:
            self._census.count(job.demand, vector_of(job.demand, view.cluster))
            if time_to_renew(self._census.seen_in_all):
                renew_typical(self._census.shapes, self._census.seen, self._census.known, self._typical, self._weights)

    def place(self, free: Free, demand: Demand) -> Placement | None:
        """Take a place for every instance from `free`, or nothing."""
        if demand.instances > len(self._found):
            self._found = np.zeros((demand.instances, 2), dtype=np.int64)
        placed = rules.place(
            self.rule,
            free.nodes,
            free.gpus,
            free.bits,
            free.vector(demand),
            0,
            self._memory,
            self._typical,
            self._weights,
            self._found,
            0,
        )
        if not placed:
            return None
        if demand.instances == 1:
            node, mask = self._found.item(0), self._found.item(1)
            return (Share(node, indices_of(mask), demand.gpu_milli, demand.cpu_milli, demand.memory_mib),)
        return tuple(
            Share(node, indices_of(mask), demand.gpu_milli, demand.cpu_milli, demand.memory_mib)
            for node, mask in self._found[: demand.instances].tolist()
        )


class _Census:
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
