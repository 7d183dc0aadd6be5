"""How far each waiting job is overtaken: the GPU time that jobs behind it use while it waits.

Behind a job are those of lower priority, and those of the same priority that were submitted later; guaranteed jobs are
ahead of all others. As long as those behind use at most the share *s* of the GPU time that is used after its
submission, the job waits at most 1 / (1 − *s*) times as long as the jobs ahead of it need. The use of those ahead does
not count while there is room for the job beside all of them, since it would run then in order of submission. What
decides is what was used, not what was predicted, on any scale of time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import nan
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from refold.core import View
from refold.model import WHOLE, Allocation, Cluster, Job, Run, Seconds
from refold.placement import Floats, Ints
from refold.policies.refold.table import EstimateTable, GpuUse

Flags = NDArray[np.bool_]
GpuTypes = tuple[str, ...]

GUARANTEED_RANK = 1 << 40
"""Added to the priority of guaranteed jobs."""


class _Ended(NamedTuple):
    """A run that has ended, and the GPU-seconds that it used."""

    rank: int
    submitted: Seconds
    gpu_type: int
    used: float


class Overtaking:
    """Keeps account of the GPU time that is used after jobs are submitted, on the GPU types that they may use."""

    def __init__(self) -> None:
        self._types: dict[str, int] = {}
        """Numbers of the GPU types that have been used."""
        self._usable: dict[GpuTypes, int] = {}
        """Numbers of sets of GPU types that jobs may use; the empty set stands for all."""
        self._ended: list[_Ended] = []
        """Runs that have ended since the last update."""
        self._used_by_ended: dict[int, float] = {}
        """GPU-seconds by type of all runs that have ended."""
        self._used_before: dict[int, float] = {}
        """GPU-seconds used until the last update, by set of types."""

    def observe(self, view: View, by_id: Mapping[str, Job], guaranteed: Collection[str]) -> None:
        """Note the runs that have ended. Must be called once for each view, before jobs are forgotten."""
        for run in view.changes.ended:
            gpu_type = self._type_of(view.cluster, run.allocation)
            used = _gpus(run) * (view.now - run.since)
            self._used_by_ended[gpu_type] = self._used_by_ended.get(gpu_type, 0.0) + used
            job = by_id.get(run.job)
            if job is not None:
                self._ended.append(_Ended(_rank(job, guaranteed), job.submitted, gpu_type, used))

    def columns(self, view: View, table: EstimateTable, job: Job, guaranteed: Collection[str]) -> GpuUse:
        """Return what the row of a job has to contain; what was counted so far is kept."""
        usable = self._usable.setdefault(job.demand.gpu_types, len(self._usable))
        # Before a job was known here, only jobs ahead of it are assumed to have run.
        counted = 0.0, _gpus_of(view.cluster, job.demand.gpu_types) * max(view.now - job.submitted, 0.0), nan, False
        if job.id in table.row_of:
            counted = tuple(table.value(name, job.id) for name in GpuUse._fields[:4])
        rank, run = _rank(job, guaranteed), view.runs.get(job.id)
        if run is None:
            return GpuUse(*counted, 0.0, 0, view.now, usable, rank)
        return GpuUse(*counted, _gpus(run), self._type_of(view.cluster, run.allocation), run.since, usable, rank)

    def update(self, view: View, table: EstimateTable) -> None:
        """Count what was used since the last update. The rows of all jobs must be up to date."""
        used_so_far = table.column("held_gpus") * (view.now - table.column("held_since"))
        order = _Order(table.column("rank"), table.column("submitted"))
        for gpu_types, usable in self._usable.items():
            rows = (table.column("usable_types") == usable).nonzero()[0]
            if not len(rows):
                continue
            is_usable = np.array([not gpu_types or name in gpu_types for name in self._types], dtype=np.bool_)
            on_usable = is_usable[table.column("held_type")] if len(is_usable) else True
            by_run = used_so_far * on_usable
            waits_for = table.column("gpus") * ~table.column("is_running") * self._overlaps(table, gpu_types)
            ahead = order.sums_ahead(table.column("held_gpus") * on_usable + waits_for)[rows]
            has_room = ahead + table.column("gpus")[rows] <= _gpus_of(view.cluster, gpu_types)
            self._count(table, rows, by_run, order.sums_behind(by_run)[rows], has_room, is_usable, usable)
        self._ended.clear()

    def _count(
        self,
        table: EstimateTable,
        rows: Ints,
        by_run: Floats,
        behind: Floats,
        has_room: Flags,
        is_usable: Flags,
        usable: int,
    ) -> None:
        """Count what was used on some types of GPUs, for the rows of the jobs that may use these.

        `has_room`: which of them have room from now on beside all jobs ahead of them, whose use does not count then.
        """
        before = table.column("used_behind")[rows]
        for ended in self._ended:
            if is_usable[ended.gpu_type]:
                before -= ended.used * self._is_ahead_of(table, rows, ended)
        in_all = float(by_run.sum()) + sum(used for one, used in self._used_by_ended.items() if is_usable[one])
        is_known = ~np.isnan(before)
        waited = is_known & ~table.column("is_running")[rows]
        by_those_behind = np.where(waited, np.maximum(behind - before, 0.0), 0.0)
        by_all = max(in_all - self._used_before.get(usable, in_all), 0.0)
        table.column("overtaken")[rows] += by_those_behind
        had_room = table.column("has_room")[rows]
        table.column("used_in_all")[rows[is_known]] += np.where(had_room & waited, by_those_behind, by_all)[is_known]
        table.column("has_room")[rows] = has_room
        table.column("used_behind")[rows] = behind
        self._used_before[usable] = in_all

    def _overlaps(self, table: EstimateTable, gpu_types: GpuTypes) -> Flags:
        """Return by row which jobs may use some of these types."""
        overlaps = [not one or not gpu_types or not set(one).isdisjoint(gpu_types) for one in self._usable]
        by_row: Flags = np.array(overlaps, dtype=np.bool_)[table.column("usable_types")]
        return by_row

    def _is_ahead_of(self, table: EstimateTable, rows: Ints, ended: _Ended) -> Flags:
        """Return which rows are those of jobs ahead of one that has ended."""
        rank, submitted = table.column("rank")[rows], table.column("submitted")[rows]
        is_ahead: Flags = (rank > ended.rank) | (rank == ended.rank) & (submitted < ended.submitted)
        return is_ahead

    def _type_of(self, cluster: Cluster, held: Allocation) -> int:
        """Return the number of the GPU type of an allocation, which is one unless types are interchangeable."""
        return self._types.setdefault(cluster.nodes[held.placement[0].node].gpu_type, len(self._types))


class _Order:
    """All rows of a table in order of rank and submission."""

    def __init__(self, rank: Ints, submitted: Floats) -> None:
        self._order = np.lexsort((submitted, -rank))
        ranks = np.stack([rank[self._order], submitted[self._order]])
        is_last_of_equals = np.append((ranks[:, 1:] != ranks[:, :-1]).any(axis=0), True)[: len(rank)]
        last_of_equals = is_last_of_equals.nonzero()[0]
        self._last_of_equals = last_of_equals[np.searchsorted(last_of_equals, np.arange(len(rank)))]

    def sums_ahead(self, values: Floats) -> Floats:
        """Return for each row the sum of the values of those ahead of it."""
        in_order = values[self._order]
        sums: Floats = np.empty(len(values))
        sums[self._order] = np.cumsum(in_order) - in_order
        return sums

    def sums_behind(self, values: Floats) -> Floats:
        """Return for each row the sum of the values of those behind it."""
        in_order = values[self._order]
        sums: Floats = np.empty(len(values))
        sums[self._order] = (in_order.sum() - np.cumsum(in_order))[self._last_of_equals]
        return sums


def _rank(job: Job, guaranteed: Collection[str]) -> int:
    return job.priority + GUARANTEED_RANK * (job.id in guaranteed)


def _gpus_of(cluster: Cluster, gpu_types: GpuTypes) -> int:
    return sum(node.gpus for node in cluster.nodes if not gpu_types or node.gpu_type in gpu_types)


def _gpus(run: Run) -> float:
    return run.allocation.gpu_milli / WHOLE
