"""The measures between which policies trade off, and objectives that combine them. Less is better in all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from refold.errors import BadValue, UnknownName
from refold.placement import Floats
from refold.simulator.results import JobMeasures

WIDE_GPUS = 8
TAIL = 0.99


class TradeOffMeasure(NamedTuple):
    """A measure: its title and unit. `floor` is added to values before they are divided: some of them are 0."""

    title: str
    unit: str
    floor: float


MEASURES: Mapping[str, TradeOffMeasure] = {
    "delay": TradeOffMeasure("mean delay", "s", 10.0),
    "tail": TradeOffMeasure("p99 of delays", "s", 10.0),
    "wide": TradeOffMeasure(f"mean delay, ≥ {WIDE_GPUS} GPUs", "s", 10.0),
    "fairness": TradeOffMeasure("p99 of finish-time fairness", "", 0.01),
    "preemptions": TradeOffMeasure("preemptions per job", "", 0.05),
}

FLOORS = np.array([measure.floor for measure in MEASURES.values()])


@dataclass(frozen=True, slots=True, eq=False)
class CountedJobs:
    """The jobs that are compared, the same for all policies, and which of them are wide."""

    counted: NDArray[np.bool_]
    wide: NDArray[np.bool_]

    @staticmethod
    def finished_under(reference: JobMeasures, gpus: Floats) -> CountedJobs:
        """Return the jobs that a reference finishes: others do not fit the cluster, or never end by themselves."""
        counted = np.isfinite(reference.delay)
        return CountedJobs(counted, gpus[counted] >= WIDE_GPUS)

    def trade_off(self, jobs: JobMeasures) -> Floats:
        """Return the value of each measure; nan: no job is wide."""
        values: Floats = self.resampled(jobs, np.ones((1, len(self.wide))))[0]
        return values

    def resampled(self, jobs: JobMeasures, weights: Floats) -> Floats:
        delay, fairness = jobs.delay[self.counted], jobs.fairness[self.counted]
        return np.column_stack(
            [
                _means(delay, weights),
                _quantiles(delay, weights),
                _means(delay[self.wide], weights[:, self.wide]),
                _quantiles(fairness, weights),
                _means(jobs.preemptions[self.counted], weights),
            ]
        )


def _means(values: Floats, weights: Floats) -> Floats:
    """Return weighted means; nan where all weights are 0, and infinite if a value is."""
    if not np.isfinite(values).all():
        return np.full(len(weights), np.inf)
    totals = weights.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        means: Floats = weights @ values / totals
    return means


def _quantiles(values: Floats, weights: Floats) -> Floats:
    """Return the smallest values that at least TAIL of the weight does not exceed."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    found = np.empty(len(weights))
    for row, of_jobs in enumerate(weights):
        reached = np.cumsum(of_jobs[order])
        found[row] = ordered[min(int(np.searchsorted(reached, TAIL * reached[-1] - 1e-9)), len(ordered) - 1)]
    return found


class Objective(msgspec.Struct, frozen=True):
    """The weights of measures. The score is the weighted geometric mean of their ratios to those of a reference."""

    weights: dict[str, float]

    def __post_init__(self) -> None:
        for name, weight in self.weights.items():
            if name not in MEASURES:
                raise UnknownName("measure", name, MEASURES)
            if not (isfinite(weight) and weight >= 0):
                raise BadValue(f"the weight of {name} is {weight}, expected a number ≥ 0")
        if not any(self.weights.values()):
            raise BadValue("all weights are 0, expected one above 0")

    def scores(self, values: Floats, reference: Floats) -> Floats:
        """Return the score of each row; below 1: better than the reference. Undefined measures are left out."""
        weights = np.array([self.weights.get(name, 0.0) for name in MEASURES])
        ratios = ratios_of(values, reference)
        weights = np.where(np.isnan(ratios), 0.0, weights)
        with np.errstate(invalid="ignore", divide="ignore"):  # a job that is never finished has an infinite delay
            logs = np.where(weights > 0, np.log(ratios), 0.0)
            scores: Floats = np.exp((weights * logs).sum(axis=-1) / weights.sum(axis=-1))
        return np.where(np.isnan(scores), 1.0, scores)

    def __str__(self) -> str:
        return ", ".join(f"{name} {weight:g}" for name, weight in self.weights.items() if weight)


def ratios_of(values: Floats, reference: Floats) -> Floats:
    with np.errstate(invalid="ignore"):
        ratios: Floats = (values + FLOORS) / (reference + FLOORS)
    return ratios


OBJECTIVES: Mapping[str, Objective] = {
    "balanced": Objective({"delay": 2.0, "tail": 1.0, "wide": 1.0}),
    **{name: Objective({name: 1.0}) for name in MEASURES},
}
"""Objectives by name: most of all the mean delay, also the tail and wide jobs; or a single measure."""
