"""Whoever reads output waits for the disk alone: the daemon goes on meanwhile."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from hand_daemon import OWNER, HandDaemon
from loop_setups import UnreliableMachine

from refold.api.wire import Logs
from refold.backends.local import log_files
from refold.backends.local.run_files import RunFiles
from refold.core.events import RunFinished


def test_a_log_that_cannot_be_read_now_keeps_only_its_readers_waiting(tmp_path: Path) -> None:
    state = tmp_path / "state"

    async def main() -> None:
        async with HandDaemon(state, UnreliableMachine()) as daemon:
            job = await daemon.submit("job")
            files = RunFiles(state / "logs", job, 1)
            files.folder.mkdir(parents=True)
            files.log(0).write_text("step 1\n")
            held, release = threading.Event(), threading.Event()
            rotating = threading.Thread(target=_rotate_until, args=(files.log(0), held, release))
            rotating.start()
            try:
                held.wait()
                reading = asyncio.create_task(
                    daemon.service.logs(OWNER, job, run=None, instance=0, offset=-3, limit=100)
                )
                await daemon.submit("meanwhile")
                await daemon.end_run(job, RunFinished)
                assert not reading.done()
            finally:
                release.set()
                rotating.join()
            assert await reading == Logs(" 1\n", 1, 0, 7, False)  # it ran when that was asked
            assert await daemon.service.logs(OWNER, job, run=1, instance=0, offset=5, limit=100) == Logs(
                "1\n", 1, 0, 7, True
            )

    asyncio.run(main())


def _rotate_until(path: Path, held: threading.Event, release: threading.Event) -> None:
    with log_files._rotating(path):
        held.set()
        release.wait(30.0)
