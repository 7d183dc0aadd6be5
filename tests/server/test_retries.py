"""The output of a failed run decides on its retry; the failure is reported in any case."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from loop_setups import UnreliableBackend
from manual_daemon import OWNER, ManualDaemon

from refold.core import View
from refold.core.events import Event, RunFailed, RunProgressed, RunStopped
from refold.server.live_state import LiveState


@pytest.mark.parametrize(("lost", "state"), [(False, "failed"), (True, "held")], ids=["failed", "lost"])
def test_if_the_output_cannot_be_read_the_verdict_of_the_backend_is_kept(
    lost: bool, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:

            def broken(job: str, run: int) -> bool:
                raise RuntimeError("the output cannot be read")

            monkeypatch.setattr(daemon.output, "matches_no_retry", broken)
            job = await daemon.submit("a", retries=3)
            with caplog.at_level(logging.ERROR, "refold"):
                await daemon.end_run(job, RunFailed, why="exit 1", retry=lost)
            assert (await daemon.service.job(OWNER, job)).state == state
            assert [record.getMessage() for record in caplog.records] == [
                "cannot decide whether to retry run 1 of a-1; using the backend's decision"
            ]

    asyncio.run(main())


def test_a_node_drained_because_of_output_is_noted_and_not_reported_as_a_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            monkeypatch.setattr(daemon.output, "drain_pattern", lambda _job, _run: "ECC")
            job = await daemon.submit("a")
            await daemon.end_run(job, RunFailed, why="exit 1")
            noted = [(notice.kind, notice.text) for notice in daemon.notices if notice.kind in ("note", "node drained")]
            assert sorted(noted) == [
                ("node drained", "a: a-1 failed on this node; its output matches 'ECC'"),
                ("note", "node drained: a-1 failed on this node; its output matches 'ECC'"),
            ]
            assert [kind for kind, _, _ in daemon.sent()] == ["started", "failed"]

    asyncio.run(main())


class _AlwaysProfiling:
    """A view in which all runs serve to measure speeds."""

    def __init__(self, view: View) -> None:
        self._view = view

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)

    def is_profiling(self, _job: str) -> bool:
        return True


def test_a_job_does_not_fail_because_a_plan_fails_that_it_only_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            monkeypatch.setattr(LiveState, "view", property(lambda state: _AlwaysProfiling(state.scheduler.view)))
            job = await daemon.submit("a", retries=0)
            await daemon.end_run(job, RunFailed, why="out of memory")
            assert (await daemon.service.job(OWNER, job)).state == "held"

    asyncio.run(main())


@pytest.mark.parametrize(("last", "reported"), [(20, [20]), (19, [])], ids=["this run", "the next run"])
def test_steps_that_processes_have_done_as_the_next_run_are_not_those_of_a_run(
    last: int, reported: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            job = await daemon.submit("a")
            monkeypatch.setattr(daemon.output, "read_to_end", lambda job, run: RunProgressed(job, run, steps=20))
            events: list[Event] = []
            monkeypatch.setattr(daemon.inbox, "report", events.append)
            daemon.retries.report(RunStopped(job, 1, steps=last))
            while not any(isinstance(event, RunStopped) for event in events):
                await asyncio.sleep(0)
            assert [event.steps for event in events if isinstance(event, RunProgressed)] == reported

    asyncio.run(main())
