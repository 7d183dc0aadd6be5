"""The tasks of a replay, and its result."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from refold.errors import BadInput
from refold.model import Demand, Job, Placement, Share
from refold.placement import Floats, Ints, indices_from_mask


class TaskColumns(NamedTuple):
    """Jobs as columns, sorted by submission: submission time, run time, and index into `demands`."""

    submitted: Floats
    work: Floats
    demand_of: Ints
    demands: tuple[Demand, ...]


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

    def start_order(self) -> Ints:
        """Return the tasks that were started, in this order."""
        ran = np.flatnonzero(self.start_number >= 0)
        return ran[np.argsort(self.start_number[ran])]

    def placement(self, task: int) -> Placement:
        """Return the placement of a task; empty if it never started."""
        demand = self.tasks.demands[self.tasks.demand_of[task]]
        rows = self.placements[self.first_row[task] : self.first_row[task + 1]].tolist()
        return tuple(
            Share(node, indices_from_mask(mask), demand.gpu_milli, demand.cpu_milli, demand.memory_mib)
            for node, mask in rows
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
