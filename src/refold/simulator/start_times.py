"""Start times of the jobs that wait now, in several futures of a scheduler whose policy starts them in queue order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from refold.core import View
from refold.model import HOUR, Job, Seconds, StartEstimate
from refold.placement import Floats, FreeResources
from refold.policies import QueueOrder
from refold.simulator.queue_forecast import QueueForecast
from refold.simulator.run_time_draws import RunTimes, StartedJob

ESTIMATE_SHARES = (0.05, 0.5, 0.95)
"""Quantiles over the futures: the soonest, the estimated and the latest time."""

WAIT_DOUBLING_SECONDS: Seconds = HOUR
"""Under the order `least-work`, a job that has waited for this time goes before others with half as much work."""


@dataclass(frozen=True, slots=True)
class StartTimes:
    """Start times and run times of jobs (columns) in each future (rows); infinite if unknown.

    `latest`: when each job starts at the latest if all jobs use their time limits; infinite if some have none.
    """

    job_ids: Sequence[str]
    starts: Floats
    durations: Floats
    latest: Floats

    def start_estimates(self) -> dict[str, StartEstimate]:
        """Return the start estimates of all jobs whose start is known."""
        return _estimates(self.job_ids, self.starts, self.latest)

    def end_estimates(self) -> dict[str, StartEstimate]:
        """Return when all jobs end whose end is known."""
        return _estimates(self.job_ids, self.starts + self.durations, np.full(len(self.job_ids), inf))

    def end_estimate(self, job_id: str) -> StartEstimate | None:
        """Return when a job ends; None if it is not known."""
        column = [self.job_ids.index(job_id)]
        ends = self.starts[:, column] + self.durations[:, column]
        return _estimates([job_id], ends, np.array([inf])).get(job_id)


def _estimates(job_ids: Sequence[str], times: Floats, latest: Floats) -> dict[str, StartEstimate]:
    ordered = np.sort(times, axis=0)
    rows = [int(share * (len(ordered) - 1) + 0.5) for share in ESTIMATE_SHARES]
    bounded = np.minimum(ordered[rows], latest).T.tolist()
    return {
        job_id: StartEstimate(job_id, at, soonest, end if end < inf else None)
        for job_id, (soonest, at, end) in zip(job_ids, bounded, strict=True)
        if at < inf
    }


def started_job(view: View, job_id: str, now: Seconds) -> StartedJob:
    """Return how far a running job is by now."""
    computing = view.computing_since(job_id) is not None
    done = view.done(job_id) + (now - view.now if computing else 0.0)
    return StartedJob(view.active[job_id], done, view.share_done(view.active[job_id]))


def estimate_end(view: View, job_id: str, run_times: RunTimes, now: Seconds) -> StartEstimate | None:
    """Return when a running job ends unless it is stopped; None if nothing is known."""
    soonest, at, latest = run_times.remaining_quantiles(started_job(view, job_id, now), ESTIMATE_SHARES, now)
    if at == inf:
        return None
    return StartEstimate(job_id, now + max(0.0, at), now + max(0.0, soonest), None if latest == inf else now + latest)


class StartSimulator:
    """Simulates the queue of a scheduler from its present state."""

    def __init__(self, view: View, order: QueueOrder, run_times: RunTimes) -> None:
        self._view, self._order, self._run_times = view, order, run_times
        self._empty = FreeResources(view.cluster)

    def simulate(self, now: Seconds, futures: int, seed: int = 0, new_job: Job | None = None) -> StartTimes:
        """Return the start times of the waiting jobs, and of one more that is submitted now.

        The run times drawn for a seed do not depend on `new_job`.
        """
        view = self._view
        runs = list(view.runs.values())
        started = [started_job(view, run.job, now) for run in runs]
        draws = self._run_times.draws(futures, seed)
        remaining = draws.remaining(started, now)
        jobs = list(view.waiting.values())
        durations = draws.waiting(jobs, now)
        if new_job is not None:
            jobs, durations = [*jobs, new_job], np.hstack([durations, draws.waiting([new_job], now)])
        keys = [self._queue_key(job, now) for job in jobs]
        positions = sorted(range(len(jobs)), key=keys.__getitem__)
        jobs, durations = [jobs[position] for position in positions], durations[:, positions]
        stopping = np.array([run.stopping for run in runs], dtype=np.bool_)
        queue = QueueForecast(self._free(), [view.held_by(run.job) for run in runs], [job.demand for job in jobs])
        starts = queue.starts(self._order, now, now + np.where(stopping, 0.0, remaining), durations)
        ends = [now + max(0.0, (job.job.time_limit or inf) - job.elapsed) for job in started]
        limits = np.array([[job.time_limit or inf for job in jobs]])
        latest = queue.starts("fifo", now, np.where(stopping, now, np.array([ends]).reshape(1, -1)), limits)[0]
        if self._order in ("fifo-skip", "least-work"):  # others may overtake a job as long as it does not fit
            latest = np.full(len(jobs), inf)
        return StartTimes([job.id for job in jobs], starts, durations, latest)

    def _queue_key(self, job: Job, now: Seconds) -> tuple[int, float, Seconds]:
        """Return the position of a job in the queue as a value to sort by."""
        work = self._run_times.work(job, now) if self._order == "least-work" else 0.0
        waited = max(0.0, now - job.submitted)
        return -job.priority, work / (1.0 + waited / WAIT_DOUBLING_SECONDS), job.submitted

    def _free(self) -> FreeResources:
        view, free = self._view, self._empty.copy()
        for node in range(len(view.cluster.nodes)):
            if not view.is_up(node):
                free.set_node_up(node, False)
        for node, gpu in view.down_gpus:
            free.set_gpu_up(node, gpu, False)
        for run in view.runs.values():
            free.retake(view.held_by(run.job))
        return free
