"""What the compiled loops of all policies share: tasks that arrive, start and end, and the notes for a journal."""

from __future__ import annotations

import cython
import numpy as np

from refold.model.arrays import view
from refold.placement import INSTANCES_THAT_FIT, NODE, FreeResources
from refold.simulator import RecordedSpeeds
from refold.simulator.replays.columns import ReplayResult, TaskColumns

if not cython.compiled:
    from refold.placement import PlacedTasks, TaskHeap, write_shortages

INFINITE = np.inf


class JournalNotes:
    """What a journal needs besides the result.

    By task: the step in which it arrives; the step in which it is first found not to fit, what the nodes lack then, and
    which of these notes it is (-1: none); whether its demand may have fitted when it arrived. By step, from 1: its
    time; the reserved start after it (NaN: there is none); the step in which the wake-up was set that happens in this
    step (0: there is none).
    """

    def __init__(self, tasks: int) -> None:
        steps = 4 * tasks + 1  # every task arrives, ends, and may have a reservation that moves when another one ends
        self.arrival_step, self.blocked_step, self.blocked_number = map(view, np.full((3, tasks), -1, dtype=np.int64))
        self.shortages = view(np.zeros((tasks, INSTANCES_THAT_FIT + 1), dtype=np.int64))
        self.may_fit = view(np.zeros(tasks, dtype=np.uint8))
        self.times, self.wake_at = map(view, np.full((2, steps), np.nan))
        self.wake_set = view(np.zeros(steps, dtype=np.int64))


class ReplayLoop:
    """The state of a replay: `now`, what is free, the running tasks by their ends, and what happened to each task.

    There is a step whenever tasks arrive or end. `arrived`, `waiting` and `starts` count tasks.
    """

    def __init__(
        self, tasks: TaskColumns, free: FreeResources, placement: str, seed: int, notes: JournalNotes | None
    ) -> None:
        count = len(tasks.work)
        self.columns, self.submitted, self.work = tasks, view(tasks.submitted), view(tasks.work)
        self.times, self.numbers = np.full((2, count), np.nan), np.full((3, count), -1, dtype=np.int64)
        self.started, self.ended = map(view, self.times)
        self.start_number, self.start_step, self.end_step = map(view, self.numbers)
        self.tasks = PlacedTasks(free, tasks.demands, tasks.demand_of, placement, seed)
        self.speed_of_node = view(RecordedSpeeds(free.cluster).speed_of_node)
        self.free, self.ends, self.notes = free.copy().arrays, TaskHeap(count), notes
        self.count = count
        self.step = self.arrived = self.waiting = self.starts = self.noted = 0
        self.now = 0.0

    def result(self) -> ReplayResult:
        """Return what has happened."""
        (started, ended), (first_row, placements) = self.times, self.tasks.arrays
        return ReplayResult(self.columns, started, ended, first_row, placements, *self.numbers)

    def advance(self, wake: float) -> bool:
        """Begin the step of the next arrival, end or wake-up; False if all tasks have ended."""
        if self.arrived == self.count and self.ends.size == 0:
            return False
        arrival = self.submitted[self.arrived] if self.arrived < self.count else INFINITE
        self.now = min(arrival, self.ends.first_time(), wake)
        self.step += 1
        if self.notes is not None:
            self.notes.times[self.step] = self.now
        return True

    def next_end(self) -> int:
        """End the next of the tasks that end now, and release its resources; -1 if there are no more."""
        if self.ends.first_time() != self.now or self.ends.size == 0:
            return -1
        task = self.ends.pop()
        self.end_step[task] = self.step
        self.tasks.release(self.free, task)
        return task

    def next_arrival(self) -> int:
        """Return the next of the tasks that arrive now and fit the empty cluster; -1 if there are no more."""
        while self.arrived < self.count and self.submitted[self.arrived] == self.now:
            task = self.arrived
            self.arrived += 1
            if self.notes is not None:
                self.notes.arrival_step[task] = self.step
            if self.fits_empty(task):
                self.waiting += 1
                return task
        return -1

    def fits_empty(self, task: int) -> bool:
        """Whether a task fits the empty cluster."""
        return self.tasks.fits_empty[self.tasks.demand_of[task]]

    def start(self, task: int) -> None:
        """Start a task whose resources are taken."""
        self.started[task], self.ended[task] = self.now, self.now + self.work[task] / self._speed(task)
        self.start_step[task], self.start_number[task] = self.step, self.starts
        self.starts += 1
        self.waiting -= 1
        self.ends.push(self.ended[task], task)

    def _speed(self, task: int) -> float:
        """Return the speed of the slowest node of a task; 1 for tasks without GPUs."""
        if self.tasks.need(task).gpus == 0:
            return 1.0
        slowest = INFINITE
        for row in range(self.tasks.first_row[task], self.tasks.first_row[task + 1]):
            slowest = min(slowest, self.speed_of_node[self.tasks.placements[row, NODE]])
        return slowest

    def note_blocked(self, task: int) -> None:
        """Note that a task does not fit, and what the nodes lack, when this is found for the first time."""
        if self.notes is not None and self.notes.blocked_number[task] < 0:
            self.notes.blocked_step[task], self.notes.blocked_number[task] = self.step, self.noted
            write_shortages(self.free, self.tasks.need(task), self.notes.shortages, task)
            self.noted += 1
