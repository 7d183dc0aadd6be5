"""A run that failed is judged by what its output says; whatever goes wrong with that, its end is reported."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from hand_daemon import OWNER, HandDaemon
from loop_setups import UnreliableMachine

from refold.core.events import RunFailed


@pytest.mark.parametrize(
    ("lost", "state"), [(False, "failed"), (True, "held")], ids=["by its own fault", "by nobody's"]
)
def test_an_end_that_cannot_be_judged_is_taken_as_it_came(
    lost: bool, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with HandDaemon(tmp_path, UnreliableMachine()) as daemon:

            def broken(job: str, run: int) -> bool:
                raise RuntimeError("the output cannot be read")

            monkeypatch.setattr(daemon.output, "never_retry", broken)
            job = await daemon.submit("a", retries=3)
            with caplog.at_level(logging.ERROR, "refold"):
                await daemon.end_run(job, RunFailed, why="exit 1", retry=lost)
            assert (await daemon.service.job(OWNER, job)).state == state
            assert [record.getMessage() for record in caplog.records] == [
                "the end of run 1 of a-1 could not be judged: it is taken as it came"
            ]

    asyncio.run(main())


def test_a_node_that_is_drained_for_what_an_output_says_is_noted_and_nobody_hears_of_a_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with HandDaemon(tmp_path, UnreliableMachine()) as daemon:
            monkeypatch.setattr(daemon.output, "drains", lambda _job, _run: "ECC")
            job = await daemon.submit("a")
            await daemon.end_run(job, RunFailed, why="exit 1")
            noted = [(news.kind, news.text) for news in daemon.news if news.kind in ("noted", "node lost")]
            assert sorted(noted) == [
                ("node lost", "a"),
                ("noted", "its node is drained: a-1 failed there with 'ECC' in its output"),
            ]
            assert [kind for kind, _, _ in daemon.told()] == ["started", "failed"]

    asyncio.run(main())
