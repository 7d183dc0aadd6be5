"""The compiled replay of FIFO policies: simulates a whole trace in one compiled loop, a million tasks in seconds.

For jobs that run once, as requested and to completion, in the order of arrival, it does the same as the general
simulator: it uses the same placement kernels and processes simultaneous events together, and the results are
bit-identical (a property test checks this). It supports neither stops nor node failures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import cython
import numpy as np

from refold.errors import BadInput, BadValue, UnknownName
from refold.model import WHOLE, Cluster, Demand
from refold.model.arrays import view
from refold.placement import (
    GENETIC,
    GPU_MASK,
    LEARNING_RULES,
    NODE,
    RULES,
    FreeResources,
    Ints,
    empty_demand_history,
    update_typical_demands,
    update_worth,
)
from refold.placement.demand_history import empty_score_cache
from refold.simulator import RecordedSpeeds
from refold.simulator.replays.columns import ReplayResult, TaskColumns

if not cython.compiled:
    from refold.placement import Need, TaskHeap, is_update_due
    from refold.placement.kernels import FreeArrays, adjust_free, need_at
    from refold.placement.rules import GreedyRule, place_instances

FifoOrder = Literal["fifo", "fifo-skip"]
INFINITE = np.inf


def replay_fifo(
    tasks: TaskColumns,
    cluster: Cluster,
    placement: str = "best-fit",
    order: FifoOrder = "fifo",
    seed: int = 0,
) -> ReplayResult:
    """Simulate all tasks to completion. `order`: `fifo` is strict; `fifo-skip` skips tasks that do not fit."""
    if placement not in RULES:
        raise UnknownName("placement", placement, RULES)
    if placement in GENETIC:
        raise BadInput(f"the compiled replay does not support placement {placement}, which places jobs in batches")
    if order not in ("fifo", "fifo-skip"):
        raise UnknownName("order of the compiled replay", order, ("fifo", "fifo-skip"))
    if np.any(np.diff(tasks.submitted) < 0):
        raise BadValue("the tasks of a replay are not in order, expected them sorted by submission")
    loop = FifoLoop(tasks, FreeResources(cluster), placement, seed, order == "fifo")
    loop.run()
    return loop.result()


class FifoLoop:
    """The loop of `fifo` (strict) and `fifo-skip`: `now`, what is free, the running tasks by their ends, and all tasks.

    There is a step whenever tasks arrive or end. `arrived`, `waiting` and `starts` count tasks.
    `head`: no task before it waits, in strict order. `head_of`: the first task of each demand that has not started.
    `next_task`: the next task with the same demand. A demand that does not fit in a step (`blocked_step`) is tried
    again after a later step in which tasks have ended (`last_end_step`).
    """

    def __init__(self, tasks: TaskColumns, free: FreeResources, placement: str, seed: int, strict: bool) -> None:
        count = len(tasks.work)
        self.columns, self.submitted, self.work = tasks, view(tasks.submitted), view(tasks.work)
        self.times, self.numbers = np.full((2, count), np.nan), np.full((3, count), -1, dtype=np.int64)
        self.started, self.ended = map(view, self.times)
        self.start_number, self.start_step, self.end_step = map(view, self.numbers)
        self.tasks = PlacedTasks(free, tasks.demands, tasks.demand_of, placement, seed)
        self.speed_of_node = view(RecordedSpeeds(free.cluster).speed_of_node)
        self.free, self.ends, self.count = free.copy().arrays, TaskHeap(count), count
        self.step = self.arrived = self.waiting = self.starts = 0
        self.now = 0.0
        self.strict, self.learns = strict, RULES[placement][0] in LEARNING_RULES
        self.update = update_typical_demands if placement == "fgd" else update_worth
        self.head = self.last_end_step = self.tasks_seen = self.demands_seen = 0
        self.head_of = view(np.full(len(tasks.demands), self.count))
        self.next_task = view(np.empty(self.count, dtype=np.int64))
        self.blocked_step = view(np.full(len(tasks.demands), -1))
        self.demand_counts = view(np.zeros(len(tasks.demands), dtype=np.int64))
        self._link_equal_demands()

    def _link_equal_demands(self) -> None:
        for task in range(self.count - 1, -1, -1):
            demand = self.tasks.demand_of[task]
            self.next_task[task], self.head_of[demand] = self.head_of[demand], task

    def result(self) -> ReplayResult:
        (started, ended), (first_row, placements) = self.times, self.tasks.arrays
        return ReplayResult(self.columns, started, ended, first_row, placements, *self.numbers)

    def run(self) -> None:
        """Repeat until all tasks have ended: advance to the next event, and start tasks in the order of arrival."""
        while self._advance():
            while self._next_end() >= 0:
                self.last_end_step = self.step
            while (task := self._next_arrival()) >= 0:
                if self.learns:
                    self._learn(self.tasks.demand_of[task])
            self._start_tasks()

    def _advance(self) -> bool:
        """Begin the step of the next arrival or end; False if all tasks have ended."""
        if self.arrived == self.count and self.ends.size == 0:
            return False
        arrival = self.submitted[self.arrived] if self.arrived < self.count else INFINITE
        self.now = min(arrival, self.ends.first_time())
        self.step += 1
        return True

    def _next_end(self) -> int:
        """End the next of the tasks that end now, and release its resources; -1 if there are no more."""
        if self.ends.first_time() != self.now or self.ends.size == 0:
            return -1
        task = self.ends.pop()
        self.end_step[task] = self.step
        self.tasks.release(self.free, task)
        return task

    def _next_arrival(self) -> int:
        """Return the next of the tasks that arrive now and fit the empty cluster; -1 if there are no more."""
        while self.arrived < self.count and self.submitted[self.arrived] == self.now:
            task = self.arrived
            self.arrived += 1
            if self._fits_empty(task):
                self.waiting += 1
                return task
        return -1

    def _fits_empty(self, task: int) -> bool:
        return self.tasks.fits_empty[self.tasks.demand_of[task]]

    def _start(self, task: int) -> None:
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

    def _learn(self, demand: int) -> None:
        """Count a demand, for rules that learn from submitted jobs."""
        self.demand_counts[demand] += 1
        self.demands_seen = max(self.demands_seen, demand + 1)
        self.tasks_seen += 1
        if is_update_due(self.tasks_seen):
            self.update(self.tasks.demands, self.demand_counts, self.demands_seen, self.tasks.rule.history)
            self.tasks.rule.cache.clear()

    def _start_tasks(self) -> None:
        while self.waiting > 0:
            task = self._first_task() if self.strict else self._first_candidate()
            if task >= self.arrived:
                return
            if self.tasks.place(self.free, task):
                self._start(task)
                self.head += 1
                self.head_of[self.tasks.demand_of[task]] = self.next_task[task]
            else:
                self.blocked_step[self.tasks.demand_of[task]] = self.step

    def _first_task(self) -> int:
        """Return the first waiting task if it may fit now, else the number of all tasks."""
        while not self._fits_empty(self.head):
            self.head += 1
        return self.head if self._may_fit(self.tasks.demand_of[self.head]) else self.count

    def _first_candidate(self) -> int:
        """Return the first waiting task that may fit now, or the number of all tasks."""
        first = self.count
        for demand in range(self.head_of.shape[0]):
            if self.tasks.fits_empty[demand] and self.head_of[demand] < first and self._may_fit(demand):
                first = self.head_of[demand]
        return first

    def _may_fit(self, demand: int) -> bool:
        """Whether tasks have ended since a demand did not fit."""
        return self.blocked_step[demand] < self.last_end_step


class PlacedTasks:
    """The demand and the placement of each task, by one placement rule.

    `fits_empty`: whether a demand fits the empty cluster. `placements` has one row of (node, GPU mask) per instance of
    tasks that do; the rows of a task begin at `first_row`.
    """

    def __init__(
        self, free: FreeResources, demands: Sequence[Demand], demand_of: Ints, rule: str = "best-fit", seed: int = 0
    ) -> None:
        rows, fits_empty = free.rows(demands), np.array([free.fits_when_empty(demand) for demand in demands], np.uint8)
        first_row = np.zeros(len(demand_of) + 1, dtype=np.int64)
        np.cumsum((rows[:, 0] * fits_empty)[demand_of], out=first_row[1:])
        placements = np.zeros((int(first_row[len(demand_of)]), 2), dtype=np.int64)
        self.arrays = (first_row, placements)
        self.demands, self.demand_of, self.fits_empty = view(rows), view(demand_of), view(fits_empty)
        self.first_row, self.placements = view(first_row), view(placements)
        number = RULES[rule][0]
        cached = len(demands) if number in LEARNING_RULES else 0
        cache = empty_score_cache(cached, len(free.cluster.nodes))
        self.rule = GreedyRule(number, seed, empty_demand_history(), cache)
        self.rule.make_room(int(rows[:, 0].max(initial=0)))

    def need(self, task: int) -> Need:
        return need_at(self.demands, self.demand_of[task])

    def place(self, free: FreeArrays, task: int) -> bool:
        """Take resources for all instances of a task; if they do not all fit, take nothing and return False."""
        if not place_instances(self.rule, free, self.need(task), self.demand_of[task]):
            return False
        first = self.first_row[task]
        for row in range(first, self.first_row[task + 1]):
            self.placements[row, NODE] = self.rule.placements[row - first, NODE]
            self.placements[row, GPU_MASK] = self.rule.placements[row - first, GPU_MASK]
        return True

    def take(self, free: FreeArrays, task: int) -> None:
        """Take the placement of a task, without checks."""
        self._change(free, task, -1)

    def release(self, free: FreeArrays, task: int) -> None:
        self._change(free, task, 1)

    def _change(self, free: FreeArrays, task: int, sign: int) -> None:
        """Add or subtract the resources of a task. Instances with whole GPUs on the same node are changed together."""
        need, row, end = self.need(task), self.first_row[task], self.first_row[task + 1]
        while row < end:
            node, mask, count = self.placements[row, NODE], self.placements[row, GPU_MASK], sign
            row += 1
            while need.milli == WHOLE and row < end and self.placements[row, NODE] == node:
                mask |= self.placements[row, GPU_MASK]
                count += sign
                row += 1
            adjust_free(free, node, mask, sign * need.milli, count * need.cpu, count * need.memory)
