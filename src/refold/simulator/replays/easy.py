"""The compiled replay of EASY backfilling with known run times: the same as policy `easy` in the general simulator.

It starts tasks at the same times on the same GPUs, to the bit, and writes what a journal needs (property tests check
both). Jobs are ordered by arrival, and run once, as requested and to completion.

Only the first waiting task has a reservation, and runs end when they are booked to end, or before. So a timetable is
not needed: what is free now stays free until the reserved start, and what is free then, beside the reservation, stays
free after it. Both are kept up to date, and so is what is free at both times: a task that would run beyond the reserved
start takes that. The runs in order of their booked ends are read once: those that end by the reserved start have ended
when the next reservation is made.
"""

from __future__ import annotations

from typing import Literal, get_args

import cython
import numpy as np

from refold.errors import BadInput, UnknownName
from refold.model import WHOLE, Cluster
from refold.model.arrays import view
from refold.placement import (
    CPU_FREE,
    FIRST_GPU,
    GPU_MASK,
    GPUS,
    MEMORY_FREE,
    MILLI_FREE,
    NODE,
    WHOLE_FREE,
    FreeResources,
)
from refold.simulator import RecordedSpeeds
from refold.simulator.replays.columns import ReplayResult, TaskColumns

if not cython.compiled:
    from refold.placement import (
        FreeArrays,
        TaskHeap,
        adjust_free,
        count_instances,
        instances_on_node,
        need_at,
        set_free,
    )
    from refold.simulator.replays.loop import JournalNotes, ReplayLoop
    from refold.simulator.replays.shortest_tasks import ShortestTasks

BackfillOrder = Literal["shortest", "queue"]

PLACEMENTS = ("first-fit", "best-fit", "worst-fit", "tetris")
"""The placement rules without state."""

MIN_WORK_SECONDS = 1.0
"""The minimum of the run time that is planned for a job."""

INFINITE = np.inf


def replay_easy(
    tasks: TaskColumns,
    cluster: Cluster,
    placement: str = "best-fit",
    backfill_order: BackfillOrder = "shortest",
    notes: JournalNotes | None = None,
) -> ReplayResult:
    """Simulate all tasks to completion. `notes` are written for a journal."""
    if placement not in PLACEMENTS:
        raise UnknownName("placement of the compiled EASY replay", placement, PLACEMENTS)
    if set(RecordedSpeeds(cluster).speed_of_node.tolist()) != {1.0}:
        raise BadInput("the compiled EASY replay does not support GPUs of different speed: use the simulator")
    if backfill_order not in get_args(BackfillOrder):
        raise UnknownName("backfill_order", backfill_order, get_args(BackfillOrder))
    loop = EasyLoop(tasks, FreeResources(cluster), placement, notes, backfill_order == "shortest")
    loop.run()
    return loop.result()


