"""The compiled replay of FIFO policies: simulates a whole trace in one compiled loop, a million tasks in seconds.

For jobs that run once, as requested and to completion, in the order of arrival, it does the same as the general
simulator: it uses the same placement kernels and processes simultaneous events together, and the results are
bit-identical (a property test checks this). It supports neither stops nor node failures.
"""

from __future__ import annotations

from typing import Literal

import cython
import numpy as np

from refold.errors import BadInput, BadValue, UnknownName
from refold.model import Cluster
from refold.model.arrays import view
from refold.placement import GENETIC, LEARNING_RULES, RULES, FreeResources, update_typical_demands, update_worth
from refold.simulator.replays.columns import ReplayResult, TaskColumns

if not cython.compiled:
    from refold.placement import is_update_due
    from refold.simulator.replays.loop import JournalNotes, ReplayLoop

FifoOrder = Literal["fifo", "fifo-skip"]
INFINITE = np.inf


def replay_fifo(
    tasks: TaskColumns,
    cluster: Cluster,
    placement: str = "best-fit",
    order: FifoOrder = "fifo",
    seed: int = 0,
    notes: JournalNotes | None = None,
) -> ReplayResult:
    """Simulate all tasks to completion. `order`: `fifo` is strict; `fifo-skip` skips tasks that do not fit.

    `notes` are written for a journal.
    """
    if placement not in RULES:
        raise UnknownName("placement", placement, RULES)
    if placement in GENETIC:
        raise BadInput(f"the compiled replay does not support placement {placement}, which places jobs in batches")
    if order not in ("fifo", "fifo-skip"):
        raise UnknownName("order of the compiled replay", order, ("fifo", "fifo-skip"))
    if np.any(np.diff(tasks.submitted) < 0):
        raise BadValue("the tasks of a replay are not in order, expected them sorted by submission")
    loop = FifoLoop(tasks, FreeResources(cluster), placement, seed, notes, order == "fifo")
    loop.run()
    return loop.result()


class FifoLoop(ReplayLoop):
    """The loop of `fifo` (strict) and `fifo-skip`.

    `head`: no task before it waits, in strict order. `head_of`: the first task of each demand that has not started.
    `next_task`: the next task with the same demand. A demand that does not fit in a step (`blocked_step`) is tried
    again after a later step in which tasks have ended (`last_end_step`).
    """

    def __init__(
        self,
        tasks: TaskColumns,
        free: FreeResources,
        placement: str,
        seed: int,
        notes: JournalNotes | None,
        strict: bool,
    ) -> None:
        super().__init__(tasks, free, placement, seed, notes)
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

    def run(self) -> None:
        """Repeat until all tasks have ended: advance to the next event, and start tasks in the order of arrival."""
        while self.advance(INFINITE):
            while self.next_end() >= 0:
                self.last_end_step = self.step
            while (task := self.next_arrival()) >= 0:
                if self.learns:
                    self._learn(self.tasks.demand_of[task])
            self._start_tasks()

    def _learn(self, demand: int) -> None:
        """Count a demand, for rules that learn from submitted jobs."""
        self.demand_counts[demand] += 1
        self.demands_seen = max(self.demands_seen, demand + 1)
        self.tasks_seen += 1
        if is_update_due(self.tasks_seen):
            self.update(self.tasks.demands, self.demand_counts, self.demands_seen, self.tasks.rule.history)
            self.tasks.rule.cache.clear()

    def _start_tasks(self) -> None:
        """Start tasks until none can be started."""
        while self.waiting > 0:
            task = self._first_task() if self.strict else self._first_candidate()
            if task >= self.arrived:
                return
            if self.tasks.place(self.free, task):
                self.start(task)
                self.head += 1
                self.head_of[self.tasks.demand_of[task]] = self.next_task[task]
            else:
                self.blocked_step[self.tasks.demand_of[task]] = self.step
                self.note_blocked(task)

    def _first_task(self) -> int:
        """Return the first waiting task if it may fit now, else the number of all tasks."""
        while not self.fits_empty(self.head):
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
