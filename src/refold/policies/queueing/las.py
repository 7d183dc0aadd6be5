"""Least attained service in two queues (Tiresias, NSDI'19), with the threshold that Pollux's authors used.

Attained service is GPUs times time. A job begins in the first queue and falls into the second for good when its
service passes the threshold. The first queue goes before the second; inside a queue the order is that of arrival.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf

from refold.core import View
from refold.errors import BadValue
from refold.model import WHOLE, Decision, Job, Run, Seconds, Start
from refold.packing import Placer
from refold.policies.queueing.preempting import PreemptingQueue


class Las:
    """Jobs that have had little run before jobs that have had much, which are stopped for them."""

    name = "las"

    def __init__(self, placement: str = "best-fit", seed: int = 0, threshold_gpu_seconds: float = 57_600.0) -> None:
        if not threshold_gpu_seconds > 0:
            raise BadValue(f"threshold_gpu_seconds is {threshold_gpu_seconds}, expected > 0")
        self._threshold = threshold_gpu_seconds
        self._queue = PreemptingQueue(self.name, Placer(placement, seed), self._order, self._rank)
        self._falls: list[tuple[Seconds, str, int]] = []

    def decide(self, view: View) -> Decision:
        """Serve the first queue, then the second; ask to be woken when somebody falls from one to the other."""
        self._let_fall(view)
        decision = self._queue.decide(view)
        for start in decision.starts:
            self._note_fall(view, start)
        wake_at = self._next_fall(view, decision)
        if wake_at is None:
            return decision
        return Decision(decision.starts, decision.stops, waits=decision.waits, wake_at=wake_at)

    def _order(self, view: View, job: Job) -> tuple[int, Seconds]:
        # The slack is for rounding: a job woken at its fall must be seen to have fallen.
        return int(view.gpu_seconds(job.id) >= self._threshold - 1e-3), job.submitted

    def _rank(self, view: View, run: Run) -> tuple[int, Seconds]:
        return self._order(view, view.active[run.job])

    def _let_fall(self, view: View) -> None:
        """Runs whose service has passed the threshold by now are ranked with the second queue."""
        while self._falls and self._falls[0][0] <= view.now:
            _, job_id, number = heappop(self._falls)
            run = view.runs.get(job_id)
            if run is not None and run.number == number:
                self._queue.rank_again(view, run)

    def _note_fall(self, view: View, start: Start) -> None:
        milli, left = start.allocation.gpu_milli, self._threshold - view.gpu_seconds(start.job)
        if milli and 0 < left < inf:
            number = view.runs_so_far(start.job) + 1
            heappush(self._falls, (view.now + left * WHOLE / milli, start.job, number))

    def _next_fall(self, view: View, decision: Decision) -> Seconds | None:
        """When the next run falls into the second queue, if anybody waits for that."""
        if len(view.waiting) == len(decision.starts):
            return None
        started = {start.job for start in decision.starts}
        while self._falls:
            at, job_id, number = self._falls[0]
            run = view.runs.get(job_id)
            if job_id in started or (run is not None and run.number == number):
                return at if at > view.now else None
            heappop(self._falls)
        return None
