"""Estimates of published cases in batches: cases that differ only in their plan are estimated in one call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.tables import Case
from refold.model import RECOMPUTE, Plan
from refold.planning.perf import (
    Engine,
    EstimateColumns,
    GpuSpec,
    Machines,
    PlanColumns,
    TrainingSetup,
    estimate_all,
    plans_to_columns,
)

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Predicted:
    """Estimates for each case, in the order of the cases."""

    seconds: Vector
    memory_gib: Vector
    fits: NDArray[np.bool_]


class Batch:
    """Cases grouped by everything except their plans, for repeated estimates."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self.cases = cases
        by_setting: dict[object, list[int]] = defaultdict(list)
        for index, case in enumerate(cases):
            key = (case.model, case.gpu, case.gpus_on_node, case.network, case.inside, case.engine, case.batch)
            training = (case.sequence, case.cpus, case.arithmetic, case.knows_recompute, case.tuning, case.packed)
            by_setting[(*key, *training, case.asynchronous)].append(index)
        self._groups: list[tuple[NDArray[np.intp], PlanColumns]] = [
            (np.array(indices), plans_to_columns([plan for index in indices for plan in _plans(cases[index])]))
            for indices in by_setting.values()
        ]

    def predict(self, gpu: Callable[[str], GpuSpec], engine: Callable[[str], Engine]) -> Predicted:
        """Estimate step times and memory of all cases with these GPUs and engines."""
        seconds, gib, fits = (np.empty(len(self.cases)) for _ in range(3))
        for indices, plans in self._groups:
            found = estimate_all(setting_of(self.cases[indices[0]], gpu, engine), plans)
            chosen = _fastest_that_fits(found, len(indices))
            seconds[indices], gib[indices] = found.step_seconds[chosen], found.memory.total[chosen]
            fits[indices] = found.fits[chosen]
        return Predicted(seconds, gib, fits.astype(bool))


def _plans(case: Case) -> list[Plan]:
    """Return the plan of a case; where the table does not state what was recomputed, one for each setting."""
    if case.knows_recompute:
        return [case.plan]
    return [msgspec.structs.replace(case.plan, recompute=recompute) for recompute in RECOMPUTE]


def _fastest_that_fits(found: EstimateColumns, cases: int) -> NDArray[np.intp]:
    """Return the row of each case: of its plans the fastest that fits, or if none does, the smallest."""
    fits = found.fits.reshape(cases, -1)
    seconds = np.where(fits, found.step_seconds.reshape(cases, -1), np.inf)
    smallest = found.memory.total.reshape(cases, -1).argmin(axis=1)
    best = np.where(fits.any(axis=1), seconds.argmin(axis=1), smallest)
    return np.asarray(np.arange(cases) * fits.shape[1] + best)


def setting_of(case: Case, gpu: Callable[[str], GpuSpec], engine: Callable[[str], Engine]) -> TrainingSetup:
    """Return everything of a case except its plan."""
    kind = gpu(case.gpu)
    machines = Machines(kind, case.gpus_on_node, case.inside or kind.link, case.network, case.cpus)
    framework = engine(case.engine)
    if case.arithmetic is not None:
        framework = msgspec.structs.replace(framework, arithmetic=case.arithmetic)
    if case.asynchronous:
        framework = framework.with_asynchronous_tensor()
    return TrainingSetup(case.model, machines, framework, case.batch, case.sequence, case.tuning, case.packed)


def with_step_time(cases: Iterable[Case]) -> list[Case]:
    """Return the usable cases with a measured step time."""
    return [case for case in cases if case.usable and case.step_seconds]


def measured_seconds(cases: Iterable[Case]) -> Vector:
    """Return the measured step times; NaN if not measured."""
    return np.array([case.step_seconds or np.nan for case in cases])


def with_peak_memory(cases: Iterable[Case]) -> list[Case]:
    """Return the usable cases with a measured peak memory."""
    return [case for case in cases if case.usable and case.memory_gib]


def measured_gib(cases: Iterable[Case]) -> Vector:
    """Return the measured peak memory; NaN if not measured."""
    return np.array([case.memory_gib or np.nan for case in cases])


def by_group(cases: Sequence[Case]) -> Mapping[str, list[int]]:
    """Return the indices of comparable cases by group name."""
    groups: dict[str, list[int]] = defaultdict(list)
    for index, case in enumerate(cases):
        groups[f"{case.source}: {case.group}"].append(index)
    return groups
