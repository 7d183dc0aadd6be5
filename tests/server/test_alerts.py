"""Alerts: what needs attention, and who may see it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from loop_setups import UnreliableBackend
from manual_daemon import OWNER, ManualDaemon

from refold.client.api.queries import Caller
from refold.client.api.submissions import Submission
from refold.client.api.wire import Alert
from refold.core import GpuDrained, NodeLost

READER = Caller("reader", "reader", "speech", "bob")


def test_a_quiet_daemon_has_no_alerts(tmp_path: Path) -> None:
    async def check() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            await daemon.service.submit(OWNER, Submission("train", ["true"]))
            assert daemon.service.alerts(OWNER) == []

    asyncio.run(check())


def test_nodes_and_gpus_that_are_down_are_alerts(tmp_path: Path) -> None:
    async def check() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            await daemon.inbox.commit([GpuDrained(0, 1, "XID 79")])
            assert daemon.service.alerts(READER) == [
                Alert("gpu down", "GPU 1 is drained: XID 79", node="a"),
            ]
            await daemon.inbox.commit([NodeLost(0, "no heartbeat")])
            assert daemon.service.alerts(READER) == [
                Alert("node down", "no heartbeat", node="a"),
            ]

    asyncio.run(check())


def test_a_node_that_is_drained_on_purpose_is_no_alert(tmp_path: Path) -> None:
    async def check() -> None:
        from refold.client.api import DrainQuery

        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            await daemon.service.drain(OWNER, "a", DrainQuery(reason="new fans"))
            assert daemon.service.alerts(OWNER) == []

    asyncio.run(check())


def test_a_flagged_run_is_an_alert_for_those_who_may_read_it(tmp_path: Path) -> None:
    async def check() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            job = await daemon.service.submit(OWNER, Submission("train", ["true"]))
            daemon.state.job_table.records[job.id].warning = "no progress for 10 min"
            assert daemon.service.alerts(OWNER) == [Alert("run flagged", "no progress for 10 min", job.id)]
            assert daemon.service.alerts(READER) == []

    asyncio.run(check())
