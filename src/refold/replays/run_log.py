"""The runs of a compiled replay in which tasks may be preempted, in the order of starts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from refold.jit import compiled, compiled_without_references
from refold.packing import Floats, Ints
from refold.replays.columns import ReplayedRuns, TaskColumns

# Columns of `numbers`: the task, which run of it (from 1), the steps of its start and end, its first placement row.
TASK, NUMBER, START_STEP, END_STEP, FIRST_ROW = range(5)

# Columns of `times`, as in the columns of a history.
START, COMPUTING_SINCE, STOP_ORDERED, END, SAVED_BEFORE, SAVED = range(6)

RUNS, ROWS = range(2)


class RunLog(NamedTuple):
    """One row of `numbers` and `times` per run, one row of `placements` per instance; `used`: how many of each."""

    numbers: Ints
    times: Floats
    placements: Ints
    used: Ints

    @staticmethod
    def allocate(runs: int, rows: int) -> RunLog:
        """Return an empty log with room for so many runs and rows."""
        return RunLog(
            np.empty((runs, FIRST_ROW + 1), dtype=np.int64),
            np.empty((runs, SAVED + 1)),
            np.empty((rows, 2), dtype=np.int64),
            np.zeros(2, dtype=np.int64),
        )

    def result(self, tasks: TaskColumns) -> ReplayedRuns:
        """Return the runs on record."""
        runs = int(self.used[RUNS])
        numbers, times = self.numbers[:runs].T.copy(), self.times[:runs].T.copy()
        return ReplayedRuns(
            tasks,
            task=numbers[TASK],
            number=numbers[NUMBER],
            start=times[START],
            computing_since=times[COMPUTING_SINCE],
            stop_ordered=times[STOP_ORDERED],
            end=times[END],
            saved_before=times[SAVED_BEFORE],
            saved=times[SAVED],
            start_step=numbers[START_STEP],
            end_step=numbers[END_STEP],
            first_row=numbers[FIRST_ROW],
            placements=self.placements,
        )


@compiled
def with_room(log: RunLog, runs: int, rows: int) -> RunLog:
    """Return the log with room for so many more runs and rows: a larger copy, if it has not."""
    numbers, times, placements, used = log
    needed = used[RUNS] + runs
    if needed > numbers.shape[0]:
        numbers, times = (
            np.empty((2 * needed, numbers.shape[1]), dtype=np.int64),
            np.empty((2 * needed, times.shape[1])),
        )
        for run in range(used[RUNS]):
            for column in range(numbers.shape[1]):
                numbers[run, column] = log.numbers[run, column]
            for column in range(times.shape[1]):
                times[run, column] = log.times[run, column]
    needed = used[ROWS] + rows
    if needed > placements.shape[0]:
        placements = np.empty((2 * needed, 2), dtype=np.int64)
        for row in range(used[ROWS]):
            placements[row, 0], placements[row, 1] = log.placements[row, 0], log.placements[row, 1]
    return RunLog(numbers, times, placements, used)


@compiled_without_references
def log_stop(log: RunLog, run: int, now: float, saved: float, delay: float) -> None:
    """Record that a run is ordered to stop, and the work it has saved. `delay`: the time that it takes to start.

    It has never computed if it is still starting, or is stopped when it starts.
    """
    log.times[run, STOP_ORDERED], log.times[run, SAVED] = now, saved
    is_starting = log.times[run, COMPUTING_SINCE] > now
    if is_starting or (delay == 0.0 and not saved > log.times[run, SAVED_BEFORE]):
        log.times[run, COMPUTING_SINCE] = np.nan


@compiled_without_references
def log_start(
    log: RunLog, task: int, number: int, step: int, now: float, computing_since: float, saved: float, rows: Ints
) -> int:
    """Record the start of a run on these placement rows; return its index."""
    run, first = log.used[RUNS], log.used[ROWS]
    log.numbers[run, TASK], log.numbers[run, NUMBER] = task, number
    log.numbers[run, START_STEP], log.numbers[run, END_STEP] = step, -1
    log.numbers[run, FIRST_ROW] = first
    log.times[run, START], log.times[run, COMPUTING_SINCE] = now, computing_since
    log.times[run, STOP_ORDERED], log.times[run, END] = np.nan, np.nan
    log.times[run, SAVED_BEFORE], log.times[run, SAVED] = saved, np.nan
    for row in range(rows.shape[0]):
        log.placements[first + row, 0], log.placements[first + row, 1] = rows[row, 0], rows[row, 1]
    log.used[RUNS] += 1
    log.used[ROWS] += rows.shape[0]
    return int(run)
