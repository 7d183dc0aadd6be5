"""Promised starts: from what is planned to what can be promised, by how plans have turned out so far.

A plan says when a job should start; ends come early or late, and others come before it. How much longer jobs waited
than was planned when they came is kept, as logarithms of ratios, for the latest jobs of each kind. Its quantiles make a
plan an interval: between `soonest` and `latest` a job starts with the confidence asked for. That confidence is steered
by whether promises were kept (adaptive conformal inference, Gibbs and Candès 2021), so that what is promised to hold
for 95 of 100 jobs does, whatever plans are worth. A promise that is overdue counts as broken as soon as that
is seen.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from heapq import heappop, heappush
from math import exp, log

from refold.model import HOUR, MINUTE, Seconds, StartEstimate

SHORT: Seconds = 10 * MINUTE
"""Waits are compared as if all were longer by so much: minutes more or less are nobody's concern."""

AIMED_AT = 0.98
"""More than the 0.95 that is promised: jobs that come together are kept waiting together, long before it is learned."""

SOONEST = 0.05

AT_LEAST = log(3.0)
"""No wait is promised to be less than so many times as long as planned."""

REMEMBERED = 2000
"""How many waits of each kind are kept."""

ENOUGH = 20
"""From fewer than so many nothing is learned; till then a wait may be `AT_FIRST` times as long as planned."""

AT_FIRST = log(20.0)

STEP = 0.02
"""How quickly the confidence is steered."""

LEAST_SURE, MOST_SURE = 0.5, 1.1
"""How far it is steered; above 1, promises are wider than all that was seen."""

WIDER = 20.0
"""How much wider, as a logarithm, for each unit above 1."""

RENEWED_BY_AT_LEAST: Seconds = HOUR / 2
"""A promise that was broken is renewed for at least so long."""


class StartEstimates:
    """What waiting jobs were promised, and how good promises have been."""

    def __init__(self) -> None:
        self._made: dict[str, _FirstEstimate] = {}
        self._overdue: list[tuple[Seconds, str]] = []
        self._errors_of: dict[str, _Errors] = {}
        self._all = _Errors()

    def make(self, job_id: str, kind: str, now: Seconds, planned: Seconds) -> StartEstimate:
        """Promise something to a job that is planned to start then, or something new if its promise was broken."""
        wait = max(planned - now, 0.0) + SHORT
        errors = self._errors(kind)
        latest = now + wait * exp(errors.upper()) - SHORT
        made = self._made.get(job_id)
        if made is None:
            made = self._made[job_id] = _FirstEstimate(kind, now, wait)
        else:
            latest = max(latest, now + RENEWED_BY_AT_LEAST)
        made.latest = latest
        heappush(self._overdue, (latest, job_id))
        at = min(now + max(wait * exp(errors.quantile(0.5)) - SHORT, 0.0), latest)
        soonest = min(now + max(wait * exp(errors.quantile(SOONEST)) - SHORT, 0.0), at)
        return StartEstimate(job_id, at, soonest, latest)

    def overdue(self, now: Seconds) -> list[str]:
        """Whose promises have been broken by now; each has to be made again."""
        broken: list[str] = []
        while self._overdue and self._overdue[0][0] < now:
            latest, job_id = heappop(self._overdue)
            made = self._made.get(job_id)
            if made is not None and made.latest == latest:
                broken.append(job_id)
                self._judge(made, kept=False)
        return broken

    def started(self, job_id: str, now: Seconds) -> None:
        """A job has started: how good was what it was told?"""
        made = self._made.pop(job_id, None)
        if made is None:
            return
        self._judge(made, kept=now <= made.latest)
        error = log((now - made.at + SHORT) / made.planned_wait)
        for errors in (self._own_errors(made.kind), self._all):
            errors.add(error)

    def forget(self, job_id: str) -> None:
        """A job does not wait any more, and has not started."""
        self._made.pop(job_id, None)

    def _judge(self, made: _FirstEstimate, kept: bool) -> None:
        """The first promise of a job is judged, once."""
        if not made.judged:
            made.judged = True
            for errors in (self._own_errors(made.kind), self._all):
                errors.steer(kept)

    def _errors(self, kind: str) -> _Errors:
        own = self._own_errors(kind)
        return own if own.is_enough else self._all

    def _own_errors(self, kind: str) -> _Errors:
        return self._errors_of.setdefault(kind, _Errors())


class _FirstEstimate:
    """When a job was first promised something, how long it was planned to wait then, and what it is promised now."""

    __slots__ = ("at", "judged", "kind", "latest", "planned_wait")

    def __init__(self, kind: str, at: Seconds, planned_wait: Seconds) -> None:
        self.kind = kind
        self.at = at
        self.planned_wait = planned_wait
        self.latest: Seconds = at
        self.judged = False


class _Errors:
    """The latest errors of plans, sorted, and the confidence that keeps promises."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []
        self._confidence = AIMED_AT

    @property
    def is_enough(self) -> bool:
        return len(self._sorted) >= ENOUGH

    def add(self, error: float) -> None:
        self._latest.append(error)
        insort(self._sorted, error)
        if len(self._latest) > REMEMBERED:
            del self._sorted[bisect_left(self._sorted, self._latest.popleft())]

    def steer(self, kept: bool) -> None:
        self._confidence = min(max(self._confidence + STEP * (AIMED_AT - kept), LEAST_SURE), MOST_SURE)

    def upper(self) -> float:
        """How much longer than planned a wait will be at most, with the confidence that it takes."""
        if not self.is_enough:
            return AT_FIRST
        seen = self.quantile(min(self._confidence, 1.0)) + WIDER * max(self._confidence - 1.0, 0.0)
        return max(seen, AT_LEAST)

    def quantile(self, part: float) -> float:
        if not self._sorted:
            return 0.0
        return self._sorted[min(int(part * len(self._sorted)), len(self._sorted) - 1)]
