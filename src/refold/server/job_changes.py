"""Changes that users make to their jobs: one at a time, or many in few commits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from refold.client.api import (
    ENDED_STATES,
    Caller,
    ChangedJob,
    JobAction,
    JobChange,
    JobChanges,
    JobState,
    RejectedChange,
)
from refold.core import Event, JobCancelled, JobHeld, JobReleased
from refold.errors import Conflict, Forbidden, NotFound, Refused
from refold.model import Job
from refold.server.inbox import Inbox
from refold.server.job_queries import JobQueries, refusal
from refold.server.job_table import JobSelector
from refold.server.live_state import JobBefore, LiveState
from refold.server.start_conditions import StartConditions
from refold.server.status import job_before

BATCH_JOBS = 1000
"""Jobs that are changed in one commit. Between two of them, the daemon does other work."""

CHANGEABLE: dict[JobAction, tuple[JobState, ...]] = {
    "cancel": ("running", "waiting", "held", "infeasible"),
    "hold": ("waiting",),
    "release": ("held",),
}
"""The states of the jobs that a filter selects for an action."""


class JobChanger:
    """Cancels, holds and releases jobs. `kill`: kills the run of a job without a grace period."""

    def __init__(
        self, state: LiveState, inbox: Inbox, jobs: JobQueries, conditions: StartConditions, kill: Callable[[str], None]
    ) -> None:
        self._state, self._inbox, self._jobs = state, inbox, jobs
        self._conditions = conditions
        self._kill = kill

    async def change(self, caller: Caller, name: str, action: JobAction, *, now: bool = False) -> str:
        """Change a job, and return its id. `now`: kill it if it is cancelled."""
        job_id = self._jobs.find(name)
        events = self._events(caller, job_id, action)
        to_kill = action == "cancel" and (now or self._was_cancelled(job_id))
        if events:
            await self._inbox.commit(events)
        if to_kill:
            self._kill(job_id)
        return job_id

    async def change_all(self, caller: Caller, change: JobChange) -> JobChanges:
        """Change many jobs, each of them as far as it can be changed. Raises Unavailable between two batches."""
        has_filter = bool(change.match or change.tenant or change.user)
        named = dict.fromkeys([*change.jobs, *(self._selected(caller, change) if has_filter else [])])
        names = iter(named)
        outcome = JobChanges([], [])
        while batch := list(islice(names, BATCH_JOBS)):
            await self._change_batch(caller, change, batch, outcome)
        return outcome

    def _selected(self, caller: Caller, change: JobChange) -> list[str]:
        """Return the jobs that a filter selects, of those that the caller may change."""
        states, selector = CHANGEABLE[change.action], JobSelector(change.match or "*")
        return [
            job.id
            for state, job in self._active_jobs()
            if state in states
            and change.tenant in ("", job.tenant)
            and change.user in ("", job.user)
            and caller.can_read(job.tenant, job.user)
            and selector.matches(job)
        ]

    def _active_jobs(self) -> Iterator[tuple[JobState, Job]]:
        for job_id in self._state.job_table.records:
            if (found := self._find(job_id)) is not None:
                yield found

    async def _change_batch(self, caller: Caller, change: JobChange, names: Sequence[str], outcome: JobChanges) -> None:
        named = [(name, await self._find_job(caller, name)) for name in names]
        events: list[Event] = []
        changed: dict[str, bool] = {}
        for name, job_id in named:
            try:
                if isinstance(job_id, Refused):
                    raise job_id
                own_events = self._events(caller, job_id, change.action)
            except Refused as error:
                outcome.rejected.append(RejectedChange(name, str(error)))
                continue
            if job_id not in changed:
                events += own_events
                changed[job_id] = change.action == "cancel" and (change.now or self._was_cancelled(job_id))
        if events:
            await self._inbox.commit(events)
        for job_id, to_kill in changed.items():
            if to_kill:
                self._kill(job_id)
            found = self._find(job_id)
            outcome.changed.append(ChangedJob(job_id, "cancelled" if found is None else found.state))

    async def _find_job(self, caller: Caller, name: str) -> str | Refused:
        """Return the id of an active job, or why there is none of this name.

        Only the store knows other jobs: after each search in it, the daemon does other work.
        """
        if self._is_active(name):
            return name
        await asyncio.sleep(0)
        try:
            job_id = self._jobs.find_or_none(name)
            if job_id is None:
                return NotFound(f"unknown job {name!r}")
            return job_id if self._is_active(job_id) else self._refusal(caller, job_id)
        except Refused as error:
            return error

    def _is_active(self, job_id: str) -> bool:
        return self._find(job_id) is not None

    def _events(self, caller: Caller, job_id: str, action: JobAction) -> list[Event]:
        """Return the events that change a job. Raises if that is not allowed."""
        found = self._find(job_id)
        if found is None:
            raise self._refusal(caller, job_id)
        state, job = found
        if not caller.can_read(job.tenant, job.user):
            raise self._refusal(caller, job_id)
        match action:
            case "cancel":
                return [JobCancelled(job_id)]
            case "hold":
                if state in ("running", "stopping") or job_id in self._state.view.runs:  # it may be starting
                    raise Conflict(f"job {job_id!r} is running; only queued jobs can be held")
                if state == "infeasible":
                    raise Conflict(f"job {job_id!r} does not fit this cluster; cancel it and submit a smaller one")
                return [JobHeld(job_id)]
            case "release":
                if state != "held":
                    return []
                reason = self._conditions.unmet(job)
                return [JobReleased(job_id), *([] if reason is None else [JobHeld(job_id, reason)])]

    def _find(self, job_id: str) -> JobBefore | None:
        """Return a job as it is on disk, unless it has ended."""
        uncommitted = self._state.uncommitted
        return uncommitted[job_id] if job_id in uncommitted else job_before(self._state.view, job_id)

    def _refusal(self, caller: Caller, job_id: str) -> Forbidden | Conflict:
        """Say why the caller cannot change a job."""
        status = self._jobs.status(caller, job_id)
        if status.state in ENDED_STATES and caller.can_read(status.tenant, status.user):
            return Conflict(f"job {job_id!r} has already {_past_participle(status.state)}")
        return Forbidden(refusal(caller, status, "change"))

    def _was_cancelled(self, job_id: str) -> bool:
        record = self._state.job_table.records.get(job_id)
        return record is not None and record.end_reason is not None


def _past_participle(state: JobState) -> str:
    return "been cancelled" if state == "cancelled" else state
