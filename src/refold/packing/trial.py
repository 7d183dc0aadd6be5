"""Trying out: take and give back on the real arrays, then undo it all. No copy of the cluster is made."""

from __future__ import annotations

from collections.abc import Sequence

from refold.model import Demand, Placement, Start
from refold.packing.free import Free
from refold.packing.placer import Placer


class Trial:
    """What would be free if …; undone when the policy has decided."""

    def __init__(self, free: Free) -> None:
        self.free = free
        self._taken: list[Placement] = []
        self._given: list[Placement] = []

    def place(self, placer: Placer, demand: Demand) -> Placement | None:
        """Suppose a demand were placed by this rule."""
        placement = placer.place(self.free, demand)
        if placement is not None:
            self._taken.append(placement)
        return placement

    def place_all(
        self, placer: Placer, demands: Sequence[Demand], in_order: bool, urgent: int
    ) -> list[Placement | None]:
        """Suppose a window of demands were placed by this rule, as many as is good."""
        found = placer.place_all(self.free, demands, in_order, urgent)
        self._taken += [placement for placement in found if placement is not None]
        return found

    def take(self, placement: Placement) -> bool:
        """Suppose this placement were taken; False if it is not free."""
        if self.free.take(placement) is not None:
            return False
        self._taken.append(placement)
        return True

    def take_what_is_free(self, placement: Placement) -> None:
        """Suppose as much of this placement were taken as is free."""
        self._taken.append(self.free.take_what_is_free(placement))

    def give_back(self, placement: Placement) -> None:
        """Suppose this placement were given back."""
        self.free.give_back(placement)
        self._given.append(placement)

    @property
    def in_use(self) -> bool:
        """Whether there is anything to undo."""
        return bool(self._taken or self._given)

    def keep(self, wanted: Sequence[Start]) -> list[Placement]:
        """Undo everything but those placements that were found here and are wanted; returns which these are.

        They are free for certain if nothing was only supposed to be given back.
        """
        if self._given:
            self.undo()
            return []
        if len(self._taken) == len(wanted) == 1 and self._taken[0] is wanted[0].allocation.placement:
            kept, self._taken = self._taken, []
            return kept
        ours = {id(start.allocation.placement) for start in wanted}
        kept = [placement for placement in self._taken if id(placement) in ours]
        if len(kept) < len(self._taken):
            self._taken = [placement for placement in self._taken if id(placement) not in ours]
            self.undo()
        self._taken = []
        return kept

    def undo(self) -> None:
        """Leave everything as it was. Amounts only add up, so the order does not matter."""
        for placement in self._taken:
            self.free.give_back(placement)
        for placement in self._given:
            self.free.take_back(placement)
        self._taken.clear()
        self._given.clear()
