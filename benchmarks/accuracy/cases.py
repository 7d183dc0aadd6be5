"""Published cases put to the model, many at a time: those that differ in their plan alone are one call."""

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
    """What the model says of each case, in the order of the cases."""

    seconds: Vector
    memory_gib: Vector
    fits: NDArray[np.bool_]


class Batch:
    """Cases, put together by what they share, so that they can be predicted again and again."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self.cases = cases
        together: dict[object, list[int]] = defaultdict(list)
        for index, case in enumerate(cases):
            key = (case.model, case.gpu, case.gpus_on_node, case.network, case.inside, case.engine, case.batch)
            together[(*key, case.sequence, case.cpus)].append(index)
        self._groups: list[tuple[NDArray[np.intp], PlanColumns]] = [
            (np.array(indices), plans_to_columns([cases[index].plan for index in indices]))
            for indices in together.values()
        ]

    def predict(self, gpu: Callable[[str], GpuSpec], engine: Callable[[str], Engine]) -> Predicted:
        """Step times and memory of all cases, with these GPUs and engines."""
        seconds, gib, fits = (np.empty(len(self.cases)) for _ in range(3))
        for indices, plans in self._groups:
            found = estimate_all(setting_of(self.cases[indices[0]], gpu, engine), plans)
            seconds[indices], gib[indices], fits[indices] = found.step_seconds, found.memory.total, found.fits
        return Predicted(seconds, gib, fits.astype(bool))


def setting_of(case: Case, gpu: Callable[[str], GpuSpec], engine: Callable[[str], Engine]) -> TrainingSetup:
    """Everything of a case but its plan."""
    kind = gpu(case.gpu)
    machines = Machines(kind, case.gpus_on_node, case.inside or kind.link, case.network, case.cpus)
    return TrainingSetup(case.model, machines, engine(case.engine), case.batch, case.sequence)


def timed(cases: Iterable[Case]) -> list[Case]:
    """Those whose step was measured and can be compared."""
    return [case for case in cases if case.usable and case.step_seconds]


def measured_seconds(cases: Iterable[Case]) -> Vector:
    """Seconds of a step; not a number where none was measured."""
    return np.array([case.step_seconds or np.nan for case in cases])


def weighed(cases: Iterable[Case]) -> list[Case]:
    """Those whose peak of memory was measured and can be compared."""
    return [case for case in cases if case.usable and case.memory_gib]


def measured_gib(cases: Iterable[Case]) -> Vector:
    """GiB at the peak; not a number where that was not measured."""
    return np.array([case.memory_gib or np.nan for case in cases])


def by_group(cases: Sequence[Case]) -> Mapping[str, list[int]]:
    """Which cases are compared with each other: their indices by the name of the group."""
    groups: dict[str, list[int]] = defaultdict(list)
    for index, case in enumerate(cases):
        groups[f"{case.source}: {case.group}"].append(index)
    return groups
