"""The tasks of a replay, its results, and the arrays that its loop reads and writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from refold.errors import BadInput
from refold.jit import inlined
from refold.model import Demand, Job, Placement, Share
from refold.packing import NODE, Floats, FreeResources, Ints, indices_from_mask


class TaskColumns(NamedTuple):
    """Jobs as columns, sorted by submission: submission time, run time, and index into `demands`."""

    submitted: Floats
    work: Floats
    demand_of: Ints
    demands: tuple[Demand, ...]


class ReplayedRuns(NamedTuple):
    """The runs of all tasks, in the order of starts, with the same meaning as the columns of a history.

    `placements` has one row of (node, GPU mask) per instance; the rows of a run begin at `first_row`.
    """

    tasks: TaskColumns
    task: Ints
    number: Ints
    start: Floats
    computing_since: Floats
    stop_ordered: Floats
    end: Floats
    saved_before: Floats
    saved: Floats
    start_step: Ints
    end_step: Ints
    first_row: Ints
    placements: Ints

    def placement(self, run: int) -> Placement:
        """Return the placement of a run."""
        demand = self.tasks.demands[self.tasks.demand_of[self.task[run]]]
        return read_placement(demand, self.placements, int(self.first_row[run]))


class ReplayResult(NamedTuple):
    """The start, end and placement of each task; NaN if it never started.

    `placements` has one row of (node, GPU mask) per instance; the rows of a task begin at `first_row`. `start_number`:
    which start it was of all tasks, from 0. `start_step` and `end_step`: the steps of the loop in which it started and
    ended, from 1. They are -1 if it never started.
    """

    tasks: TaskColumns
    started: Floats
    ended: Floats
    first_row: Ints
    placements: Ints
    start_number: Ints
    start_step: Ints
    end_step: Ints

    def runs(self) -> ReplayedRuns:
        """Return the runs, one per task that was started."""
        ran = np.flatnonzero(self.start_number >= 0)
        task = ran[np.argsort(self.start_number[ran])]
        start, not_stopped, no_work = self.started[task], np.full(len(task), np.nan), np.zeros(len(task))
        return ReplayedRuns(
            self.tasks,
            task,
            np.ones(len(task), dtype=np.int64),
            start,
            start,
            not_stopped,
            self.ended[task],
            no_work,
            not_stopped,
            self.start_step[task],
            self.end_step[task],
            self.first_row[task],
            self.placements,
        )

    def placement(self, task: int) -> Placement:
        """Return the placement of a task; empty if it never started."""
        if np.isnan(self.started[task]):
            return ()
        demand = self.tasks.demands[self.tasks.demand_of[task]]
        return read_placement(demand, self.placements, int(self.first_row[task]))


def read_placement(demand: Demand, placements: Ints, first: int) -> Placement:
    """Return the placement of a demand, from its rows of (node, GPU mask)."""
    return tuple(
        Share(node, indices_from_mask(mask), demand.gpu_milli, demand.cpu_milli, demand.memory_mib)
        for node, mask in placements[first : first + demand.instances].tolist()
    )


def task_columns(jobs: Iterable[Job]) -> TaskColumns:
    """Convert jobs to columns. Demands are numbered in the order of their first occurrence."""
    ordered = sorted(jobs, key=lambda job: job.submitted)
    demand_numbers: dict[Demand, int] = {}
    without_work = next((job for job in ordered if job.work is None), None)
    if without_work is not None:
        raise BadInput(f"job {without_work.id!r} has no duration, so it cannot be replayed")
    return TaskColumns(
        np.array([job.submitted for job in ordered], dtype=np.float64),
        np.array([job.work for job in ordered], dtype=np.float64),
        np.array([demand_numbers.setdefault(job.demand, len(demand_numbers)) for job in ordered], dtype=np.int64),
        tuple(demand_numbers),
    )


def id_positions(jobs: Sequence[Job]) -> Ints:
    """Return the position of each job when they are sorted by id."""
    positions = np.empty(len(jobs), dtype=np.int64)
    positions[sorted(range(len(jobs)), key=lambda number: jobs[number].id)] = np.arange(len(jobs))
    return positions


class ReplayArrays(NamedTuple):
    """The arrays that a compiled replay reads and writes."""

    submitted: Floats
    work: Floats
    demand_of: Ints
    demand_rows: Ints
    fits_empty: Ints
    first_row: Ints
    placements: Ints
    started: Floats
    ended: Floats
    start_number: Ints
    start_step: Ints
    end_step: Ints

    @staticmethod
    def allocate(tasks: TaskColumns, free: FreeResources) -> ReplayArrays:
        """Return the arrays for an empty cluster, without results."""
        demand_rows = free.rows(tasks.demands)
        fits_empty = np.array([free.fits_when_empty(demand) for demand in tasks.demands], dtype=np.int64)
        instances = (
            demand_rows[tasks.demand_of, 0] * fits_empty[tasks.demand_of] if len(tasks.demand_of) else tasks.demand_of
        )
        first_row = np.zeros(len(instances) + 1, dtype=np.int64)
        np.cumsum(instances, out=first_row[1:])
        placements = np.zeros((int(first_row[-1]), 2), dtype=np.int64)
        started, ended = (np.full(len(instances), np.nan) for _ in range(2))
        steps = (np.full(len(instances), -1, dtype=np.int64) for _ in range(3))
        return ReplayArrays(*tasks[:3], demand_rows, fits_empty, first_row, placements, started, ended, *steps)

    def result(self, tasks: TaskColumns) -> ReplayResult:
        """Return what the replay has written."""
        steps = self.start_number, self.start_step, self.end_step
        return ReplayResult(tasks, self.started, self.ended, self.first_row, self.placements, *steps)


@inlined
def gang_speed(has_gpus: bool, speed_of_node: Floats, placements: Ints, first: int, end: int) -> float:
    """Return the speed of the slowest node in these rows of placements; 1 for tasks without GPUs."""
    slowest = np.inf if has_gpus else 1.0
    for row in range(first, end if has_gpus else first):
        slowest = min(slowest, speed_of_node[placements[row, NODE]])
    return slowest
