"""Conditions for the start of a job: its begin time, its dependencies, and the limit of its array.

A job is held until they are met. They are derived from the jobs alone, so a restarted daemon can rebuild them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from heapq import heappop, heappush

from refold.core import Event, JobCancelled, JobHeld, JobReleased
from refold.journal import Held, JobEnded, Submitted
from refold.model import (
    DEPENDENCY_KINDS,
    SINGLETON,
    ArrayTask,
    Dependency,
    Job,
    Reason,
    Seconds,
    array_dependency,
    dependency_failure,
    parse_dependency,
)
from refold.server.inbox import Inbox
from refold.server.live_state import LiveState
from refold.server.store import ACTIVE, StoreReader
from refold.server.subscribers import LoopStep, Subscriber

_CONDITIONS = (Reason.BEGIN_TIME, Reason.DEPENDENCY, Reason.ARRAY_LIMIT)


def first_condition(job: Job, now: Seconds) -> Reason | None:
    """Return the first condition of a new job, for which it is held until the conditions have been checked."""
    if job.launch.begin is not None and job.launch.begin > now:
        return Reason.BEGIN_TIME
    if job.launch.after:
        return Reason.DEPENDENCY
    return Reason.ARRAY_LIMIT if job.launch.array is not None and job.launch.array.limit else None


class StartConditions(Subscriber):
    """Releases held jobs when their conditions are met, and cancels jobs whose dependencies cannot be met any more."""

    def __init__(self, state: LiveState, inbox: Inbox, reader: StoreReader) -> None:
        self._state = state
        self._inbox = inbox
        self._reader = reader
        self._graph = DependencyGraph()
        self._arrays = ArrayLimits()
        self._begins: list[tuple[Seconds, str]] = []

    def unmet(self, job: Job) -> Reason | None:
        """Return the first condition of an active job that is not met."""
        if job.launch.begin is not None and job.launch.begin > self._state.now():
            return Reason.BEGIN_TIME
        if not self._graph.is_ready(job):
            return Reason.DEPENDENCY
        return None if self._arrays.is_admitted(job) else Reason.ARRAY_LIMIT

    # As a subscriber of the loop.

    def started(self) -> None:
        """Restore the conditions of the jobs that the previous daemon left."""
        jobs = sorted((record.job for record in self._state.job_table.records.values()), key=lambda job: job.submitted)
        for job in jobs:
            if self._state.view.hold_reason(job.id) not in (Reason.HELD, *_CONDITIONS):
                self._arrays.admit(job)
        self._report(self._add_all(jobs))
        for job in jobs:
            self._report(self._advance(job.id))

    def next_step_at(self) -> Seconds | None:
        return self._begins[0][0] if self._begins else None

    def before_step(self, now: Seconds) -> Sequence[Event]:
        """Release the jobs whose begin time has come, unless they have other conditions."""
        events: list[Event] = []
        while self._begins and self._begins[0][0] <= now:
            events += self._advance(heappop(self._begins)[1])
        return events

    def after_step(self, step: LoopStep) -> None:
        """Check the conditions that a step may have met."""
        self._report(self._add_all(change.record.job for change in step.changes if isinstance(change, Submitted)))
        for change in step.changes:
            match change:
                case Held(record, Reason.HELD):
                    self._report(self._fill(record.job))
                case Held(record):
                    self._report(self._advance(record.job.id))
                case JobEnded(record):
                    self._report(self._fill(record.job))
                    self._report(self._notify_dependents(record.job, record.state))
                case _:
                    pass

    def _report(self, events: Iterable[Event]) -> None:
        for event in events:
            self._inbox.report(event)

    def _add_all(self, jobs: Iterable[Job]) -> Iterator[Event]:
        """Add new jobs; their dependencies may have ended since they were checked."""
        states_of = cache(self._states_of)
        for job in jobs:
            if job.launch.begin is not None:
                heappush(self._begins, (job.launch.begin, job.id))
            for dependency in self._graph.add(job):
                states = states_of(dependency)
                if state := dependency.failing_state(states):
                    yield JobCancelled(job.id, dependency.failure(state))
                elif ACTIVE not in states:
                    self._graph.meet(job.id, dependency)

    def _states_of(self, dependency: Dependency) -> frozenset[str]:
        """Return the states of the jobs that a dependency stands for: those of ended jobs, or ACTIVE."""
        if dependency.array:
            return self._reader.array_states(dependency.array)
        if dependency.job in self._state.job_table.records:
            return frozenset([ACTIVE])
        ended = self._reader.ended_job(dependency.job)
        return frozenset(["is unknown" if ended is None else ended.state])

    def _notify_dependents(self, ended: Job, state: str) -> Iterator[Event]:
        ready, failed = self._graph.remove(ended, state)
        for job_id in failed:
            yield JobCancelled(job_id, dependency_failure(ended.id, state))
        for job_id in ready:
            yield from self._advance(job_id)

    def _fill(self, left: Job) -> Iterator[Event]:
        """Admit other tasks of an array in place of a job that has ended or is held."""
        for job_id in self._arrays.leave(left):
            yield from self._advance(job_id)

    def _advance(self, job_id: str) -> Iterator[Event]:
        """Release a held job if its conditions are met, or hold it for the next one."""
        held_for = self._state.view.hold_reason(job_id)
        if held_for not in _CONDITIONS:
            return
        job = self._state.job_table.records[job_id].job
        reason = self.unmet(job)
        if reason is Reason.ARRAY_LIMIT and self._arrays.admit(job):
            reason = None
        if reason is None:
            yield JobReleased(job_id)
        elif reason is not held_for:
            yield JobHeld(job_id, reason)


# The dependency graph of active jobs.

_Owner = tuple[str, str, str]
"""Tenant, user and name, which the jobs of a `singleton` dependency share."""


class DependencyGraph:
    """Which active jobs wait for which others, and the active jobs of each name in order of submission."""

    def __init__(self) -> None:
        self._unmet: dict[str, set[Dependency]] = {}
        self._dependents: dict[Dependency, set[str]] = {}
        self._active_tasks: dict[str, set[str]] = {}
        self._by_owner: dict[_Owner, dict[str, None]] = {}
        self._singletons: Counter[_Owner] = Counter()

    def add(self, job: Job) -> list[Dependency]:
        self._by_owner.setdefault(_owner(job), {})[job.id] = None
        if SINGLETON in job.launch.after:
            self._singletons[_owner(job)] += 1
        if job.launch.array is not None:
            self._active_tasks.setdefault(job.launch.array.array, set()).add(job.id)
        dependencies = [dependency for dependency in map(parse_dependency, job.launch.after) if dependency.job]
        self._unmet[job.id] = set(dependencies)
        for dependency in dependencies:
            self._dependents.setdefault(dependency, set()).add(job.id)
        return dependencies

    def meet(self, job_id: str, dependency: Dependency) -> None:
        self._unmet[job_id].discard(dependency)

    def is_ready(self, job: Job) -> bool:
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
        owner = _owner(ended)
        owned = self._by_owner[owner]
        owned.pop(ended.id, None)
        if SINGLETON in ended.launch.after:
            self._singletons[owner] -= 1
        if not owned:
            del self._by_owner[owner]
            self._singletons.pop(owner, None)
        # The first one is only looked for if it matters: in a long dict whose first jobs have ended, that takes long.
        return [next(iter(owned))] if owned and self._singletons[owner] else []


def _owner(job: Job) -> _Owner:
    return job.tenant, job.user, job.group


# The number of tasks of an array that may run at once (`--array 0-9%2`).


class ArrayLimits:
    """The admitted tasks of each limited array, and those that wait for admission, by task number."""

    def __init__(self) -> None:
        self._arrays: dict[str, _Tasks] = {}

    def is_admitted(self, job: Job) -> bool:
        place = _limited_place(job)
        return place is None or (place.array in self._arrays and job.id in self._arrays[place.array].admitted)

    def admit(self, job: Job) -> bool:
        """Admit a job, or queue it if the limit of its array is reached; return whether it is admitted."""
        place = _limited_place(job)
        if place is None:
            return True
        tasks = self._arrays.setdefault(place.array, _Tasks())
        if job.id not in tasks.admitted and len(tasks.admitted) >= place.limit:
            tasks.enqueue(place.task, job.id)
            return False
        tasks.admitted.add(job.id)
        return True

    def leave(self, job: Job) -> Iterator[str]:
        """Withdraw the admission of a job that has ended or is held; yield queued jobs while there is room."""
        place = _limited_place(job)
        tasks = None if place is None else self._arrays.get(place.array)
        if place is None or tasks is None:
            return
        tasks.admitted.discard(job.id)
        while tasks.queue and len(tasks.admitted) < place.limit:
            yield tasks.dequeue()
        if not (tasks.admitted or tasks.queue):
            self._arrays.pop(place.array, None)


class _Tasks:
    def __init__(self) -> None:
        self.admitted: set[str] = set()
        self.queue: list[tuple[int, str]] = []
        self._queued: set[str] = set()

    def enqueue(self, task: int, job_id: str) -> None:
        if job_id not in self._queued:
            self._queued.add(job_id)
            heappush(self.queue, (task, job_id))

    def dequeue(self) -> str:
        _, job_id = heappop(self.queue)
        self._queued.discard(job_id)
        return job_id


def _limited_place(job: Job) -> ArrayTask | None:
    place = job.launch.array
    return place if place is not None and place.limit else None
