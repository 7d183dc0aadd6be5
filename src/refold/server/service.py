"""Where callers are served: who may ask for what, and what becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from time import time

import msgspec

from refold import __version__
from refold.api import (
    OVER,
    Caller,
    DaemonInfo,
    EventStream,
    GpuStatus,
    Jobs,
    JobState,
    JobStatus,
    Logs,
    MadeToken,
    NewToken,
    NodeStatus,
    Preview,
    StoredToken,
    Submission,
    TenantStatus,
    TokenStatus,
    Why,
)
from refold.backends.local import LogChunk, log_path, read_piece
from refold.core import Event, JobCancelled, JobHeld, JobReleased
from refold.errors import Conflict, Forbidden, NotFound
from refold.model import Reason
from refold.server import drained_gpus
from refold.server.admission import Admission
from refold.server.drain import DrainManager
from refold.server.loop import Loop
from refold.server.preview import Previews
from refold.server.snapshot import journal_lines, snapshot_lines
from refold.server.status import JobFilter, JobStates, node_statuses, tenant_statuses
from refold.server.store import Store
from refold.server.tokens import TokenStore


class SchedulerService:
    """The daemon, as the API asks it. What is not over is answered from memory, the rest from the store."""

    def __init__(
        self,
        loop: Loop,
        store: Store,
        feed: EventStream,
        servicing: DrainManager,
        tokens: dict[str, StoredToken],
        logs: Path,
        began: float,
    ) -> None:
        self.feed = feed
        self.resumed: Callable[[int, int | None], None] = lambda _node, _gpu: None
        self.gpu_readings: Callable[[], Awaitable[list[GpuStatus]]] = _no_gpus
        self._loop = loop
        self._store = store
        self._logs = logs
        self._began = began
        self._view = loop.view
        self._states = JobStates(loop.view, loop.job_table.of, loop.wall)
        self._accepting = Admission(loop, store, self.find)
        self._previewing = Previews(loop, self._accepting)
        self._servicing = servicing
        self._keys = TokenStore(loop, store, tokens)

    def about(self, caller: Caller) -> DaemonInfo:
        """The daemon, and what the caller is to it."""
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
            began=self._began,
            storage=self._loop.problem,
            role=caller.role,
            tenant=caller.tenant,
            user=caller.user,
        )

    # Jobs.

    async def submit(self, caller: Caller, submission: Submission) -> JobStatus:
        """The job, when it is on disk."""
        (job_id,) = await self._accepting.accept(caller, [submission])
        return await self._status(caller, job_id)

    async def submit_all(self, caller: Caller, submissions: list[Submission]) -> Jobs:
        """All of them, in one commit, or none."""
        ids = await self._accepting.accept(caller, submissions)
        return Jobs([await self._status(caller, job_id) for job_id in ids], len(ids))

    async def preview(self, caller: Caller, submission: Submission) -> Preview:
        """What would become of it."""
        return await self._previewing.preview(caller, submission)

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
        """Those that are not over, as the queue has them; or the others, the latest first."""
        if ended:
            wanted = [one for one in state or () if one in OVER]
            if state and not wanted:
                return Jobs([], 0)
            if self._loop.leaving:
                await self._loop.written(lambda: None)  # which is in turn with the journal
            page = await asyncio.to_thread(
                self._store.reading.ended,
                states=wanted,
                tenant=tenant,
                user=user,
                name=name,
                limit=limit,
                after=after,
            )
        else:
            page = self._states.page(JobFilter(tuple(state or ()), tenant, user, name), limit, after)
        return msgspec.structs.replace(page, jobs=[_as_seen_by(caller, row) for row in page.jobs])

    async def job(self, caller: Caller, job: str) -> JobStatus:
        """One job."""
        return await self._status(caller, self.find(job))

    async def why(self, caller: Caller, job: str) -> Why:
        """Its story."""
        status = await self.job(caller, job)
        story = self._store.reading.story(status.id)
        if not caller.sees(status.tenant):
            story = [msgspec.structs.replace(event, text="") for event in story]
        return Why(status, story)

    async def logs(self, caller: Caller, job: str, *, run: int | None, instance: int, offset: int, limit: int) -> Logs:
        """A piece of output."""
        status = await self.job(caller, job)
        if not caller.sees(status.tenant):
            raise Forbidden(
                f"the output of {status.id!r} is for its tenant, {status.tenant!r}, and you are of {caller.tenant!r}"
            )
        number = status.runs if run is None else run
        if run is not None and run > status.runs:
            raise NotFound(f"{status.id!r} has had {status.runs} runs, and no run {run}")
        path = log_path(self._logs, status.id, number, instance)
        record = self._loop.job_table.of.get(
            status.id
        )  # before its output is read: if it is over now, that is all of it
        over = number > 0 and (record is None or record.run != number)
        read = await asyncio.to_thread(read_piece, path, offset, limit)
        if number and read is None and instance:
            raise NotFound(f"run {number} of {status.id!r} has no instance {instance}")
        piece, at_the_end = read or (LogChunk(b"", max(0, offset), max(0, offset)), True)
        return Logs(piece.text, number, instance, piece.next, over and at_the_end)

    async def cancel(self, caller: Caller, job: str) -> JobStatus:
        """Nobody wants it any more."""
        status = await self._changeable(caller, job)
        return await self._changed(caller, status, [JobCancelled(status.id)])

    async def hold(self, caller: Caller, job: str) -> JobStatus:
        """Nobody is to look at it until it is released."""
        status = await self._changeable(caller, job)
        if status.state in ("running", "stopping"):
            raise Conflict(f"{status.id!r} runs already: cancel it, or let it run")
        if status.state == "infeasible":
            raise Conflict(f"{status.id!r} never fits this cluster: cancel it, and submit a smaller one")
        return await self._changed(caller, status, [JobHeld(status.id)])

    async def release(self, caller: Caller, job: str) -> JobStatus:
        """A held job waits like others again."""
        status = await self._changeable(caller, job)
        if status.state != "held":
            return status
        after = self._view.held[status.id].launch.after
        if any(before in self._loop.job_table.of for before in after):
            return await self._changed(caller, status, [JobHeld(status.id, Reason.DEPENDENCY)])
        return await self._changed(caller, status, [JobReleased(status.id)])

    def find(self, asked: str) -> str:
        """The id of the job that somebody means by an id, a number or a name."""
        if asked in self._loop.job_table.of:
            return asked
        found = self._store.reading.job_ids(asked)
        if len(found) > 1:
            raise Conflict(f"several jobs are called {asked!r}, the latest of them {found[0]!r}: name one by its id")
        if not found:
            raise NotFound.near("job", asked, self._store.reading.latest_ids(50), listed_by="refold queue")
        return found[0]

    async def _status(self, caller: Caller, job_id: str) -> JobStatus:
        found = self._states.state(job_id)
        status = self._states.status(*found) if found else self._loop.leaving.get(job_id)
        status = status or self._store.reading.ended_job(job_id)
        if status is None:
            raise NotFound(f"no job {job_id!r}")
        return _as_seen_by(caller, status)

    async def _changeable(self, caller: Caller, job: str) -> JobStatus:
        status = await self.job(caller, job)
        if not caller.sees(status.tenant):
            raise Forbidden(f"{status.id!r} is of tenant {status.tenant!r}, and you are of {caller.tenant!r}")
        if status.state in OVER:
            raise Conflict(f"{status.id!r} is over: it has {_past(status.state)}")
        return status

    async def _changed(self, caller: Caller, status: JobStatus, events: Sequence[Event]) -> JobStatus:
        await self._loop.ask(events)
        return await self._status(caller, status.id)

    # The cluster.

    def nodes(self, caller: Caller) -> list[NodeStatus]:
        """All nodes."""
        return node_statuses(self._view, self._servicing.drained_for)

    async def drain(self, caller: Caller, node: str, *, why: str, gpu: int | None, move: bool) -> NodeStatus:
        """No more work for a node, or for one GPU of it."""
        index = await self._servicing.drain(node, gpu, why or f"drained by {caller.name}", move)
        return self.nodes(caller)[index]

    async def resume(self, caller: Caller, node: str, *, gpu: int | None) -> NodeStatus:
        """Work for it again."""
        index = await self._servicing.resume(node, gpu)
        self.resumed(index, gpu)
        return self.nodes(caller)[index]

    async def gpus(self, caller: Caller) -> list[GpuStatus]:
        """All GPUs."""
        return await self.gpu_readings()

    def tenants(self, caller: Caller) -> list[TenantStatus]:
        """All tenants."""
        return tenant_statuses(self._view)

    # Tokens.

    async def tokens(self, caller: Caller) -> list[TokenStatus]:
        """All of them, without secrets."""
        return self._keys.listed()

    async def new_token(self, caller: Caller, token: NewToken) -> MadeToken:
        """It is told once."""
        return await self._keys.make(token)

    async def revoke_token(self, caller: Caller, name: str) -> TokenStatus:
        """It opens nothing more."""
        revoked = await self._keys.revoke(name)
        self.feed.wake()
        return revoked

    # The journal.

    async def snapshot(self, caller: Caller, *, whole: bool) -> bytes:
        """The present as a journal."""
        return await snapshot_lines(self._loop, self._store.reading, whole)

    def journal(self, caller: Caller) -> AsyncIterator[bytes]:
        """The journal so far: the epoch that is being written."""
        return journal_lines(self._store.reading)


async def _no_gpus() -> list[GpuStatus]:
    return []


def _as_seen_by(caller: Caller, status: JobStatus) -> JobStatus:
    """What others' jobs say, and why they failed, is theirs; that they are there, and why they wait, is everybody's."""
    if caller.sees(status.tenant):
        return status
    why = "" if status.state in OVER else status.why
    return msgspec.structs.replace(status, user="", why=why, warning="", steps_done=0, steps=None)


def _past(state: JobState) -> str:
    return "been cancelled" if state == "cancelled" else state
