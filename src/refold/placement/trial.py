# cython: boundscheck=True, wraparound=True
"""What-if changes: take and release on the real arrays, then undo everything. The cluster is not copied."""

from __future__ import annotations

from collections.abc import Sequence

import cython

from refold.model import Demand, Placement, Start
from refold.placement.placer import Placer

if not cython.compiled:
    from refold.placement.free import FreeResources


class Trial:
    """Tentative changes to the free resources, undone when the policy has decided."""

    def __init__(self, free: FreeResources) -> None:
        self.free = free
        self._taken: list[Placement] = []
        self._released: list[Placement] = []

    def place(self, placer: Placer, demand: Demand) -> Placement | None:
        """Tentatively place a demand; None if it does not fit."""
        placement = placer.place(self.free, demand)
        if placement is not None:
            self._taken.append(placement)
        return placement

    def place_all(
        self, placer: Placer, demands: Sequence[Demand], in_order: bool, urgent: int
    ) -> list[Placement | None]:
        """Tentatively place a window of demands; see `Placer.place_all`."""
        placements = placer.place_all(self.free, demands, in_order, urgent)
        self._taken += [placement for placement in placements if placement is not None]
        return placements

    def take(self, placement: Placement) -> bool:
        """Tentatively take a placement; False if it is not free."""
        if self.free.take(placement) is not None:
            return False
        self._taken.append(placement)
        return True

    def take_available(self, placement: Placement) -> None:
        """Tentatively take the free part of a placement."""
        self._taken.append(self.free.take_available(placement))

    def release(self, placement: Placement) -> None:
        self.free.release(placement)
        self._released.append(placement)

    @property
    def has_changes(self) -> bool:
        return bool(self._taken or self._released)

    def commit(self, wanted: Sequence[Start]) -> list[Placement]:
        """Undo all changes except the placements of `wanted` that were taken here; return these.

        If anything was tentatively released, everything is undone: a placement may rely on resources still in use.
        """
        if self._released:
            self.undo()
            return []
        if len(self._taken) == len(wanted) == 1 and self._taken[0] is wanted[0].allocation.placement:
            committed, self._taken = self._taken, []
            return committed
        wanted_ids = {id(start.allocation.placement) for start in wanted}
        committed = [placement for placement in self._taken if id(placement) in wanted_ids]
        if len(committed) < len(self._taken):
            self._taken = [placement for placement in self._taken if id(placement) not in wanted_ids]
            self.undo()
        self._taken = []
        return committed

    def undo(self) -> None:
        """Undo all changes. Changes are sums, so their order does not matter."""
        for placement in self._taken:
            self.free.release(placement)
        for placement in self._released:
            self.free.retake(placement)
        self._taken.clear()
        self._released.clear()
