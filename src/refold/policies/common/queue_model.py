"""The state of a cluster and its queue as columns for `queue_futures`, updated by what has changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from math import inf, nan

import numpy as np

from refold.core import View
from refold.model import HOUR, WHOLE, Cluster, Job, Milli, Placement, Seconds
from refold.placement import Floats, Ints
from refold.policies.common.durations import RemainingTime
from refold.policies.common.queue_futures import HELD_UNITS, QUEUE_JOB, QUEUE_NODE, SHARES, Scene
from refold.predict import quantiles

UNIT: Milli = WHOLE // 10
"""Amounts of GPUs are multiples of this; smaller ones are rounded up."""

MAX_RECENT = 256
"""Number of latest arrivals that are assumed to be typical of further ones."""

MIN_SPAN: Seconds = HOUR
"""Arrivals are assumed to be typical once they have been observed for so long."""

STOP_SECONDS: Seconds = 30.0
"""Assumed time until a run that is being stopped has ended."""

MIN_QUANTILE: Seconds = 0.1
MIN_ROWS = 256
"""Number of rows or entries by which a full table grows, at least; it is doubled."""

_INCREASING = 1.0 + 1e-6 * np.arange(len(SHARES), dtype=np.float64)

RemainingTimes = Callable[[View, Job], RemainingTime]
"""How long a job will run, given what it has done, on what it requested or holds."""


class QueueModel:
    """Waiting and running jobs, what they hold, and recent arrivals."""

    def __init__(self, cluster: Cluster, remaining_time: RemainingTimes, futures: int) -> None:
        self._cluster, self._remaining_time = cluster, remaining_time
        types = sorted({node.gpu_type for node in cluster.nodes})
        self._type_number = {gpu_type: number for number, gpu_type in enumerate(types)}
        nodes = [(node.gpus * WHOLE // UNIT, self._type_number[node.gpu_type]) for node in cluster.nodes]
        self._nodes = np.array(nodes, QUEUE_NODE)
        self._rows = _JobRows(futures)
        self._held = _HeldEntries()
        self._row_of: dict[str, int] = {}
        self._recent: list[int] = []
        """Rows of recent arrivals, the oldest first."""
        self._unranked: dict[str, int] = {}
        """Rows of arrivals whose rank at their submission is not known yet, by job."""
        self._last_arrival: Seconds = -inf
        self._added = 0

    def observe(self, view: View) -> None:
        """Apply the changes since the last view."""
        changes = view.changes
        for run in changes.ended:
            self._held.release(self._row_of.get(run.job))
            if run.job not in view.waiting and run.job not in view.runs:
                self._remove(run.job)
        for job_id in changes.removed:
            self._remove(job_id)
        arrivals = [job for job in changes.submitted if job.demand.gpus]  # others need none of what is simulated
        recent = {job.id: job for job in arrivals[-MAX_RECENT:]}
        new = [job for job in changes.submitted if job.id in recent or job.id not in view.runs]  # runs: see below
        self._add_all(view, [*new, *changes.requeued])
        if len(arrivals) > MAX_RECENT:
            self._last_arrival = view.now
        for job in recent.values():
            self._note_arrival(view, job)
        started = [run for run in changes.started if view.runs.get(run.job) is run]
        self.start_all(view, [(run.job, run.allocation.placement, run.since) for run in started])
        for node in changes.nodes:
            self._nodes["units"][node] = _usable_gpus(view, node) * WHOLE // UNIT

    def start_all(self, view: View, starts: Sequence[tuple[str, Placement, Seconds]]) -> None:
        """Note that jobs run, or will run: each with its placement and the time of its start."""
        jobs = [view.active.get(job_id) or view.waiting[job_id] for job_id, _, _ in starts]
        rows = self._add_all(view, jobs)
        for row, (_, placement, since) in zip(rows, starts, strict=True):
            self._rows.jobs["since"][row] = since
            self._held.release(row)
            for share in placement:
                units = _units(len(share.gpus) * share.gpu_milli)
                if units:
                    self._held.add(row, share.node, units)

    def stop(self, job_id: str, now: Seconds) -> None:
        """Note that a run is being stopped."""
        row = self._row_of.get(job_id)
        if row is not None:
            jobs = self._rows.jobs
            self._rows.quantiles[row] = STOP_SECONDS
            jobs["elapsed"][row], jobs["since"][row] = 0.0, now
            self._rows.ends[:, row] = nan

    def rank_arrivals(self, rank: Callable[[str], float]) -> None:
        """Note the ranks of jobs that have arrived since the last call."""
        for job_id, row in self._unranked.items():
            self._rows.jobs["rank"][row] = rank(job_id)
        self._unranked.clear()

    def scene(self, now: Seconds, order: Sequence[str], ranks: Mapping[str, float]) -> Scene:
        """Return the present state; `order`: the waiting jobs, by rank."""
        jobs = self._rows.jobs
        waiting = np.fromiter((self._row_of[job_id] for job_id in order), np.int64, len(order))
        jobs["rank"][waiting] = np.fromiter((ranks[job_id] for job_id in order), np.float64, len(order))
        arrivals = self._arrivals(now)
        return Scene(self._nodes, jobs, self._rows.quantiles, self._held.entries, waiting, arrivals, self._rows.ends)

    def _arrivals(self, now: Seconds) -> Ints:
        """Return the rows of recent arrivals; none if they are too few to tell how many jobs arrive.

        After the last of them comes the first again, as long after it as nothing has arrived by now.
        """
        jobs = self._rows.jobs
        if not self._recent or now - jobs["queued"][self._recent[0]] < MIN_SPAN:
            return np.empty(0, np.int64)
        jobs["gap"][self._recent[0]] = now - self._last_arrival
        return np.array(self._recent, np.int64)

    def _add_all(self, view: View, jobs: Sequence[Job]) -> list[int]:
        """Add jobs that wait and hold nothing, or describe them again; return their rows."""
        rows = [self._row_for(job.id) for job in jobs]
        if not rows:
            return rows
        remaining, columns = [self._remaining_time(view, job) for job in jobs], self._rows.jobs
        quantiles_of = cache(total_quantiles)  # jobs of a kind have the same distribution
        self._rows.quantiles[rows] = [quantiles_of(one) for one in remaining]
        columns["elapsed"][rows] = [one.elapsed for one in remaining]
        columns["speed"][rows] = 1.0
        columns["instances"][rows] = [job.demand.instances for job in jobs]
        columns["units"][rows] = [_units(job.demand.gpus * job.demand.gpu_milli) for job in jobs]
        columns["type_bits"][rows] = [self._type_bits(job.demand.gpu_types) for job in jobs]
        columns["priority"][rows] = [job.priority for job in jobs]
        columns["since"][rows], columns["queued"][rows] = inf, view.now
        self._rows.ends[:, rows] = nan
        return rows

    def _row_for(self, job_id: str) -> int:
        row = self._row_of.get(job_id)
        if row is None:
            row = self._row_of[job_id] = self._rows.new_row()
            self._rows.jobs["number"][row] = self._added
            self._added += 1
        return row

    def _type_bits(self, gpu_types: Collection[str]) -> int:
        """Return the GPU types as bits; all types if none is given."""
        return sum(1 << self._type_number[one] for one in gpu_types or self._type_number if one in self._type_number)

    def _note_arrival(self, view: View, job: Job) -> None:
        row = self._recent.pop(0) if len(self._recent) == MAX_RECENT else self._rows.new_row()
        self._rows.copy(self._row_of[job.id], row)
        self._unranked[job.id] = row
        self._rows.jobs["gap"][row] = view.now - self._last_arrival if self._last_arrival > -inf else 0.0
        self._last_arrival = view.now
        self._recent.append(row)

    def _remove(self, job_id: str) -> None:
        row = self._row_of.pop(job_id, None)
        if row is not None:
            self._held.release(row)
            self._rows.drop(row)


def _usable_gpus(view: View, node: int) -> int:
    """Return the number of GPUs of a node that accept runs."""
    return sum(view.is_gpu_up(node, gpu) for gpu in range(view.cluster.nodes[node].gpus)) if view.is_up(node) else 0


def _units(milli: Milli) -> int:
    return -(-milli // UNIT)


def total_quantiles(remaining: RemainingTime) -> Floats:
    """Return the quantiles of a run time, for `SHARES`, strictly increasing."""
    if remaining.total is None:
        exact: Floats = min(max(remaining.exact, MIN_QUANTILE), 1e12) * _INCREASING
        return exact
    times = np.minimum(quantiles(remaining.total.survival, SHARES), max(remaining.total.ceiling, MIN_QUANTILE))
    increasing: Floats = np.maximum.accumulate(np.maximum(times, MIN_QUANTILE)) * _INCREASING
    return increasing


class _JobRows:
    """Rows of jobs, some of which are not used: their columns, quantiles of run times, and ends in futures."""

    def __init__(self, futures: int) -> None:
        self.jobs, self.quantiles = np.empty(0, QUEUE_JOB), np.empty((0, len(SHARES)))
        self.ends = np.empty((futures, 0))
        self._unused: list[int] = []

    def new_row(self) -> int:
        if not self._unused:
            used = len(self.jobs)
            more = max(used, MIN_ROWS)
            self.jobs = np.concatenate([self.jobs, np.zeros(more, QUEUE_JOB)])
            self.quantiles = np.pad(self.quantiles, ((0, more), (0, 0)))
            self.ends = np.pad(self.ends, ((0, 0), (0, more)))
            self._unused = list(range(used, used + more))
        return self._unused.pop()

    def copy(self, row: int, to: int) -> None:
        self.jobs[to], self.quantiles[to] = self.jobs[row], self.quantiles[row]

    def drop(self, row: int) -> None:
        self._unused.append(row)


class _HeldEntries:
    """What runs hold, with unused entries."""

    def __init__(self) -> None:
        self.entries = np.empty(0, HELD_UNITS)
        self._unused: list[int] = []
        self._entries_of: dict[int, list[int]] = {}

    def add(self, row: int, node: int, units: int) -> None:
        if not self._unused:
            used = len(self.entries)
            self.entries = np.concatenate([self.entries, np.zeros(max(used, MIN_ROWS), HELD_UNITS)])
            self.entries["row"][used:] = -1
            self._unused = list(range(used, len(self.entries)))
        entry = self._unused.pop()
        self.entries[entry] = row, node, units
        self._entries_of.setdefault(row, []).append(entry)

    def release(self, row: int | None) -> None:
        if row is None:
            return
        for entry in self._entries_of.pop(row, ()):
            self.entries["row"][entry] = -1
            self._unused.append(entry)
