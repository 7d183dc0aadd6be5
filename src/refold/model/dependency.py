"""Dependencies between jobs, as in Slurm: 'afterany:train-7', 'singleton'."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from refold.errors import BadValue

AFTER_OK, AFTER_ANY, AFTER_NOT_OK = "afterok", "afterany", "afternotok"
SINGLETON = "singleton"
EXPECTED_DEPENDENCY = "JOB, afterok:JOB, afterany:JOB, afternotok:JOB or singleton"

DEPENDENCY_KINDS = (AFTER_OK, AFTER_ANY, AFTER_NOT_OK)
_ALL_TASKS = "_*"
_JOB = re.compile(r"[\w.-]+(?:_\*)?")


class Dependency(NamedTuple):
    """A condition for the start of a job.

    `afterok`: the other job has finished; `afternotok`: it has failed or was cancelled; `afterany`: it has ended.
    `singleton`, without another job: all earlier jobs of the same name and user have ended. The job 'train-12_*' stands
    for all tasks of an array: a job per task would be too much if arrays of thousands depend on each other.
    """

    kind: str
    job: str = ""

    def __str__(self) -> str:
        if self.kind == AFTER_OK and self.job != SINGLETON:
            return self.job
        return f"{self.kind}:{self.job}" if self.job else self.kind

    @property
    def array(self) -> str:
        """The id of the array whose tasks the job stands for; '' if it is one job."""
        return self.job.removesuffix(_ALL_TASKS) if self.job.endswith(_ALL_TASKS) else ""

    def is_met_by(self, state: str) -> bool:
        """Whether the condition is met if the other job has ended in this state."""
        return self.kind == AFTER_ANY or (state == "finished") == (self.kind == AFTER_OK)

    def failing_state(self, states: Iterable[str]) -> str:
        """Return the state, of those of the other jobs, because of which the condition cannot be met; '' if none."""
        return next((state for state in sorted(states) if state and not self.is_met_by(state)), "")

    def failure(self, state: str) -> str:
        """Describe a condition that cannot be met, because the other job has ended in this state."""
        return dependency_failure(self.job, state)


def dependency_failure(job: str, state: str) -> str:
    """Describe a dependency on a job that has ended in a state in which it does not meet the dependency."""
    return f"dependency {job!r} {'was cancelled' if state == 'cancelled' else state}"


def array_dependency(kind: str, array: str) -> Dependency:
    """Return a dependency on all tasks of an array."""
    return Dependency(kind, array + _ALL_TASKS)


def parse_dependency(text: str) -> Dependency:
    """Parse one dependency; a job without a type is one that has to finish."""
    kind, colon, job = text.partition(":")
    if text == SINGLETON:
        return Dependency(SINGLETON)
    dependency = Dependency(kind, job) if colon else Dependency(AFTER_OK, text)
    if dependency.kind not in DEPENDENCY_KINDS or not _JOB.fullmatch(dependency.job):
        raise BadValue(f"after is {text[:64]!r}, expected {EXPECTED_DEPENDENCY}")
    return dependency


def parse_dependencies(text: str) -> list[Dependency]:
    """Parse dependencies in Slurm's notation: 'afterok:7:8,afterany:9,singleton'."""
    found: list[Dependency] = []
    for word in text.split(","):
        kind, *jobs = word.split(":")
        found += [parse_dependency(f"{kind}:{job}") for job in jobs] if jobs else [parse_dependency(word)]
    return found
