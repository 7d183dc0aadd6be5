"""The history of a journal of any length: what has ended is kept as rows of columns, not as records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from math import nan
from typing import Any, NamedTuple, TypeVar

import numpy as np

from refold.core import Entry
from refold.journal.history import (
    TIME_TOLERANCE_SECONDS,
    History,
    HoldColumns,
    JobColumns,
    RunColumns,
    StartEstimateColumns,
    check_node_changes,
    check_runs,
    job_columns,
    run_columns,
)
from refold.journal.job_history import JobHistories
from refold.journal.packed_values import DistinctValues, GrowingColumn, PackedAllocations, PackedJobs
from refold.journal.records import JobRecord
from refold.model import Allocation, Cluster, Job, Seconds, StartEstimate

PACK_ENTRIES = 1 << 15
"""Records that do not change any more become rows after so many entries."""

T = TypeVar("T")


class PackedHistoryJournal(JobHistories):
    """A journal that keeps columns of ended jobs and runs, and records of the others only.

    It needs about 200 bytes per job with one run, and nothing per entry. Of the start estimates before the first start
    of a job, the first and the last are kept. `pack_entries`: how often ended jobs are packed.
    """

    def __init__(self, cluster: Cluster, pack_entries: int = PACK_ENTRIES) -> None:
        super().__init__()
        self.cluster = cluster
        self._pack_entries = pack_entries
        self._job_table = _Table(**_kinds_of(JobColumns), kind=np.int32, id_end=np.int64)
        self._run_table = _Table(**_kinds_of(RunColumns), allocation=np.int32)
        self._kinds, self._allocations = DistinctValues(Job), DistinctValues(Allocation)
        self._ids = bytearray()
        self._tenant_codes: dict[str, int] = {}
        self._hold_table = _Table(**_kinds_of(HoldColumns))
        self._estimates: dict[int, _JobEstimates] = {}
        self._estimate_table = _Table(**_kinds_of(StartEstimateColumns))

    def write(self, entry: Entry) -> None:
        super().write(entry)
        if self._step % self._pack_entries == 0:
            self._pack(all_rows=False)

    def packed_history(self) -> History:
        """Return the history; nothing can be written any more."""
        self._pack(all_rows=True)
        check_node_changes(self.cluster, self.node_changes)
        jobs, runs = self._job_table.columns(), self._run_table.columns()
        tenants = tuple(sorted(self._tenant_codes))
        new_code = {tenant: code for code, tenant in enumerate(tenants)}
        jobs["tenant"] = np.array([new_code[tenant] for tenant in self._tenant_codes], dtype=np.int64)[jobs["tenant"]]
        kind, id_end, allocation = jobs.pop("kind"), jobs.pop("id_end"), runs.pop("allocation")
        return History(
            self.cluster,
            JobColumns(PackedJobs(self._kinds, kind, self._ids, id_end, jobs["submitted"], jobs["work"]), **jobs),
            RunColumns(PackedAllocations(self._allocations, allocation), **runs),
            tenants,
            self.node_changes,
            self.now,
            self._start_estimate_columns(),
            HoldColumns(**self._hold_table.columns()),
        )

    def _pack(self, *, all_rows: bool) -> None:
        """Move ended jobs and runs to the columns; with `all_rows`, all others as well."""
        rows = self._place_jobs()
        row_of = {id(record): row for record, row in zip(self.jobs, rows, strict=True)}
        self._note_estimates(row_of)
        self._hold_table.append([(row_of[id(record)], at, held) for record, at, held in self.holds])
        self.holds.clear()
        self._pack_runs(row_of, all_rows)
        is_open = [not all_rows and record.ended is None for record in self.jobs]
        packed_rows, packed = _select(rows, is_open, False), _select(self.jobs, is_open, False)
        self._fill_jobs(packed_rows, packed)
        self._store_estimates(packed_rows)
        self._job_table.open_rows, self.jobs = _select(rows, is_open, True), _select(self.jobs, is_open, True)

    def _place_jobs(self) -> list[int]:
        """Return the rows of all records. Those that have none yet get the next ones, and their ids are stored."""
        new = self.jobs[len(self._job_table.open_rows) :]
        rows = self._job_table.place(len(new))
        id_ends = np.empty(len(new), dtype=np.int64)
        for index, record in enumerate(new):
            self._kinds.number(PackedJobs.kind(record.job))  # kinds are numbered in the order of submission
            self._ids += record.job.id.encode()
            id_ends[index] = len(self._ids)
        self._job_table.fill(rows[len(rows) - len(new) :], {"id_end": id_ends})
        return rows

    def _fill_jobs(self, rows: list[int], records: list[JobRecord]) -> None:
        for record in records:
            self._tenant_codes.setdefault(record.job.tenant, len(self._tenant_codes))
        columns = job_columns(records, self._tenant_codes, self.cluster)
        self._job_table.fill(rows, _column_values(columns))
        self._job_table.fill(rows, {"kind": [self._kinds.number(PackedJobs.kind(record.job)) for record in records]})

    def _pack_runs(self, row_of: dict[int, int], all_rows: bool) -> None:
        jobs, runs = self.jobs_of_runs, self.runs
        rows = self._run_table.place(len(runs) - len(self._run_table.open_rows))
        is_open = [not all_rows and run.end is None for run in runs]
        packed, packed_jobs = _select(runs, is_open, False), _select(jobs, is_open, False)
        check_runs(self.cluster, packed_jobs, packed)
        packed_rows = _select(rows, is_open, False)
        columns = run_columns(packed, [row_of[id(record)] for record in packed_jobs])
        self._run_table.fill(packed_rows, _column_values(columns))
        allocations = [self._allocations.number(run.allocation) for run in packed]
        self._run_table.fill(packed_rows, {"allocation": allocations})
        self._run_table.open_rows = _select(rows, is_open, True)
        self.runs, self.jobs_of_runs = _select(runs, is_open, True), _select(jobs, is_open, True)

    def _note_estimates(self, row_of: dict[int, int]) -> None:
        """Note the start estimates that were made before the first start of their job."""
        for record, made_at, estimate in self.start_estimates:
            if record.first_placed is None or made_at <= record.first_placed:
                noted = _NotedEstimate.make(made_at, estimate)
                found = self._estimates.setdefault(row_of[id(record)], _JobEstimates(noted))
                found.add(noted)
        self.start_estimates.clear()

    def _store_estimates(self, rows: list[int]) -> None:
        found = [(row, self._estimates.pop(row)) for row in rows if row in self._estimates]
        self._estimate_table.append(
            [(row, *estimates.first, 0) for row, estimates in found]
            + [(row, *estimates.last, estimates.postponed) for row, estimates in found if estimates.count > 1]
        )

    def _start_estimate_columns(self) -> StartEstimateColumns:
        columns = self._estimate_table.columns()
        order = np.argsort(columns["made_at"], kind="stable")
        return StartEstimateColumns(**{name: column[order] for name, column in columns.items()})


class _NotedEstimate(NamedTuple):
    made_at: Seconds
    at: Seconds
    soonest: Seconds
    latest: Seconds

    @staticmethod
    def make(made_at: Seconds, estimate: StartEstimate) -> _NotedEstimate:
        soonest, latest = (nan if bound is None else bound for bound in (estimate.soonest, estimate.latest))
        return _NotedEstimate(made_at, estimate.at, soonest, latest)


class _JobEstimates:
    """The first and the last start estimate of a job, and how often its bound was postponed."""

    __slots__ = ("count", "first", "last", "postponed")

    def __init__(self, first: _NotedEstimate) -> None:
        self.first = self.last = first
        self.count = self.postponed = 0

    def add(self, estimate: _NotedEstimate) -> None:
        self.postponed += estimate.latest > self.last.latest + TIME_TOLERANCE_SECONDS
        self.last = estimate
        self.count += 1


class _Table:
    """Columns by name, whose rows are filled in any order. `open_rows`: those that are not filled yet."""

    def __init__(self, **kinds: Any) -> None:
        self._columns = {name: GrowingColumn(kind) for name, kind in kinds.items()}
        self._length = 0
        self.open_rows: list[int] = []

    def place(self, count: int) -> list[int]:
        """Add rows; return all that are not filled, old ones first."""
        first, self._length = self._length, self._length + count
        for column in self._columns.values():
            column.resize(self._length)
        return [*self.open_rows, *range(first, self._length)]

    def fill(self, rows: Sequence[int], values: Mapping[str, Any]) -> None:
        for name, column in values.items():
            self._columns[name].values[rows] = column

    def append(self, rows: Sequence[tuple[float, ...]]) -> None:
        """Add rows with a value for each column."""
        if rows:
            new = self.place(len(rows))
            self.fill(new, dict(zip(self._columns, zip(*rows, strict=True), strict=True)))

    def columns(self) -> dict[str, Any]:
        return {name: column.values for name, column in self._columns.items()}


def _select(items: Sequence[T], is_open: Sequence[bool], wanted: bool) -> list[T]:
    return [item for item, one in zip(items, is_open, strict=True) if one is wanted]


def _kinds_of(columns: type[Any]) -> dict[str, Any]:
    kinds = {"Floats": np.float64, "Ints": np.int64}
    return {field.name: kinds[str(field.type)] for field in fields(columns) if field.type in kinds}


def _column_values(columns: JobColumns | RunColumns) -> dict[str, Any]:
    """Return the columns by name, except the first, which is a sequence of objects."""
    return {field.name: getattr(columns, field.name) for field in fields(columns)[1:]}
