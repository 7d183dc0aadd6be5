"""The course of one training on hosts that fail: its steps, failures, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

HOSTS = 4
"""Hosts that a training uses; others are spares."""

UNDER_WAY = 2.0
"""Steps that are completed so many seconds after a failure do not end the pause."""


@dataclass
class Course:
    """The course of one training: its steps, its failures, and how many hosts there were when."""

    name: str
    began: float
    ended: float = 0.0
    steps: list[tuple[float, int]] = field(default_factory=list)
    failures: list[float] = field(default_factory=list)
    hosts: list[tuple[float, int]] = field(default_factory=list)
    noticed: list[float] = field(default_factory=list)
    """Seconds from each failure until the others have noticed it, if they say so."""
    copies: list[float] = field(default_factory=list)
    """Seconds of each copy of the state."""

    def progress(self) -> int:
        """Return how far the training has come between the beginning and the end."""
        before = max((step for at, step in self.steps if at <= self.began), default=0)
        return max((step for at, step in self.steps if at <= self.ended), default=0) - before

    def undisturbed_seconds(self) -> float:
        """Return the median time between two steps while all hosts were there and nothing changed."""
        changes = [*self.failures, *(at for at, _ in self.hosts[1:])]
        quiet, reached = [], 0
        for (begin, _), (end, step) in pairwise(self.steps):
            present = [count for at, count in self.hosts if at <= begin]
            is_quiet = not any(begin < at + UNDER_WAY and end > at for at in changes)
            if present and present[-1] >= HOSTS and is_quiet and step > reached:
                quiet.append(end - begin)
            reached = max(reached, step)
        return median(quiet)

    def goodput(self) -> float:
        """Return the steps in relation to those of an undisturbed training on the hosts that there were."""
        possible = (self.ended - self.began) * self.host_share() / self.undisturbed_seconds()
        return self.progress() / possible

    def host_share(self) -> float:
        """Return the share of host time that there was."""
        ends = [*(at for at, _ in self.hosts[1:]), self.ended]
        total = sum((end - at) * min(count, HOSTS) for (at, count), end in zip(self.hosts, ends, strict=True))
        return total / (HOSTS * (self.ended - self.began))

    def pauses(self) -> list[float]:
        """Return how long no new step was made after each failure: one that is under way may still be completed."""
        times, reached = [self.began], 0
        for at, step in self.steps:
            if step > reached and at <= self.ended:
                times.append(at)
                reached = step
        times.append(self.ended)
        return [
            max(end - begin for begin, end in pairwise(times) if end > failure and begin < failure + UNDER_WAY)
            for failure in self.failures
        ]


def plot(course: Course, width: int = 60, every: float = 2.0) -> str:
    """Return the steps per second over time as text; failures are marked."""
    counts = [0] * max(1, int((course.ended - course.began) / every) + 1)
    reached = max((step for at, step in course.steps if at <= course.began), default=0)
    for at, step in course.steps:
        if course.began < at <= course.ended and step > reached:
            counts[int((at - course.began) / every)] += 1
            reached = step
    failed = {int((at - course.began) / every) for at in course.failures}
    largest = max(*counts, 1)
    return "\n".join(
        f"{number * every:5.0f} s {count / every:5.1f}/s {'#' * round(width * count / largest)}"
        f"{'  <- a host is killed' if number in failed else ''}"
        for number, count in enumerate(counts)
    )
