"""The dependency graph of active jobs."""

from __future__ import annotations

from refold.model import SINGLETON, Dependency, Job, parse_dependency

_Owner = tuple[str, str, str]
"""Tenant, user and name, which the jobs of a `singleton` dependency share."""


class DependencyGraph:
    """Which active jobs wait for which others, and the active jobs of each name in order of submission."""

    def __init__(self) -> None:
        self._unmet: dict[str, set[Dependency]] = {}
        self._dependents: dict[str, set[str]] = {}
        self._by_owner: dict[_Owner, dict[str, None]] = {}

    def add(self, job: Job) -> list[Dependency]:
        """Add a new job, and return its dependencies on other jobs."""
        self._by_owner.setdefault(_owner(job), {})[job.id] = None
        dependencies = [dependency for dependency in map(parse_dependency, job.launch.after) if dependency.job]
        self._unmet[job.id] = set(dependencies)
        for dependency in dependencies:
            self._dependents.setdefault(dependency.job, set()).add(job.id)
        return dependencies

    def meet(self, job_id: str, dependency: Dependency) -> None:
        """Remove a dependency that is met."""
        self._unmet[job_id].discard(dependency)

    def is_ready(self, job: Job) -> bool:
        """Whether all dependencies of a job are met."""
        if self._unmet.get(job.id):
            return False
        return SINGLETON not in job.launch.after or next(iter(self._by_owner[_owner(job)])) == job.id

    def remove(self, job: Job) -> list[tuple[str, list[Dependency]]]:
        """Remove a job that has ended; return the jobs that depend on it, with these dependencies."""
        owned = self._by_owner[_owner(job)]
        owned.pop(job.id, None)
        for dependency in self._unmet.pop(job.id, ()):
            self._dependents.get(dependency.job, set()).discard(job.id)
        waiting = [
            (dependent, [dependency for dependency in self._unmet[dependent] if dependency.job == job.id])
            for dependent in sorted(self._dependents.pop(job.id, ()))
        ]
        if owned:
            waiting.append((next(iter(owned)), []))  # it may be the next singleton
        else:
            del self._by_owner[_owner(job)]
        return waiting


def _owner(job: Job) -> _Owner:
    return job.tenant, job.user, job.group
