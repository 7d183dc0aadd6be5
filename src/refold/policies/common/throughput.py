"""Allocation that maximises total throughput: the sum of all jobs' speeds, each relative to that of its request.

The best combination of shapes is a knapsack with one item per job, solved exactly over the number of GPUs as if all
were in one large node. Node boundaries are then respected: the largest shapes are placed first, and jobs that find no
placement, or could add more elsewhere, are moved one at a time while the sum grows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

import numpy as np

from refold.placement import Placer
from refold.policies.common.draft import Draft
from refold.policies.common.options import Option

MAX_PASSES = 8
"""Maximum number of improvement passes over all jobs."""

ROUNDING_THROUGHPUT = 1e-6
"""Sums that differ by less are equal."""


class ThroughputPacker:
    """Places jobs, which must have no allocation in the draft, for maximum total throughput."""

    def __init__(
        self,
        draft: Draft,
        placer: Placer,
        options: Mapping[str, Sequence[Option]],
        requested_speeds: Mapping[str, float],
        first: frozenset[str] = frozenset(),
    ) -> None:
        """`requested_speeds`: the speed of each job as requested. `first`: jobs that are placed before all others."""
        self._draft, self._placer, self._options, self._first = draft, placer, options, first
        self._throughput = {
            job_id: {option: option.speed / requested_speeds[job_id] for option in shapes}
            for job_id, shapes in options.items()
        }
        self._chosen: dict[str, Option] = {}

    def fill(self) -> float:
        """Place the jobs for the largest sum that the search finds; return that sum."""
        chosen = self._knapsack()
        for job_id in sorted(chosen, key=lambda job_id: (job_id not in self._first, -chosen[job_id].gpus, job_id)):
            self._place(job_id, [chosen[job_id], *self._best_first(job_id)])
        for _ in range(MAX_PASSES):
            if not self._improve():
                break
        return sum(self._throughput[job_id][option] for job_id, option in self._chosen.items())

    def _best_first(self, job_id: str) -> list[Option]:
        throughput = self._throughput[job_id]
        return sorted(throughput, key=lambda option: (-throughput[option], option.gpus))

    def _place(self, job_id: str, options: Sequence[Option]) -> bool:
        for option in options:
            if self._draft.place(job_id, self._placer, option.demand, option.plan):
                self._chosen[job_id] = option
                return True
        return False

    def _knapsack(self) -> dict[str, Option]:
        """Choose at most one shape per job for the largest sum on the number of free GPUs."""
        gpus = self._draft.free.whole_gpus
        best = np.zeros(gpus + 1)
        choices: list[tuple[str, list[Option], np.ndarray]] = []
        for job_id, throughput in self._throughput.items():
            shapes = list(throughput)
            bonus = 1 / ROUNDING_THROUGHPUT if job_id in self._first else 0.0
            values = np.full((len(shapes) + 1, gpus + 1), -inf)
            values[0] = best
            for row, option in enumerate(shapes, start=1):
                if option.gpus <= gpus:
                    values[row, option.gpus :] = best[: gpus + 1 - option.gpus] + throughput[option] + bonus
            choice = values.argmax(axis=0)
            best = values.max(axis=0)
            choices.append((job_id, shapes, choice))
        gpus_left, chosen = gpus, {}
        for job_id, shapes, choice in reversed(choices):
            row = int(choice[gpus_left])
            if row:
                chosen[job_id] = shapes[row - 1]
                gpus_left -= shapes[row - 1].gpus
        return chosen

    def _improve(self) -> bool:
        """Try each shape of each job, moving other jobs if necessary; return whether the sum has grown."""
        grown = False
        for job_id in self._options:
            for option in self._best_first(job_id):
                current = self._chosen.get(job_id)
                if current is option:
                    continue
                if self._try(job_id, option):
                    grown = True
        return grown

    def _try(self, job_id: str, option: Option) -> bool:
        """Give a job this shape and place the displaced jobs anew; undo it unless the sum has grown."""
        before, chosen_before = self._draft.snapshot(), dict(self._chosen)
        total = self._sum()
        self._release(job_id)
        displaced: list[str] = []
        victims = iter(sorted(set(self._chosen) - self._first, key=self._density))
        while not self._place(job_id, [option]):
            victim = next(victims, None)
            if victim is None or self._upper_bound(job_id, option, displaced) <= total + ROUNDING_THROUGHPUT:
                break
            self._release(victim)
            displaced.append(victim)
        for victim in sorted(displaced, key=self._density, reverse=True):
            self._place(victim, self._best_first(victim))
        if self._sum() > total + ROUNDING_THROUGHPUT and self._first & set(chosen_before) <= set(self._chosen):
            return True
        self._draft.restore(before)
        self._chosen = chosen_before
        return False

    def _density(self, job_id: str) -> tuple[float, str]:
        """Return the throughput per GPU of a job, with its chosen shape or else its best one."""
        option = self._chosen.get(job_id) or self._best_first(job_id)[0]
        return self._throughput[job_id][option] / max(option.gpus, 1), job_id

    def _upper_bound(self, job_id: str, option: Option, displaced: Sequence[str]) -> float:
        """Return the sum if the job got this option and each displaced job its best one."""
        best = sum(max(self._throughput[other].values()) for other in displaced)
        return self._sum() + self._throughput[job_id][option] + best

    def _sum(self) -> float:
        return sum(self._throughput[job_id][option] for job_id, option in self._chosen.items())

    def _release(self, job_id: str) -> None:
        if self._chosen.pop(job_id, None) is not None:
            self._draft.release(job_id)
