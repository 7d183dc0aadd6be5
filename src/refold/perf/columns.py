"""Many plans at once: one array per degree, so that a formula is written once and computed for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from refold.model import RECOMPUTE, Plan

Column = NDArray[np.float64]

NO_RECOMPUTE, SELECTIVE, FULL = range(len(RECOMPUTE))


@dataclass(frozen=True, slots=True)
class PlanColumns:
    """Plans, as columns of numbers: whole numbers as floats, yes and no as 1 and 0, recompute as its index."""

    data: Column
    tensor: Column
    pipeline: Column
    zero: Column
    offload: Column
    recompute: Column
    accumulation: Column
    interleave: Column
    sequence_parallel: Column

    def __len__(self) -> int:
        return len(self.data)

    def rows(self, which: NDArray[np.intp] | NDArray[np.bool_] | slice) -> PlanColumns:
        """Some of the plans."""
        return PlanColumns(*(getattr(self, field.name)[which] for field in fields(self)))

    def plan(self, row: int) -> Plan:
        """One of them as a Plan."""
        data, tensor, pipeline, zero, offload, recompute, accumulation, interleave, sequence_parallel = (
            int(getattr(self, field.name)[row]) for field in fields(self)
        )
        return Plan(
            data,
            tensor,
            pipeline,
            zero,
            bool(offload),
            RECOMPUTE[recompute],
            accumulation,
            interleave,
            bool(sequence_parallel),
        )


def columns_of(plans: Sequence[Plan]) -> PlanColumns:
    """Plans as columns."""
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
        )
        for plan in plans
    ]
    table = np.array(rows, float).reshape(len(rows), len(fields(PlanColumns)))
    return PlanColumns(*np.ascontiguousarray(table.T))


def joined(parts: Sequence[PlanColumns]) -> PlanColumns:
    """All plans of several sets, one after another."""
    return PlanColumns(*(np.concatenate(columns) for columns in zip(*(_columns(part) for part in parts), strict=True)))


def _columns(plans: PlanColumns) -> tuple[Column, ...]:
    return tuple(getattr(plans, field.name) for field in fields(plans))
