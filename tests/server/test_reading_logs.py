"""Reading logs through the service does not block the daemon."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from loop_setups import UnreliableBackend
from manual_daemon import OWNER, ManualDaemon

from refold.client.api import LogsQuery
from refold.client.api.wire import Logs
from refold.core.events import RunFinished
from refold.server.output import log_files
from refold.server.output.run_files import RunFiles


def test_a_locked_log_blocks_only_its_readers(tmp_path: Path) -> None:
    state = tmp_path / "state"

    async def main() -> None:
        async with ManualDaemon(state, UnreliableBackend()) as daemon:
            job = await daemon.submit("job")
            files = RunFiles(state / "logs", job, 1)
            files.folder.mkdir(parents=True)
            files.log(0).write_text("step 1\n")
            held, release = threading.Event(), threading.Event()
            holder = threading.Thread(target=_hold_lock_until, args=(files.log(0), held, release))
            holder.start()
            try:
                held.wait()
                reading = asyncio.create_task(daemon.service.logs(OWNER, job, LogsQuery(offset=-3, limit=100)))
                await daemon.submit("meanwhile")
                await daemon.end_run(job, RunFinished)
                assert not reading.done()
            finally:
                release.set()
                holder.join()
            assert await reading == Logs(" 1\n", 1, 0, 7, False)  # the run had not ended at the time of the call
            assert await daemon.service.logs(OWNER, job, LogsQuery(run=1, offset=5, limit=100)) == Logs(
                "1\n", 1, 0, 7, True
            )

    asyncio.run(main())


def _hold_lock_until(path: Path, held: threading.Event, release: threading.Event) -> None:
    with log_files._lock_of(path):
        held.set()
        release.wait(30.0)
