"""The agent of a run: starts its ranks, watches them, changes their number and plan, and reports progress. No PyTorch.

The agent of a run that trains creates the file `$REFOLD_CHANGE.agent`. The back end requests a change by writing JSON
to $REFOLD_CHANGE: `{"run": 7, "plan": {…}, "devices": "0,1"}`. The agent answers in `$REFOLD_CHANGE.done`, when only
ranks of the new plan are left: `{"run": 7, "plan": {…}, "step": 120, "phases": {…}, "why": ""}`, or
`{"run": 7, "error": "…"}`.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import assert_never

import msgspec

from refold.errors import BadInput
from refold.model import Plan, Seconds
from refold.train.fork_server import ProcessExited, Program
from refold.train.owned_files import AgentFolder
from refold.train.processes import Processes
from refold.train.progress import Reporter
from refold.train.supervisor import (
    Action,
    Announce,
    Answer,
    ChangeRequest,
    Exit,
    Gang,
    Log,
    Report,
    Send,
    Signal,
    StartRank,
    Supervisor,
)

CHANGE_VARIABLE = "REFOLD_CHANGE"
POLL_SECONDS: Seconds = 0.05
"""Interval at which the agent looks for requests and checks time limits."""

DEFAULT_GRACE: Seconds = 30.0
LOOPBACK_ADDRESS = "127.0.0.1"


class RunSettings(msgspec.Struct, frozen=True):
    """What an agent reads from its environment."""

    plan: Plan
    gang: Gang
    address: str
    port: int | None
    grace: Seconds
    stop_signal: int
    devices: str | None
    progress: Path | None
    change: Path | None


def read_settings(environment: Mapping[str, str], plan: Plan | None = None) -> RunSettings:
    """Read the settings of a run from its environment; `plan` overrides the one found there."""
    slots = [slot for slot in environment.get("REFOLD_SLOTS", "").split(",") if slot]
    instances = int(_number(environment, "REFOLD_INSTANCES", 1))
    plan = plan or _read_plan(environment) or Plan(data=max(1, len(slots)) * instances)
    local, rest = divmod(plan.gpus, instances)
    if rest or (instances > 1 and slots and len(slots) != local):
        raise BadInput(
            f"plan {plan} needs {plan.gpus} ranks on {instances} instances, of which this one has {len(slots)} GPUs; "
            "every instance must have the same number"
        )
    instance = int(environment.get("REFOLD_INSTANCE", "0"))
    progress, change = environment.get("REFOLD_PROGRESS"), environment.get(CHANGE_VARIABLE)
    return RunSettings(
        plan=plan,
        gang=Gang(instance * local, instances),
        address=environment.get("MASTER_ADDR", LOOPBACK_ADDRESS) if instances > 1 else LOOPBACK_ADDRESS,
        port=int(environment["MASTER_PORT"]) if instances > 1 else None,
        grace=_number(environment, "REFOLD_GRACE", DEFAULT_GRACE),
        stop_signal=_read_signal(environment),
        devices=environment.get("CUDA_VISIBLE_DEVICES"),
        progress=Path(progress) if progress else None,
        change=Path(change) if change else None,
    )


def _number(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name, str(default))
    try:
        return float(text)
    except ValueError:
        raise BadInput(f"{name} is {text!r}, expected a number") from None


def _read_signal(environment: Mapping[str, str]) -> signal.Signals:
    name = environment.get("REFOLD_STOP_SIGNAL", "TERM")
    try:
        return signal.Signals[f"SIG{name}"]
    except KeyError:
        raise BadInput(f"REFOLD_STOP_SIGNAL is {name!r}, expected the name of a signal, such as TERM") from None


def _read_plan(environment: Mapping[str, str]) -> Plan | None:
    text = environment.get("REFOLD_PLAN")
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=Plan)
    except msgspec.DecodeError as error:
        raise BadInput(f"REFOLD_PLAN is {text!r}, expected a plan as JSON: {error}") from None


class ChangeFile:
    """The file in which requests arrive, and the one for answers."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None

    def poll(self) -> ChangeRequest | None:
        """Return a request that has not been returned before."""
        try:
            status = self._path.stat()
            version = (status.st_mtime_ns, status.st_ino)
            if version == self._seen:
                return None
            self._seen = version
            return msgspec.json.decode(self._path.read_bytes(), type=ChangeRequest)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            _print(f"cannot read the request in {self._path}: {error}")
            return None

    def announce(self) -> None:
        """Let the back end know that requests are answered."""
        self._write(self._path.with_name(f"{self._path.name}.agent"), b"")

    def answer(self, answer: object) -> None:
        """Answer a request."""
        self._write(answer_path(self._path), msgspec.json.encode(answer))

    def _write(self, path: Path, content: bytes) -> None:
        try:
            write_atomically(path, content)
        except OSError as error:
            _print(f"cannot write {path}: {error}")


