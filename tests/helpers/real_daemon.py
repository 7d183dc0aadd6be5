"""Real daemons for tests, each in its own process: real store, real runs, real sockets.

All are forked from one process that has imported everything and compiled the kernels, so that starting one takes about
0.1 s. Run as a script, this file is that process: each line of input requests a daemon, or the exit status of one; each
line of output is the answer.
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
from refold.model import Tenant

TIMEOUT_SECONDS = 60.0
"""Seconds after which a daemon that neither serves nor ends is a failure."""

SHORT_GRACE = 0.2


class DaemonOptions(msgspec.Struct, frozen=True):
    """Options of a daemon. `prepare`: 'module:function', called first in its process with `arguments`.

    `power`, `users`, `limits`, `http`: the sections of `refold.yaml`.
    """

    folder: str
    slots: int = 4
    nodes: dict[str, int] = {}
    tenants: tuple[Tenant, ...] = ()
    policy: str = "fifo"
    power: str = ""
    users: str = "{}"
    limits: str = "{}"
    http: str = "{}"
    socket: str = "auto"
    grace: float = SHORT_GRACE
    max_output: int = 2**20
    keep_logs_for: float = 30 * 86400.0
    prepare: str = ""
    arguments: dict[str, Any] = {}


class ForkRequest(msgspec.Struct, frozen=True):
    """A request to fork a daemon or, with a pid, to return the exit status of that child."""

    options: DaemonOptions | None = None
    pid: int = 0


class StartupReport(msgspec.Struct, frozen=True):
    """What a daemon reports once: its address, or why it failed to start."""

    address: str = ""
    token: str = ""
    error: str = ""
    notes: list[str] = []


class ForkServer:
    """The process that daemons are forked from."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._lock = threading.Lock()

    def call(self, request: ForkRequest) -> int:
        """Return a pid, or an exit status as `subprocess` has it."""
        assert self._process.stdin and self._process.stdout
        with self._lock:
            self._process.stdin.write(msgspec.json.encode(request) + b"\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())


@cache
def fork_server() -> ForkServer:
    """Return the fork server shared by all tests; it ends with this process."""
    return ForkServer()


class RealDaemon:
    """A daemon that serves a state folder."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self.folder = folder
        self.ended: int | None = None
        self._report_file = folder.with_name(f"{folder.name}.startup")
        self._report_file.unlink(missing_ok=True)
        self.pid = fork_server().call(ForkRequest(DaemonOptions(str(folder), **more)))
        self._descriptor = os.pidfd_open(self.pid)
        self.startup = self._wait_for_report()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        kill_runs(self.folder)

    def client(self, timeout: float = 10.0) -> Client:
        """Return a client with the owner's token."""
        return Client(self.startup.address, self.startup.token, timeout)

    def is_alive(self) -> bool:
        """Whether its process is running."""
        return self.ended is None and not select.select([self._descriptor], [], [], 0)[0]

    def end(self) -> int:
        """Ask it to end and wait; return its exit status."""
        return self._signal_and_wait(signal.SIGTERM)

    def kill(self) -> int:
        """Kill it; return its exit status."""
        return self._signal_and_wait(signal.SIGKILL)

    def wait(self, timeout: float = TIMEOUT_SECONDS) -> int:
        """Wait until it has ended; return its exit status."""
        if self.ended is None:
            if not select.select([self._descriptor], [], [], timeout)[0]:
                raise AssertionError(f"the daemon has not ended in {timeout:g} s:\n{self.log()}")
            os.close(self._descriptor)
            self.ended = fork_server().call(ForkRequest(pid=self.pid))
        return self.ended

    def log(self) -> str:
        """Return its log."""
        return log_of(self.folder).read_text(errors="replace")

    def _signal_and_wait(self, number: signal.Signals) -> int:
        if self.is_alive():
            os.kill(self.pid, number)
        return self.wait()

    def _wait_for_report(self) -> StartupReport:
        until = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < until:
            with suppress(FileNotFoundError):
                return msgspec.json.decode(self._report_file.read_bytes(), type=StartupReport)
            if not self.is_alive():
                self.wait()
                return StartupReport()
            time.sleep(0.005)
        self.kill()
        raise AssertionError(f"the daemon does not serve after {TIMEOUT_SECONDS:g} s:\n{self.log()}")


def log_of(folder: Path) -> Path:
    """Return the file that receives a daemon's standard error."""
    return folder.with_name(f"{folder.name}.log")


def live_processes(folder: Path) -> list[int]:
    """Return the processes of runs under this folder, found by their environment."""
    wanted = os.fsencode(folder.absolute() / "logs") + b"/"
    found = []
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if process.name.isdecimal() and wanted in (process / "environ").read_bytes():
                found.append(int(process.name))
    return found


def kill_runs(folder: Path) -> None:
    """Kill all processes of runs under this folder."""
    while alive := live_processes(folder):
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def wait_until(condition: Callable[[], object], timeout: float = TIMEOUT_SECONDS, what: str = "") -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"condition not met after {timeout:g} s: {what or condition}")
        time.sleep(0.01)


