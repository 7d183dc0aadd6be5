"""Estimates of published cases in batches: cases that differ only in their plan are estimated in one call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.tables import Case
from refold.perf import Engine, GpuSpec, Machines, PlanColumns, TrainingSetup, estimate_all, plans_to_columns

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
            by_setting[(*key, case.sequence, case.cpus)].append(index)
        self._groups: list[tuple[NDArray[np.intp], PlanColumns]] = [
            (np.array(indices), plans_to_columns([cases[index].plan for index in indices]))
            for indices in by_setting.values()
        ]

    def predict(self, gpu: Callable[[str], GpuSpec], engine: Callable[[str], Engine]) -> Predicted:
        """Estimate step times and memory of all cases with these GPUs and engines."""
        seconds, gib, fits = (np.empty(len(self.cases)) for _ in range(3))
        for indices, plans in self._groups:
            found = estimate_all(setting_of(self.cases[indices[0]], gpu, engine), plans)
            seconds[indices], gib[indices], fits[indices] = found.step_seconds, found.memory.total, found.fits
        return Predicted(seconds, gib, fits.astype(bool))


def setting_of(case: Case, gpu: Callable[[str], GpuSpec], engine: Callable[[str], Engine]) -> TrainingSetup:
    """Return everything of a case except its plan."""
    kind = gpu(case.gpu)
    machines = Machines(kind, case.gpus_on_node, case.inside or kind.link, case.network, case.cpus)
    return TrainingSetup(case.model, machines, engine(case.engine), case.batch, case.sequence)


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
