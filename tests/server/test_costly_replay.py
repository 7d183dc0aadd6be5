"""A restart with a long queue does not repeat all decisions of the policy."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from loop_setups import UnreliableBackend
from manual_daemon import ManualDaemon

from refold.server import recovery


@pytest.mark.parametrize(("limit", "is_replayed"), [(1000, True), (5, False)])
def test_many_entries_with_many_jobs_are_not_replayed_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, is_replayed: bool
) -> None:
    monkeypatch.setattr(recovery, "MAX_REPLAYED_DECISIONS", limit)

    async def check() -> None:
        backend = UnreliableBackend()
        async with ManualDaemon(tmp_path, backend) as daemon:
            jobs = [await daemon.submit(name) for name in ("a", "b", "c", "d")]
            assert daemon.store.reader.active_jobs() == 4
            epochs = len(daemon.store.reader.journal.epochs())
        async with ManualDaemon(tmp_path, backend) as successor:
            assert [*successor.state.view.runs, *successor.state.view.waiting] == jobs
            assert (len(successor.store.reader.journal.epochs()) == epochs) is is_replayed
        assert sum(backend.starts.values()) == 2

    asyncio.run(check())
