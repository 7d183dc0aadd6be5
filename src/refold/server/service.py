"""The service behind the API: check permissions, answer queries, commit changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from time import time

import msgspec

from refold import __version__
from refold.api import (
    ENDED_STATES,
    Caller,
    CreatedToken,
    DaemonInfo,
    EventStream,
    GpuStatus,
    JobExplanation,
    Jobs,
    JobState,
    JobStatus,
    Logs,
    NewToken,
    NodeStatus,
    Preview,
    StoredToken,
    Submission,
    TenantStatus,
    TokenStatus,
)
from refold.backends.local import LogChunk, log_path, read_log_at
from refold.core import Event, JobCancelled, JobHeld, JobReleased
from refold.errors import Conflict, Forbidden, NotFound
from refold.model import Reason
from refold.server import drained_gpus
from refold.server.admission import Admission
from refold.server.drain import DrainManager
from refold.server.loop import Loop
from refold.server.preview import Previewer
from refold.server.snapshot import journal_lines, snapshot_lines
from refold.server.status import JobFilter, JobStates, node_statuses, tenant_statuses
from refold.server.store import Store
from refold.server.tokens import TokenStore


class SchedulerService:
    """The daemon as the API sees it. Active jobs are answered from memory, ended jobs from the store."""

    def __init__(
        self,
        loop: Loop,
        store: Store,
        event_stream: EventStream,
        drains: DrainManager,
        tokens: dict[str, StoredToken],
        logs: Path,
        started: float,
    ) -> None:
        self.event_stream = event_stream
        self.on_resume: Callable[[int, int | None], None] = lambda _node, _gpu: None
        self.read_gpus: Callable[[], Awaitable[list[GpuStatus]]] = _no_gpus
        self._loop = loop
        self._store = store
        self._logs = logs
        self._started = started
        self._view = loop.view
        self._states = JobStates(loop.view, loop.job_table.records, loop.wall_time)
        self._admission = Admission(loop, store, self.find)
        self._previewer = Previewer(loop, self._admission)
        self._drains = drains
        self._tokens = TokenStore(loop, store, tokens)

    def info(self, caller: Caller) -> DaemonInfo:
        """Describe the daemon and the caller's rights."""
        view, header = self._view, self._loop.header
        return DaemonInfo(
            version=__version__,
            cluster=header.cluster.name,
            policy=header.policy,
            nodes=len(header.cluster.nodes),
            gpus=header.cluster.gpus,
            free_gpus=view.free_gpus,
            running=sum(not drained_gpus.is_drain_placeholder(job) for job in view.active.values()),
            waiting=len(view.waiting),
            now=time(),
            started=self._started,
            storage=self._loop.problem,
            role=caller.role,
            tenant=caller.tenant,
            user=caller.user,
        )

    # Jobs.

    async def submit(self, caller: Caller, submission: Submission) -> JobStatus:
        """Submit a job; return when it is on disk."""
        (job_id,) = await self._admission.accept(caller, [submission])
        return await self._status(caller, job_id)

    async def submit_all(self, caller: Caller, submissions: list[Submission]) -> Jobs:
        """Submit jobs in one commit: all or none."""
        ids = await self._admission.accept(caller, submissions)
        return Jobs([await self._status(caller, job_id) for job_id in ids], len(ids))

    async def preview(self, caller: Caller, submission: Submission) -> Preview:
        """Return the expected outcome of a submission, without submitting it."""
        return await self._previewer.preview(caller, submission)

    async def jobs(
        self,
        caller: Caller,
        *,
        state: Sequence[JobState] | None,
        tenant: str,
        user: str,
        name: str,
        limit: int,
        after: int,
        ended: bool,
    ) -> Jobs:
        """Return a page of active jobs in queue order, or of ended jobs, latest first."""
        if ended:
            states = [name for name in state or () if name in ENDED_STATES]
            if state and not states:
                return Jobs([], 0)
            if self._loop.uncommitted_ends:
                await self._loop.write(lambda: None)  # waits until the current commit is on disk
            page = await asyncio.to_thread(
                self._store.reader.ended_jobs,
                states=states,
                tenant=tenant,
                user=user,
                name=name,
                limit=limit,
                after=after,
            )
        else:
            page = self._states.page(JobFilter(tuple(state or ()), tenant, user, name), limit, after)
        return msgspec.structs.replace(page, jobs=[_redact(caller, row) for row in page.jobs])

    async def job(self, caller: Caller, job: str) -> JobStatus:
        """Return one job."""
        return await self._status(caller, self.find(job))

    async def why(self, caller: Caller, job: str) -> JobExplanation:
        """Return the status and the event history of a job."""
        status = await self.job(caller, job)
        events = self._store.reader.job_events(status.id)
        if not caller.can_read(status.tenant):
            events = [msgspec.structs.replace(event, text="") for event in events]
        return JobExplanation(status, events)

    async def logs(self, caller: Caller, job: str, *, run: int | None, instance: int, offset: int, limit: int) -> Logs:
        """Return a part of a run's output."""
        status = await self.job(caller, job)
        if not caller.can_read(status.tenant):
            raise Forbidden(
                f"job {status.id!r} belongs to tenant {status.tenant!r}; tenant {caller.tenant!r} may not read it"
            )
        number = status.runs if run is None else run
        if run is not None and run > status.runs:
            raise NotFound(
                f"job {status.id!r} has no run {run}; it has had {status.runs} run{'s' * (status.runs != 1)}"
            )
        path = log_path(self._logs, status.id, number, instance)
        # Checked before reading: if the run has ended now, the output read below is complete.
        record = self._loop.job_table.records.get(status.id)
        ended = number > 0 and (record is None or record.run != number)
        read = await asyncio.to_thread(read_log_at, path, offset, limit)
        if number and read is None and instance:
            raise NotFound(f"run {number} of {status.id!r} has no instance {instance}")
        chunk, at_end = read or (LogChunk(b"", max(0, offset), max(0, offset)), True)
        return Logs(chunk.text, number, instance, chunk.next, ended and at_end)

    async def cancel(self, caller: Caller, job: str) -> JobStatus:
        """Cancel a job."""
        status = await self._check_changeable(caller, job)
        return await self._commit(caller, status, [JobCancelled(status.id)])

    async def hold(self, caller: Caller, job: str) -> JobStatus:
        """Hold a job: it does not start until it is released."""
        status = await self._check_changeable(caller, job)
        if status.state in ("running", "stopping"):
            raise Conflict(f"job {status.id!r} is running; only queued jobs can be held")
        if status.state == "infeasible":
            raise Conflict(f"job {status.id!r} does not fit this cluster; cancel it and submit a smaller one")
        return await self._commit(caller, status, [JobHeld(status.id)])

    async def release(self, caller: Caller, job: str) -> JobStatus:
        """Release a held job. Unfinished dependencies keep holding it."""
        status = await self._check_changeable(caller, job)
        if status.state != "held":
            return status
        after = self._view.held[status.id].launch.after
        if any(dependency in self._loop.job_table.records for dependency in after):
            return await self._commit(caller, status, [JobHeld(status.id, Reason.DEPENDENCY)])
        return await self._commit(caller, status, [JobReleased(status.id)])

    def find(self, name: str) -> str:
        """Return the id of the job with this id, number or name."""
        if name in self._loop.job_table.records:
            return name
        job_ids = self._store.reader.find_job_ids(name)
        if len(job_ids) > 1:
            raise Conflict(f"several jobs are named {name!r}, most recently {job_ids[0]!r}; use a job id")
        if not job_ids:
            raise NotFound.near("job", name, self._store.reader.latest_ids(50), listed_by="refold queue")
        return job_ids[0]

    async def _status(self, caller: Caller, job_id: str) -> JobStatus:
        active = self._states.state(job_id)
        status = self._states.status(*active) if active else self._loop.uncommitted_ends.get(job_id)
        status = status or self._store.reader.ended_job(job_id)
        if status is None:
            raise NotFound(f"unknown job {job_id!r}")
        return _redact(caller, status)

    async def _check_changeable(self, caller: Caller, job: str) -> JobStatus:
        status = await self.job(caller, job)
        if not caller.can_read(status.tenant):
            raise Forbidden(
                f"job {status.id!r} belongs to tenant {status.tenant!r}; your token is for tenant {caller.tenant!r}"
            )
        if status.state in ENDED_STATES:
            raise Conflict(f"job {status.id!r} has already {_past_participle(status.state)}")
        return status

    async def _commit(self, caller: Caller, status: JobStatus, events: Sequence[Event]) -> JobStatus:
        await self._loop.commit_events(events)
        return await self._status(caller, status.id)

    # The cluster.

    def nodes(self, caller: Caller) -> list[NodeStatus]:
        """Return all nodes."""
        return node_statuses(self._view, self._drains.drain_reasons)

    async def drain(self, caller: Caller, node: str, *, why: str, gpu: int | None, move: bool) -> NodeStatus:
        """Drain a node, or one GPU of it."""
        index = await self._drains.drain(node, gpu, why or f"drained by {caller.name}", move)
        return self.nodes(caller)[index]

    async def resume(self, caller: Caller, node: str, *, gpu: int | None) -> NodeStatus:
        """Accept work again on a node, or on one GPU of it."""
        index = await self._drains.resume(node, gpu)
        self.on_resume(index, gpu)
        return self.nodes(caller)[index]

    async def gpus(self, caller: Caller) -> list[GpuStatus]:
        """Return all GPUs."""
        return await self.read_gpus()

    def tenants(self, caller: Caller) -> list[TenantStatus]:
        """Return all tenants."""
        return tenant_statuses(self._view)

    # Tokens.

    async def tokens(self, caller: Caller) -> list[TokenStatus]:
        """Return all tokens without secrets."""
        return self._tokens.list()

    async def create_token(self, caller: Caller, token: NewToken) -> CreatedToken:
        """Create a token. Its secret is shown only once."""
        return await self._tokens.create(token)

    async def revoke_token(self, caller: Caller, name: str) -> TokenStatus:
        """Revoke a token."""
        revoked = await self._tokens.revoke(name)
        self.event_stream.wake()
        return revoked

    # The journal.

    async def snapshot(self, caller: Caller, *, whole: bool) -> bytes:
        """Return the current state as a journal."""
        return await snapshot_lines(self._loop, self._store.reader, whole)

    def journal(self, caller: Caller) -> AsyncIterator[bytes]:
        """Yield the current epoch of the journal."""
        return journal_lines(self._store.reader)


async def _no_gpus() -> list[GpuStatus]:
    return []


def _redact(caller: Caller, status: JobStatus) -> JobStatus:
    """Remove what only the job's tenant may see: user, failure message, warning and progress.

    That a job exists and why it waits is visible to all tenants.
    """
    if caller.can_read(status.tenant):
        return status
    message = "" if status.state in ENDED_STATES else status.message
    return msgspec.structs.replace(status, user="", message=message, warning="", steps_done=0, steps=None)


def _past_participle(state: JobState) -> str:
    return "been cancelled" if state == "cancelled" else state
