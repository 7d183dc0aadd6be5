"""Curves over time: levels that change in steps, integrated exactly; and fragments, looked at now and then."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np

from refold.journal import History, Outcome
from refold.model import WHOLE, Demand
from refold.packing import Floats, Free, Ints, cluster_fragments, no_typical, renew_typical, vector_of


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """A level that is 0 before `times[0]`, and `values[i]` from `times[i]` on."""

    times: Floats
    values: Floats

    def integral(self, until: Floats) -> Floats:
        """The area under the curve up to each of these times."""
        if not len(self.times):
            return np.zeros_like(until)
        areas = np.concatenate([[0.0], np.cumsum(np.diff(self.times) * self.values[:-1])])
        at = np.searchsorted(self.times, until, side="right") - 1
        inside = areas[at] + (until - self.times[at]) * self.values[at]
        return np.where(at < 0, 0.0, inside)

    def means(self, edges: Floats) -> Floats:
        """The mean level between each two neighbours of `edges`."""
        areas: Floats = np.diff(self.integral(edges)) / np.diff(edges)
        return areas


def steps_of(starts: Floats, ends: Floats, weights: Floats) -> Steps:
    """The sum of the weights of all intervals [start, end) that hold at each time."""
    times = np.concatenate([starts, ends])
    changes = np.concatenate([weights, -weights])
    order = np.argsort(times, kind="stable")
    times, levels = times[order], np.cumsum(changes[order])
    last = np.append(times[1:] != times[:-1], True)[: len(times)]
    # Sums of thousandths in floating point leave dust, and dust would show as a level below zero.
    return Steps(times[last], np.round(levels[last], 6))


def overlap(starts: Floats, ends: Floats, first: float, last: float) -> Floats:
    """How long each interval lies within [first, last]."""
    inside: Floats = np.maximum(0.0, np.minimum(ends, last) - np.maximum(starts, first))
    return inside


def allocated(history: History) -> Steps:
    """GPUs held by runs."""
    return steps_of(history.runs.start, history.run_end, history.runs.gpus)


def in_system(history: History, chosen: Ints) -> Steps:
    """How many of these jobs are submitted and not yet done with."""
    jobs = history.jobs
    ends = np.where(np.isnan(jobs.ended), np.maximum(history.until, jobs.submitted), jobs.ended)[chosen]
    return steps_of(jobs.submitted[chosen], ends, np.ones(len(chosen)))


def waiting(history: History) -> Steps:
    """How many jobs wait: in the system, with a chance, and without a run."""
    jobs, runs = history.jobs, history.runs
    chosen = jobs.outcome != Outcome.INFEASIBLE
    ends = np.where(np.isnan(jobs.ended), np.maximum(history.until, jobs.submitted), jobs.ended)
    return steps_of(
        np.concatenate([jobs.submitted[chosen], runs.start]),
        np.concatenate([ends[chosen], history.run_end]),
        np.concatenate([np.ones(int(chosen.sum())), -np.ones(len(runs))]),
    )


def fragmentation(history: History, times: Floats) -> Floats:
    """Expected fragments at each of these times (ascending), as a part of all GPUs."""
    gpus = history.cluster.gpus
    typical, weights = typical_demands(history)
    found = np.zeros(len(times))
    if not gpus or not weights.any():
        return found
    free = Free(history.cluster)
    # A run is there at the samples [first, beyond); most runs of a long trace are there at none, and cost nothing.
    first = np.searchsorted(times, history.runs.start, side="left")
    beyond = np.searchsorted(times, history.run_end, side="left")
    seen = np.flatnonzero(first < beyond)
    begin, end = _runs_by(first, seen), _runs_by(beyond, seen)
    changes = iter(history.node_changes)
    change = next(changes, None)
    for sample, time in enumerate(times):
        while change is not None and change.at <= time:
            if free.is_up(change.node) != change.up:  # a node may be reported lost twice
                free.set_up(change.node, change.up)
            change = next(changes, None)
        for run in end.get(sample, ()):
            free.give_back(history.runs.allocations[run].placement)
        for run in begin.get(sample, ()):
            free.take_back(history.runs.allocations[run].placement)
        found[sample] = cluster_fragments(free.nodes, free.gpus, typical, weights)
    return found / (gpus * WHOLE)


def _runs_by(sample: Ints, chosen: Ints) -> dict[int, list[int]]:
    runs: defaultdict[int, list[int]] = defaultdict(list)
    for run in chosen.tolist():
        runs[int(sample[run])].append(run)
    return runs


def typical_demands(history: History) -> tuple[Ints, Floats]:
    """The most frequent demands for GPUs in a history, and how frequent each is.

    Demands for CPUs only are left out: to them every free GPU is a fragment, which says nothing of packing.
    """
    typical, weights = no_typical()
    seen: Counter[Demand] = Counter(job.demand for job in history.jobs.jobs if job.demand.gpus)
    if seen:
        shapes = np.vstack([vector_of(demand, history.cluster) for demand in seen])
        counts = np.array(list(seen.values()), dtype=np.int64)
        renew_typical(shapes, counts, len(counts), typical, weights)
    return typical, weights
