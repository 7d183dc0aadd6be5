"""A table of all waiting and running jobs, with what a scheduling round needs of every one of them in columns.

There may be tens of thousands of jobs, of which few change from one round to the next. Rows are kept between rounds,
and what depends on the time of a round is computed for whole columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

from refold.model import Seconds
from refold.placement import Floats, Ints

Columns = TypeVar("Columns")
Flags = NDArray[np.bool_]
Ids = NDArray[np.object_]

INITIAL_ROWS = 64

FEW_ROWS = 32
"""Up to so many rows, Python sorts faster than NumPy."""


class EstimateRow(NamedTuple):
    """One row.

    `gpus`: the number requested. `reported_done`, `computing_since`: seconds of work done, and the time since when more
    is done; not a number if none is. `remaining`: work in steps, or in seconds if the speed is unknown.
    `requested_speed`: steps per second of what it requested. `gpu_seconds_per_step`, `top_speed`: of its shapes, the
    least and the greatest.
    `work`: remaining GPU-seconds at the most efficient size. `run_time`: remaining seconds at full speed, of known
    work. `is_known`: the remaining work is known. `may_be_preferred`: it is wide, of unknown length, and can be stopped
    again for jobs that turn out shorter. `kind`: jobs with the same possible shapes have the same number.
    `may_be_stopped`: it consents, and its run is not stopping already. `predicted_done`, `predicted_ended`: work done
    and number of ended runs at the time of the last prediction. `is_restarted`: it has run before, and may be stopped
    again.
    """

    submitted: Seconds
    priority: int
    gpus: float
    reported_done: Seconds
    computing_since: Seconds
    remaining: float
    requested_speed: float
    gpu_seconds_per_step: float
    top_speed: float
    work: float
    run_time: Seconds
    is_known: bool
    may_be_preferred: bool
    kind: int
    is_running: bool
    may_be_stopped: bool
    predicted_done: Seconds
    predicted_ended: int
    is_restarted: bool


class GpuUse(NamedTuple):
    """The rest of a row: GPU time used by the job and by others since its submission (`Overtaking`).

    `overtaken`: GPU-seconds that jobs behind the job have used while it waited. `used_in_all`: those that all jobs have
    used since it was submitted, also while it ran. `used_behind`: those that runs of jobs behind it have used so far;
    not a number if that has not been computed yet. `has_room`: there are enough GPUs for it beside all jobs ahead.
    `asked_gpus`: GPUs that it requests, or counts as. `held_gpus`, `held_type`, `held_since`: those that its run holds,
    the number of their type, and since when; 0 if it waits.
    `usable_types`: the number of the set of GPU types that it may use. `rank`: its priority; that of guaranteed jobs is
    above all others.
    """

    overtaken: float
    used_in_all: float
    used_behind: float
    has_room: bool
    asked_gpus: float
    held_gpus: float
    held_type: int
    held_since: Seconds
    usable_types: int
    rank: int


class EstimateTable:
    """The rows of all waiting and running jobs, without gaps and in no particular order."""

    def __init__(self) -> None:
        self.row_of: dict[str, int] = {}
        self._ids: Ids = np.empty(INITIAL_ROWS, dtype=np.object_)
        kinds = get_type_hints(EstimateRow) | get_type_hints(GpuUse)
        self._columns = {name: np.zeros(INITIAL_ROWS, dtype=kind) for name, kind in kinds.items()}
        self._used: dict[str, NDArray[Any]] = {}
        """The used parts of columns, kept until the number of rows changes."""
        self._used_by_kind: dict[type, Any] = {}
        """The same as named tuples."""

    def __len__(self) -> int:
        return len(self.row_of)

    def put(self, job_id: str, row: EstimateRow, use: GpuUse) -> None:
        """Add a row, or replace it."""
        at = self.row_of.setdefault(job_id, len(self))
        if at == len(self.row_of) - 1:
            self._forget_used()
        if at == len(self._ids):
            self._ids = _doubled(self._ids)
            self._columns = {name: _doubled(column) for name, column in self._columns.items()}
        self._ids[at] = job_id
        for column, value in zip(self._columns.values(), (*row, *use), strict=True):
            column[at] = value

    def drop(self, job_id: str) -> None:
        """Remove the row of a job, if it has one: the last row takes its place."""
        at = self.row_of.pop(job_id, None)
        last = len(self)
        if at is not None:
            self._forget_used()
        if at is not None and at != last:
            for column in (self._ids, *self._columns.values()):
                column[at] = column[last]
            self.row_of[self._ids[at]] = at

    def _forget_used(self) -> None:
        self._used.clear()
        self._used_by_kind.clear()

    @property
    def ids(self) -> Ids:
        """The jobs, by row."""
        return self._ids[: len(self)]

    def column(self, name: str) -> Any:
        """Return a column of all rows."""
        used = self._used.get(name)
        if used is None:
            used = self._used[name] = self._columns[name][: len(self.row_of)]
        return used

    def value(self, name: str, job_id: str) -> Any:
        """Return the value of a job in a column."""
        return self._columns[name].item(self.row_of[job_id])

    def columns(self, kind: type[Columns]) -> Columns:
        """Return the columns that a named tuple has as fields."""
        found: Columns | None = self._used_by_kind.get(kind)
        if found is None:
            found = self._used_by_kind[kind] = kind(*map(self.column, kind._fields))  # type: ignore[attr-defined]
        return found

    def rows(self, job_ids: Iterable[str]) -> Ints:
        """Return the rows of jobs."""
        return np.fromiter(map(self.row_of.__getitem__, job_ids), np.int64)

    def done(self, rows: Ints, now: Seconds) -> Floats:
        """Return the work done by jobs, in seconds, as `View.done` does."""
        done, since = self.column("reported_done")[rows], self.column("computing_since")[rows]
        by_row: Floats = np.where(np.isnan(since), done, done + (now - since))
        return by_row

    def sort(self, rows: Ints, *keys: Floats | Ints | Flags) -> Ints:
        """Return rows by the first of the keys, then by the second, …, and at last by job. `keys`: of these rows."""
        if len(rows) < 2:
            return rows
        if len(rows) <= FEW_ROWS:
            by_keys = sorted(zip(*(key.tolist() for key in keys), self.ids[rows].tolist(), rows.tolist(), strict=True))
            return np.array([row for *_, row in by_keys], dtype=np.int64)
        differing = [key for key in keys if len(key) and (key != key[0]).any()]
        # Mostly only one differs, and lexsort is much slower.
        order = np.argsort(differing[0]) if len(differing) == 1 else np.lexsort([rows, *differing[::-1]])
        is_tied = np.ones(max(len(rows) - 1, 0), dtype=np.bool_)  # with the next one
        for key in differing:
            in_order = key[order]
            is_tied &= in_order[1:] == in_order[:-1]
        ordered = rows[order]
        if is_tied.any():
            group = np.cumsum(np.append(True, ~is_tied))
            tied = np.flatnonzero(np.append(is_tied, False) | np.append(False, is_tied))
            by_job = sorted(
                zip(group[tied].tolist(), self.ids[ordered[tied]].tolist(), ordered[tied].tolist(), strict=True)
            )
            ordered[tied] = [row for _, _, row in by_job]
        return ordered


def _doubled(column: NDArray[Any]) -> NDArray[Any]:
    """Return a column with as many rows again."""
    return np.concatenate([column, np.zeros_like(column)])
