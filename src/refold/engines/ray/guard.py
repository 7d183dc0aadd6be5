"""The guard: a process that runs the command of an instance for an actor, and ends all of its processes.

It gets what to run, and later orders to end it, as lines of JSON from its input, and answers with one line: how
the command ended. When its input ends, the actor is gone, and with it the run: all processes are killed. It detaches
itself from the actor, since Ray kills the children of its workers.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from refold.engines.local import (
    MARK_VARIABLE,
    Process,
    ProcessScanner,
    ProcessTree,
    find_start_problem,
    identify_process,
    wait_for_exit,
)
from refold.model import Seconds

MAX_LINE_BYTES = 2**26


class InstanceSpec(msgspec.Struct, frozen=True):
    """What an instance runs. `mark`: by which its processes are recognised. `grace`: for those that outlive it."""

    command: tuple[str, ...]
    environment: dict[str, str]
    folder: str
    mark: str
    grace: Seconds


class StopInstance(msgspec.Struct, frozen=True):
    """An order to end an instance."""

    signal: str
    grace: Seconds


class InstanceEnd(msgspec.Struct, frozen=True):
    """How an instance ended: its exit code, or why it could not be started."""

    code: int | None = None
    problem: str = ""


async def guard(orders: asyncio.StreamReader, spec: InstanceSpec) -> InstanceEnd:
    """Run a command until it or its actor ends, or it is ordered to end; return how it ended."""
    folder = Path(spec.folder)
    if checkpoint := spec.environment.get("REFOLD_CHECKPOINT"):
        with suppress(OSError):
            Path(checkpoint).mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **spec.environment, MARK_VARIABLE: spec.mark}
    if problem := find_start_problem(spec.command[0], folder, environment):
        return InstanceEnd(problem=problem)
    try:
        leader = _start(spec.command, folder, environment)
    except OSError as error:
        return InstanceEnd(problem=f"cannot start {spec.command[0]!r}: {error.strerror}")
    tree = ProcessTree(spec.mark, ProcessScanner())
    tree.add_leader(leader)
    exited = asyncio.create_task(wait_for_exit(leader))
    ordered = asyncio.create_task(_next_order(orders))
    await asyncio.wait({exited, ordered}, return_when=asyncio.FIRST_COMPLETED)
    order = ordered.result() if ordered.done() else StopInstance("TERM", spec.grace)
    hurrying = asyncio.create_task(_hurry(orders, ordered, tree))
    await tree.end(order.grace, signal.Signals[f"SIG{order.signal}"])
    hurrying.cancel()
    return InstanceEnd(await exited)


def _start(command: tuple[str, ...], folder: Path, environment: dict[str, str]) -> Process:
    """Start a command in a session of its own, with its output where that of the guard goes."""
    child = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT, start_new_session=True
    )
    child.returncode = 0  # the process is reaped by `wait_for_exit`, not by this object
    return identify_process(child.pid)


async def _next_order(orders: asyncio.StreamReader) -> StopInstance:
    """Return the next order. The end of the input is one to kill everything."""
    line = await orders.readline()
    return msgspec.json.decode(line, type=StopInstance) if line else StopInstance("KILL", 0.0)


async def _hurry(orders: asyncio.StreamReader, ordered: asyncio.Task[StopInstance], tree: ProcessTree) -> None:
    """End the grace period when a further order has none."""
    while (await ordered).grace > 0:
        ordered = asyncio.create_task(_next_order(orders))
    tree.skip_grace()


async def _main(answers: int) -> None:
    orders = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    line = await orders.readline()
    end = await guard(orders, msgspec.json.decode(line, type=InstanceSpec)) if line else InstanceEnd(problem="no order")
    os.write(answers, msgspec.json.encode(end) + b"\n")


if __name__ == "__main__":
    if os.fork():
        os._exit(0)
    os.setsid()
    asyncio.run(_main(int(sys.argv[1])))
