"""A fake service that starts nothing, and an API server for it on a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import TypeVar

import msgspec
import uvicorn

from refold.client.address import Address
from refold.client.api import CancelQuery, DrainQuery, GpuQuery, JobsQuery, LogsQuery, SnapshotQuery, TimelineQuery
from refold.client.api.access import CreatedToken, NewToken, TokenStatus
from refold.client.api.calls import ENDED_STATES
from refold.client.api.queries import Caller
from refold.client.api.questions import (
    Catalogue,
    JobStarts,
    PlanAnswer,
    PlanQuestion,
    PolicyComparison,
    PolicyForecast,
    PolicyQuestion,
    Preview,
    VariantOutcome,
    WhatIf,
    WhatIfOutcome,
)
from refold.client.api.signatures import hash_token
from refold.client.api.submissions import JobEnvironment, JobState, NewEnvironment, Role, StoredEnvironment, Submission
from refold.client.api.wire import (
    Alert,
    ChangedJob,
    DaemonInfo,
    Event,
    GpuStatus,
    JobChange,
    JobChanges,
    JobExplanation,
    Jobs,
    JobStatus,
    JobUse,
    Logs,
    NodeGpus,
    NodeStatus,
    RejectedChange,
    StartAccuracy,
    TenantStatus,
    TimeEstimate,
    Timeline,
    TimelineRun,
    UserStatus,
    UseSample,
)
from refold.errors import Conflict, Forbidden, NotFound, Refused
from refold.model import PreemptionOutcome, PreemptionOutlook, parse_array, parse_dependency, task_id
from refold.server.http.app import Api, ApiService
from refold.server.http.asgi import DEFAULT_BODY_LIMITS, BodyLimits
from refold.server.http.authentication import AllowedHosts
from refold.server.http.event_stream import EventStream
from refold.server.http.tokens import StoredToken, TokenAuthenticator, make_token
from refold.server.planner import Planner, search_plans
from refold.server.web import WebFiles

NOW = 1_800_000_000.0
OWNER, MEMBER, READER, OTHER = "rf_owner", "rf_member", "rf_reader", "rf_other"
"""Tokens: owner; member and reader of the tenant `vision`; member of the tenant `speech`."""

Result = TypeVar("Result")


def known_tokens() -> dict[str, StoredToken]:
    """Return the four tokens by hash."""
    roles: dict[str, tuple[Role, str]] = {
        OWNER: ("owner", "default"),
        MEMBER: ("member", "vision"),
        READER: ("reader", "vision"),
        OTHER: ("member", "speech"),
    }
    return {
        hash_token(token): StoredToken(token[3:], role, tenant, f"{token[3:]}-user", NOW, hash_token(token))
        for token, (role, tenant) in roles.items()
    }


class FakeService:
    """An implementation of `calls.Service` with one node of four GPUs.

    Jobs wait until the test calls `start` or `end`.
    """

    def __init__(
        self, stored_tokens: dict[str, StoredToken] | None = None, event_stream: EventStream | None = None
    ) -> None:
        self.stored_tokens = known_tokens() if stored_tokens is None else stored_tokens
        self.event_stream = EventStream() if event_stream is None else event_stream
        self.killed: list[str] = []
        self.forecasts_starts = False
        self.start_accuracy = StartAccuracy()
        self.waiting_count: int | None = None
        self.jobs_by_id: dict[str, JobStatus] = {}
        self.output: dict[str, str] = {}
        self.events_by_job: dict[str, list[Event]] = {}
        self.requests: dict[str, str] = {}
        self.environments: dict[str, dict[str, str]] = {}
        self.exported: dict[str, str] = {}
        self.node = NodeStatus("here", True, 4, "H100", 4.0)

    # For tests

    def start(self, job: str) -> JobStatus:
        """Start a run of a job."""
        before = self.jobs_by_id[job]
        return self._change(
            job,
            "started",
            state="running",
            started=NOW,
            runs=before.runs + 1,
            placement=[NodeGpus("here", [0])],
            reason="",
        )

    def end(self, job: str, state: JobState = "finished", why: str = "exit status 0") -> JobStatus:
        """End a job."""
        return self._change(job, state, state=state, ended=NOW, message=why, placement=[])

    def write_output(self, job: str, text: str) -> None:
        """Append to the output of a job."""
        self.output[job] = self.output.get(job, "") + text

    def add(self, submission: Submission, tenant: str = "vision", user: str = "member-user") -> JobStatus:
        """Add a job without checking permissions."""
        job_id = f"{submission.name}-{len(self.jobs_by_id) + 1}"
        job = submission.to_job(job_id, tenant, user, NOW)
        self.exported[job_id] = submission.exported
        self.jobs_by_id[job_id] = JobStatus(
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
            requested_gpus=job.demand.total_gpus,
            reason="held" if submission.hold else "resources",
            message="" if submission.hold else "0 of 1 nodes fit: 1 has fewer free GPUs",
            start_estimate=TimeEstimate(NOW + 60, NOW + 30, NOW + 300),
            steps=submission.steps,
            preemptible=job.preemptible,
            consent=submission.consent("consent").why,
            time_limit=submission.time_limit,
            instances=submission.instances,
            position=0 if submission.hold else 1 + sum(one.state == "waiting" for one in self.jobs_by_id.values()),
        )
        return self._change(job_id, "submitted")

    def _change(self, job: str, kind: str, **fields: object) -> JobStatus:
        status = self.jobs_by_id[job] = msgspec.structs.replace(self.jobs_by_id[job], **fields)
        event = Event(self.event_stream.last + 1, NOW, kind, job, status.runs, f"{job} {kind}", status.tenant)
        self.events_by_job.setdefault(job, []).append(event)
        self.event_stream.publish([event])
        return status

    def _find(self, caller: Caller, job: str, *, own: bool = False) -> JobStatus:
        found = [one for one in self.jobs_by_id.values() if job in (one.id, one.id.rpartition("-")[2], one.name)]
        if len(found) > 1:
            raise Conflict(f"{len(found)} jobs are named {job!r}: {', '.join(one.id for one in found)}")
        if not found:
            raise NotFound.near("job", job, self.jobs_by_id, listed_by="refold queue")
        if own and not caller.can_read(found[0].tenant, found[0].user):
            raise Forbidden(f"{found[0].id} belongs to tenant {found[0].tenant!r}; your token is for {caller.tenant!r}")
        return found[0]

    # For the API

    def info(self, caller: Caller) -> DaemonInfo:
        states = [job.state for job in self.jobs_by_id.values()]
        running, waiting = states.count("running"), self.waiting_count or states.count("waiting")
        return DaemonInfo(
            *("0.1.0", "here", "backfill", 1, 4, 4.0, running, waiting, NOW, NOW),
            role=caller.role,
            tenant=caller.tenant,
            forecasts_starts=self.forecasts_starts,
            start_accuracy=self.start_accuracy,
        )

    async def submit(self, caller: Caller, submission: Submission) -> JobStatus:
        if submission.request and submission.request in self.requests:
            return self.jobs_by_id[self.requests[submission.request]]
        tenant = submission.tenant or caller.tenant
        if not caller.can_submit_for(tenant):
            raise Forbidden(f"a token of tenant {caller.tenant!r} cannot submit jobs for tenant {tenant!r}")
        for dependency in map(parse_dependency, submission.after):
            if dependency.job and dependency.kind == "afterok":
                self._find(caller, dependency.job)
        status = self.add(submission, tenant, caller.user)
        if submission.request:
            self.requests[submission.request] = status.id
        return status

    async def submit_all(self, caller: Caller, submissions: list[Submission]) -> Jobs:
        for submission in submissions:
            if not caller.can_submit_for(submission.tenant or caller.tenant):
                raise Forbidden(
                    f"a token of tenant {caller.tenant!r} cannot submit jobs for tenant {submission.tenant!r}"
                )
        made = [status for one in submissions for status in await self._submit_tasks(caller, one)]
        return Jobs(made, len(made))

    async def _submit_tasks(self, caller: Caller, submission: Submission) -> list[JobStatus]:
        status = await self.submit(caller, submission)
        if not submission.array:
            return [status]
        del self.jobs_by_id[status.id]
        ids = [task_id(status.id, task) for task in parse_array(submission.array).tasks]
        self.jobs_by_id |= {job_id: msgspec.structs.replace(status, id=job_id, array=status.id) for job_id in ids}
        self.events_by_job |= {job_id: [] for job_id in ids}
        return [self.jobs_by_id[job_id] for job_id in ids]

    async def create_environment(self, caller: Caller, environment: NewEnvironment) -> StoredEnvironment:
        stored = StoredEnvironment(f"{len(self.environments):064x}")
        self.environments[stored.id] = environment.variables
        return stored

    async def environment(self, caller: Caller, job: str) -> JobEnvironment:
        status = self._find(caller, job)
        variables = self.environments.get(self.exported[status.id], {})
        return JobEnvironment(sorted(variables), variables if status.user == caller.user else None)

    async def whatif(self, caller: Caller, question: WhatIf) -> WhatIfOutcome:
        outcomes = [
            VariantOutcome(TimeEstimate(NOW + 60.0), TimeEstimate(NOW + 120.0), 0.0, 0, variant.gpus <= 4)
            for variant in question.variants
        ]
        return WhatIfOutcome(NOW, 40, outcomes)

    async def compare_policies(self, caller: Caller, question: PolicyQuestion) -> PolicyComparison:
        waiting = [job.id for job in self.jobs_by_id.values() if job.state == "waiting"]
        forecasts = [
            PolicyForecast(policy, question.futures, 600.0 - 100.0 * number, 3600.0, number * len(waiting), 0)
            for number, policy in enumerate(["backfill", *question.policies])
        ]
        starts = [JobStarts(job, [NOW + 600.0 - 100.0 * number for number in range(len(forecasts))]) for job in waiting]
        return PolicyComparison(
            NOW, "backfill", len(self.jobs_by_id), len(waiting), len(waiting), forecasts, starts[:200]
        )

    async def preemption_outlook(self, caller: Caller) -> PreemptionOutlook:
        outcomes = (
            PreemptionOutcome("always", 120, 1800.0, 30_000.0, 41, 9.25),
            PreemptionOutcome("consent", 48, 3000.0, 36_000.0, 12, 1.5),
            PreemptionOutcome("never", 0, 5400.0, 64_800.0, 0, 0.0),
        )
        return PreemptionOutlook("the daemon's latest jobs", "backfill", 120, *outcomes)

    def catalogue(self, caller: Caller) -> Catalogue:
        return Planner().catalogue()

    async def plan(self, caller: Caller, question: PlanQuestion) -> PlanAnswer:
        return search_plans(question)

    async def preview(self, caller: Caller, submission: Submission) -> Preview:
        gpus = float(submission.instances * submission.gpus)
        waiting = sum(job.state == "waiting" for job in self.jobs_by_id.values())
        consent = submission.consent("consent")
        return Preview(
            gpus <= 4,
            f"{gpus:g} GPUs",
            gpus,
            "",
            not waiting,
            waiting,
            TimeEstimate(NOW),
            [],
            preemptible=consent.is_given,
            consent=consent.why,
        )

    async def jobs(self, caller: Caller, query: JobsQuery) -> Jobs:
        found = [
            job
            for job in self.jobs_by_id.values()
            if (job.state in ENDED_STATES) == query.ended
            and (query.state is None or job.state in query.state)
            and query.tenant in ("", job.tenant)
            and query.user in ("", job.user)
            and query.name in ("", job.name)
            and (not query.match or query.match == job.array or fnmatchcase(job.id, query.match))
        ]
        found.sort(key=lambda job: (job.state != "running", job.position))
        if query.ended:
            found.reverse()
        end = query.after + query.limit
        return Jobs(found[query.after : end], len(found), end if end < len(found) else None)

    async def job(self, caller: Caller, job: str) -> JobStatus:
        return self._find(caller, job)

    async def why(self, caller: Caller, job: str) -> JobExplanation:
        status = self._find(caller, job)
        predicted = 2 * status.samples_per_second if status.samples_per_second else None
        return JobExplanation(status, self.events_by_job[status.id], predicted_samples_per_second=predicted)

    async def logs(self, caller: Caller, job: str, query: LogsQuery) -> Logs:
        run, instance, offset = query.run, query.instance, query.offset
        status = self._find(caller, job, own=True)
        if run is not None and run > status.runs:
            raise NotFound(f"{status.id} has no run {run}; it has had {status.runs} runs")
        if not status.runs:
            return Logs("", 0, instance, 0, status.state in ENDED_STATES)
        output = self.output.get(status.id, "").encode()
        start = min(len(output), offset) if offset >= 0 else max(0, len(output) + offset)
        chunk = output[start : start + query.limit]
        return Logs(
            chunk.decode(errors="replace"), status.runs, instance, start + len(chunk), status.state in ENDED_STATES
        )

    async def cancel(self, caller: Caller, job: str, query: CancelQuery) -> JobStatus:
        status = self._find(caller, job, own=True)
        self.killed += [status.id] if query.now else []
        if status.state in ENDED_STATES:
            raise Conflict(f"{status.id} cannot be cancelled: it is {status.state}")
        return self.end(status.id, "cancelled", f"cancelled by {caller.user}")

    async def hold(self, caller: Caller, job: str) -> JobStatus:
        status = self._find(caller, job, own=True)
        if status.state not in ("waiting", "infeasible", "held"):
            raise Conflict(f"{status.id} cannot be held: it is {status.state}")
        return self._change(status.id, "held", state="held", reason="held")

    async def release(self, caller: Caller, job: str) -> JobStatus:
        status = self._find(caller, job, own=True)
        if status.state in ENDED_STATES:
            raise Conflict(f"{status.id} cannot be released: it is {status.state}")
        return self._change(status.id, "released", state="waiting") if status.state == "held" else status

    async def change_jobs(self, caller: Caller, change: JobChange) -> JobChanges:
        outcome = JobChanges([], [])
        for job in change.jobs:
            try:
                match change.action:
                    case "cancel":
                        status = await self.cancel(caller, job, CancelQuery(change.now))
                    case "hold":
                        status = await self.hold(caller, job)
                    case "release":
                        status = await self.release(caller, job)
                outcome.changed.append(ChangedJob(status.id, status.state))
            except Refused as error:
                outcome.rejected.append(RejectedChange(job, str(error)))
        return outcome

    def nodes(self, caller: Caller) -> list[NodeStatus]:
        return [self.node]

    async def drain(self, caller: Caller, node: str, query: DrainQuery) -> NodeStatus:
        return self._set_node(node, up=False, why=query.reason)

    async def resume(self, caller: Caller, node: str, query: GpuQuery) -> NodeStatus:
        return self._set_node(node, up=True, why="")

    def _set_node(self, node: str, *, up: bool, why: str) -> NodeStatus:
        if node != self.node.name:
            raise NotFound.near("node", node, [self.node.name])
        self.node = msgspec.structs.replace(self.node, up=up, reason=why, drained=not up)
        return self.node

    async def gpus(self, caller: Caller) -> list[GpuStatus]:
        busy = [job.id for job in self.jobs_by_id.values() if job.state == "running"]
        first = GpuStatus("here", 0, "H100", busy, 0.0 if busy else 1.0, "", 61_000, 81_559, 97.0, 64.0, 610.0)
        return [first, *(GpuStatus("here", index, "H100") for index in (1, 2, 3))]

    def use(self, caller: Caller, job: str) -> JobUse:
        self._find(caller, job, own=True)
        return JobUse([UseSample(NOW - 10 * age, 1.5 + age, 800 + age, 90.0, 61.5, 2.5) for age in (2, 1, 0)])

    def alerts(self, caller: Caller) -> list[Alert]:
        return [Alert("gpu down", "GPU 3 is drained: XID 79", node="here")]

    async def timeline(self, caller: Caller, query: TimelineQuery) -> Timeline:
        runs = [
            TimelineRun(job.id, job.runs, job.tenant, job.user, NOW - 60, job.ended, "", [NodeGpus("here", [0])])
            for job in self.jobs_by_id.values()
            if job.runs
        ]
        return Timeline(NOW, NOW - query.seconds, runs, [(NOW - 30, 1.5), (NOW, 0.5)])

    def users(self, caller: Caller) -> list[UserStatus]:
        return [
            UserStatus("ann", "vision", 1, 2.0, 0, 0.0, 12.5, 0.6, 0.5, 0.9),
            UserStatus("bob", "speech", 0, 0.0, 0, 0.0, 1.5),
        ]

    def tenants(self, caller: Caller) -> list[TenantStatus]:
        return [TenantStatus("speech", 2.0, 0.0, 0, 0.0, 0, 0.0), TenantStatus("vision", 2.0, 4.0, 0, 0.0, 0, 0.0)]

    async def tokens(self, caller: Caller) -> list[TokenStatus]:
        return [known.status() for known in self.stored_tokens.values()]

    async def create_token(self, caller: Caller, token: NewToken) -> CreatedToken:
        if any(known.name == token.name for known in self.stored_tokens.values()):
            raise Conflict(f"token {token.name!r} already exists")
        secret, known = make_token(token, NOW)
        self.stored_tokens[known.hash] = known
        return CreatedToken(secret, token.name)

    async def revoke_token(self, caller: Caller, name: str) -> TokenStatus:
        for known in self.stored_tokens.values():
            if known.name == name:
                del self.stored_tokens[known.hash]
                return known.status()
        raise NotFound.near("token", name, [known.name for known in self.stored_tokens.values()])

    async def snapshot(self, caller: Caller, query: SnapshotQuery) -> bytes:
        return b'{"header":{"whole":true}}\n' if query.whole else b'{"header":{}}\n'

    async def journal(self, caller: Caller) -> AsyncGenerator[bytes, None]:
        for number in range(3):
            yield b'{"entry":%d}\n' % number


def make_app(service: FakeService | None = None, body_limits: BodyLimits = DEFAULT_BODY_LIMITS) -> Api:
    """Return the API over a fake service."""
    service = FakeService() if service is None else service
    typed: ApiService = service
    return Api(
        typed,
        TokenAuthenticator(service.stored_tokens),
        hosts=AllowedHosts(extra_names=["testserver"]),
        files=WebFiles(),
        body_limits=body_limits,
    )


class FakeServer:
    """A running API server over a fake service."""

    def __init__(self, service: FakeService, server: uvicorn.Server, loop: asyncio.AbstractEventLoop) -> None:
        self.service = service
        self.address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        self.loop = loop

    def address_for(self, token: str) -> Address:
        """Return the address with a token."""
        return Address(self.address, token)

    def call(self, function: Callable[..., Result], *arguments: object) -> Result:
        """Call a function on the server's thread, such as `served.call(served.service.start, "a-1")`."""
        result: Future[Result] = Future()
        self.loop.call_soon_threadsafe(lambda: result.set_result(function(*arguments)))
        return result.result(timeout=10)


@contextmanager
def serve(service: FakeService | None = None) -> Iterator[FakeServer]:
    """Serve on a free loopback port."""
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
        yield FakeServer(service, server, loop)
    finally:
        loop.call_soon_threadsafe(service.event_stream.close)
        server.should_exit = True
        thread.join(10)
        loop.close()
