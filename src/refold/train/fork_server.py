"""The fork server: a process that has imported PyTorch, and forks the ranks of a run on request.

A forked rank runs the user's script as `python script.py` does, without the seconds that imports take. The server has
no threads and no CUDA context of its own. If an import starts threads or CUDA, if REFOLD_FORK is 0, or if the system is
not Linux, ranks are new interpreters instead.

The agent starts the server with `start`, and holds the other end of its socket. When the agent ends, the server kills
the ranks that are still running after a moment, and ends.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import importlib.machinery
import io
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from types import ModuleType, TracebackType
from typing import NoReturn

import msgspec

from refold.errors import Disconnected
from refold.model import Seconds
from refold.train.channel import Channel

PRELOAD_VARIABLE = "REFOLD_PRELOAD"
"""Names of the modules to import before ranks are forked, separated by commas."""

PRELOADED = (
    "torch,torch.distributed.checkpoint,torch.distributed.fsdp,torch.distributed.pipelining,"
    "torch.distributed.tensor.parallel,refold.train.starting"
)

FORK_VARIABLE = "REFOLD_FORK"

LAST_SECONDS: Seconds = 5.0
"""Ranks have this time to notice that the agent is gone, before they are killed."""

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_PR_SET_PDEATHSIG = 1
_BOOT = "import sys; sys.path[0] = sys.argv.pop(1); from refold.train.fork_server import serve; serve()"


class Program(msgspec.Struct, frozen=True):
    """A script or, if `is_module`, a module; and its arguments."""

    name: str
    arguments: list[str] = []
    is_module: bool = False

    @property
    def folder(self) -> str:
        """The first folder in which the program looks for modules."""
        return str(Path.cwd()) if self.is_module else str(Path(self.name).resolve().parent)

    def command(self) -> list[str]:
        """Return the command that runs the program in a new interpreter, with the options of this one."""
        options = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        return [sys.executable, *options, *(["-m"] if self.is_module else []), self.name, *self.arguments]


class StartProcess(msgspec.Struct, frozen=True, tag=True):
    """To the server: run a program as process number `process` of the agent."""

    process: int
    program: Program
    environment: dict[str, str]


class SignalProcess(msgspec.Struct, frozen=True, tag=True):
    """To the server: send a signal to a process and its children. No effect if it has ended."""

    process: int
    number: int


class ProcessExited(msgspec.Struct, frozen=True, tag=True):
    """From the server: a process has ended. `status` is negative if a signal has killed it."""

    process: int
    status: int


ServerChannel = Channel[StartProcess | SignalProcess, ProcessExited]
"""The agent's end of the connection."""


