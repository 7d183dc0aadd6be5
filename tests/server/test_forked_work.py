"""Work in a copy of the process: its result comes back, it changes nothing here, and its failure is not ours."""

import asyncio
import os
import select
import subprocess
import sys
import threading
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from refold.server.forked_work import LIMIT_SECONDS, ForkedWork, WorkHere


@pytest.mark.parametrize("runner", [ForkedWork(), WorkHere()])
def test_the_result_comes_back(runner: ForkedWork | WorkHere) -> None:
    outcome = asyncio.run(runner.run(lambda: list(range(100_000))))
    assert outcome.result == list(range(100_000))
    assert 0 <= outcome.seconds < LIMIT_SECONDS


def test_the_copy_changes_nothing_and_holds_no_files(tmp_path: Path) -> None:
    counted: list[int] = []
    with (tmp_path / "open").open("w") as file:

        def work() -> bool:
            counted.append(1)
            try:
                os.fstat(file.fileno())
            except OSError:
                return True
            return False

        assert asyncio.run(ForkedWork().run(work)).result
        assert counted == []
        assert not file.closed
        file.write("still open")


def test_a_failure_gives_no_result() -> None:
    outcome = asyncio.run(ForkedWork().run(lambda: 1 // 0))
    assert (outcome.result, outcome.seconds) == (None, LIMIT_SECONDS)


def test_a_copy_whose_result_nobody_waits_for_is_ended() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await ForkedWork().run(lambda: [None for _ in iter(int, 1)])

    asyncio.run(main())


def test_a_copy_that_waits_forever_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refold.server.forked_work.MAX_WAIT_SECONDS", 0.1)
    assert asyncio.run(ForkedWork().run(threading.Event().wait)).result is None


def test_the_daemon_does_not_wait_until_a_copy_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, that takes long: the copy has a low priority."""
    waitpid, threads = os.waitpid, list[threading.Thread]()

    def noted(pid: int, options: int) -> tuple[int, int]:
        threads.append(threading.current_thread())
        return waitpid(pid, options)

    monkeypatch.setattr(os, "waitpid", noted)
    assert asyncio.run(ForkedWork().run(lambda: 1)).result == 1
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


DAEMON = """
import asyncio, os, threading
from pathlib import Path
from refold.server.forked_work import ForkedWork

def work():
    print(os.getpid(), flush=True)
    threading.Event().wait()

asyncio.run(ForkedWork().run(work))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_a_copy_ends_with_a_daemon_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", DAEMON], stdout=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None
        copy = os.pidfd_open(int(daemon.stdout.readline()))
        daemon.kill()
        assert select.select([copy], [], [], 30)[0]
        os.close(copy)


def test_a_few_copies_work_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refold.server.forked_work.MAX_COPIES", 1)

    async def main() -> None:
        work = ForkedWork()
        outcomes = await asyncio.gather(*(work.run(partial(_working_time, 0.05)) for _ in range(3)))
        times = sorted(outcome.result for outcome in outcomes if outcome.result is not None)
        assert len(times) == 3
        assert all(ended <= began for (_, ended), (began, _) in pairwise(times))

    asyncio.run(main())


def _working_time(seconds: float) -> tuple[float, float]:
    began = time.monotonic()
    time.sleep(seconds)
    return began, time.monotonic()
