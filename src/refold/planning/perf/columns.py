"""Plans in columns, one array per degree, so that formulas are evaluated for many plans at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from refold.model import RECOMPUTE, Plan

Column = NDArray[np.float64]
Result_co = TypeVar("Result_co", bound=tuple[Column, ...], covariant=True)

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
    replicate: Column

    @property
    def replicas(self) -> Column:
        """GPUs that hold the same weights, unless ZeRO shards them: data-parallel and context-parallel ranks."""
        return self.data * self.context

    @property
    def shards(self) -> Column:
        """GPUs over which ZeRO shards: all replicas, or with hybrid sharding a group of them."""
        return self.replicas / self.replicate

    @property
    def gpus(self) -> Column:
        return self.replicas * self.tensor * self.pipeline

    def __len__(self) -> int:
        return len(self.data)

    def rows(self, which: NDArray[np.intp] | NDArray[np.bool_] | slice) -> PlanColumns:
        return PlanColumns(*(getattr(self, field.name)[which] for field in fields(self)))

    def plan(self, row: int) -> Plan:
        values = {field.name: int(getattr(self, field.name)[row]) for field in fields(self)}
        flags = {name: bool(values[name]) for name in ("offload", "sequence_parallel")}
        fields_of_plan: dict[str, Any] = {**values, **flags, "recompute": RECOMPUTE[values["recompute"]]}
        return Plan(**fields_of_plan)


def plans_to_columns(plans: Sequence[Plan]) -> PlanColumns:
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
            plan.replicate,
        )
        for plan in plans
    ]
    table = np.array(rows, float).reshape(len(rows), len(fields(PlanColumns)))
    return PlanColumns(*np.ascontiguousarray(table.T))


BLOCK_ROWS = 16_384
"""Formulas are evaluated for so many plans at once: their intermediate results stay in the cache of a CPU core."""


class _Evaluate(Protocol[Result_co]):
    def __call__(self, setup: Any, plans: PlanColumns, /) -> Result_co: ...


def in_blocks(evaluate: _Evaluate[Result_co]) -> _Evaluate[Result_co]:
    """Make a function that returns columns for many plans evaluate them in blocks; the results are the same."""

    @wraps(evaluate)
    def evaluate_blocks(setup: Any, plans: PlanColumns, /) -> Result_co:
        if len(plans) <= BLOCK_ROWS:
            return evaluate(setup, plans)
        starts = range(0, len(plans), BLOCK_ROWS)
        blocks = [evaluate(setup, plans.rows(slice(start, start + BLOCK_ROWS))) for start in starts]
        return type(blocks[0])(*(np.concatenate(columns) for columns in zip(*blocks, strict=True)))

    return evaluate_blocks


def concatenate_plans(parts: Sequence[PlanColumns]) -> PlanColumns:
    """Return the plans of several sets, in order."""
    return PlanColumns(*(np.concatenate(columns) for columns in zip(*(_columns(part) for part in parts), strict=True)))


def _columns(plans: PlanColumns) -> tuple[Column, ...]:
    return tuple(getattr(plans, field.name) for field in fields(plans))
