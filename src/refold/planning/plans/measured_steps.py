"""Measured step times of workloads that cannot be modelled: models or devices that the catalogue does not have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec
import numpy as np

from refold.model import Plan, Seconds
from refold.planning.perf import Measurement

EXPECTED_SCALING = 0.8
"""Exponent of the expected speed-up by more GPUs than were measured: twice as many are 1.74 times as fast."""


class StepTable:
    """Measured step times of one workload on one GPU type, by plan; the last one of each plan counts.

    Between measured numbers of GPUs, the best step time is interpolated; below the smallest, it is in proportion.
    Beyond the largest, more GPUs gain nothing, unless `is_growing`: then they are expected to help, until they are
    measured, so that policies try them.
    """

    def __init__(self, seconds: Mapping[Plan, Seconds], batch: int, *, is_growing: bool = False) -> None:
        """`batch`: the global batch, which replicas must divide; 0: unknown."""
        self._batch, self._seconds = batch, seconds
        self._exponent = EXPECTED_SCALING if is_growing else 0.0
        self._best: dict[int, Plan] = {}
        for plan, time in seconds.items():
            if plan.gpus not in self._best or time < seconds[self._best[plan.gpus]]:
                self._best[plan.gpus] = plan

    def step_seconds(self, plan: Plan) -> Seconds:
        """Return the step time with a plan: as measured, or that of the best plan on as many GPUs."""
        return self._seconds.get(plan) or self._interpolated(plan.gpus)

    def best_plan(self, gpus: int) -> Plan | None:
        """Return the fastest plan on a number of GPUs; if none was measured, the nearest one with other replicas."""
        if gpus in self._best:
            return self._best[gpus]
        for count in sorted(self._best, key=lambda count: (abs(count - gpus), count)):
            plan = self._best[count]
            replicas, rest = divmod(gpus, plan.tensor * plan.pipeline)
            if not rest and replicas and self._batch % (replicas * plan.accumulation) == 0:
                return msgspec.structs.replace(plan, data=replicas, zero=plan.zero if replicas > 1 else 0)
        return None

    def _interpolated(self, gpus: int) -> Seconds:
        counts = sorted(self._best)
        seconds = [self._seconds[self._best[count]] for count in counts]
        nearest = float(np.exp(np.interp(np.log(gpus), np.log(counts), np.log(seconds))))
        growth = float(min(1.0, counts[-1] / gpus) ** self._exponent)
        return nearest * max(1.0, counts[0] / gpus) * growth


@lru_cache(maxsize=256)
def assumed_steps(requested: Plan, batch: int) -> StepTable:
    """Return the step times of a workload of which nothing is known: one step per second with the requested plan."""
    return StepTable({requested: 1.0}, batch, is_growing=True)


class MeasuredSteps:
    """The step tables of all workloads: `rows` were measured beforehand, `live` are the speeds of jobs so far."""

    def __init__(self, rows: Sequence[Measurement], live: Sequence[Measurement] = ()) -> None:
        grouped: dict[tuple[str, str, int], dict[Plan, Seconds]] = defaultdict(dict)
        for row in (*rows, *live):
            if row.step_seconds is not None:
                grouped[row.model, row.gpu, row.batch][row.plan] = row.step_seconds
        profiled = {(row.model, row.gpu, row.batch) for row in rows}
        self._tables = {
            key: StepTable(seconds, key[2], is_growing=key not in profiled) for key, seconds in grouped.items()
        }

    def find(self, workload: str, gpu_type: str, batch: int) -> StepTable | None:
        """Return the table of a workload on a GPU type with a global batch; None if nothing was measured."""
        return self._tables.get((workload, gpu_type, batch))