def answer_path(request: Path) -> Path:
    """Return the file with the answer to a request."""
    return request.with_name(f"{request.name}.done")


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that readers find all of it or nothing."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(path)


class LocalMachine:
    """The machine of an agent, for its supervisor."""

    def __init__(self, folder: AgentFolder) -> None:
        self._folder = folder

    def now(self) -> Seconds:
        """Return the time of a monotonic clock."""
        return monotonic()

    def shared_state(self, size: int) -> str:
        """Return the path of a file in shared memory, which may grow to this size."""
        return str(self._folder.shared_state(size))

    def reserve(self, size: int) -> None:
        """Let the file have this size, or raise an error."""
        self._folder.reserve(size)


class Agent:
    """Carries out what the supervisor decides."""

    def __init__(self, program: Program, settings: RunSettings, environment: Mapping[str, str]) -> None:
        self._settings = settings
        self._folder = AgentFolder()
        self._changes = ChangeFile(settings.change or request_path(self._folder.path))
        self._port = settings.port or _free_port()
        self._supervisor = Supervisor(settings.plan, settings.devices, LocalMachine(self._folder), settings.gang)
        self._reporter = Reporter(settings.progress) if settings.progress else None
        self._environment = {"OMP_NUM_THREADS": str(_threads_per_rank(settings)), **environment}
        self._processes = Processes(program, self._folder, self._environment, connect=settings.gang.instances == 1)
        self._stop_requested = False
        self._status: int | None = None

    def run(self) -> int:
        """Run until all ranks have ended; return the exit status of the run."""
        for number in {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, self._settings.stop_signal}:
            signal.signal(number, self._on_signal)
        try:
            self._do(self._supervisor.start())
            while self._status is None:
                self._step()
        finally:
            self._processes.close()
            if self._reporter:
                self._reporter.flush()
            self._folder.remove()
        return self._status

    def _step(self) -> None:
        events = list(self._processes.wait(POLL_SECONDS))
        if self._stop_requested:  # first: the signal may have ended ranks too
            self._stop_requested = False
            self._do(self._supervisor.stop(self._settings.grace, self._settings.stop_signal))
        for event in events:
            match event:
                case ProcessExited(process, status):
                    self._do(self._supervisor.exited(process, status))
                case process, message:
                    self._do(self._supervisor.received(process, message))
        if request := self._changes.poll():
            self._do(self._supervisor.request(request))
        self._do(self._supervisor.tick())

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case StartRank():
                    self._processes.start(action.process, self._rank_environment(action))
                case Send(process, message):
                    self._processes.send(process, message)
                case Signal(process, number):
                    self._processes.signal(process, number)
                case Announce():
                    self._changes.announce()
                case Answer(answer):
                    self._changes.answer(answer)
                case Report(steps, loss, speed):
                    if self._reporter:
                        self._reporter.report(steps, loss, speed)
                case Log(text):
                    _print(text)
                case Exit(status):
                    self._status = status
                case _:
                    assert_never(action)

    def _rank_environment(self, start: StartRank) -> dict[str, str]:
        local_ranks = start.ranks // self._settings.gang.instances
        environment = {
            **self._environment,
            "RANK": str(start.rank),
            "LOCAL_RANK": str(start.rank - self._settings.gang.first_rank),
            "WORLD_SIZE": str(start.ranks),
            "LOCAL_WORLD_SIZE": str(local_ranks),
            "MASTER_ADDR": self._settings.address,
            "MASTER_PORT": str(self._port),
            "REFOLD_PLAN": msgspec.json.encode(self._settings.plan).decode(),
        }
        return environment if start.devices is None else {**environment, "CUDA_VISIBLE_DEVICES": start.devices}

    def _on_signal(self, number: int, frame: object) -> None:
        del number, frame
        self._stop_requested = True


def request_path(folder: Path) -> Path:
    """Return the file for requests to an agent that no back end has started."""
    return folder / "change"


def _free_port() -> int:
    """Return a free port, for scripts that form a process group themselves."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK_ADDRESS, 0))
        port: int = probe.getsockname()[1]
    return port


def _threads_per_rank(settings: RunSettings) -> int:
    ranks = settings.plan.gpus // settings.gang.instances
    return max(1, len(os.sched_getaffinity(0)) // ranks) if hasattr(os, "sched_getaffinity") else 1


def _print(text: str) -> None:
    print(f"refold.train: {text}", file=sys.stderr, flush=True)
