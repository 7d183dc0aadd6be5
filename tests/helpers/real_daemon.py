"""Real daemons for tests, each a process of its own: real store, real processes, real sockets.

All are forked from one process that has imported everything and has compiled what is compiled on first use, so that to
start one takes a tenth of a second. Run as a script this file is that process: a line in asks for a daemon, or for how
one has ended; a line out answers.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import msgspec
from msgspec.structs import replace

from refold.client.client import Client
from refold.errors import RefoldError

PATIENCE = 60.0
"""Seconds after which a daemon that neither serves nor ends is a failure."""

SHORT_GRACE = 0.2


class Serving(msgspec.Struct, frozen=True):
    """How a daemon is to serve. `prepare` is called in its process first: 'module:function', with `arguments`."""

    folder: str
    slots: int = 4
    nodes: dict[str, int] = {}
    policy: str = "fifo"
    grace: float = SHORT_GRACE
    most_output: int = 2**20
    keep_logs_for: float = 30 * 86400.0
    prepare: str = ""
    arguments: dict[str, Any] = {}


class Asked(msgspec.Struct, frozen=True):
    """What the process that forks is asked: to serve, or, with a pid, how that child of its has ended."""

    serving: Serving | None = None
    pid: int = 0


class Told(msgspec.Struct, frozen=True):
    """What a daemon says of itself once: that it serves, or why it does not."""

    address: str = ""
    token: str = ""
    error: str = ""
    notes: list[str] = []


class Forge:
    """The process that daemons are forked from."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._turn = threading.Lock()

    def ask(self, asked: Asked) -> int:
        """A pid, or how it ended (as `subprocess` has it)."""
        assert self._process.stdin and self._process.stdout
        with self._turn:
            self._process.stdin.write(msgspec.json.encode(asked) + b"\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())


@cache
def forge() -> Forge:
    """One for all tests; it ends with the process that has it."""
    return Forge()


class RealDaemon:
    """A daemon that serves a folder, from its start to its end."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self.folder = folder
        self.ended: int | None = None
        self._told = folder.with_name(f"{folder.name}.told")
        self._told.unlink(missing_ok=True)
        self.pid = forge().ask(Asked(Serving(str(folder), **more)))
        self._descriptor = os.pidfd_open(self.pid)
        self.told = self._wait_for_word()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        end_runs(self.folder)

    def client(self, timeout: float = 10.0) -> Client:
        """Somebody who asks it, as its owner."""
        return Client(self.told.address, self.told.token, timeout)

    def lives(self) -> bool:
        """Whether its process is there."""
        return self.ended is None and not select.select([self._descriptor], [], [], 0)[0]

    def end(self) -> int:
        """Ask it to end, and wait until it has; its exit status."""
        return self._ended_by(signal.SIGTERM)

    def kill(self) -> int:
        """Give it no time for anything."""
        return self._ended_by(signal.SIGKILL)

    def wait(self, patience: float = PATIENCE) -> int:
        """Until it has ended by itself."""
        if self.ended is None:
            if not select.select([self._descriptor], [], [], patience)[0]:
                raise AssertionError(f"the daemon has not ended in {patience:g} s:\n{self.log()}")
            os.close(self._descriptor)
            self.ended = forge().ask(Asked(pid=self.pid))
        return self.ended

    def log(self) -> str:
        """What it has said."""
        return log_of(self.folder).read_text(errors="replace")

    def _ended_by(self, number: signal.Signals) -> int:
        if self.lives():
            os.kill(self.pid, number)
        return self.wait()

    def _wait_for_word(self) -> Told:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            with suppress(FileNotFoundError):
                return msgspec.json.decode(self._told.read_bytes(), type=Told)
            if not self.lives():
                self.wait()
                return Told()
            time.sleep(0.005)
        self.kill()
        raise AssertionError(f"the daemon does not serve after {PATIENCE:g} s:\n{self.log()}")


def log_of(folder: Path) -> Path:
    """Where a daemon's standard error goes."""
    return folder.with_name(f"{folder.name}.log")


def runs_alive(folder: Path) -> list[int]:
    """The processes of runs of a daemon over this folder: the environment of each names it."""
    wanted = os.fsencode(folder.absolute() / "logs") + b"/"
    found = []
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if process.name.isdecimal() and wanted in (process / "environ").read_bytes():
                found.append(int(process.name))
    return found


def end_runs(folder: Path) -> None:
    """Leave nothing behind."""
    while alive := runs_alive(folder):
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def until(true: Callable[[], object], patience: float = PATIENCE, what: str = "") -> None:
    """Wait until something is so."""
    end = time.monotonic() + patience
    while not true():
        if time.monotonic() > end:
            raise AssertionError(f"not so after {patience:g} s: {what or true}")
        time.sleep(0.01)


# The other side.


def _forge() -> None:
    """Fork whenever a line asks for it."""
    _warm_up()
    for line in sys.stdin.buffer:
        asked = msgspec.json.decode(line, type=Asked)
        if asked.serving is None:
            _, status = os.waitpid(asked.pid, 0)
            answer = os.waitstatus_to_exitcode(status)
        else:
            answer = os.fork()
            if answer == 0:
                _be_a_daemon(asked.serving)
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


def _warm_up() -> None:
    from refold.backends.local.backend import local_cluster
    from refold.registry import make_policy
    from refold.simulator import simulate
    from refold.testing import make_job

    for policy in ("fifo", "easy"):
        simulate([make_job("long", gpus=2), make_job("short", at=1.0, gpus=2)], local_cluster(2), make_policy(policy))


def _be_a_daemon(serving: Serving) -> NoReturn:
    folder = Path(serving.folder)
    nothing, said = os.open(os.devnull, os.O_RDWR), os.open(log_of(folder), os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    for ours, theirs in ((nothing, 0), (said, 1), (said, 2)):
        os.dup2(ours, theirs)
    try:
        _prepared(serving.prepare, serving.arguments)
        _serve(serving, folder)
    except RefoldError as error:
        _tell(folder, Told(error=str(error)))
        os._exit(1)
    except BaseException:
        traceback.print_exc()
        os._exit(70)
    os._exit(0)


def _prepared(name: str, arguments: Mapping[str, Any]) -> None:
    if name:
        module, _, function = name.partition(":")
        getattr(importlib.import_module(module), function)(**arguments)


def _serve(serving: Serving, folder: Path) -> None:
    import logging

    import uvloop

    from refold.server.config.settings import ClusterChoice, Config, PolicyChoice, ServeChoice
    from refold.server.daemon import Daemon, Ready
    from refold.server.monitor.machine import layout_of, machine_of
    from refold.server.signals import ASKS_TO_END

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    cluster = ClusterChoice(slots=0 if serving.nodes else serving.slots, nodes=serving.nodes)
    serve = ServeChoice(
        port=0, grace=serving.grace, most_output=serving.most_output, keep_logs_for=serving.keep_logs_for
    )
    config = replace(Config(), cluster=cluster, policy=PolicyChoice(serving.policy), serve=serve)
    machine = machine_of(config.cluster)

    def ready(ready: Ready) -> None:
        from refold.client.address import left_address

        left = left_address(folder)
        _tell(folder, Told(ready.address, left.token if left else "", notes=ready.notes))

    async def main() -> None:
        daemon = Daemon(config, folder, machine, layout_of(machine, config))
        for number in ASKS_TO_END:
            asyncio.get_running_loop().add_signal_handler(number, daemon.end)
        await daemon.serve(ready)

    uvloop.run(main())


def _tell(folder: Path, told: Told) -> None:
    path = folder.with_name(f"{folder.name}.told")
    beside = path.with_name(f"{path.name}.new")
    beside.write_bytes(msgspec.json.encode(told))
    beside.replace(path)


if __name__ == "__main__":
    sys.modules["real_daemon"] = sys.modules["__main__"]
    _forge()
