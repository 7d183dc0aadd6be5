"""A service that remembers what it is told and starts nothing, and a server over it on a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

import msgspec
import uvicorn

from refold.api.app import Api
from refold.api.calls import OVER, Service
from refold.api.event_stream import EventStream
from refold.api.hosts import AllowedHosts
from refold.api.roles import Caller
from refold.api.tokens import StoredToken, TokenAuthenticator, hash_of, make_token
from refold.api.wire import (
    DaemonInfo,
    Event,
    GpuStatus,
    Interval,
    Jobs,
    JobState,
    JobStatus,
    Logs,
    MadeToken,
    NewToken,
    NodeStatus,
    Place,
    Preview,
    Role,
    Submission,
    TenantStatus,
    TokenStatus,
    Why,
)
from refold.client.address import Address
from refold.errors import Conflict, Forbidden, NotFound

NOW = 1_800_000_000.0
OWNER, MEMBER, READER, OTHER = "rf_owner", "rf_member", "rf_reader", "rf_other"
"""Tokens: the owner's, a member's and a reader's of the tenant `vision`, and a member's of the tenant `speech`."""

Result = TypeVar("Result")


def known_tokens() -> dict[str, StoredToken]:
    """The four, by their hashes."""
    roles: dict[str, tuple[Role, str]] = {
        OWNER: ("owner", "default"),
        MEMBER: ("member", "vision"),
        READER: ("reader", "vision"),
        OTHER: ("member", "speech"),
    }
    return {
        hash_of(token): StoredToken(token[3:], role, tenant, f"{token[3:]}-user", NOW, hash_of(token))
        for token, (role, tenant) in roles.items()
    }


class FakeService:
    """Jobs that wait until a test says `start` or `end`; one node of four GPUs. Follows `calls.Desk`."""

    def __init__(self, known: dict[str, StoredToken] | None = None, feed: EventStream | None = None) -> None:
        self.known = known_tokens() if known is None else known
        self.feed = EventStream() if feed is None else feed
        self.all: dict[str, JobStatus] = {}
        self.output: dict[str, str] = {}
        self.stories: dict[str, list[Event]] = {}
        self.requests: dict[str, str] = {}
        self.node = NodeStatus("here", True, 4, "H100", 4.0)

    # What a test does to it

    def start(self, job: str) -> JobStatus:
        """A run begins."""
        before = self.all[job]
        return self._change(
            job, "started", state="running", started=NOW, runs=before.runs + 1, where=[Place("here", [0])], reason=""
        )

    def end(self, job: str, state: JobState = "finished", why: str = "exit status 0") -> JobStatus:
        """A run ends, and the job with it."""
        return self._change(job, state, state=state, ended=NOW, why=why, where=[])

    def say(self, job: str, text: str) -> None:
        """A run writes something."""
        self.output[job] = self.output.get(job, "") + text

    def add(self, submission: Submission, tenant: str = "vision", user: str = "member-user") -> JobStatus:
        """A job, without asking whether anybody may."""
        job_id = f"{submission.name}-{len(self.all) + 1}"
        job = submission.to_job(job_id, tenant, user, NOW)
        self.all[job_id] = JobStatus(
            id=job_id,
            name=submission.name,
            state="held" if submission.hold else "waiting",
            tenant=tenant,
            user=user,
            job_class=submission.job_class,
            priority=submission.priority,
            demand=f"{job.demand.instances} x {submission.gpus} GPUs",
            gpus=float(submission.instances * submission.gpus * submission.gpu_share),
            submitted=NOW,
            reason="held" if submission.hold else "resources",
            why="" if submission.hold else "0 of 1 nodes fit: 1 has fewer free GPUs",
            start_estimate=Interval(NOW + 60, NOW + 30, NOW + 300),
            steps=submission.steps,
            time_limit=submission.time_limit,
            instances=submission.instances,
            place=0 if submission.hold else 1 + sum(one.state == "waiting" for one in self.all.values()),
        )
        return self._change(job_id, "submitted")

    def _change(self, job: str, kind: str, **fields: object) -> JobStatus:
        status = self.all[job] = msgspec.structs.replace(self.all[job], **fields)
        event = Event(self.feed.last + 1, NOW, kind, job, status.runs, f"{job} {kind}", status.tenant)
        self.stories.setdefault(job, []).append(event)
        self.feed.publish([event])
        return status

    def _find(self, caller: Caller, job: str, *, own: bool = False) -> JobStatus:
        found = [one for one in self.all.values() if job in (one.id, one.id.rpartition("-")[2], one.name)]
        if len(found) > 1:
            raise Conflict(f"{len(found)} jobs are called {job!r}: {', '.join(one.id for one in found)}")
        if not found:
            raise NotFound.near("job", job, self.all, listed_by="refold queue")
        if own and not caller.sees(found[0].tenant):
            raise Forbidden(f"{found[0].id} is of the tenant {found[0].tenant!r}, and you are of {caller.tenant!r}")
        return found[0]

    # What the API asks of it

    def about(self, caller: Caller) -> DaemonInfo:
        states = [job.state for job in self.all.values()]
        running, waiting = states.count("running"), states.count("waiting")
        return DaemonInfo(
            "0.1.0", "here", "backfill", 1, 4, 4.0, running, waiting, NOW, NOW, "ok", caller.role, caller.tenant
        )

    async def submit(self, caller: Caller, submission: Submission) -> JobStatus:
        if submission.request and submission.request in self.requests:
            return self.all[self.requests[submission.request]]
        tenant = submission.tenant or caller.tenant
        if not caller.sees(tenant):
            raise Forbidden(f"jobs of {tenant!r} are not yours to submit: you are of {caller.tenant!r}")
        for job in submission.after:
            self._find(caller, job)
        status = self.add(submission, tenant, caller.user)
        if submission.request:
            self.requests[submission.request] = status.id
        return status

    async def submit_all(self, caller: Caller, submissions: list[Submission]) -> Jobs:
        for submission in submissions:
            if not caller.sees(submission.tenant or caller.tenant):
                raise Forbidden(f"jobs of {submission.tenant!r} are not yours to submit")
        made = [await self.submit(caller, submission) for submission in submissions]
        return Jobs(made, len(made))

    async def preview(self, caller: Caller, submission: Submission) -> Preview:
        gpus = float(submission.instances * submission.gpus)
        waiting = sum(job.state == "waiting" for job in self.all.values())
        return Preview(gpus <= 4, f"{gpus:g} GPUs", gpus, "", not waiting, waiting, Interval(NOW), [])

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
        found = [
            job
            for job in self.all.values()
            if (job.state in OVER) == ended
            and (state is None or job.state in state)
            and tenant in ("", job.tenant)
            and user in ("", job.user)
            and name in ("", job.name)
        ]
        found.sort(key=lambda job: (job.state != "running", job.place))
        if ended:
            found.reverse()
        page = found[after : after + limit]
        return Jobs(page, len(found), after + limit if after + limit < len(found) else None)

    async def job(self, caller: Caller, job: str) -> JobStatus:
        return self._find(caller, job)

    async def why(self, caller: Caller, job: str) -> Why:
        status = self._find(caller, job)
        return Why(status, self.stories[status.id])

    async def logs(self, caller: Caller, job: str, *, run: int | None, instance: int, offset: int, limit: int) -> Logs:
        status = self._find(caller, job, own=True)
        if run is not None and run > status.runs:
            raise NotFound(f"{status.id} has had {status.runs} runs, and no run {run}")
        if not status.runs:
            return Logs("", 0, instance, 0, status.state in OVER)
        output = self.output.get(status.id, "").encode()
        start = min(len(output), offset) if offset >= 0 else max(0, len(output) + offset)
        piece = output[start : start + limit]
        return Logs(piece.decode(errors="replace"), status.runs, instance, start + len(piece), status.state in OVER)

    async def cancel(self, caller: Caller, job: str) -> JobStatus:
        status = self._find(caller, job, own=True)
        if status.state in OVER:
            raise Conflict(f"{status.id} has {status.state} already, and cannot be cancelled")
        return self.end(status.id, "cancelled", f"cancelled by {caller.user}")

    async def hold(self, caller: Caller, job: str) -> JobStatus:
        status = self._find(caller, job, own=True)
        if status.state not in ("waiting", "never", "held"):
            raise Conflict(f"{status.id} is {status.state}, and only a job that waits can be held")
        return self._change(status.id, "held", state="held", reason="held")

    async def release(self, caller: Caller, job: str) -> JobStatus:
        status = self._find(caller, job, own=True)
        if status.state in OVER:
            raise Conflict(f"{status.id} has {status.state} already, and cannot be released")
        return self._change(status.id, "released", state="waiting") if status.state == "held" else status

    def nodes(self, caller: Caller) -> list[NodeStatus]:
        return [self.node]

    async def drain(self, caller: Caller, node: str, *, why: str, gpu: int | None, move: bool) -> NodeStatus:
        return self._set_node(node, up=False, why=why)

    async def resume(self, caller: Caller, node: str, *, gpu: int | None) -> NodeStatus:
        return self._set_node(node, up=True, why="")

    def _set_node(self, node: str, *, up: bool, why: str) -> NodeStatus:
        if node != self.node.name:
            raise NotFound.near("node", node, [self.node.name])
        self.node = msgspec.structs.replace(self.node, up=up, why=why)
        return self.node

    async def gpus(self, caller: Caller) -> list[GpuStatus]:
        busy = [job.id for job in self.all.values() if job.state == "running"]
        first = GpuStatus("here", 0, "H100", busy, 0.0 if busy else 1.0, "", 61_000, 81_559, 0.97, 64.0, 610.0)
        return [first, *(GpuStatus("here", index, "H100") for index in (1, 2, 3))]

    def tenants(self, caller: Caller) -> list[TenantStatus]:
        return [TenantStatus("speech", 2.0, 0.0, 0, 0.0, 0, 0.0), TenantStatus("vision", 2.0, 4.0, 0, 0.0, 0, 0.0)]

    async def tokens(self, caller: Caller) -> list[TokenStatus]:
        return [known.status() for known in self.known.values()]

    async def new_token(self, caller: Caller, token: NewToken) -> MadeToken:
        if any(known.name == token.name for known in self.known.values()):
            raise Conflict(f"there is a token {token.name!r} already")
        secret, known = make_token(token, NOW)
        self.known[known.hash] = known
        return MadeToken(secret, token.name)

    async def revoke_token(self, caller: Caller, name: str) -> TokenStatus:
        for known in self.known.values():
            if known.name == name:
                del self.known[known.hash]
                return known.status()
        raise NotFound.near("token", name, [known.name for known in self.known.values()])

    async def snapshot(self, caller: Caller, *, whole: bool) -> bytes:
        return b'{"header":{"whole":true}}\n' if whole else b'{"header":{}}\n'

    async def journal(self, caller: Caller) -> AsyncGenerator[bytes, None]:
        for number in range(3):
            yield b'{"entry":%d}\n' % number


def make_app(service: FakeService | None = None) -> Api:
    """The API over a fake service, with its tokens."""
    service = FakeService() if service is None else service
    followed: Service = service
    return Api(followed, TokenAuthenticator(service.known), names=AllowedHosts(named=["testserver"]))


class Served:
    """A daemon that is none, for as long as it is served."""

    def __init__(self, service: FakeService, server: uvicorn.Server, loop: asyncio.AbstractEventLoop) -> None:
        self.service = service
        self.address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        self.loop = loop

    def opened_by(self, token: str) -> Address:
        """The address, with one of the tokens."""
        return Address(self.address, token)

    def do(self, something: Callable[..., Result], *arguments: object) -> Result:
        """Something to the service, on the thread that serves it, such as `served.do(served.service.start, "a-1")`."""
        result: Future[Result] = Future()
        self.loop.call_soon_threadsafe(lambda: result.set_result(something(*arguments)))
        return result.result(timeout=10)


@contextmanager
def serve(service: FakeService | None = None) -> Iterator[Served]:
    """A server on a port of the loopback that is free."""
    service = FakeService() if service is None else service
    config = uvicorn.Config(
        make_app(service), "127.0.0.1", 0, log_level="error", lifespan="off", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    loop, is_up = asyncio.new_event_loop(), threading.Event()

    async def until_stopped() -> None:
        serving = asyncio.create_task(server.serve())
        while not server.started and not serving.done():
            await asyncio.sleep(0.005)
        is_up.set()
        await serving

    thread = threading.Thread(target=loop.run_until_complete, args=(until_stopped(),), daemon=True)
    thread.start()
    is_up.wait(10)
    try:
        yield Served(service, server, loop)
    finally:
        loop.call_soon_threadsafe(service.feed.end)
        server.should_exit = True
        thread.join(10)
        loop.close()