class EasyLoop(ReplayLoop):
    """The loop of `easy`. At most one task, `reserved`, has a reservation; -1: there is none.

    `later`: what is free from the reserved start on, beside the reservation; the same as `free` without a reservation.
    `both`: what is free now and later. `booked`: running tasks that are booked beyond the reserved start, by that time;
    tasks that have ended may be left. `ending`: the other ones, which have released their resources in `later`.
    `wakes`: the steps in which wake-ups were set. `queue`: waiting tasks, without the reserved one; no task before
    `first` waits. `free_until`: the time until which a demand fits at most. `freed`: nodes on which resources were
    released in this step.
    """

    def __init__(
        self,
        tasks: TaskColumns,
        free: FreeResources,
        placement: str,
        notes: JournalNotes | None,
        shortest_first: bool,
    ) -> None:
        super().__init__(tasks, free, placement, 0, notes)
        nodes, demands = len(free.cluster.nodes), len(tasks.demands)
        self.shortest_first = shortest_first
        self.later, self.both = free.copy().arrays, free.copy().arrays
        self.booked, self.wakes = TaskHeap(self.count), TaskHeap(2 * self.count)
        self.ending, self.ending_count = view(np.empty(self.count, dtype=np.int64)), 0
        self.queue, self.first = ShortestTasks(tasks.demand_of, demands), 0
        self.free_until = view(np.zeros(demands))
        self.freed, self.freed_count = view(np.empty(nodes, dtype=np.int64)), 0
        self.freed_step = view(np.zeros(nodes, dtype=np.int64))
        self.gpu_free = view(np.empty(max(1, int(free.nodes[:-1, GPUS].max())), dtype=np.int64))
        self.reserved, self.reserved_start = -1, INFINITE

    def run(self) -> None:
        """Repeat until all tasks have ended: advance to the next event, and schedule."""
        while self.advance(self.wakes.first_time()):
            self._wake()
            is_early, first_arrival = self._end_tasks(), self.arrived
            self._add_arrivals()
            if self.waiting > 0:
                if is_early:
                    self._advance_reservation()
                self._start_first_tasks()
                self._raise_bounds()
                self._backfill()
            self._note_fitting(first_arrival)
            self._set_wake()

    # --- events ---------------------------------------------------------------------------------------------

    def _end_tasks(self) -> bool:
        """End the tasks that end now; return whether one of them was booked for longer."""
        is_early, self.freed_count = False, 0
        while (task := self.next_end()) >= 0:
            booked_end = self.started[task] + self._duration(task)
            is_early = is_early or booked_end > self.now
            if self.reserved < 0 or booked_end > self.reserved_start:
                self.tasks.release(self.later, task)
            self._update_both(task)
            self._note_freed(task)
        return is_early

    def _add_arrivals(self) -> None:
        while (task := self.next_arrival()) >= 0:
            demand = self.tasks.demand_of[task]
            if self.queue.number[demand] == 0:
                self.free_until[demand] = INFINITE
            self.queue.add(task, self._duration(task))

    def _duration(self, task: int) -> float:
        """Return the run time for which a task is booked."""
        return max(self.work[task], MIN_WORK_SECONDS)

    # --- resources ------------------------------------------------------------------------------------------

    def _update_both(self, task: int) -> None:
        """Update what is free both now and later on the nodes of a task."""
        for row in range(self.tasks.first_row[task], self.tasks.first_row[task + 1]):
            node = self.tasks.placements[row, NODE]
            first = self.free.nodes[node, FIRST_GPU]
            for gpu in range(self.free.nodes[node, GPUS]):
                self.gpu_free[gpu] = min(self.free.gpus[first + gpu], self.later.gpus[first + gpu])
            cpu = min(self.free.nodes[node, CPU_FREE], self.later.nodes[node, CPU_FREE])
            memory = min(self.free.nodes[node, MEMORY_FREE], self.later.nodes[node, MEMORY_FREE])
            set_free(self.both, node, self.gpu_free, cpu, memory)

    def _note_freed(self, task: int) -> None:
        """Add the nodes of a task to the nodes on which resources were released in this step."""
        for row in range(self.tasks.first_row[task], self.tasks.first_row[task + 1]):
            node = self.tasks.placements[row, NODE]
            if self.freed_step[node] != self.step:
                self.freed_step[node], self.freed[self.freed_count] = self.step, node
                self.freed_count += 1

    def _fits(self, free: FreeArrays, demand: int) -> bool:
        """Return whether all instances of a demand fit."""
        need, totals = need_at(self.tasks.demands, demand), free.nodes.shape[0] - 1
        if free.nodes[totals, MILLI_FREE] < need.instances * need.gpus * need.milli:
            return False
        if need.milli == WHOLE and free.nodes[totals, WHOLE_FREE] < need.instances * need.gpus:
            return False
        return count_instances(free, self.tasks.demands, demand) == need.instances

    # --- starts and the reservation -------------------------------------------------------------------------

    def _start(self, task: int) -> None:
        """Start a task whose resources are taken."""
        self.start(task)
        booked_end = self.now + self._duration(task)
        if self.reserved >= 0 and booked_end <= self.reserved_start:
            self._add_ending(task)
        else:
            self.booked.push(booked_end, task)
        self._update_both(task)

    def _add_ending(self, task: int) -> None:
        self.ending[self.ending_count] = task
        self.ending_count += 1

    def _start_first_tasks(self) -> None:
        """Start the first waiting tasks while they fit; make a reservation for the next one."""
        if self.reserved >= 0:
            if self.reserved_start > self.now:
                return
            self._start_reserved()
        while self.waiting > 0:
            while self.start_step[self.first] >= 0 or not self.fits_empty(self.first):
                self.first += 1
            self.queue.remove(self.first)
            if not self.tasks.place(self.free, self.first):
                self.note_blocked(self.first)
                self._reserve(self.first, self._earliest_start(self.first))
                return
            self.tasks.take(self.later, self.first)
            self._start(self.first)

    def _start_reserved(self) -> None:
        """Start the task that has a reservation: all runs that it was waiting for have ended."""
        task, self.reserved, self.ending_count = self.reserved, -1, 0
        self.tasks.take(self.free, task)
        self._start(task)

    def _earliest_start(self, task: int) -> float:
        """Return when a task that does not fit now can start; what runs release by then is released in `later`."""
        need, start = self.tasks.need(task), INFINITE
        missing = need.instances - count_instances(self.later, self.tasks.demands, self.tasks.demand_of[task])
        while missing > 0 or self.booked.first_time() == start:
            start = self.booked.first_time()
            run = self.booked.pop()
            if self.end_step[run] >= 0:
                continue
            released = self.tasks.need(run)
            for row in range(self.tasks.first_row[run], self.tasks.first_row[run + 1]):
                node, mask = self.tasks.placements[row, NODE], self.tasks.placements[row, GPU_MASK]
                missing += instances_on_node(self.later, node, need)
                adjust_free(self.later, node, mask, released.milli, released.cpu, released.memory)
                missing -= instances_on_node(self.later, node, need)
            self._add_ending(run)
        return start

    def _reserve(self, task: int, start: float) -> None:
        """Reserve resources from `start` on, in `later`."""
        self.tasks.place(self.later, task)
        self.reserved, self.reserved_start = task, start
        self._update_both(task)

    def _advance_reservation(self) -> None:
        """Let the reserved task start earlier, if it can, because a run has ended before its booked end."""
        task = self.reserved
        if task < 0 or self.reserved_start <= self.now:
            return
        self._undo_releases()
        self.tasks.release(self.later, task)
        fits_now = self._fits(self.free, self.tasks.demand_of[task])
        start = self.now if fits_now else self._earliest_start(task)
        if start == self.reserved_start:
            self.tasks.take(self.later, task)
            return
        self.reserved = -1
        self._update_both(task)
        self._note_freed(task)
        self._reserve(task, start)

    def _undo_releases(self) -> None:
        """Take from `later` what running tasks will have released by the reserved start."""
        for place in range(self.ending_count):
            task = self.ending[place]
            if self.end_step[task] < 0:
                self.tasks.take(self.later, task)
                self.booked.push(self.started[task] + self._duration(task), task)
        self.ending_count = 0

    # --- backfill -------------------------------------------------------------------------------------------

    def _raise_bounds(self) -> None:
        """Raise `free_until` of demands that may fit because resources were released in this step."""
        if self.freed_count == 0:
            return
        free_milli = self.free.nodes[self.free.nodes.shape[0] - 1, MILLI_FREE]
        for demand in range(self.free_until.shape[0]):
            if self.queue.number[demand] == 0 or self.free_until[demand] == INFINITE:
                continue
            need = need_at(self.tasks.demands, demand)
            if need.instances * need.gpus * need.milli > free_milli:
                continue
            if need.instances > 1:
                self.free_until[demand] = INFINITE  # other nodes matter as well
            else:
                self.free_until[demand] = max(self.free_until[demand], self.now + self._longest_on_freed(demand))

    def _longest_on_freed(self, demand: int) -> float:
        """Return for how long one instance of a demand fits on a node with released resources."""
        need, longest = need_at(self.tasks.demands, demand), 0.0
        for place in range(self.freed_count):
            node = self.freed[place]
            if instances_on_node(self.both, node, need) > 0:
                return INFINITE
            if instances_on_node(self.free, node, need) > 0:
                longest = self.reserved_start - self.now
        return longest

    def _longest(self, demand: int) -> float:
        """Return for how long all instances of a demand fit."""
        if self._fits(self.both, demand):
            return INFINITE
        return self.reserved_start - self.now if self._fits(self.free, demand) else 0.0

    def _backfill(self) -> None:
        """Start tasks that fit for as long as they run, without delaying the reserved one."""
        while (task := self._candidate()) >= 0:
            demand = self.tasks.demand_of[task]
            longest = self._longest(demand)
            self.free_until[demand] = self.now + longest
            if self._duration(task) <= longest and not self._start_in_gap(task):
                self.free_until[demand] = 0.0

    def _candidate(self) -> int:
        """Return the next task to backfill, of those that end while their demand may fit: the shortest or the first."""
        best, best_duration = -1, INFINITE
        for demand in range(self.free_until.shape[0]):
            longest, shortest = self.free_until[demand] - self.now, self.queue.shortest(demand)
            if self.queue.number[demand] == 0 or shortest > longest:
                continue
            if not self.shortest_first:
                task = self.queue.first(demand, longest)
                if best < 0 or task < best:
                    best = task
            elif best < 0 or shortest <= best_duration:
                task = self.queue.first(demand, shortest)
                if best < 0 or shortest < best_duration or task < best:
                    best, best_duration = task, shortest
        return best

    def _start_in_gap(self, task: int) -> bool:
        """Start a task beside the reservation; False if it does not fit, which rounding may cause."""
        if self.now + self._duration(task) > self.reserved_start:
            if not self.tasks.place(self.both, task):
                return False
            self.tasks.take(self.free, task)
            self.tasks.take(self.later, task)
        elif not self.tasks.place(self.free, task):
            return False
        self.queue.remove(task)
        self._start(task)
        return True

    # --- wake-ups and notes ---------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Remove the wake-up of this step, and note in which step it was set."""
        if self.wakes.size > 0 and self.wakes.first_time() == self.now:
            step = self.wakes.pop()
            if self.notes is not None:
                self.notes.wake_set[self.step] = step

    def _set_wake(self) -> None:
        """Set a wake-up at the reserved start, unless there is one."""
        if self.reserved < 0:
            return
        if self.notes is not None:
            self.notes.wake_at[self.step] = self.reserved_start
        for place in range(self.wakes.size):
            if self.wakes.times[place] == self.reserved_start:
                return
        self.wakes.push(self.reserved_start, self.step)

    def _note_fitting(self, first_arrival: int) -> None:
        """Note which of the tasks that arrived in this step may have fitted for a shorter time."""
        if self.notes is None:
            return
        for task in range(first_arrival, self.arrived):
            demand = self.tasks.demand_of[task]
            is_open = self.queue.number[demand] > 0 and self.free_until[demand] > self.now
            self.notes.may_fit[task] = is_open and self.start_step[task] < 0
