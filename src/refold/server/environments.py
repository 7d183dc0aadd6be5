"""Environments of submitters: stored once each, for as long as an active job inherits them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from time import time

import msgspec

from refold.client.api import Caller, JobEnvironment, NewEnvironment, StoredEnvironment, Submission
from refold.errors import BadInput, NotFound, TooManyRequests
from refold.model import HOUR, Job, Seconds, format_count
from refold.server.live_state import LiveState
from refold.server.store import Store
from refold.server.writer import Writer

ENVIRONMENT_SWEEP_SECONDS: Seconds = HOUR

KEEP_UNUSED_SECONDS: Seconds = HOUR
"""How long an environment is kept for submissions that follow."""

MAX_RECENT_BYTES = 256 * 2**20
"""What a user may store between two sweeps: it is on disk for an hour even if no job needs it."""


class Environments:
    """Stores and finds environments. They are not journalled, and only the job's user sees their values."""

    def __init__(self, state: LiveState, writer: Writer, store: Store) -> None:
        self._state = state
        self._writer = writer
        self._store = store
        self._recent: dict[tuple[str, str], dict[str, int]] = {}
        """Sizes of the environments that each user has stored since the last sweep."""

    async def create(self, caller: Caller, environment: NewEnvironment) -> StoredEnvironment:
        """Store an environment for later submissions of the same user; return its id."""
        content = msgspec.json.encode([caller.tenant, caller.user, sorted(environment.variables.items())])
        environment_id = hashlib.sha256(content).hexdigest()
        recent = self._recent.setdefault((caller.tenant, caller.user), {})
        if environment_id not in recent and sum(recent.values()) + len(content) > MAX_RECENT_BYTES:
            raise TooManyRequests(
                f"user {caller.user!r} has stored {format_count(len(recent), 'environment')} within an hour, at most"
                f" {MAX_RECENT_BYTES >> 20} MiB are allowed: submit later, or export fewer variables (--export)"
            )
        recent[environment_id] = len(content)
        now = time()
        await self._writer.write(
            lambda: self._store.write_environment(environment_id, caller.user, environment.variables, now)
        )
        return StoredEnvironment(environment_id)

    def check(self, caller: Caller, submissions: Sequence[Submission]) -> None:
        """Reject submissions that name an environment which the caller has not stored."""
        for environment_id in {submission.exported for submission in submissions} - {""}:
            self._find(caller, environment_id)

    def names(self, caller: Caller, submission: Submission) -> list[str]:
        """Return the names of the variables that a submission would inherit."""
        return sorted(self._find(caller, submission.exported)) if submission.exported else []

    def _find(self, caller: Caller, environment_id: str) -> Mapping[str, str]:
        found = self._store.reader.environment(environment_id)
        if found is None or found.user != caller.user:
            raise BadInput(f"exported: unknown environment {environment_id[:12]}…; store it before you submit")
        return found.variables

    def of_job(self, caller: Caller, job_id: str) -> JobEnvironment:
        """Return the variables that an active job inherits from its submitter; values only to the job's user."""
        record = self._state.job_table.records.get(job_id)
        if record is None:
            raise NotFound(f"job {job_id!r} has ended; its environment is not kept")
        variables = self.variables(record.job) or {}
        return JobEnvironment(sorted(variables), dict(variables) if caller.user == record.job.user else None)

    def variables(self, job: Job) -> Mapping[str, str] | None:
        """Return the variables that a job inherits from its submitter; None: it inherits the daemon's."""
        if not job.launch.exported:
            return None
        found = self._store.reader.environment(job.launch.exported)
        if found is None:
            raise NotFound(f"the environment of job {job.id!r} is missing in the store")
        return found.variables

    async def sweep(self) -> None:
        """Remove environments that no active job inherits, some time after they were last stored."""
        self._recent.clear()
        used = {record.job.launch.exported for record in self._state.job_table.records.values()}
        before = time() - KEEP_UNUSED_SECONDS
        await self._writer.write(lambda: self._store.remove_environments(used, before))
