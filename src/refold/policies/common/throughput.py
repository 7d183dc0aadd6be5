"""The most throughput on what there is: every job's speed against the speed of what it asked for, added up.

Which shapes add up to the most is a knapsack with one item for each job, solved exactly over the number of GPUs as if
they were one large node. Nodes are then respected: the largest shapes are placed first, and whatever finds no place, or
could be worth more elsewhere, is moved one job at a time for as long as the sum grows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

import numpy as np

from refold.packing import Placer
from refold.policies.common.draft import Draft
from refold.policies.common.options import Option

PASSES = 8
"""How often everybody is looked at anew, at most."""

WORTH = 1e-6
"""Sums that differ by less are equal."""


class Throughput:
    """Jobs that may be moved, on a draft on which they hold nothing."""

    def __init__(
        self,
        draft: Draft,
        placer: Placer,
        options: Mapping[str, Sequence[Option]],
        asked: Mapping[str, float],
        first: frozenset[str] = frozenset(),
    ) -> None:
        """`asked`: the speed that each is measured by. `first`: who gets something before others do."""
        self._draft, self._placer, self._options, self._first = draft, placer, options, first
        self._worth = {
            job_id: {option: option.speed / asked[job_id] for option in shapes} for job_id, shapes in options.items()
        }
        self._has: dict[str, Option] = {}

    def fill(self) -> float:
        """Place everybody for whom there is a place, so that the sum is as large as was found; and that sum."""
        chosen = self._knapsack()
        for job_id in sorted(chosen, key=lambda job_id: (job_id not in self._first, -chosen[job_id].gpus, job_id)):
            self._place(job_id, [chosen[job_id], *self._best_first(job_id)])
        for _ in range(PASSES):
            if not self._improve():
                break
        return sum(self._worth[job_id][option] for job_id, option in self._has.items())

    def _best_first(self, job_id: str) -> list[Option]:
        worth = self._worth[job_id]
        return sorted(worth, key=lambda option: (-worth[option], option.gpus))

    def _place(self, job_id: str, options: Sequence[Option]) -> bool:
        for option in options:
            if self._draft.place(job_id, self._placer, option.demand, option.plan):
                self._has[job_id] = option
                return True
        return False

    def _knapsack(self) -> dict[str, Option]:
        """One shape or none for each job, worth the most for as many GPUs as there are."""
        gpus = self._draft.free.whole_gpus
        best = np.zeros(gpus + 1)
        taken: list[tuple[str, list[Option], np.ndarray]] = []
        for job_id, worth in self._worth.items():
            shapes = list(worth)
            bonus = 1 / WORTH if job_id in self._first else 0.0
            values = np.full((len(shapes) + 1, gpus + 1), -inf)
            values[0] = best
            for row, option in enumerate(shapes, start=1):
                if option.gpus <= gpus:
                    values[row, option.gpus :] = best[: gpus + 1 - option.gpus] + worth[option] + bonus
            choice = values.argmax(axis=0)
            best = values.max(axis=0)
            taken.append((job_id, shapes, choice))
        left, chosen = gpus, {}
        for job_id, shapes, choice in reversed(taken):
            row = int(choice[left])
            if row:
                chosen[job_id] = shapes[row - 1]
                left -= shapes[row - 1].gpus
        return chosen

    def _improve(self) -> bool:
        """Try every shape of every job, moving others out of its way; whether the sum has grown."""
        grown = False
        for job_id in self._options:
            for option in self._best_first(job_id):
                has = self._has.get(job_id)
                if has is option:
                    continue
                if self._try(job_id, option):
                    grown = True
        return grown

    def _try(self, job_id: str, option: Option) -> bool:
        """Give a job this shape, let those who lose their places find others, and keep it if the sum has grown."""
        before, had = self._draft.snapshot(), dict(self._has)
        total = self._sum()
        self._give_up(job_id)
        out: list[str] = []
        victims = iter(sorted(set(self._has) - self._first, key=self._density))
        while not self._place(job_id, [option]):
            victim = next(victims, None)
            if victim is None or self._sum() + self._worth[job_id][option] + self._most(out) <= total + WORTH:
                break
            self._give_up(victim)
            out.append(victim)
        for victim in sorted(out, key=self._density, reverse=True):
            self._place(victim, self._best_first(victim))
        if self._sum() > total + WORTH and self._first & set(had) <= set(self._has):
            return True
        self._draft.restore(before)
        self._has = had
        return False

    def _density(self, job_id: str) -> tuple[float, str]:
        """What a job is worth for each GPU that it has, or could have."""
        option = self._has.get(job_id) or self._best_first(job_id)[0]
        return self._worth[job_id][option] / max(option.gpus, 1), job_id

    def _most(self, jobs: Sequence[str]) -> float:
        return sum(max(self._worth[job_id].values()) for job_id in jobs)

    def _sum(self) -> float:
        return sum(self._worth[job_id][option] for job_id, option in self._has.items())

    def _give_up(self, job_id: str) -> None:
        if self._has.pop(job_id, None) is not None:
            self._draft.release(job_id)
