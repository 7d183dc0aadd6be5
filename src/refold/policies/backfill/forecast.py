"""Forecast of the queue: when jobs without a reservation will start, and which size lets a job end first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

import numpy as np

from refold.core import View
from refold.model import DAY, Seconds
from refold.packing import estimate_fifo_starts
from refold.plans import Knowledge
from refold.policies.backfill.queue import QueuedJob, Request
from refold.policies.backfill.schedule import Schedule
from refold.policies.backfill.sizing import Sizes

MAX_START_DELAY: Seconds = 30 * DAY
"""Start estimates are no later than this from now: a job beyond it waits for nodes that are down."""


def forecast_starts(view: View, schedule: Schedule, jobs: Sequence[QueuedJob]) -> Mapping[str, Seconds]:
    """Return roughly when each of these jobs starts, by a simulation of the queue up to the last of them."""
    queue = schedule.queue.up_to(max(jobs, key=lambda queued: queued.position))
    gpus = np.fromiter((queued.gpus for queued in queue), np.float64, len(queue))
    durations = np.fromiter((queued.duration for queued in queue), np.float64, len(queue))
    starts = estimate_fifo_starts(view.now, view.free_gpus, *schedule.runs.ends_and_gpus(), gpus, durations)
    job_ids = {queued.job.id for queued in jobs}
    return {
        queued.job.id: min(float(start), view.now + MAX_START_DELAY)
        for queued, start in zip(queue, starts, strict=True)
        if queued.job.id in job_ids
    }


class SizeChoice:
    """Sizes of jobs with a GPU range: the one with which a job would end first."""

    def __init__(self, view: View, knowledge: Knowledge) -> None:
        self._sizes = Sizes(view.cluster, knowledge)

    def best(self, view: View, schedule: Schedule, request: Request) -> QueuedJob:
        """Return the job with the size at which it would end first."""
        candidates = [QueuedJob(request, size) for size in self._sizes.for_job(request.job)]
        if len(candidates) == 1:
            return candidates[0]
        return min(candidates, key=lambda queued: _estimated_end(view, schedule, queued))

    def update(self, view: View, schedule: Schedule, queued: QueuedJob) -> QueuedJob:
        """Give a job without a reservation another size if it would end sooner with that by now; return it."""
        if queued.job.gpu_range is None:
            return queued
        duration, backfill_duration = queued.duration * queued.speedup, queued.backfill_duration * queued.speedup
        other = self.best(view, schedule, Request(queued.job, queued.position, duration, backfill_duration))
        if other.demand == queued.demand:
            return queued
        schedule.replace(queued, other)
        return other


def _estimated_end(view: View, schedule: Schedule, queued: QueuedJob) -> tuple[Seconds, int]:
    """Return when a job would end at its size, given the queue; ties are broken by the fewest GPUs."""
    reservation = schedule.bookings.find(queued.demand, queued.duration, view.now)
    queue_start = forecast_starts(view, schedule, [queued])[queued.job.id]
    start = inf if reservation is None else max(reservation.start, queue_start)
    return start + queued.duration, queued.demand.total_gpu_milli
