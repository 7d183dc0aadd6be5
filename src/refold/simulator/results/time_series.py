"""Time series of a history: step functions, integrated exactly, and fragmentation, which is sampled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from refold.journal import History, Outcome
from refold.model import WHOLE, Demand
from refold.placement import (
    DemandHistory,
    Floats,
    FreeResources,
    Ints,
    cluster_fragmentation,
    empty_demand_history,
    encode_demand,
    update_typical_demands,
)


@dataclass(frozen=True, slots=True, eq=False)
class StepFunction:
    """A step function that is 0 before `times[0]` and `values[i]` from `times[i]` on."""

    times: Floats
    values: Floats

    def integral(self, until: Floats) -> Floats:
        if not len(self.times):
            return np.zeros_like(until)
        areas = np.concatenate([[0.0], np.cumsum(np.diff(self.times) * self.values[:-1])])
        at = np.searchsorted(self.times, until, side="right") - 1
        inside = areas[at] + (until - self.times[at]) * self.values[at]
        return np.where(at < 0, 0.0, inside)

    def means(self, edges: Floats) -> Floats:
        """Return the mean value between each two consecutive `edges`."""
        means: Floats = np.diff(self.integral(edges)) / np.diff(edges)
        return means


def sum_intervals(starts: Floats, ends: Floats, weights: Floats) -> StepFunction:
    """Return the sum of the weights of all intervals [start, end) that contain each time."""
    times = np.concatenate([starts, ends])
    changes = np.concatenate([weights, -weights])
    order = np.argsort(times, kind="stable")
    times, levels = times[order], np.cumsum(changes[order])
    last = np.append(times[1:] != times[:-1], True)[: len(times)]
    # Rounding removes floating-point errors, which would show as values below zero.
    return StepFunction(times[last], np.round(levels[last], 6))


def overlap(starts: Floats, ends: Floats, first: float, last: float) -> Floats:
    """Return the length of the part of each interval that lies within [first, last]."""
    inside: Floats = np.maximum(0.0, np.minimum(ends, last) - np.maximum(starts, first))
    return inside


def gpus_allocated(history: History) -> StepFunction:
    return sum_intervals(history.runs.start, history.run_end, history.runs.gpus)


def jobs_in_system(history: History, chosen: Ints) -> StepFunction:
    """Return how many of the chosen jobs are submitted and not ended, over time."""
    jobs = history.jobs
    ends = np.where(np.isnan(jobs.ended), np.maximum(history.until, jobs.submitted), jobs.ended)[chosen]
    return sum_intervals(jobs.submitted[chosen], ends, np.ones(len(chosen)))


def jobs_waiting(history: History) -> StepFunction:
    """Return the number of waiting jobs over time: submitted, not ended, feasible and without a run."""
    jobs, runs = history.jobs, history.runs
    chosen = jobs.outcome != Outcome.INFEASIBLE
    ends = np.where(np.isnan(jobs.ended), np.maximum(history.until, jobs.submitted), jobs.ended)
    return sum_intervals(
        np.concatenate([jobs.submitted[chosen], runs.start]),
        np.concatenate([ends[chosen], history.run_end]),
        np.concatenate([np.ones(int(chosen.sum())), -np.ones(len(runs))]),
    )


def fragmentation(history: History, times: Floats) -> Floats:
    """Return the expected fragmentation at each of these times (ascending), as a share of all GPUs."""
    gpus = history.cluster.gpus
    demands = typical_demands(history)
    fragments = np.zeros(len(times))
    if not gpus or demands is None:
        return fragments
    for sample, free in enumerate(free_at(history, times)):
        fragments[sample] = cluster_fragmentation(free.arrays, demands)
    return fragments / (gpus * WHOLE)


def free_at(history: History, times: Floats) -> Iterator[FreeResources]:
    """Yield the free resources at each of these times (ascending): the same object, which is changed in between."""
    free = FreeResources(history.cluster)
    # A run is present at the samples [first, beyond). Most runs of a long trace are present at none and cost nothing.
    first = np.searchsorted(times, history.runs.start, side="left")
    beyond = np.searchsorted(times, history.run_end, side="left")
    present = np.flatnonzero(first < beyond)
    begin, end = _runs_by_sample(first, present), _runs_by_sample(beyond, present)
    changes = iter(history.node_changes)
    change = next(changes, None)
    for sample, time in enumerate(times):
        while change is not None and change.at <= time:
            if change.gpu is not None:
                free.set_gpu_up(change.node, change.gpu, change.up)
            elif free.is_up(change.node) != change.up:  # a node may be reported lost twice
                free.set_node_up(change.node, change.up)
            change = next(changes, None)
        for run in end.get(sample, ()):
            free.release(history.runs.allocations[run].placement)
        for run in begin.get(sample, ()):
            free.retake(history.runs.allocations[run].placement)
        yield free


def _runs_by_sample(sample: Ints, chosen: Ints) -> dict[int, list[int]]:
    runs: defaultdict[int, list[int]] = defaultdict(list)
    for run in chosen.tolist():
        runs[int(sample[run])].append(run)
    return runs


def typical_demands(history: History) -> DemandHistory | None:
    """Return the most frequent GPU demands of a history and their weights; None if no job requests GPUs.

    Demands for CPUs only are excluded: every free GPU would be a fragment to them, which says nothing about packing.
    """
    code: dict[Demand, int] = {}
    demand_of_job = history.jobs.by_kind(lambda job: code.setdefault(job.demand, len(code)))
    count_of = np.bincount(demand_of_job, minlength=len(code)).tolist()
    demands = {demand: count_of[index] for demand, index in code.items() if demand.gpus and count_of[index]}
    if not demands:
        return None
    typical = empty_demand_history()
    shapes = np.vstack([encode_demand(demand, history.cluster) for demand in demands])
    counts = np.array(list(demands.values()), dtype=np.int64)
    update_typical_demands(shapes, counts, len(counts), typical)
    return typical
