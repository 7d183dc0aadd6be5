"""Tiresias (NSDI'19): discretised 2D least attained service (LAS), or the 2D Gittins index.

Attained service is two-dimensional: GPUs × time. A job starts in the first queue and is demoted to the next when its
service passes a threshold. Earlier queues go first; within a queue the order is that of arrival. With
`order="gittins"`, jobs are ordered by the probability of ending within the next quantum of service divided by the
expected service spent in it, estimated from jobs that have ended.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from itertools import accumulate, pairwise
from math import inf, isfinite
from typing import ClassVar, Literal, NamedTuple, get_args

from refold.core import View
from refold.errors import BadValue
from refold.model import WHOLE, Decision, Job, Run, Seconds
from refold.placement import Placer
from refold.policies import Choices, Range, SettingRange
from refold.policies.queueing import PreemptingQueue

OrderName = Literal["las", "gittins"]

ROUNDING_GPU_SECONDS = 1e-3
"""GPU-seconds of rounding error: at the time computed for a demotion, the threshold must count as passed."""

MIN_ENDED_JOBS = 16
"""Number of ended jobs needed for a Gittins index; until then the LAS queues are used."""


def _threshold_choices() -> tuple[tuple[float, ...], ...]:
    """Return one to three thresholds, each ten times the one before it, from 10 GPU-minutes on."""
    firsts = (600.0, 1800.0, 3600.0, 10_800.0, 36_000.0, 108_000.0)
    return tuple(tuple(first * 10**level for level in range(count)) for count in (1, 2, 3) for first in firsts)


class Tiresias:
    """Jobs with little attained service go first, in discrete queues; jobs in later queues are preempted."""

    name = "tiresias"
    ranges: ClassVar[Mapping[str, SettingRange]] = {
        "thresholds_gpu_seconds": Choices(_threshold_choices()),
        "promote_knob": Choices((0.0, 1.0, 2.0, 4.0, 8.0, 16.0)),
        "order": Choices(("las", "gittins")),
        "quantum_gpu_seconds": Range(300.0, 1e5, log=True),
    }

    def __init__(
        self,
        placement: str = "best-fit",
        seed: int = 0,
        thresholds_gpu_seconds: Sequence[float] = (3_250.0, 7_200.0, 18_000.0),
        promote_knob: float = 0.0,
        order: OrderName = "las",
        quantum_gpu_seconds: float = 3_250.0,
    ) -> None:
        """Create the policy.

        `promote_knob`: a job that has waited this many times its run time is promoted to the first queue; 0: never.
        """
        _check(thresholds_gpu_seconds, promote_knob, order, quantum_gpu_seconds)
        self._thresholds = tuple(thresholds_gpu_seconds)
        self._knob = promote_knob
        self._gittins = _GittinsIndex(quantum_gpu_seconds) if order == "gittins" else None
        self._service = _Service()
        self._queue = PreemptingQueue(self.name, Placer(placement, seed), self._order, self._rank)
        self._demotions: list[_QueueChange] = []
        self._promotions: list[_QueueChange] = []

    def decide(self, view: View) -> Decision:
        """Serve the queues in order, and wake up when a job is demoted or promoted."""
        ended = self._service.update(view)
        if self._promote(view) | self._update_index(view, ended):
            self._queue.resort(view)
        self._demote(view)
        decision = self._queue.decide(view)
        for start in decision.starts:
            self._plan_demotion(view, start.job, view.run_count(start.job) + 1, start.allocation.gpu_milli)
        wake_at = self._next_change(view, decision)
        if wake_at is None:
            return decision
        return Decision(decision.starts, decision.stops, waits=decision.waits, wake_at=wake_at)

    def _order(self, view: View, job: Job) -> tuple[float, Seconds]:
        attained = self._service.attained(view, job.id) + ROUNDING_GPU_SECONDS
        if self._gittins is not None and self._gittins.is_ready:
            return -self._gittins.index(attained), job.submitted
        return bisect_right(self._thresholds, attained), job.submitted

    def _rank(self, view: View, run: Run) -> tuple[float, Seconds]:
        return self._order(view, view.active[run.job])

    def _next_threshold(self, attained: float) -> float:
        """Return the attained service at which a job's position changes next."""
        if self._gittins is not None and self._gittins.is_ready:
            return self._gittins.next_threshold(attained + ROUNDING_GPU_SECONDS)
        queue = bisect_right(self._thresholds, attained + ROUNDING_GPU_SECONDS)
        return self._thresholds[queue] if queue < len(self._thresholds) else inf

    # Demotion.

    def _plan_demotion(self, view: View, job_id: str, number: int, gpu_milli: int) -> None:
        attained = self._service.attained(view, job_id)
        remaining = self._next_threshold(attained) - attained
        if gpu_milli and remaining < inf:
            heappush(self._demotions, _QueueChange(view.now + remaining * WHOLE / gpu_milli, job_id, number))

    def _demote(self, view: View) -> None:
        """Re-rank runs whose attained service has passed a threshold."""
        while self._demotions and self._demotions[0].at <= view.now:
            _, job_id, number = heappop(self._demotions)
            run = view.runs.get(job_id)
            if run is not None and run.number == number:
                self._queue.rerank(view, run)
                self._plan_demotion(view, job_id, number, run.allocation.gpu_milli)

    # Promotion.

    def _promote(self, view: View) -> bool:
        """Promote jobs that have waited long enough to the first queue; return whether there was one."""
        if not self._knob:
            return False
        for job in view.changes.requeued:
            if self._service.attained(view, job.id) + ROUNDING_GPU_SECONDS >= self._thresholds[0]:
                at = view.now + self._knob * self._service.run_time(job.id)
                heappush(self._promotions, _QueueChange(at, job.id, view.run_count(job.id)))
        promoted = False
        while self._promotions and self._promotions[0].at <= view.now:
            _, job_id, number = heappop(self._promotions)
            if job_id in view.waiting and view.run_count(job_id) == number:
                self._service.reset(view, job_id)
                promoted = True
        return promoted

    # Gittins index.

    def _update_index(self, view: View, ended: Sequence[float]) -> bool:
        """Add ended jobs and return whether the index has changed: when their number has doubled."""
        if self._gittins is None or not self._gittins.add_ended(ended):
            return False
        self._demotions.clear()
        for run in view.runs.values():
            self._plan_demotion(view, run.job, run.number, run.allocation.gpu_milli)
        return True

    def _next_change(self, view: View, decision: Decision) -> Seconds | None:
        """Return the time of the next demotion or promotion if jobs wait; otherwise None."""
        if len(view.waiting) == len(decision.starts):
            return None
        started = {start.job for start in decision.starts}
        while self._demotions and not _is_valid(self._demotions[0], view, started):
            heappop(self._demotions)
        while self._promotions and (self._promotions[0].job not in view.waiting or self._promotions[0].job in started):
            heappop(self._promotions)
        at = min((changes[0].at for changes in (self._demotions, self._promotions) if changes), default=inf)
        return at if view.now < at < inf else None


