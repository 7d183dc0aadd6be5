"""Messages about jobs: each event once, under its own kind, and none about the user's own actions."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from loop_setups import UnreliableBackend
from manual_daemon import OWNER, ManualDaemon

from refold.core.events import RunFailed, RunStopped
from refold.model.units import HOUR
from refold.server.job_table import Notice, NoticeKind
from refold.server.notify.messages import LONG_WAITS_KEY
from refold.server.output import log_path


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("hang suspected", [("hang_suspected", "a-1 may be stuck", "details")]),
        ("time limit", [("time_limit", "a-1 is beyond its time limit", "details")]),
        ("idle", [("gpu_idle", "a-1 leaves its GPUs idle", "details")]),
        ("ended", [("ended", "a-1 was ended", "details")]),
        ("timed out", [("ended", "a-1 timed out", "details")]),
        ("note", []),
        ("cancelled", []),
    ],
)
def test_each_kind_of_notice_has_one_kind_of_message_or_none(
    kind: NoticeKind, expected: list[tuple[str, str, str]], tmp_path: Path
) -> None:
    async def main() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            job = await daemon.submit("a", hold=True)
            daemon.inbox.add_notice(Notice(kind, daemon.state.view.held[job], text="details"))
            await daemon.settle()
            assert daemon.sent() == expected

    asyncio.run(main())


def test_a_run_without_progress_is_suspected_to_hang(tmp_path: Path) -> None:
    async def main() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend(), watch={"per_job": True}) as daemon:
            await daemon.submit("a", no_progress=600.0, time_limit=3600.0)
            await daemon.advance(601.0)
            assert [notice.kind for notice in daemon.notices][-1] == "hang suspected"
            assert daemon.sent()[-1][:2] == ("hang_suspected", "a-1 may be stuck")

    asyncio.run(main())


def test_a_run_beyond_its_limit_is_notified_when_flagged_and_when_ended(tmp_path: Path) -> None:
    async def main() -> None:
        rules = {"beyond_limit": True, "grace": 60.0}
        async with ManualDaemon(tmp_path, UnreliableBackend(), watch=rules) as daemon:
            job = await daemon.submit("a", time_limit=600.0)
            for seconds in (601.0, 61.0):
                await daemon.advance(seconds)
            await daemon.end_run(job, RunStopped)
            (_, _, flag), (_, _, end) = daemon.sent()[1:]
            assert daemon.sent() == [
                ("started", "a-1 started", ""),
                ("time_limit", "a-1 is beyond its time limit", flag),
                ("ended", "a-1 timed out", end),
            ]
            assert "limit" in flag and "limit" in end
            ended = await daemon.service.job(OWNER, job)
            assert (ended.state, ended.message) == ("timed out", end)

    asyncio.run(main())


def test_a_job_whose_dependency_failed_is_notified(tmp_path: Path) -> None:
    async def main() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            first = await daemon.submit("a")
            await daemon.submit("b", after=[first])
            await daemon.end_run(first, RunFailed, why="exit 1")
            assert daemon.sent() == [
                ("started", "a-1 started", ""),
                ("failed", "a-1 failed", "exit 1"),
                ("ended", "b-2 was ended", "dependency 'a-1' failed"),
            ]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("instance", "why", "output", "expected"),
    [
        (0, "exit 1", "", "exit 1"),
        (0, "exit 1", "loading\nKeyError: 'x'\n", "exit 1\n\nloading\nKeyError: 'x'"),
        (2, "instance 2: exit 1", "out of memory\n", "instance 2: exit 1\n\nout of memory"),
        (0, "exit 1", "\x1b]0;title\x07 1 %\r50 %\r\x1b[31m99 %\x1b[0m\r\n\x00end", "exit 1\n\n99 %\nend"),
        (0, "exit 1", "".join(f"{line}\n" for line in range(20)), "exit 1\n\n10\n11\n12\n13\n14\n15\n16\n17\n18\n19"),
        (0, "exit 1", "x" * 5000, "exit 1\n\n" + "x" * 1500),
    ],
)
def test_a_failure_is_notified_with_the_last_lines_of_the_output(
    instance: int, why: str, output: str, expected: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            job = await daemon.submit("a")
            path = log_path(tmp_path / "logs", job, 1, instance)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(output.encode())
            await daemon.end_run(job, RunFailed, why=why)
            assert daemon.sent()[1:] == [("failed", "a-1 failed", expected)]

    asyncio.run(main())


def test_cancelling_a_job_sends_no_message(tmp_path: Path) -> None:
    async def main() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            runs, waits = await daemon.submit("a", gpus=2), await daemon.submit("b")
            for job in (waits, runs):
                await daemon.service.cancel(OWNER, job)
            await daemon.end_run(runs, RunStopped)
            assert daemon.sent() == [("started", "a-1 started", "")]
            assert [notice.job.id for notice in daemon.notices if notice.kind == "cancelled" and notice.job] == [
                waits,
                runs,
            ]

    asyncio.run(main())


def test_a_long_wait_is_notified_once_also_across_restarts(tmp_path: Path) -> None:
    async def main() -> None:
        backend = UnreliableBackend()
        message = ("waiting_long", "b-2 has been waiting for 4 h", "(Resources)")
        async with ManualDaemon(tmp_path, backend) as before:
            await before.submit("a", gpus=2)
            await before.submit("b", gpus=2)
            await before.advance(4 * HOUR - 10)
            await before.messages.notify_long_waits()
            assert message not in before.sent()
            await before.advance(10)
            for _ in range(2):
                await before.messages.notify_long_waits()
            assert before.sent().count(message) == 1
            time = before.clock.time
        async with ManualDaemon(tmp_path, backend, time=time) as after:
            await after.messages.notify_long_waits()
            assert after.sent() == []

    asyncio.run(main())


def test_a_wait_that_became_long_while_no_daemon_ran_is_notified(tmp_path: Path) -> None:
    async def main() -> None:
        backend = UnreliableBackend()
        async with ManualDaemon(tmp_path, backend) as before:
            await before.submit("a", gpus=2)
            await before.submit("b", gpus=2)
        async with ManualDaemon(tmp_path, backend, time=5 * HOUR) as after:
            await after.messages.notify_long_waits()
            assert after.sent() == [("waiting_long", "b-2 has been waiting for 5 h", "(Resources)")]

    asyncio.run(main())


def test_run_time_does_not_count_as_waiting(tmp_path: Path) -> None:
    async def main() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            job = await daemon.submit("a", gpus=2, retries=1)
            other = await daemon.submit("b", gpus=2)
            await daemon.advance(3 * HOUR)
            await daemon.end_run(job, RunFailed, why="exit 1")
            await daemon.advance(2 * HOUR)
            await daemon.messages.notify_long_waits()
            assert (list(daemon.state.view.waiting), list(daemon.state.view.runs)) == ([job], [other])
            assert [kind for kind, _, _ in daemon.sent() if kind == "waiting_long"] == []
            await daemon.advance(2 * HOUR)
            await daemon.messages.notify_long_waits()
            assert [title for kind, title, _ in daemon.sent() if kind == "waiting_long"] == [
                "a-1 has been waiting for 4 h"
            ]
            assert daemon.store.reader.read_meta(LONG_WAITS_KEY, list[str]) == [job]

    asyncio.run(main())
