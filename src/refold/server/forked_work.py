"""Work in a copy of this process, which cannot delay the scheduler: it sees the state as of now, and changes nothing.

The copy closes all files and sockets at once, so that it holds no lock and no port, and has a limit of CPU time.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import pickle
import resource
import signal
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from time import process_time
from typing import Generic, NoReturn, TypeVar

import msgspec

from refold.model import Seconds
from refold.server.signals import end_with_parent

T = TypeVar("T")
log = logging.getLogger("refold")

LIMIT_SECONDS = 30
"""CPU time after which the copy is killed."""

MAX_WAIT_SECONDS = 120.0
"""Time after which the copy is killed, whatever it waits for: another thread may have held a lock when it was made."""

MAX_COPIES = 3
"""Number of copies at a time, for start estimates, a comparison and a preview; further work waits."""

NICENESS = 10
READ_BYTES = 1 << 16
FIRST_DESCRIPTOR = 3
"""After those of input, output and errors, which stay open."""


class WorkOutcome(msgspec.Struct, Generic[T], frozen=True):
    """The result of work, None if it failed or took too long, and the CPU time that it took."""

    result: T | None
    seconds: Seconds


class ForkedWork:
    """Does work in copies of this process, a few at a time."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(MAX_COPIES)

    async def run(self, work: Callable[[], T]) -> WorkOutcome[T]:
        """Do the work in a copy of this process; return when it has ended. The log says why it has failed."""
        async with self._free:
            return await self._run(work)

    async def _run(self, work: Callable[[], T]) -> WorkOutcome[T]:
        reader, writer = os.pipe()
        parent = os.getpid()
        with warnings.catch_warnings():  # of Python 3.12: the copy has none of the other threads, and needs none
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            _end_with_result(work, writer, parent)
        os.close(writer)
        try:
            output = await asyncio.wait_for(_read_all(reader), MAX_WAIT_SECONDS)
        except TimeoutError:
            log.warning("work in a copy of the daemon was ended after %g s", MAX_WAIT_SECONDS)
            output = b""
        finally:
            os.close(reader)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # it has ended, unless this task was cancelled
            await asyncio.to_thread(os.waitpid, pid, 0)  # with its low priority, it may take a while to end
        if not output:
            return WorkOutcome(None, LIMIT_SECONDS)
        outcome: WorkOutcome[T] = pickle.loads(output)
        return outcome


class WorkHere:
    """Does work in this process, as if it took no time: for tests."""

    async def run(self, work: Callable[[], T]) -> WorkOutcome[T]:
        return WorkOutcome(work(), 0.0)


def _end_with_result(work: Callable[[], object], writer: int, parent: int) -> NoReturn:
    """Do the work in the copy, write the outcome and end; at once if the daemon ends."""
    try:
        end_with_parent(signal.SIGKILL, parent)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.closerange(FIRST_DESCRIPTOR, writer)
        os.closerange(writer + 1, os.sysconf("SC_OPEN_MAX"))
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_SECONDS, LIMIT_SECONDS))
        os.nice(NICENESS)
        gc.disable()
        began = process_time()
        result = work()
        output = pickle.dumps(WorkOutcome(result, process_time() - began))
        while output:
            output = output[os.write(writer, output) :]
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


async def _read_all(descriptor: int) -> bytes:
    loop, output, readable = asyncio.get_running_loop(), bytearray(), asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    try:
        while True:
            await readable.wait()
            readable.clear()
            if not (chunk := os.read(descriptor, READ_BYTES)):
                return bytes(output)
            output += chunk
    finally:
        loop.remove_reader(descriptor)
