"""Simulations that a caller asks for: in a process of their own, which cannot delay the scheduler.

A module that answers such questions calls `answer_question` when it is executed: it reads the question from its
standard input and writes the answer.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

import msgspec

from refold.errors import BadInput, RefoldError, TooManyRequests, Unavailable
from refold.model import Seconds
from refold.server.signals import end_with_parent

Found = TypeVar("Found")

LIMIT_SECONDS: Seconds = 45.0
"""After this time the process is killed."""

NICENESS = 10


class ProcessAnswer(msgspec.Struct, frozen=True):
    """What was found, or what was wrong with the question."""

    found: Any = None
    error: str = ""


class SimulationProcess(Generic[Found]):
    """Runs a module that answers questions, one at a time."""

    def __init__(self, module: str, found: type[Found], limit: Seconds) -> None:
        self._module, self._found, self._limit = module, found, limit
        self._lock = asyncio.Lock()

    async def ask(self, question: object, too_long: str) -> Found:
        """Return the answer; `too_long` says what to do instead if it takes too long."""
        if self._lock.locked():
            raise TooManyRequests("another simulation of this kind is running; try again soon")
        async with self._lock:
            encoded = await asyncio.to_thread(msgspec.json.encode, question)
            output = await self._run(encoded, too_long)
        if not output:
            raise Unavailable("the simulation has failed; the daemon's log says why")
        answer = msgspec.json.decode(output, type=ProcessAnswer)
        if answer.error:
            raise BadInput(answer.error)
        return msgspec.convert(answer.found, self._found)

    async def _run(self, encoded: bytes, too_long: str) -> bytes:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # no modules from the folder in which the daemon was started
            "-m",
            self._module,
            str(os.getpid()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(self._limit):
                output, _ = await process.communicate(encoded)
        except TimeoutError:
            raise Unavailable(f"the simulation took longer than {self._limit:g} s; {too_long}") from None
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        return output


def answer_question(question: Any, simulate: Callable[[Any], object]) -> None:
    """Answer the question, of the given type, on the standard input, for the daemon whose pid is the argument."""
    end_with_parent(signal.SIGKILL, int(sys.argv[1]))
    os.nice(NICENESS)
    try:
        answer = ProcessAnswer(simulate(msgspec.json.decode(sys.stdin.buffer.read(), type=question)))
    except RefoldError as error:
        answer = ProcessAnswer(error=str(error))
    sys.stdout.buffer.write(msgspec.json.encode(answer))
