"""Tasks that a compiled loop places and releases, by one placement rule."""

from __future__ import annotations

from collections.abc import Sequence

import cython
import numpy as np

from refold.model import WHOLE, Demand
from refold.model.arrays import view
from refold.placement.demand_history import empty_demand_history, empty_score_cache
from refold.placement.free import FreeResources
from refold.placement.layout import GPU_MASK, NODE, Ints
from refold.placement.placer import LEARNING_RULES, RULES

if not cython.compiled:
    from refold.placement.kernels import FreeArrays, adjust_free, need_at
    from refold.placement.layout import Need
    from refold.placement.rules import GreedyRule, place_instances


class PlacedTasks:
    """The demand and the placement of each task.

    `fits_empty`: whether a demand fits the empty cluster. `placements` has one row of (node, GPU mask) per instance of
    tasks that do; the rows of a task begin at `first_row`.
    """

    def __init__(
        self, free: FreeResources, demands: Sequence[Demand], demand_of: Ints, rule: str = "best-fit", seed: int = 0
    ) -> None:
        rows, fits_empty = free.rows(demands), np.array([free.fits_when_empty(demand) for demand in demands], np.uint8)
        first_row = np.zeros(len(demand_of) + 1, dtype=np.int64)
        np.cumsum((rows[:, 0] * fits_empty)[demand_of], out=first_row[1:])
        placements = np.zeros((int(first_row[len(demand_of)]), 2), dtype=np.int64)
        self.arrays = (first_row, placements)
        self.demands, self.demand_of, self.fits_empty = view(rows), view(demand_of), view(fits_empty)
        self.first_row, self.placements = view(first_row), view(placements)
        number = RULES[rule][0]
        cached = len(demands) if number in LEARNING_RULES else 0
        cache = empty_score_cache(cached, len(free.cluster.nodes))
        self.rule = GreedyRule(number, seed, empty_demand_history(), cache)
        self.rule.make_room(int(rows[:, 0].max(initial=0)))

    def need(self, task: int) -> Need:
        """Return the need of one instance of a task."""
        return need_at(self.demands, self.demand_of[task])

    def place(self, free: FreeArrays, task: int) -> bool:
        """Take resources for all instances of a task; if they do not all fit, take nothing and return False."""
        if not place_instances(self.rule, free, self.need(task), self.demand_of[task]):
            return False
        first = self.first_row[task]
        for row in range(first, self.first_row[task + 1]):
            self.placements[row, NODE] = self.rule.placements[row - first, NODE]
            self.placements[row, GPU_MASK] = self.rule.placements[row - first, GPU_MASK]
        return True

    def take(self, free: FreeArrays, task: int) -> None:
        """Take the placement of a task, without checks."""
        self._change(free, task, -1)

    def release(self, free: FreeArrays, task: int) -> None:
        """Release the placement of a task."""
        self._change(free, task, 1)

    def _change(self, free: FreeArrays, task: int, sign: int) -> None:
        """Add or subtract the resources of a task. Instances with whole GPUs on the same node are changed together."""
        need, row, end = self.need(task), self.first_row[task], self.first_row[task + 1]
        while row < end:
            node, mask, count = self.placements[row, NODE], self.placements[row, GPU_MASK], sign
            row += 1
            while need.milli == WHOLE and row < end and self.placements[row, NODE] == node:
                mask |= self.placements[row, GPU_MASK]
                count += sign
                row += 1
            adjust_free(free, node, mask, sign * need.milli, count * need.cpu, count * need.memory)
