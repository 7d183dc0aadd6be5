"""Users: jobs, GPU time used, shares and weights, also after a restart."""

import asyncio
from pathlib import Path

import pytest
from loop_setups import UnreliableBackend
from manual_daemon import OWNER, ManualDaemon
from msgspec.structs import replace

from refold.client.api import UserStatus
from refold.core.events import RunFinished
from refold.model import HOUR


def test_usage_survives_a_restart_with_another_policy(tmp_path: Path) -> None:
    async def main() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            job = await daemon.submit("a", gpus=2)
            daemon.clock.time += HOUR
            await daemon.end_run(job, RunFinished)
            [ann] = daemon.service.users(OWNER)
            assert replace(ann, gpu_hours=2.0) == UserStatus("ann", "default", 0, 0.0, 0, 0.0, 2.0)
            assert ann.gpu_hours == pytest.approx(2.0, rel=0.01)

        async with ManualDaemon(tmp_path, UnreliableBackend(), policy="refold", fair_share=1.0) as daemon:
            await daemon.submit("b")
            [ann] = daemon.service.users(OWNER)
            assert (ann.running, ann.gpus, ann.used, ann.share, ann.weight) == (1, 1.0, 1.0, 1.0, 1.0)
            assert ann.gpu_hours == pytest.approx(2.0, rel=0.01)

    asyncio.run(main())


def test_without_fair_share_users_have_no_weight(tmp_path: Path) -> None:
    async def main() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            await daemon.submit("a")
            [ann] = daemon.service.users(OWNER)
            assert (ann.share, ann.weight) == (1.0, None)

    asyncio.run(main())
