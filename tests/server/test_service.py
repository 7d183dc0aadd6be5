"""What callers are told at the service, and what becomes of tokens there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hand_daemon import OWNER, HandDaemon
from loop_setups import UnreliableMachine

from refold.api.roles import Caller
from refold.api.tokens import make_token
from refold.api.wire import Jobs, NewToken, Role, Submission
from refold.core import Entry, Header
from refold.core.events import JobSubmitted, PastJob, RunFinished
from refold.errors import BadValue, Conflict, NotFound, Unavailable
from refold.model import Launch

EVERYTHING: dict[str, Any] = {
    "state": None,
    "tenant": "",
    "user": "",
    "name": "",
    "limit": 100,
    "after": 0,
    "ended": False,
}


def at_the_desk(folder: Path, work: Callable[[HandDaemon], Awaitable[None]]) -> None:
    async def serve() -> None:
        async with HandDaemon(folder, UnreliableMachine()) as daemon:
            await work(daemon)

    asyncio.run(serve())


def places(page: Jobs) -> list[tuple[str, str, int]]:
    return [(job.id, job.state, job.place) for job in page.jobs]


def hand_out(daemon: HandDaemon, **roles: Role) -> None:
    for name, role in roles.items():
        _, known = make_token(NewToken(name, role), 0.0)
        daemon.store.add_token(known)
        daemon.tokens[known.hash] = known


def test_of_two_owners_tokens_one_is_left_even_if_both_are_revoked_at_once(tmp_path: Path) -> None:
    async def revoke_both(daemon: HandDaemon) -> None:
        hand_out(daemon, ann="owner", bob="owner", eve="member")
        done = await asyncio.gather(
            *(daemon.service.revoke_token(OWNER, name) for name in ("ann", "bob")), return_exceptions=True
        )
        assert [type(one).__name__ for one in done] == ["TokenStatus", "Conflict"]
        assert isinstance(done[1], Conflict)
        left = {known.name for known in daemon.store.reading.tokens()}
        assert left == {"bob", "eve"} == {token.name for token in await daemon.service.tokens(OWNER)}

    at_the_desk(tmp_path, revoke_both)


def test_a_token_that_is_revoked_twice_at_once_is_not_found_the_second_time(tmp_path: Path) -> None:
    async def revoke_twice(daemon: HandDaemon) -> None:
        hand_out(daemon, eve="member")
        done = await asyncio.gather(
            *(daemon.service.revoke_token(OWNER, "eve") for _ in range(2)), return_exceptions=True
        )
        assert isinstance(done[1], NotFound)
        assert daemon.store.reading.tokens() == []

    at_the_desk(tmp_path, revoke_twice)


def test_a_token_that_could_not_be_revoked_is_good_as_before(tmp_path: Path) -> None:
    async def revoke(daemon: HandDaemon) -> None:
        hand_out(daemon, eve="member")

        async def fails(work: Callable[[], None]) -> None:
            raise Unavailable("the disk is full")

        daemon.loop.written = fails  # type: ignore[method-assign]
        with pytest.raises(Unavailable):
            await daemon.service.revoke_token(OWNER, "eve")
        assert [token.name for token in await daemon.service.tokens(OWNER)] == ["eve"]

    at_the_desk(tmp_path, revoke)


SECRETIVE: dict[str, Any] = {
    "environment": {"PASSWORD": "swordfish"},
    "notify": ["json://ann:swordfish@example.org/"],
    "folder": "/data",
    "no_progress": 60.0,
}


def test_a_snapshot_can_be_handed_around_unless_it_is_whole(tmp_path: Path) -> None:
    async def look(daemon: HandDaemon) -> None:
        first = await daemon.submit("first", **SECRETIVE)
        await daemon.end_run(first, RunFinished)
        await daemon.submit("second", **SECRETIVE)
        some, whole = [await daemon.service.snapshot(OWNER, whole=whole) for whole in (False, True)]
        assert (b"swordfish" in some, b"swordfish" in whole) == (False, True)
        header, entry = some.splitlines()
        assert msgspec.json.decode(header, type=Header).snapshot
        told = msgspec.json.decode(entry, type=Entry).events
        jobs = {one.job.id: one.job for one in told if isinstance(one, JobSubmitted | PastJob)}
        assert {name: (job.command, job.launch) for name, job in jobs.items()} == {
            name: ((), Launch(folder="/data", no_progress=60.0)) for name in ("first-1", "second-2")
        }
        assert len(told) == len(msgspec.json.decode(whole.splitlines()[1], type=Entry).events)

    at_the_desk(tmp_path, look)


def test_the_queue_is_the_same_whether_everybody_or_somebody_is_asked_for(tmp_path: Path) -> None:
    async def look(daemon: HandDaemon) -> None:
        asked: dict[str, dict[str, Any]] = {"a": {}, "b": {}, "c": {}, "d": {"hold": True}, "e": {"gpus": 99}, "f": {}}
        for name, more in asked.items():
            await daemon.submit(name, **more)
        await daemon.service.drain(OWNER, "a", why="", gpu=1, move=False)
        await daemon.rest()
        everybody = await daemon.service.jobs(OWNER, **EVERYTHING)
        anns = await daemon.service.jobs(OWNER, **{**EVERYTHING, "user": OWNER.user})
        assert [places(everybody), everybody.total, everybody.next] == [places(anns), anns.total, anns.next]
        assert (sorted(job.name for job in everybody.jobs), everybody.total) == (list("abcdef"), 6)
        found: list[str] = []
        after: int | None = 0
        while after is not None:
            page = await daemon.service.jobs(OWNER, **{**EVERYTHING, "limit": 4, "after": after})
            found += [job.id for job in page.jobs]
            after = page.next
        assert found == [job.id for job in everybody.jobs]
        assert await daemon.service.jobs(OWNER, **{**EVERYTHING, "after": 6}) == Jobs([], 6)

    at_the_desk(tmp_path, look)


def test_what_is_over_is_told_in_pages_and_to_other_tenants_less(tmp_path: Path) -> None:
    async def look(daemon: HandDaemon) -> None:
        for _ in range(3):
            await daemon.end_run(await daemon.submit("a"), RunFinished)
        stranger = Caller("eve", "reader", "other", "eve")
        first = await daemon.service.jobs(stranger, **{**EVERYTHING, "ended": True, "limit": 2})
        assert ([job.id for job in first.jobs], first.total, first.next) == (["a-3", "a-2"], 3, 2)
        assert {job.user for job in first.jobs} == {""}
        last = await daemon.service.jobs(OWNER, **{**EVERYTHING, "ended": True, "after": first.next})
        assert ([(job.id, job.user) for job in last.jobs], last.next) == ([("a-1", "ann")], None)

    at_the_desk(tmp_path, look)


def test_a_pattern_that_is_none_is_refused_when_it_comes(tmp_path: Path) -> None:
    async def submit(daemon: HandDaemon) -> None:
        with pytest.raises(BadValue, match="progress is '\\(', which is not a regular expression"):
            await daemon.service.submit(OWNER, Submission("a", ["x"], progress="("))
        assert (await daemon.service.jobs(OWNER, **EVERYTHING)).total == 0

    at_the_desk(tmp_path, submit)