class _QueueChange(NamedTuple):
    """A planned demotion or promotion of a job; void if the job has started another run since."""

    at: Seconds
    job: str
    number: int


def _is_valid(change: _QueueChange, view: View, started: set[str]) -> bool:
    run = view.runs.get(change.job)
    return change.job in started or (run is not None and run.number == change.number)


class _Service:
    """Attained service of jobs (GPUs × time since the last promotion), and their total run time."""

    def __init__(self) -> None:
        self._run_times: dict[str, Seconds] = {}
        self._gpu_seconds: dict[str, float] = {}
        self._service_before_promotion: dict[str, float] = {}

    def update(self, view: View) -> list[float]:
        """Add the runs that have ended; return the total GPU-seconds of each job that has ended."""
        ended: list[float] = []
        for run in view.changes.ended:
            run_time = view.now - run.since
            self._run_times[run.job] = self._run_times.get(run.job, 0.0) + run_time
            gpu_seconds = self._gpu_seconds.get(run.job, 0.0) + run_time * run.allocation.gpu_milli / WHOLE
            self._gpu_seconds[run.job] = gpu_seconds
            if run.job not in view.waiting and run.job not in view.runs:
                ended.append(gpu_seconds)
                self._forget(run.job)
        for job_id in view.changes.removed:
            self._forget(job_id)
        return ended

    def attained(self, view: View, job_id: str) -> float:
        return view.gpu_seconds(job_id) - self._service_before_promotion.get(job_id, 0.0)

    def run_time(self, job_id: str) -> Seconds:
        return self._run_times.get(job_id, 0.0)

    def reset(self, view: View, job_id: str) -> None:
        """Reset a job's attained service, but not its run time.

        Each promotion then takes a longer wait than the one before, so that jobs whose runs are short compared with a
        restart do not preempt each other without making progress.
        """
        self._service_before_promotion[job_id] = view.gpu_seconds(job_id)

    def _forget(self, job_id: str) -> None:
        for values in (self._run_times, self._gpu_seconds, self._service_before_promotion):
            values.pop(job_id, None)


