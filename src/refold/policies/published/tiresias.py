"""Tiresias (NSDI'19): least attained service in discrete queues, or by the Gittins index of what jobs have attained.

Attained service is two-dimensional: GPUs times time. A job begins in the first queue and falls from queue to queue as
its service passes the thresholds. Earlier queues go before later ones, and inside a queue the order is that of arrival.
With `order="gittins"` the order is how likely a job is to end within the next quantum of service, against what that
would cost, judged by jobs that have ended.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import accumulate, pairwise
from math import inf, isfinite
from typing import Literal, NamedTuple, get_args

from refold.core import View
from refold.errors import BadValue
from refold.model import WHOLE, Decision, Job, Run, Seconds
from refold.packing import Placer
from refold.policies.queueing import PreemptingQueue

OrderName = Literal["las", "gittins"]

SLACK = 1e-3
"""GPU-seconds, for rounding: a job woken at its fall must be seen to have fallen."""

LEAST_PAST = 16
"""From fewer jobs that have ended no Gittins index is made; until then the order is that of the queues."""


class Tiresias:
    """Jobs that have had little go before jobs that have had much, in several queues; later ones are stopped."""

    name = "tiresias"

    def __init__(
        self,
        placement: str = "best-fit",
        seed: int = 0,
        thresholds_gpu_seconds: Sequence[float] = (3_250.0, 7_200.0, 18_000.0),
        promote_knob: float = 0.0,
        order: OrderName = "las",
        quantum_gpu_seconds: float = 3_250.0,
        past_gpu_seconds: Sequence[float] = (),
    ) -> None:
        """`promote_knob`: who has waited so many times as long as it ran starts anew; 0: nobody does.

        `past_gpu_seconds`: the service of jobs that ended before, for the Gittins index, which learns more as jobs end.
        """
        _check(thresholds_gpu_seconds, promote_knob, order, quantum_gpu_seconds)
        self._thresholds = tuple(thresholds_gpu_seconds)
        self._knob = promote_knob
        self._past = _Past(past_gpu_seconds, quantum_gpu_seconds) if order == "gittins" else None
        self._service = _Service()
        self._queue = PreemptingQueue(self.name, Placer(placement, seed), self._order, self._rank)
        self._falls: list[_Moment] = []
        self._promotions: list[_Moment] = []

    def decide(self, view: View) -> Decision:
        """Serve the queues in turn; ask to be woken when somebody changes queues."""
        ended = self._service.update(view)
        if self._promote(view) | self._learn(view, ended):
            self._queue.sort_again(view)
        self._let_fall(view)
        decision = self._queue.decide(view)
        for start in decision.starts:
            self._note_fall(view, start.job, view.runs_so_far(start.job) + 1, start.allocation.gpu_milli)
        wake_at = self._next_change(view, decision)
        if wake_at is None:
            return decision
        return Decision(decision.starts, decision.stops, waits=decision.waits, wake_at=wake_at)

    def _order(self, view: View, job: Job) -> tuple[float, Seconds]:
        attained = self._service.attained(view, job.id) + SLACK
        if self._past is not None and self._past.is_enough:
            return -self._past.index(attained), job.submitted
        return bisect_right(self._thresholds, attained), job.submitted

    def _rank(self, view: View, run: Run) -> tuple[float, Seconds]:
        return self._order(view, view.active[run.job])

    def _next_bound(self, attained: float) -> float:
        """The service at which the order of a job changes next."""
        if self._past is not None and self._past.is_enough:
            return self._past.next_bound(attained + SLACK)
        queue = bisect_right(self._thresholds, attained + SLACK)
        return self._thresholds[queue] if queue < len(self._thresholds) else inf

    # Falling.

    def _note_fall(self, view: View, job_id: str, number: int, gpu_milli: int) -> None:
        attained = self._service.attained(view, job_id)
        left = self._next_bound(attained) - attained
        if gpu_milli and left < inf:
            heappush(self._falls, _Moment(view.now + left * WHOLE / gpu_milli, job_id, number))

    def _let_fall(self, view: View) -> None:
        """Runs whose service has passed a bound by now are ranked anew."""
        while self._falls and self._falls[0].at <= view.now:
            _, job_id, number = heappop(self._falls)
            run = view.runs.get(job_id)
            if run is not None and run.number == number:
                self._queue.rank_again(view, run)
                self._note_fall(view, job_id, number, run.allocation.gpu_milli)

    # Being promoted.

    def _promote(self, view: View) -> bool:
        """Who has waited long against what it ran begins anew, in the first queue; whether there was one."""
        if not self._knob:
            return False
        for job in view.changes.returned:
            if self._service.attained(view, job.id) + SLACK >= self._thresholds[0]:
                at = view.now + self._knob * self._service.seconds(job.id)
                heappush(self._promotions, _Moment(at, job.id, view.runs_so_far(job.id)))
        promoted = False
        while self._promotions and self._promotions[0].at <= view.now:
            _, job_id, number = heappop(self._promotions)
            if job_id in view.waiting and view.runs_so_far(job_id) == number:
                self._service.forgive(view, job_id)
                promoted = True
        return promoted

    # Learning what jobs take.

    def _learn(self, view: View, ended: Sequence[float]) -> bool:
        """Whether the index has changed: it does whenever the jobs that have ended are twice as many."""
        if self._past is None or not self._past.learn(ended):
            return False
        self._falls.clear()
        for run in view.runs.values():
            self._note_fall(view, run.job, run.number, run.allocation.gpu_milli)
        return True

    def _next_change(self, view: View, decision: Decision) -> Seconds | None:
        """When somebody changes queues next, if anybody waits for that."""
        if len(view.waiting) == len(decision.starts):
            return None
        started = {start.job for start in decision.starts}
        while self._falls and not _concerns_a_run(self._falls[0], view, started):
            heappop(self._falls)
        while self._promotions and (self._promotions[0].job not in view.waiting or self._promotions[0].job in started):
            heappop(self._promotions)
        at = min((moments[0].at for moments in (self._falls, self._promotions) if moments), default=inf)
        return at if view.now < at < inf else None


class _Moment(NamedTuple):
    """When something may become of a job, if it still has this number of runs."""

    at: Seconds
    job: str
    number: int


def _concerns_a_run(moment: _Moment, view: View, started: set[str]) -> bool:
    run = view.runs.get(moment.job)
    return moment.job in started or (run is not None and run.number == moment.number)


class _Service:
    """What jobs have had: GPUs times time since they were last promoted, and how long they ran in all."""

    def __init__(self) -> None:
        self._seconds: dict[str, Seconds] = {}
        self._gpu_seconds: dict[str, float] = {}
        self._forgiven: dict[str, float] = {}

    def update(self, view: View) -> list[float]:
        """Count the runs that have ended; returns what jobs had in all that are over now."""
        over: list[float] = []
        for run in view.changes.ended:
            ran = view.now - run.since
            self._seconds[run.job] = self._seconds.get(run.job, 0.0) + ran
            gpu_seconds = self._gpu_seconds.get(run.job, 0.0) + ran * run.allocation.gpu_milli / WHOLE
            self._gpu_seconds[run.job] = gpu_seconds
            if run.job not in view.waiting and run.job not in view.runs:
                over.append(gpu_seconds)
                self._forget(run.job)
        for job_id in view.changes.gone:
            self._forget(job_id)
        return over

    def attained(self, view: View, job_id: str) -> float:
        return view.gpu_seconds(job_id) - self._forgiven.get(job_id, 0.0)

    def seconds(self, job_id: str) -> Seconds:
        return self._seconds.get(job_id, 0.0)

    def forgive(self, view: View, job_id: str) -> None:
        """Its service starts anew. How long it ran does not: each promotion takes more waiting than the one before, so
        that jobs whose runs are short against a restart do not keep each other from getting anywhere."""
        self._forgiven[job_id] = view.gpu_seconds(job_id)

    def _forget(self, job_id: str) -> None:
        for kept in (self._seconds, self._gpu_seconds, self._forgiven):
            kept.pop(job_id, None)


class _Past:
    """The service that ended jobs had, and the Gittins index it gives to one that has had so much.

    index(a) = P / E over the ended jobs that had more than a: P is the share of them that ended before a + quantum, E
    the mean service they had in between. It is read at whole quanta, so that runs change places now and then and not
    all the time.
    """

    def __init__(self, ended: Sequence[float], quantum: float) -> None:
        self._quantum = quantum
        self._ended = list(ended)
        self._sorted: list[float] = []
        self._sums: list[float] = [0.0]
        self._next_renewal = LEAST_PAST
        self.learn(())

    @property
    def is_enough(self) -> bool:
        return bool(self._sorted)

    def learn(self, ended: Sequence[float]) -> bool:
        """Whether there is a new index."""
        self._ended += ended
        if len(self._ended) < self._next_renewal:
            return False
        self._next_renewal = 2 * len(self._ended)
        self._sorted = sorted(self._ended)
        self._sums = list(accumulate(self._sorted, initial=0.0))
        return True

    def index(self, attained: float) -> float:
        start = attained // self._quantum * self._quantum
        end = start + self._quantum
        first, last = bisect_right(self._sorted, start + SLACK), bisect_right(self._sorted, end + SLACK)
        spent = self._sums[last] - self._sums[first] - start * (last - first)
        spent += self._quantum * (len(self._sorted) - last)
        return (last - first) / max(spent, SLACK)  # the share that ended and the mean spent are of equally many

    def next_bound(self, attained: float) -> float:
        bound = (attained // self._quantum + 1) * self._quantum
        return bound if bound <= self._sorted[-1] + self._quantum else inf


def _check(thresholds: Sequence[float], knob: float, order: str, quantum: float) -> None:
    if not thresholds or not all(0 < one < other for one, other in pairwise((*thresholds, inf))):
        raise BadValue(f"thresholds_gpu_seconds are one or more, > 0 and rising, not {list(thresholds)}")
    if not (isfinite(knob) and knob >= 0):
        raise BadValue(f"promote_knob is {knob}, expected ≥ 0 (0: nobody is promoted)")
    if order not in get_args(OrderName):
        raise BadValue(f"order is {order!r}, expected las or gittins")
    if not (isfinite(quantum) and quantum > 0):
        raise BadValue(f"quantum_gpu_seconds is {quantum}, expected > 0")
