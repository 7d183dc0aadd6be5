"""One daemon per GPU: locks that end with their process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest
from other_users import ANN, needs_root

from refold.server.machine_locks import GpuLocks, LockHolder

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="abstract Unix sockets exist on Linux only")

HOLD = """
import sys, time
from refold.server.machine_locks import GpuLocks
locks = GpuLocks()
print(locks.acquire(sys.argv[1]), flush=True)
time.sleep(600)
"""


def test_a_gpu_has_one_holder_which_others_can_see() -> None:
    uuid, first, second = f"GPU-{uuid4()}", GpuLocks(), GpuLocks()
    assert first.acquire(uuid) is None
    assert first.acquire(uuid) is None
    assert second.acquire(uuid) == LockHolder(os.getpid(), os.geteuid())
    assert second.acquire(f"GPU-{uuid4()}") is None
    first.close()
    assert second.acquire(uuid) is None
    second.close()


def test_the_lock_of_a_killed_daemon_is_free() -> None:
    uuid, locks = f"GPU-{uuid4()}", GpuLocks()
    holder = subprocess.Popen([sys.executable, "-c", HOLD, uuid], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    with holder, holder.stdout:
        assert holder.stdout.readline() == b"None\n"
        assert locks.acquire(uuid) == LockHolder(holder.pid, os.geteuid())
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert locks.acquire(uuid) is None
    locks.close()


def test_runs_do_not_inherit_the_lock(tmp_path: Path) -> None:
    uuid, locks, later = f"GPU-{uuid4()}", GpuLocks(), GpuLocks()
    locks.acquire(uuid)
    with subprocess.Popen(["sleep", "600"], close_fds=False) as run:
        locks.close()
        assert later.acquire(uuid) is None
        run.kill()
    later.close()


@needs_root
def test_daemons_of_different_users_do_not_use_the_same_gpu() -> None:
    uuid, reading, writing = f"GPU-{uuid4()}", *os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setresuid(ANN, ANN, ANN)
            of_ann = GpuLocks()
            os.write(writing, b"1" if of_ann.acquire(uuid) is None else b"0")
            signal.pause()
        finally:
            os._exit(0)
    assert os.read(reading, 1) == b"1"
    locks = GpuLocks()
    assert locks.acquire(uuid) == LockHolder(pid, ANN)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert locks.acquire(uuid) is None
    locks.close()
    os.close(reading)
    os.close(writing)
