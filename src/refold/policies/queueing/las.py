"""Least attained service in two queues (Tiresias, NSDI'19), with the threshold used in the Pollux paper.

Attained service is GPUs times time. Each job starts in the first queue and is demoted to the second one permanently
when its service exceeds the threshold. The first queue has priority over the second; each queue is in order of
arrival.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush
from math import inf
from typing import ClassVar

from refold.core import View
from refold.errors import BadValue
from refold.model import WHOLE, Decision, Job, Run, Seconds, Start
from refold.placement import Placer
from refold.policies import Range, SettingRange
from refold.policies.queueing.preempting import PreemptingQueue

THRESHOLD_GPU_SECONDS = 57_600.0

ROUNDING_GPU_SECONDS = 1e-3
"""Tolerance for rounding: when the policy wakes at the time of a demotion, the service must count as over the limit."""


class Las:
    """Jobs with little attained service preempt jobs with much. Jobs of higher priority come before both queues."""

    name = "las"
    ranges: ClassVar[Mapping[str, SettingRange]] = {"threshold_gpu_seconds": Range(600.0, 2e6, log=True)}

    def __init__(
        self, placement: str = "best-fit", seed: int = 0, threshold_gpu_seconds: float = THRESHOLD_GPU_SECONDS
    ) -> None:
        if not threshold_gpu_seconds > 0:
            raise BadValue(f"threshold_gpu_seconds is {threshold_gpu_seconds}, expected > 0")
        self._threshold = threshold_gpu_seconds
        self._queue = PreemptingQueue(self.name, Placer(placement, seed), self._order, self._rank)
        self._demotions: list[tuple[Seconds, str, int]] = []
        """Heap of (time, job, run number): when each run exceeds the threshold."""

    def decide(self, view: View) -> Decision:
        """Serve the first queue, then the second; wake up at the next demotion."""
        self._demote(view)
        decision = self._queue.decide(view)
        for start in decision.starts:
            self._schedule_demotion(view, start)
        wake_at = self._next_demotion(view, decision)
        if wake_at is None:
            return decision
        return Decision(decision.starts, decision.stops, waits=decision.waits, wake_at=wake_at)

    def _order(self, view: View, job: Job) -> tuple[int, bool, Seconds]:
        demoted = view.gpu_seconds(job.id) >= self._threshold - ROUNDING_GPU_SECONDS
        return -job.priority, demoted, job.submitted

    def _rank(self, view: View, run: Run) -> tuple[int, bool, Seconds]:
        return self._order(view, view.active[run.job])

    def _demote(self, view: View) -> None:
        """Move runs whose service has reached the threshold to the second queue."""
        while self._demotions and self._demotions[0][0] <= view.now:
            _, job_id, number = heappop(self._demotions)
            run = view.runs.get(job_id)
            if run is not None and run.number == number:
                self._queue.rerank(view, run)

    def _schedule_demotion(self, view: View, start: Start) -> None:
        milli, remaining = start.allocation.gpu_milli, self._threshold - view.gpu_seconds(start.job)
        if milli and 0 < remaining < inf:
            number = view.run_count(start.job) + 1
            heappush(self._demotions, (view.now + remaining * WHOLE / milli, start.job, number))

    def _next_demotion(self, view: View, decision: Decision) -> Seconds | None:
        """Return the time of the next demotion; None if no job waits, since then a demotion changes nothing."""
        if len(view.waiting) == len(decision.starts):
            return None
        started = {start.job for start in decision.starts}
        while self._demotions:
            at, job_id, number = self._demotions[0]
            run = view.runs.get(job_id)
            if job_id in started or (run is not None and run.number == number):
                return at if at > view.now else None
            heappop(self._demotions)
        return None
