"""Environments of submitters: stored once, shown to their user, removed when no job inherits them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from loop_setups import UnreliableBackend
from manual_daemon import ManualDaemon

from refold.client.api import Caller, JobEnvironment, NewEnvironment, Submission
from refold.errors import BadInput, BadValue, Forbidden, NotFound, TooManyRequests
from refold.server import environments as module
from refold.server.environments import Environments

ANA = Caller("ana-token", "member", "vision", "ana")
BOB = Caller("bob-token", "member", "vision", "bob")
OTHER_ANA = Caller("other-token", "member", "speech", "ana")
VARIABLES = {"PATH": "/venv/bin", "FOO": "1"}


def run_with_daemon(folder: Path, work: Callable[[ManualDaemon], Awaitable[None]]) -> None:
    async def serve() -> None:
        async with ManualDaemon(folder, UnreliableBackend()) as daemon:
            await work(daemon)

    asyncio.run(serve())


async def store(daemon: ManualDaemon, caller: Caller = ANA, **variables: str) -> str:
    return (await daemon.service.create_environment(caller, NewEnvironment(variables or VARIABLES))).id


async def submit(daemon: ManualDaemon, exported: str, caller: Caller = ANA) -> str:
    return (await daemon.service.submit(caller, Submission("train", ["true"], exported=exported, hold=True))).id


def test_equal_environments_of_a_user_are_stored_once(tmp_path: Path) -> None:
    async def work(daemon: ManualDaemon) -> None:
        first, again = await store(daemon), await store(daemon)
        others = [await store(daemon, BOB), await store(daemon, OTHER_ANA), await store(daemon, FOO="2")]
        assert first == again
        assert len({first, *others}) == 4

    run_with_daemon(tmp_path, work)


def test_a_user_cannot_fill_the_disk_with_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RECENT_BYTES", 3_000)

    async def work(daemon: ManualDaemon) -> None:
        first = await store(daemon, VALUE="x" * 2_000)
        with pytest.raises(TooManyRequests, match="user 'ana' has stored 1 environment within an hour"):
            await store(daemon, VALUE="y" * 2_000)
        assert await store(daemon, VALUE="x" * 2_000) == first
        await store(daemon, BOB, VALUE="y" * 2_000)
        await daemon.service._environments.sweep()
        await store(daemon, VALUE="y" * 2_000)

    run_with_daemon(tmp_path, work)


def test_the_user_of_a_job_sees_values_its_tenant_sees_names_and_others_nothing(tmp_path: Path) -> None:
    async def work(daemon: ManualDaemon) -> None:
        job = await submit(daemon, await store(daemon))
        assert await daemon.service.environment(ANA, job) == JobEnvironment(["FOO", "PATH"], VARIABLES)
        assert await daemon.service.environment(BOB, job) == JobEnvironment(["FOO", "PATH"], None)
        with pytest.raises(Forbidden, match="belongs to tenant 'vision'; tenant 'speech' may not read it"):
            await daemon.service.environment(OTHER_ANA, job)

    run_with_daemon(tmp_path, work)


def test_a_job_without_an_exported_environment_has_no_names(tmp_path: Path) -> None:
    async def work(daemon: ManualDaemon) -> None:
        assert await daemon.service.environment(ANA, await submit(daemon, "")) == JobEnvironment([], {})

    run_with_daemon(tmp_path, work)


def test_a_preview_names_the_variables(tmp_path: Path) -> None:
    async def work(daemon: ManualDaemon) -> None:
        submission = Submission("train", ["true"], exported=await store(daemon))
        assert (await daemon.service.preview(ANA, submission)).exported == ["FOO", "PATH"]

    run_with_daemon(tmp_path, work)


def test_the_environment_of_another_user_cannot_be_used(tmp_path: Path) -> None:
    async def work(daemon: ManualDaemon) -> None:
        stored = await store(daemon)
        for caller, exported in ((BOB, stored), (ANA, "0" * 64)):
            submission = Submission("train", ["true"], exported=exported)
            for call in (daemon.service.submit, daemon.service.preview):
                with pytest.raises(BadInput, match=r"exported: unknown environment [0-9a-f]{12}…"):
                    await call(caller, submission)

    run_with_daemon(tmp_path, work)


def test_values_are_not_journalled(tmp_path: Path) -> None:
    async def work(daemon: ManualDaemon) -> None:
        await submit(daemon, await store(daemon, FOO="very-private"))
        journal = b"".join([chunk async for chunk in daemon.service.journal(ANA)])
        assert b"train" in journal
        assert b"very-private" not in journal

    run_with_daemon(tmp_path, work)


def test_unused_environments_are_removed_after_a_while_and_used_ones_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(daemon: ManualDaemon) -> None:
        environments = Environments(daemon.state, daemon.writer, daemon.store)
        used, unused = await store(daemon), await store(daemon, FOO="2")
        job = await submit(daemon, used)
        await environments.sweep()
        reader = daemon.store.reader
        assert reader.environment(used) == ("ana", VARIABLES)
        assert reader.environment(unused) == ("ana", {"FOO": "2"})
        monkeypatch.setattr(module, "KEEP_UNUSED_SECONDS", -1.0)
        await environments.sweep()
        assert (reader.environment(used), reader.environment(unused)) == (("ana", VARIABLES), None)
        await daemon.service.cancel(ANA, job)
        with pytest.raises(NotFound, match="has ended; its environment is not kept"):
            await daemon.service.environment(ANA, job)

    run_with_daemon(tmp_path, work)


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ({"a-b": "1"}, "'a-b' is not a valid variable name"),
        ({"A": "\0"}, "must not contain a NUL character"),
        ({"A": "x" * 300_000, "B": "1"}, "have 300,005 bytes, expected at most 262,144; the largest are A, B"),
        ({"A": "x" * 131_070}, "A has 131,072 bytes, expected at most 131,071 per variable"),
    ],
)
def test_a_bad_environment_is_rejected(variables: dict[str, str], problem: str) -> None:
    with pytest.raises(BadValue, match=problem):
        NewEnvironment(variables)


@pytest.mark.parametrize("exported", ["x", "A" * 64, "0" * 63])
def test_a_bad_id_is_rejected(exported: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"name": "a", "command": ["true"], "exported": exported}, Submission)
