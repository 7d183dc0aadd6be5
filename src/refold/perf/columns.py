"""Plans in columns, one array per degree, so that formulas are evaluated for many plans at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refold.model import RECOMPUTE, Plan

Column = NDArray[np.float64]

_, SELECTIVE, FULL = range(len(RECOMPUTE))


@dataclass(frozen=True, slots=True)
class PlanColumns:
    """Plans as columns of floats: booleans are 1 and 0, `recompute` is an index into `RECOMPUTE`."""

    data: Column
    tensor: Column
    pipeline: Column
    zero: Column
    offload: Column
    recompute: Column
    accumulation: Column
    interleave: Column
    sequence_parallel: Column
    context: Column
    expert: Column

    @property
    def replicas(self) -> Column:
        """GPUs that hold the same weights, unless ZeRO shards them: data-parallel and context-parallel ranks."""
        return self.data * self.context

    @property
    def gpus(self) -> Column:
        """The number of GPUs of each plan."""
        return self.replicas * self.tensor * self.pipeline

    def __len__(self) -> int:
        return len(self.data)

    def rows(self, which: NDArray[np.intp] | NDArray[np.bool_] | slice) -> PlanColumns:
        """Return a subset of the plans."""
        return PlanColumns(*(getattr(self, field.name)[which] for field in fields(self)))

    def plan(self, row: int) -> Plan:
        """Return the plan of a row."""
        values = {field.name: int(getattr(self, field.name)[row]) for field in fields(self)}
        flags = {name: bool(values[name]) for name in ("offload", "sequence_parallel")}
        fields_of_plan: dict[str, Any] = {**values, **flags, "recompute": RECOMPUTE[values["recompute"]]}
        return Plan(**fields_of_plan)


def plans_to_columns(plans: Sequence[Plan]) -> PlanColumns:
    """Return plans as columns."""
    rows = [
        (
            plan.data,
            plan.tensor,
            plan.pipeline,
            plan.zero,
            plan.offload,
            RECOMPUTE.index(plan.recompute),
            plan.accumulation,
            plan.interleave,
            plan.sequence_parallel,
            plan.context,
            plan.expert,
        )
        for plan in plans
    ]
    table = np.array(rows, float).reshape(len(rows), len(fields(PlanColumns)))
    return PlanColumns(*np.ascontiguousarray(table.T))


def concatenate_plans(parts: Sequence[PlanColumns]) -> PlanColumns:
    """Return the plans of several sets, in order."""
    return PlanColumns(*(np.concatenate(columns) for columns in zip(*(_columns(part) for part in parts), strict=True)))


def _columns(plans: PlanColumns) -> tuple[Column, ...]:
    return tuple(getattr(plans, field.name) for field in fields(plans))
