"""The compiled forecast: when the jobs of a queue start, from the present state of a cluster, in several futures.

For policies that start jobs in the order of a queue it does the same as the general simulator (property tests check
this), in milliseconds instead of seconds: no policy is called. Run times that are not known are infinite; a job that
can start only after such a run has no start time.
"""

from __future__ import annotations

from collections.abc import Sequence

import cython
import numpy as np

from refold.model import Demand, Placement, Seconds
from refold.model.arrays import view
from refold.placement import MILLI_FREE, Floats, FreeResources, mask_from_indices
from refold.policies import QueueOrder

if not cython.compiled:
    from refold.placement import FreeArrays, PlacedTasks, TaskHeap, adjust_free

BACKFILL_DEPTH = 100
"""Number of jobs behind the first one that are considered when jobs may overtake it."""

INFINITE = np.inf
NODE, MASK, MILLI, CPU, MEMORY = range(5)  # columns of shares


class QueueForecast:
    """The present state of a cluster, and a queue of jobs in the order in which a policy starts them."""

    def __init__(self, free: FreeResources, runs: Sequence[Placement], demands: Sequence[Demand]) -> None:
        """`free`: what the runs leave. `runs`: what each of them holds. `demands`: of the waiting jobs, in order."""
        shares = [
            (share.node, mask_from_indices(share.gpus), share.gpu_milli, share.cpu_milli, share.memory_mib)
            for placement in runs
            for share in placement
        ]
        numbers: dict[Demand, int] = {}
        demand_of = np.array([numbers.setdefault(demand, len(numbers)) for demand in demands], dtype=np.int64)
        self.free, self.jobs = free, PlacedTasks(free, list(numbers), demand_of)
        self.shares = view(np.array(shares, dtype=np.int64).reshape(-1, 5))
        self.first_share = view(np.cumsum([0, *map(len, runs)], dtype=np.int64))

    def starts(self, order: QueueOrder, now: Seconds, ends: Floats, durations: Floats) -> Floats:
        """Return the start of each job (columns) in each future (rows); infinite where it is not known.

        `ends` are the ends of the runs and `durations` the run times of the jobs in each future, infinite if unknown.
        """
        starts = np.full(durations.shape, np.inf)
        for future, started in enumerate(starts):
            _Future(self, now, ends[future], durations[future], started).run(order != "fifo", order == "easy")
        return starts


class _Future:
    """The queue in one future. Tasks are the runs, then the jobs of the queue.

    `head`: the first job that waits. `reserved_start`: when the job `reserved` can start. `blocked_step`: the last step
    in which a demand was found not to fit.
    """

    def __init__(self, queue: QueueForecast, now: Seconds, ends: Floats, durations: Floats, started: Floats) -> None:
        self.queue, self.now = queue, now
        self.free = self.queue.free.copy().arrays
        self.durations, self.started = view(np.ascontiguousarray(durations)), view(started)
        self.runs, self.count = len(ends), len(durations)
        self.ends = TaskHeap(self.runs + self.count)
        for run, end in enumerate(ends.tolist()):
            if end < np.inf:
                self.ends.push(end, run)
        self.blocked_step = view(np.zeros(self.count, dtype=np.int64))
        self.step, self.head, self.reserved, self.reserved_start = 1, 0, -1, INFINITE

    def run(self, may_overtake: bool, reserves: bool) -> None:
        """Write the start of each job. Others may overtake the first one, without a delay if it `reserves` a start."""
        self._start_in_order()
        while self.head < self.count:
            if may_overtake:
                self._start_others(reserves)
            if self.ends.size == 0:
                return
            self.now = max(self.now, self.ends.first_time())
            self._end_tasks(self.free, self.ends, self.now)
            self.step += 1
            self._start_in_order()

    def _start_in_order(self) -> None:
        """Start jobs in order while they fit. Those that do not fit the empty cluster are skipped."""
        while self.head < self.count and (not self._waits(self.head) or self._start(self.head)):
            self.head += 1

    def _start_others(self, reserves: bool) -> None:
        """Let others overtake the first job: any, or those that end before it can start."""
        for job in range(self.head + 1, min(self.count, self.head + 1 + BACKFILL_DEPTH)):
            demand = self.queue.jobs.demand_of[job]
            if not self._waits(job) or self.blocked_step[demand] == self.step:
                continue
            need = self.queue.jobs.need(job)
            if need.instances * need.gpus * need.milli > self.free.nodes[self.free.nodes.shape[0] - 1, MILLI_FREE]:
                self.blocked_step[demand] = self.step
                continue
            if reserves and self.reserved != self.head:
                self.reserved, self.reserved_start = self.head, self._earliest_start()
            if not reserves or self.now + self.durations[job] <= self.reserved_start < INFINITE:
                self._start(job)

    def _waits(self, job: int) -> bool:
        """Whether a job has not started and fits the empty cluster."""
        return self.started[job] == INFINITE and self.queue.jobs.fits_empty[self.queue.jobs.demand_of[job]]

    def _start(self, job: int) -> bool:
        """Start a job if it fits."""
        if not self.queue.jobs.place(self.free, job):
            self.blocked_step[self.queue.jobs.demand_of[job]] = self.step
            return False
        self.started[job] = self.now
        if self.durations[job] < INFINITE:
            self.ends.push(self.now + self.durations[job], self.runs + job)
        return True

    def _end_tasks(self, free: FreeArrays, ends: TaskHeap, now: float) -> None:
        """Release the resources of the tasks that have ended by now."""
        while ends.size > 0 and ends.first_time() <= now:
            task = ends.pop()
            if task >= self.runs:
                self.queue.jobs.release(free, task - self.runs)
                continue
            for row in range(self.queue.first_share[task], self.queue.first_share[task + 1]):
                adjust_free(
                    free,
                    self.queue.shares[row, NODE],
                    self.queue.shares[row, MASK],
                    self.queue.shares[row, MILLI],
                    self.queue.shares[row, CPU],
                    self.queue.shares[row, MEMORY],
                )

    def _earliest_start(self) -> float:
        """Return when the first job fits if nothing else starts; infinite if that is not known."""
        nodes, gpus, bits = self.free.arrays
        later, ends = FreeArrays(nodes.copy(), gpus.copy(), bits.copy()), self.ends.copy()
        while ends.size > 0:
            now = ends.first_time()
            self._end_tasks(later, ends, now)
            if self.queue.jobs.place(later, self.head):
                return now
        return INFINITE
