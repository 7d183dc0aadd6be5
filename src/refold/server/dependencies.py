"""The dependency graph of active jobs."""

from __future__ import annotations

from refold.model import DEPENDENCY_KINDS, SINGLETON, Dependency, Job, array_dependency, parse_dependency

_Owner = tuple[str, str, str]
"""Tenant, user and name, which the jobs of a `singleton` dependency share."""


class DependencyGraph:
    """Which active jobs wait for which others, and the active jobs of each name in order of submission."""

    def __init__(self) -> None:
        self._unmet: dict[str, set[Dependency]] = {}
        self._dependents: dict[Dependency, set[str]] = {}
        self._active_tasks: dict[str, set[str]] = {}
        self._by_owner: dict[_Owner, dict[str, None]] = {}

    def add(self, job: Job) -> list[Dependency]:
        """Add a new job, and return its dependencies on other jobs."""
        self._by_owner.setdefault(_owner(job), {})[job.id] = None
        if job.launch.array is not None:
            self._active_tasks.setdefault(job.launch.array.array, set()).add(job.id)
        dependencies = [dependency for dependency in map(parse_dependency, job.launch.after) if dependency.job]
        self._unmet[job.id] = set(dependencies)
        for dependency in dependencies:
            self._dependents.setdefault(dependency, set()).add(job.id)
        return dependencies

    def meet(self, job_id: str, dependency: Dependency) -> None:
        """Remove a dependency that is met."""
        self._unmet[job_id].discard(dependency)

    def is_ready(self, job: Job) -> bool:
        """Whether all dependencies of a job are met."""
        if self._unmet.get(job.id):
            return False
        return SINGLETON not in job.launch.after or next(iter(self._by_owner[_owner(job)])) == job.id

    def remove(self, job: Job, state: str) -> tuple[list[str], list[str]]:
        """Remove a job that has ended; return the jobs that may start now, and those whose dependency has failed."""
        ready: set[str] = set()
        failed: set[str] = set()
        for dependency in self._unmet.pop(job.id, ()):
            self._dependents.get(dependency, set()).discard(job.id)
        for dependency in self._settled(job, state):
            dependents = self._dependents.pop(dependency, set())
            if not dependency.is_met_by(state):
                failed |= dependents
                continue
            for dependent in dependents:
                self.meet(dependent, dependency)
            ready |= dependents
        return [*sorted(ready - failed), *self._next_of_owner(job)], sorted(failed)

    def _settled(self, ended: Job, state: str) -> list[Dependency]:
        """Return the dependencies that the end of a job meets or fails: on the job itself, and on its array."""
        settled = [Dependency(kind, ended.id) for kind in DEPENDENCY_KINDS]
        if ended.launch.array is None:
            return settled
        array = ended.launch.array.array
        active = self._active_tasks.get(array, set())
        active.discard(ended.id)
        if not active:
            self._active_tasks.pop(array, None)
        on_array = [array_dependency(kind, array) for kind in DEPENDENCY_KINDS]
        return [*settled, *(dependency for dependency in on_array if not (active and dependency.is_met_by(state)))]

    def _next_of_owner(self, ended: Job) -> list[str]:
        """Return the job that may be the next singleton."""
        owned = self._by_owner[_owner(ended)]
        owned.pop(ended.id, None)
        if not owned:
            del self._by_owner[_owner(ended)]
        return [next(iter(owned))] if owned else []


def _owner(job: Job) -> _Owner:
    return job.tenant, job.user, job.group