# The fork server's side.


def _run_fork_server() -> None:
    """Answer requests from standard input."""
    _import_policies()
    for line in sys.stdin.buffer:
        request = msgspec.json.decode(line, type=ForkRequest)
        if request.options is None:
            _, status = os.waitpid(request.pid, 0)
            result = os.waitstatus_to_exitcode(status)
        else:
            result = os.fork()
            if result == 0:
                _run_daemon(request.options)
        sys.stdout.write(f"{result}\n")
        sys.stdout.flush()


def _import_policies() -> None:
    """Import what daemons need, once for all of them: without root, the interpreter's files may not be readable."""
    import difflib  # noqa: F401

    import uvloop  # noqa: F401

    from refold.engines.local import local_cluster
    from refold.planning.catalogue import find_gpu
    from refold.server.config import Config, PolicyConfig
    from refold.server.config.reader import parse_config  # noqa: F401
    from refold.server.monitor import machine  # noqa: F401
    from refold.simulator import simulate
    from refold.simulator.registry import make_policy
    from refold.testing import make_job

    find_gpu("A100")  # reads the catalogue
    jobs = [make_job("long", gpus=2), make_job("short", at=1.0, work=1.0, gpus=2)]
    for policy in ("fifo", "easy", "refold"):
        simulate(jobs, local_cluster(2), make_policy(policy, Config(policy=PolicyConfig(policy)).policy_settings))


def _run_daemon(options: DaemonOptions) -> NoReturn:
    folder = Path(options.folder)
    null, log = os.open(os.devnull, os.O_RDWR), os.open(log_of(folder), os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    for ours, theirs in ((null, 0), (log, 1), (log, 2)):
        os.dup2(ours, theirs)
    try:
        _prepare(options.prepare, options.arguments)
        _serve(options, folder)
    except RefoldError as error:
        _write_report(folder, StartupReport(error=str(error)))
        os._exit(1)
    except BaseException:
        traceback.print_exc()
        os._exit(70)
    os._exit(0)


def _prepare(name: str, arguments: Mapping[str, Any]) -> None:
    if name:
        module, _, function = name.partition(":")
        getattr(importlib.import_module(module), function)(**arguments)


def _serve(options: DaemonOptions, folder: Path) -> None:
    import logging

    import uvloop

    from refold.engines.local.engine import LocalEngine, find_cgroups
    from refold.engines.local.process_host import OwnProcesses
    from refold.server.config.reader import parse_config
    from refold.server.config.settings import ClusterConfig, Config, PolicyConfig, ServeConfig
    from refold.server.daemon import Daemon, DaemonReady
    from refold.server.monitor.machine import build_layout, open_machine
    from refold.server.signals import TERMINATION_SIGNALS

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    cluster = ClusterConfig(slots=0 if options.nodes else options.slots, nodes=options.nodes)
    serve = ServeConfig(
        port=0,
        grace=options.grace,
        max_output=options.max_output,
        keep_logs_for=options.keep_logs_for,
        socket=options.socket,
    )
    policy = PolicyConfig(options.policy)
    text = f"power: {options.power}\nusers: {options.users}\nlimits: {options.limits}\nhttp: {options.http}"
    sections = parse_config(text, "refold.yaml")
    config = replace(
        Config(),
        cluster=cluster,
        tenants=options.tenants,
        policy=policy,
        power=sections.power,
        serve=serve,
        users=sections.users,
        limits=sections.limits,
        http=sections.http,
    )
    machine = open_machine(config.cluster)

    def ready(ready: DaemonReady) -> None:
        from refold.client.address import read_address

        left = read_address(folder)
        _write_report(folder, StartupReport(ready.address, left.token if left else "", notes=ready.notes))

    async def main() -> None:
        layout = build_layout(machine, config)
        daemon = Daemon(
            config, folder, machine, layout, LocalEngine(config, layout, OwnProcesses(find_cgroups(config, folder)))
        )
        for number in TERMINATION_SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, daemon.end)
        await daemon.serve(ready)

    uvloop.run(main())


def _write_report(folder: Path, report: StartupReport) -> None:
    write_whole(folder.with_name(f"{folder.name}.startup"), msgspec.json.encode(report))


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that never exists in part."""
    beside = path.with_name(f"{path.name}.new")
    beside.write_bytes(content)
    beside.replace(path)


if __name__ == "__main__":
    sys.modules["real_daemon"] = sys.modules["__main__"]
    _run_fork_server()