class _GittinsIndex:
    """Gittins index by attained service, from the service of ended jobs.

    index(a) = P / E over the ended jobs with service above a: P is the fraction that ended before a + quantum, E their
    mean service between a and a + quantum. The index is evaluated at multiples of the quantum, so that the order of
    runs does not change continuously.
    """

    def __init__(self, quantum: float) -> None:
        self._quantum = quantum
        self._services: list[float] = []
        self._sorted: list[float] = []
        self._sums: list[float] = [0.0]
        self._next_update_at = MIN_ENDED_JOBS

    @property
    def is_ready(self) -> bool:
        return bool(self._sorted)

    def add_ended(self, ended: Sequence[float]) -> bool:
        """Add ended jobs; return whether the index was recomputed."""
        self._services += ended
        if len(self._services) < self._next_update_at:
            return False
        self._next_update_at = 2 * len(self._services)
        self._sorted = sorted(self._services)
        self._sums = list(accumulate(self._sorted, initial=0.0))
        return True

    def index(self, attained: float) -> float:
        start = attained // self._quantum * self._quantum
        end = start + self._quantum
        first = bisect_right(self._sorted, start + ROUNDING_GPU_SECONDS)
        last = bisect_right(self._sorted, end + ROUNDING_GPU_SECONDS)
        spent = self._sums[last] - self._sums[first] - start * (last - first)
        spent += self._quantum * (len(self._sorted) - last)
        return (last - first) / max(spent, ROUNDING_GPU_SECONDS)  # the number of jobs cancels in P / E

    def next_threshold(self, attained: float) -> float:
        threshold = (attained // self._quantum + 1) * self._quantum
        return threshold if threshold <= self._sorted[-1] + self._quantum else inf


def _check(thresholds: Sequence[float], knob: float, order: str, quantum: float) -> None:
    if not thresholds or not all(0 < lower < higher for lower, higher in pairwise((*thresholds, inf))):
        raise BadValue(f"thresholds_gpu_seconds is {list(thresholds)}, expected ascending numbers > 0, at least one")
    if not (isfinite(knob) and knob >= 0):
        raise BadValue(f"promote_knob is {knob}, expected a number ≥ 0 (0: no promotion)")
    if order not in get_args(OrderName):
        raise BadValue(f"order is {order!r}, expected 'las' or 'gittins'")
    if not (isfinite(quantum) and quantum > 0):
        raise BadValue(f"quantum_gpu_seconds is {quantum}, expected a number > 0")
