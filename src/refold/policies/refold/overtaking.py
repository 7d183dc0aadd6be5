"""How far each waiting job is overtaken: the GPU time that jobs behind it use while it waits.

A job without GPUs counts as if it had the part of the GPUs of a node that it has of its CPUs or memory.

Behind a job are those of lower priority, and those of the same priority that were submitted later; guaranteed jobs are
ahead of all others. As long as those behind use at most the share *s* of the GPU time that is used after its
submission, the job waits at most 1 / (1 − *s*) times as long as the jobs ahead of it need. The use of those ahead does
not count while there is room for the job beside all of them, since it would run then in order of submission. What
decides is what was used, not what was predicted, on any scale of time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import nan
from typing import NamedTuple

import numpy as np

from refold.core import View
from refold.model import WHOLE, Allocation, Cluster, Demand, Job, Node, Seconds
from refold.placement import Ints
from refold.policies.refold.kernels import EndedRuns, UsableGpus, UseColumns, count_use, order_by_rank
from refold.policies.refold.table import EstimateTable, GpuUse

GpuTypes = tuple[str, ...]

GUARANTEED_RANK = 1 << 40
"""Added to the priority of guaranteed jobs."""

MANY_ROWS = 64
"""If more rows than these are new, all are sorted again."""


class _Ended(NamedTuple):
    """A run that has ended: a row of `EndedRuns`."""

    rank: int
    submitted: Seconds
    gpu_type: int
    used: float


class _Room(NamedTuple):
    """What a node has, or all nodes with some GPU types together."""

    gpus: int
    cpu_milli: int
    memory_mib: int

    def gpus_for(self, gpus: float, cpu_milli: float, memory_mib: float) -> float:
        """Return the GPUs; without any, those that are useless without these CPUs or this memory."""
        if gpus:
            return gpus
        by_cpu = cpu_milli / self.cpu_milli * self.gpus if self.cpu_milli else 0.0
        by_memory = memory_mib / self.memory_mib * self.gpus if self.memory_mib else 0.0
        return max(by_cpu, by_memory)

    def worth(self, demand: Demand) -> float:
        """Return the GPUs that a demand takes."""
        instances = demand.instances
        return self.gpus_for(demand.total_gpus, instances * demand.cpu_milli, instances * demand.memory_mib)


class Overtaking:
    """Keeps account of the GPU time that is used after jobs are submitted, on the GPU types that they may use."""

    def __init__(self) -> None:
        self._types: dict[str, int] = {}
        """Numbers of the GPU types that have been used."""
        self._usable: dict[GpuTypes, int] = {}
        """Numbers of sets of GPU types that jobs may use; the empty set stands for all."""
        self._rooms: dict[GpuTypes, _Room] = {}
        """What all nodes with these types have, by set."""
        self._ended: list[_Ended] = []
        """Runs that have ended since the last update."""
        self._used_by_ended: dict[int, float] = {}
        """GPU-seconds by type of all runs that have ended."""
        self._counted: UsableGpus | None = None
        self._order: Ints = np.empty(0, dtype=np.int64)
        """The rows by rank and submission at the last update."""

    def observe(self, view: View, by_id: Mapping[str, Job], guaranteed: Collection[str]) -> None:
        """Note the runs that have ended. Must be called once for each view, before jobs are forgotten."""
        for run in view.changes.ended:
            gpu_type = self._type_of(view.cluster, run.allocation)
            used = _held(view.cluster, run.allocation) * (view.now - run.since)
            self._used_by_ended[gpu_type] = self._used_by_ended.get(gpu_type, 0.0) + used
            job = by_id.get(run.job)
            if job is not None:
                self._ended.append(_Ended(_rank(job, guaranteed), job.submitted, gpu_type, used))

    def columns(self, view: View, table: EstimateTable, job: Job, guaranteed: Collection[str]) -> GpuUse:
        """Return what the row of a job has to contain; what was counted so far is kept."""
        types = job.demand.usable_types(view.cluster)
        if types not in self._usable:
            self._usable[types], self._rooms[types] = len(self._usable), _room_of(view.cluster, types)
        usable = self._usable[types]
        # Before a job was known here, only jobs ahead of it are assumed to have run.
        counted = 0.0, self._rooms[types].gpus * max(view.now - job.submitted, 0.0), nan, False
        if job.id in table.row_of:
            counted = tuple(table.value(name, job.id) for name in GpuUse._fields[:4])
        asked, rank, run = self._rooms[types].worth(job.demand), _rank(job, guaranteed), view.runs.get(job.id)
        if run is None:
            return GpuUse(*counted, asked, 0.0, 0, view.now, usable, rank)
        held, gpu_type = _held(view.cluster, run.allocation), self._type_of(view.cluster, run.allocation)
        return GpuUse(*counted, asked, held, gpu_type, run.since, usable, rank)

    def update(self, view: View, table: EstimateTable) -> None:
        """Count what was used since the last update. The rows of all jobs must be up to date."""
        ended, self._ended = _as_columns(self._ended) if self._ended else NONE_ENDED, []
        if not len(table):
            return
        if self._counted is None or self._counted.is_usable.shape != (len(self._usable), len(self._types)):
            self._counted = self._usable_gpus(self._counted)
        self._counted.used_by_ended[:] = [self._used_by_ended.get(gpu_type, 0.0) for gpu_type in self._types.values()]
        columns = table.columns(UseColumns)
        self._order = _ordered(self._order, columns)
        count_use(view.now, self._order, columns, self._counted, ended)

    def _usable_gpus(self, before: UsableGpus | None) -> UsableGpus:
        """Return the sets of GPU types, with what was counted `before` there were more types or sets."""
        used_before = np.full(len(self._usable), nan)
        if before is not None:
            used_before[: len(before.used_before)] = before.used_before
        return UsableGpus(
            np.array([room.gpus for room in self._rooms.values()], dtype=np.float64),
            used_before,
            np.array([[not types or one in types for one in self._types] for types in self._usable], dtype=np.bool_),
            np.array([[_overlap(one, other) for other in self._usable] for one in self._usable], dtype=np.bool_),
            np.zeros(len(self._types)),
        )

    def _type_of(self, cluster: Cluster, held: Allocation) -> int:
        """Return the number of the GPU type of an allocation, which is one unless types are interchangeable."""
        return self._types.setdefault(cluster.nodes[held.placement[0].node].gpu_type, len(self._types))


def _rank(job: Job, guaranteed: Collection[str]) -> int:
    return job.priority + GUARANTEED_RANK * (job.id in guaranteed)


def _ordered(before: Ints, columns: UseColumns) -> Ints:
    """Return the rows by rank and submission, from the order `before`."""
    if len(columns.rank) > len(before) + MANY_ROWS:
        return np.lexsort((columns.submitted, -columns.rank))
    return order_by_rank(before, columns)


def _as_columns(runs: Sequence[_Ended]) -> EndedRuns:
    ranks, submitted, types, used = zip(*runs, strict=True)
    return EndedRuns(
        np.array(ranks, dtype=np.int64),
        np.array(submitted, dtype=np.float64),
        np.array(types, dtype=np.int64),
        np.array(used, dtype=np.float64),
    )


NONE_ENDED = EndedRuns(np.empty(0, np.int64), np.empty(0), np.empty(0, np.int64), np.empty(0))


def _overlap(one: GpuTypes, other: GpuTypes) -> bool:
    """Return whether two sets of types have one in common."""
    return not one or not other or not set(one).isdisjoint(other)


def _room_of(cluster: Cluster, gpu_types: GpuTypes) -> _Room:
    rooms = [_room(cluster, node) for node in cluster.nodes if not gpu_types or node.gpu_type in gpu_types]
    return _Room(*map(sum, zip(*rooms, strict=True))) if rooms else _Room(0, 0, 0)


def _room(cluster: Cluster, node: Node) -> _Room:
    """Return what a node has, as far as it is known; one without GPUs counts as if it had one."""
    return _Room(
        max(node.gpus, 1),
        node.cpu_milli if cluster.cpus_known else 0,
        node.memory_mib if cluster.memory_known else 0,
    )


def _held(cluster: Cluster, allocation: Allocation) -> float:
    """Return the GPUs that an allocation takes."""
    return sum(
        _room(cluster, cluster.nodes[share.node]).gpus_for(
            len(share.gpus) * share.gpu_milli / WHOLE, share.cpu_milli, share.memory_mib
        )
        for share in allocation.placement
    )
