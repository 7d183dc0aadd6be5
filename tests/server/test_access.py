"""Who may make which call: every call of the API against the daemon's own service, by role and tenant."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from api_requests import Answer, send_request
from loop_setups import UnreliableBackend
from manual_daemon import OWNER, ManualDaemon

from refold.client.api import CALLS
from refold.client.api.signatures import hash_token
from refold.client.api.submissions import Role, Submission
from refold.client.api.wire import JobExplanation, Jobs, JobStatus
from refold.core import RunFailed
from refold.server.http.app import Api
from refold.server.http.tokens import StoredToken, TokenAuthenticator

TOKENS: dict[str, tuple[Role, str]] = {
    "owner": ("owner", "default"),
    "vision-member": ("member", "vision"),
    "vision-reader": ("reader", "vision"),
    "speech-member": ("member", "speech"),
    "speech-reader": ("reader", "speech"),
    "spare": ("reader", "default"),
}
"""Role and tenant of each token. The job that the callers ask about belongs to the tenant `vision`."""

CALLERS = ("owner", "vision-member", "vision-reader", "speech-member", "speech-reader", "anonymous")

JOB = b'{"name": "train", "command": ["true"]}'
FOR_VISION = b'{"name": "train", "command": ["true"], "tenant": "vision"}'
BODIES = {
    "submit": FOR_VISION,
    "submit_all": b"[" + FOR_VISION + b"]",
    "preview": JOB,
    "whatif": b'{"variants": [' + JOB + b"]}",
    "compare_policies": b'{"policies": ["no such policy"]}',
    "plan": b'{"model": "bert-large", "gpu": "A100-80GB", "gpus": 2}',
    "create_environment": b'{"variables": {"SEED": "3"}}',
    "create_token": b'{"name": "new"}',
    "change_jobs": b'{"action": "hold", "match": "*"}',
}
QUERIES = {"events": "?follow=false&since=0"}

#                   owner  vision       speech       anonymous
#                          member rdr   member rdr
STATUS_BY_CALL = {
    "info":         (200,  200,  200,   200,  200,   401),
    "submit":       (201,  201,  403,   403,  403,   401),
    "submit_all":   (201,  201,  403,   403,  403,   401),
    "preview":      (200,  200,  200,   200,  200,   401),
    "whatif":       (200,  200,  200,   200,  200,   401),
    "compare_policies": (422, 422, 422,  422,  422,   401),
    "preemption_outlook": (404, 404, 404, 404, 404,  401),
    "catalogue":    (200,  200,  200,   200,  200,   401),
    "plan":         (200,  200,  200,   200,  200,   401),
    "create_environment": (201, 201, 403, 201, 403,  401),
    "jobs":         (200,  200,  200,   200,  200,   401),
    "job":          (200,  200,  200,   200,  200,   401),
    "why":          (200,  200,  200,   200,  200,   401),
    "environment":  (200,  200,  200,   403,  403,   401),
    "logs":         (200,  200,  200,   403,  403,   401),
    "use":          (200,  200,  200,   403,  403,   401),
    "cancel":       (200,  200,  403,   403,  403,   401),
    "hold":         (200,  200,  403,   403,  403,   401),
    "release":      (200,  200,  403,   403,  403,   401),
    "change_jobs":  (200,  200,  403,   200,  403,   401),
    "nodes":        (200,  200,  200,   200,  200,   401),
    "drain":        (200,  403,  403,   403,  403,   401),
    "resume":       (200,  403,  403,   403,  403,   401),
    "gpus":         (200,  200,  200,   200,  200,   401),
    "alerts":       (200,  200,  200,   200,  200,   401),
    "timeline":     (200,  200,  200,   200,  200,   401),
    "tenants":      (200,  200,  200,   200,  200,   401),
    "users":        (200,  200,  200,   200,  200,   401),
    "tokens":       (200,  403,  403,   403,  403,   401),
    "create_token": (201,  403,  403,   403,  403,   401),
    "revoke_token": (200,  403,  403,   403,  403,   401),
    "snapshot":     (200,  403,  403,   403,  403,   401),
    "journal":      (200,  403,  403,   403,  403,   401),
    "events":       (200,  200,  200,   200,  200,   401),
}  # fmt: skip

SECRET = "loss diverged at step 7"

Check = Callable[[ManualDaemon, Callable[..., Awaitable[Answer]]], Awaitable[None]]


def with_daemon(folder: Path, check: Check) -> None:
    """Run a check on a daemon with a waiting job, its number 1, and one token per caller."""

    async def run() -> None:
        async with ManualDaemon(folder, UnreliableBackend()) as daemon:
            for name, (role, tenant) in TOKENS.items():
                stored = StoredToken(name, role, tenant, f"{name}-user", 0.0, hash_token(f"rf_{name}"))
                daemon.store.add_token(stored)
                daemon.tokens[stored.hash] = stored
            app = Api(daemon.service, TokenAuthenticator(daemon.tokens))
            submission = Submission(
                "secret", ["train", "--key=7"], tenant="vision", gpus=2, hold=True, steps=90, environment={"DATA": "/d"}
            )
            assert (await daemon.service.submit(OWNER, submission)).id == "secret-1"
            await daemon.settle()

            async def ask(caller: str, name: str, job: str = "secret-1") -> Answer:
                call = next(call for call in CALLS if call.name == name)
                path = call.path.format(job=job, node="a", name="spare") + QUERIES.get(name, "")
                token = None if caller == "anonymous" else f"rf_{caller}"
                answering = asyncio.ensure_future(
                    send_request(app, call.method, path, BODIES.get(name, b""), token=token)
                )
                while not answering.done():
                    await daemon.settle()
                    await asyncio.sleep(0)
                return answering.result()

            await check(daemon, ask)

    asyncio.run(asyncio.wait_for(run(), 30))


def test_the_table_covers_every_call() -> None:
    assert list(STATUS_BY_CALL) == [call.name for call in CALLS]


@pytest.mark.parametrize("call", STATUS_BY_CALL)
def test_each_caller_gets_the_answer_that_its_role_and_tenant_allow(call: str, tmp_path: Path) -> None:
    async def check(daemon: ManualDaemon, ask: Callable[..., Awaitable[Answer]]) -> None:
        statuses = []
        for caller, expected in zip(CALLERS, STATUS_BY_CALL[call], strict=True):
            job = "secret-1"
            if call == "cancel" and expected == 200:  # each needs a job that is not yet cancelled
                new = await daemon.service.submit(OWNER, Submission("more", ["true"], tenant="vision", hold=True))
                job = new.id
            statuses.append((await ask(caller, call, job)).status)
        assert tuple(statuses) == STATUS_BY_CALL[call]

    with_daemon(tmp_path, check)


REFUSALS = {
    ("speech-member", "logs"): "job 'secret-1' belongs to tenant 'vision'; tenant 'speech' may not read it",
    ("speech-member", "submit"): "the token 'speech-member' of tenant 'speech' cannot submit jobs for tenant 'vision'",
    ("speech-member", "cancel"): "job 'secret-1' belongs to tenant 'vision'; tenant 'speech' may not change it",
    ("vision-reader", "cancel"): "cancel requires the role member; the token 'vision-reader' has reader",
    ("vision-member", "drain"): "drain requires the role owner; the token 'vision-member' has member",
    ("anonymous", "jobs"): "no token, expected a header 'Authorization: Bearer rf_…'",
}


def test_a_refusal_says_what_is_missing(tmp_path: Path) -> None:
    async def check(daemon: ManualDaemon, ask: Callable[..., Awaitable[Answer]]) -> None:
        assert {key: (await ask(*key)).problem.error for key in REFUSALS} == REFUSALS

    with_daemon(tmp_path, check)


def test_a_refused_call_changes_nothing(tmp_path: Path) -> None:
    async def check(daemon: ManualDaemon, ask: Callable[..., Awaitable[Answer]]) -> None:
        before = daemon.store.reader.last_numbers()
        for call, statuses in STATUS_BY_CALL.items():
            for caller, status in zip(CALLERS, statuses, strict=True):
                if status in (401, 403):
                    await ask(caller, call)
        assert daemon.store.reader.last_numbers() == before
        assert set(TOKENS) == {token.name for token in daemon.tokens.values()}
        assert (await daemon.service.job(OWNER, "secret-1")).state == "held"

    with_daemon(tmp_path, check)


def test_other_tenants_see_that_a_job_exists_but_not_its_details(tmp_path: Path) -> None:
    async def check(daemon: ManualDaemon, ask: Callable[..., Awaitable[Answer]]) -> None:
        await daemon.service.release(OWNER, "secret-1")
        await daemon.settle()
        await daemon.end_run("secret-1", RunFailed, why=SECRET, exit_code=3)
        for caller in ("owner", "vision-reader", "speech-member"):
            job = msgspec.json.decode((await ask(caller, "job")).body, type=JobStatus)
            why = msgspec.json.decode((await ask(caller, "why")).body, type=JobExplanation)
            events = (await ask(caller, "events")).body.decode()
            assert why.job == job
            assert (job.id, job.state, job.tenant, job.gpus) == ("secret-1", "failed", "vision", 2.0)
            texts = [event.text for event in why.events]
            if caller == "speech-member":
                assert (job.user, job.message, job.steps, set(texts)) == ("", "", None, {""})
                assert (job.command, job.folder, job.variables) == ([], "", [])
                assert SECRET not in events
            else:
                assert (job.user, job.steps) == ("ann", 90)
                assert (job.command, job.variables) == (["train", "--key=7"], ["DATA"])
                assert SECRET in job.message
                assert SECRET in events
                assert any(SECRET in text for text in texts)

    with_daemon(tmp_path, check)


def test_a_list_of_jobs_is_redacted_like_a_single_one(tmp_path: Path) -> None:
    async def check(daemon: ManualDaemon, ask: Callable[..., Awaitable[Answer]]) -> None:
        for caller, user in (("owner", "ann"), ("vision-member", "ann"), ("speech-reader", "")):
            page = msgspec.json.decode((await ask(caller, "jobs")).body, type=Jobs)
            one = msgspec.json.decode((await ask(caller, "job")).body, type=JobStatus)
            assert [(job.id, job.user, job.steps) for job in page.jobs] == [(one.id, user, one.steps)]
            assert [(job.command, job.variables) for job in page.jobs] == [(one.command, one.variables)]

    with_daemon(tmp_path, check)
