"""Simple ways to foresee how long jobs last, to compare with: they see what the Predictor sees, and no more."""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from refold.model import Job, Seconds
from refold.predict import Floats, Predictor, times_at

CHANCES = (0.025, *(percent / 100 for percent in range(5, 96, 5)), 0.975)
"""The quantiles that everybody is asked for: every twentieth, and the ends of the 95 % interval."""

_CHANCES = np.array(CHANCES)
REMEMBERED = 1000
"""Past jobs, or past errors, from which a comparator makes a distribution."""

UNKNOWN: Seconds = 600.0
"""What is said where nothing is known."""


class QuantilePredictor(Protocol):
    """Whoever says how long jobs last: quantiles at `CHANCES`, in seconds."""

    def quantiles(self, job: Job, now: Seconds) -> Floats:
        """For a job that is submitted now."""
        ...

    def finished(self, job: Job, seconds: Seconds, now: Seconds) -> None:
        """A job has lasted so long."""
        ...


class PredictorQuantiles:
    """The Predictor as one who is asked for quantiles."""

    def __init__(self, predictor: Predictor | None = None) -> None:
        self.predictor = predictor or Predictor()

    def quantiles(self, job: Job, now: Seconds) -> Floats:
        """For a job that is submitted now."""
        self.predictor.submitted(job, now)
        distribution = self.predictor.expect(job, now)
        return np.minimum(times_at(distribution.survival, _CHANCES), distribution.ceiling)

    def finished(self, job: Job, seconds: Seconds, now: Seconds) -> None:
        """A job has lasted so long."""
        self.predictor.finished(job, seconds, now)


def same_owner(job: Job) -> tuple[object, ...]:
    """Whose jobs are alike: the user's; where no user is named, the tenant's of the same demand."""
    return (job.tenant, job.user) if job.user else (job.tenant, job.demand)


def same_group(job: Job) -> tuple[object, ...]:
    """Which jobs are of one group: the same owner, name and demand."""
    return (job.tenant, job.user, job.group, job.workload, job.demand)


class LastTwo:
    """The average of the last two jobs of the same owner (Tsafrir, Etsion and Feitelson, 2007)."""

    def __init__(self) -> None:
        self._last: dict[tuple[object, ...], tuple[Seconds, ...]] = {}

    def point(self, job: Job) -> Seconds:
        """How long it lasts."""
        last = self._last.get(same_owner(job))
        return sum(last) / len(last) if last else UNKNOWN

    def learn(self, job: Job, seconds: Seconds) -> None:
        """A job has lasted so long."""
        owner = same_owner(job)
        self._last[owner] = (*self._last.get(owner, ())[-1:], seconds)


class GroupMean:
    """The mean of all earlier jobs of the group."""

    def __init__(self) -> None:
        self._sums: dict[tuple[object, ...], tuple[float, int]] = {}

    def point(self, job: Job) -> Seconds:
        """How long it lasts."""
        total, count = self._sums.get(same_group(job), (0.0, 0))
        return total / count if count else UNKNOWN

    def learn(self, job: Job, seconds: Seconds) -> None:
        """A job has lasted so long."""
        total, count = self._sums.get(same_group(job), (0.0, 0))
        self._sums[same_group(job)] = (total + seconds, count + 1)


class Limit:
    """What the user said at most."""

    def point(self, job: Job) -> Seconds:
        """How long it lasts."""
        return UNKNOWN if job.time_limit is None else job.time_limit

    def learn(self, job: Job, seconds: Seconds) -> None:
        """Nothing is learned."""


class PointPredictor(Protocol):
    """Whoever says one number."""

    def point(self, job: Job) -> Seconds:
        """How long a job lasts."""
        ...

    def learn(self, job: Job, seconds: Seconds) -> None:
        """A job has lasted so long."""
        ...


class AsPoint:
    """One number, for every quantile the same."""

    def __init__(self, says: PointPredictor) -> None:
        self._says = says

    def quantiles(self, job: Job, now: Seconds) -> Floats:  # noqa: ARG002
        """For a job that is submitted now."""
        return np.full(len(CHANCES), self._says.point(job))

    def finished(self, job: Job, seconds: Seconds, now: Seconds) -> None:  # noqa: ARG002
        """A job has lasted so long."""
        self._says.learn(job, seconds)


@dataclass(slots=True)
class _Latest:
    """The latest numbers, in order of size."""

    arrived: deque[float] = field(default_factory=deque)
    ordered: list[float] = field(default_factory=list)

    def add(self, number: float) -> None:
        insort(self.ordered, number)
        self.arrived.append(number)
        if len(self.arrived) > REMEMBERED:
            self.ordered.remove(self.arrived.popleft())

    def quantiles(self) -> Floats:
        """Linear between what was seen."""
        places = _CHANCES * (len(self.ordered) - 1)
        found: Floats = np.interp(places, np.arange(len(self.ordered)), self.ordered)
        return found


class WithErrors:
    """One number, times the errors that such numbers have had: the fair chance of a point."""

    def __init__(self, says: PointPredictor) -> None:
        self._says = says
        self._said: dict[str, Seconds] = {}
        self._errors = _Latest()

    def quantiles(self, job: Job, now: Seconds) -> Floats:  # noqa: ARG002
        """For a job that is submitted now."""
        point = self._said[job.id] = max(self._says.point(job), 1.0)
        return point * np.exp(self._errors.quantiles()) if self._errors.ordered else np.full(len(CHANCES), point)

    def finished(self, job: Job, seconds: Seconds, now: Seconds) -> None:  # noqa: ARG002
        """A job has lasted so long."""
        self._errors.add(math.log(max(seconds, 1.0) / self._said.pop(job.id)))
        self._says.learn(job, seconds)


class GroupHistory:
    """The latest jobs of the group as they were; of all jobs, where the group has had none."""

    def __init__(self) -> None:
        self._groups: dict[tuple[object, ...], _Latest] = {}
        self._all = _Latest()

    def quantiles(self, job: Job, now: Seconds) -> Floats:  # noqa: ARG002
        """For a job that is submitted now."""
        seen = self._groups.get(same_group(job), self._all)
        return seen.quantiles() if seen.ordered else np.full(len(CHANCES), UNKNOWN)

    def finished(self, job: Job, seconds: Seconds, now: Seconds) -> None:  # noqa: ARG002
        """A job has lasted so long."""
        self._groups.setdefault(same_group(job), _Latest()).add(seconds)
        self._all.add(seconds)


COMPARATORS: dict[str, Callable[[], QuantilePredictor]] = {
    "limit": lambda: AsPoint(Limit()),
    "limit + its past errors": lambda: WithErrors(Limit()),
    "last two": lambda: AsPoint(LastTwo()),
    "last two + its past errors": lambda: WithErrors(LastTwo()),
    "group mean": lambda: AsPoint(GroupMean()),
    "group mean + its past errors": lambda: WithErrors(GroupMean()),
    "group's last 1000": GroupHistory,
}
"""By name. One number has the pinball loss of a point mass."""
