"""Forecast of the queue: roughly when a job without a reservation starts, and with which size it would end first."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from math import inf

from refold.core import View
from refold.model import DAY, Seconds
from refold.planning.plans import Knowledge
from refold.policies.backfill.queue import QueuedJob, QueuedRequest
from refold.policies.backfill.schedule import Schedule
from refold.policies.backfill.sizing import Sizes

MAX_START_DELAY: Seconds = 30 * DAY
"""Start estimates are no later than this from now: a job beyond it waits for nodes that are down."""


class PooledQueue:
    """A queue on all GPUs of a cluster as if they were one machine, on which jobs start strictly in order."""

    def __init__(self, now: Seconds, free_gpus: float, ends_and_gpus: Iterable[tuple[Seconds, float]]) -> None:
        """`ends_and_gpus`: when each run ends, and the GPUs that it holds."""
        self._now, self._free, self._runs = now, free_gpus, list(ends_and_gpus)
        heapify(self._runs)

    def add(self, gpus: float, duration: Seconds) -> None:
        """Add a job to the end of the queue."""
        while self._free < gpus and self._runs:
            end, released = heappop(self._runs)
            self._now = max(self._now, end)
            self._free += released
        if self._free < gpus:
            self._now = inf
        self._free -= gpus
        heappush(self._runs, (self._now + duration, gpus))

    def next_start(self, gpus: float) -> Seconds:
        """Return when a job would start if it were added now; inf: never."""
        now, free = self._now, self._free
        for end, released in sorted(self._runs):
            if free >= gpus:
                break
            now, free = max(now, end), free + released
        return now if free >= gpus else inf


class SizeChoice:
    """Sizes of jobs with a GPU range: the one with which a job would end first."""

    def __init__(self, view: View, knowledge: Knowledge) -> None:
        self._sizes = Sizes(view.cluster, knowledge)

    def best(self, view: View, schedule: Schedule, request: QueuedRequest) -> QueuedJob:
        """Return the job with the size at which it would end first."""
        candidates = [QueuedJob(request, size) for size in self._sizes.for_job(request.job)]
        if len(candidates) == 1:
            return candidates[0]
        queue = PooledQueue(view.now, view.free_gpus, schedule.runs.ends_and_gpus())
        for ahead in schedule.queue.ahead_of(request.position):
            queue.add(ahead.gpus, ahead.duration)
        return min(candidates, key=lambda queued: _estimated_end(view, schedule, queue, queued))

    def update(self, view: View, schedule: Schedule, queued: QueuedJob) -> QueuedJob:
        """Give a job without a reservation another size if it would end sooner with that by now; return it."""
        if queued.job.gpu_range is None:
            return queued
        duration, backfill_duration = queued.duration * queued.speedup, queued.backfill_duration * queued.speedup
        other = self.best(view, schedule, QueuedRequest(queued.job, queued.position, duration, backfill_duration))
        if other.demand == queued.demand:
            return queued
        schedule.replace(queued, other)
        return other


def _estimated_end(view: View, schedule: Schedule, queue: PooledQueue, queued: QueuedJob) -> tuple[Seconds, int]:
    """Return when a job would end at its size, given the queue; ties are broken by the fewest GPUs."""
    reservation = schedule.bookings.find(queued.demand, queued.duration, view.now)
    queue_start = min(queue.next_start(queued.gpus), view.now + MAX_START_DELAY)
    start = inf if reservation is None else max(reservation.start, queue_start)
    return start + queued.duration, queued.demand.total_gpu_milli