def start(program: Program, environment: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], ServerChannel]:
    """Start a fork server for a program, in a process group of its own, so that Ctrl-C does not reach the ranks."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, *subprocess._args_from_interpreter_flags(), "-c", _BOOT]  # type: ignore[attr-defined]
    with theirs:
        server = subprocess.Popen(
            [*command, program.folder, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            process_group=0,
            env=dict(environment),
        )
    return server, Channel(ours, ProcessExited, "the fork server")


def serve() -> None:
    """Run the server. In a forked rank this function returns when the script does."""
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # stop signals reach all processes of a run; the agent acts on them
    connection = socket.socket(fileno=int(sys.argv[1]))
    run = ForkServer(connection, may_fork=_preload()).serve()
    if run is not None:
        run()


class ForkServer:
    """The server's loop: starts and signals processes as told, and reports their exits."""

    def __init__(self, connection: socket.socket, *, may_fork: bool) -> None:
        self._connection = connection
        self._channel: Channel[ProcessExited, StartProcess | SignalProcess] = Channel(
            connection, StartProcess | SignalProcess, "the agent"
        )
        self._may_fork = may_fork
        self._processes: dict[int, int] = {}  # pid: number
        self._wakeup, self._on_signal = socket.socketpair()

    def serve(self) -> Callable[[], None] | None:
        """Serve until the agent ends, and return None; in a forked rank, return what the rank should do."""
        self._on_signal.setblocking(False)
        signal.set_wakeup_fd(self._on_signal.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            select.select([self._connection, self._wakeup], [], [])
            with suppress(BlockingIOError):
                self._wakeup.recv(4096, socket.MSG_DONTWAIT)
            try:
                self._report_exits()
                while (order := self._channel.poll()) is not None:
                    match order:
                        case StartProcess():
                            run = self._start(order)
                            if run is not None:
                                return run
                        case SignalProcess(process, number):
                            self._signal(process, number)
            except Disconnected:
                self._end_all()
                return None

    def _start(self, order: StartProcess) -> Callable[[], None] | None:
        sys.stdout.flush()
        sys.stderr.flush()
        server = os.getpid()
        pid = os.fork()
        if pid:
            self._processes[pid] = order.process
            _lead_group(pid)
            return None
        _lead_group(0)
        _die_with(server)
        self._leave()
        os.environ.clear()
        os.environ.update(order.environment)
        if not self._may_fork:
            command = order.program.command()
            os.execv(command[0], command)
        return lambda: _run(order.program)

    def _leave(self) -> None:
        """Remove the traces of the server from a forked process."""
        signal.set_wakeup_fd(-1)
        for number in (*_STOP_SIGNALS, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for descriptor in (self._connection, self._wakeup, self._on_signal):
            descriptor.close()

    def _signal(self, process: int, number: int) -> None:
        for pid, running in self._processes.items():
            if running == process:
                _signal_group(pid, number)

    def _report_exits(self) -> None:
        for pid in list(self._processes):
            status = self._reap(pid)
            if status is not None:
                self._channel.send(ProcessExited(self._processes.pop(pid), status))

    def _reap(self, pid: int) -> int | None:
        """Return the exit status of a process that has ended; the children of one that has failed are killed."""
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        if ended.si_status:
            _signal_group(pid, signal.SIGKILL)  # its number is not reused before it is waited for
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def _end_all(self) -> None:
        deadline = monotonic() + LAST_SECONDS
        while self._processes and monotonic() < deadline:
            self._processes = {pid: number for pid, number in self._processes.items() if self._reap(pid) is None}
            sleep(0.01)
        for pid in self._processes:
            _signal_group(pid, signal.SIGKILL)


def _lead_group(pid: int) -> None:
    """Give a process a group of its own. Both parent and child do it, so that neither has to wait for the other."""
    with suppress(OSError):
        os.setpgid(pid, 0)


def _signal_group(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, number)


def _preload() -> bool:
    """Import what ranks need; return whether it is safe to fork them from this process."""
    if os.environ.get(FORK_VARIABLE) == "0" or sys.platform != "linux":
        return False
    checks_with_nvml = "PYTORCH_NVML_BASED_CUDA_CHECK"  # counting GPUs must not create a CUDA context
    given = os.environ.get(checks_with_nvml)
    os.environ[checks_with_nvml] = "1"
    for name in os.environ.get(PRELOAD_VARIABLE, PRELOADED).split(","):
        with suppress(ImportError, ValueError):
            importlib.import_module(name.strip())
    os.environ.pop(checks_with_nvml)
    if given is not None:
        os.environ[checks_with_nvml] = given
    gc.collect()
    freeze_until_exit()
    torch = sys.modules.get("torch")
    return threading.active_count() == 1 and (torch is None or not torch.cuda.is_initialized())


def freeze_until_exit() -> None:
    """Let garbage collections leave out what exists now, but not the last one, or libraries report it as leaked."""
    gc.freeze()
    atexit.register(gc.unfreeze)
    atexit.register(_end_quickly)  # before that, and after all that the script registers


_is_replaced = threading.Event()


def leave_quickly() -> None:
    """Let this process end with status 0 as soon as its exit handlers have run, because others wait for its end.

    The last garbage collection copies all memory that it shares with the fork server, which takes a second of CPU time.
    """
    _is_replaced.set()


def _end_quickly() -> None:
    if not _is_replaced.is_set():
        return
    buffered = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
    for file in (sys.stdout, sys.stderr, *(each for each in gc.get_objects() if issubclass(type(each), buffered))):
        with suppress(Exception):  # it is closed, or its reader is gone
            file.flush()
    os._exit(0)


def _die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends, if the system can."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _run(program: Program) -> None:
    """Run a program as the interpreter does."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # else all ranks would have the same random numbers
    if not sys.flags.safe_path:
        sys.path[0] = program.folder
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    sys.argv[:] = [program.name, *program.arguments]
    try:
        if program.is_module:
            runpy._run_module_as_main(program.name)  # type: ignore[attr-defined]
        else:
            _run_script(str(Path.cwd() / program.name), main)
    except SystemExit:
        raise
    except BaseException as error:
        _fail(error)


def _run_script(path: str, main: ModuleType) -> None:
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    main.__dict__.update(__file__=path, __loader__=loader, __builtins__=sys.modules["builtins"], __cached__=None)
    exec(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True), main.__dict__)


def _fail(error: BaseException) -> NoReturn:
    """Print the traceback from the script on, and exit as the interpreter does."""
    traceback = _without_own_frames(error.__traceback__)
    sys.excepthook(type(error), error.with_traceback(traceback), traceback)
    if isinstance(error, KeyboardInterrupt):
        sys.stdout.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    sys.exit(1)


def _without_own_frames(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None and traceback.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
        traceback = traceback.tb_next
    return traceback
