"""The agent of a run: starts its ranks, changes their number and plan, and reports progress. No PyTorch."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import assert_never

import msgspec

from refold.model import Seconds
from refold.train.change_file import ChangeFile
from refold.train.fork_server import ProcessExited, Program
from refold.train.messages import (
    Action,
    Announce,
    Answer,
    Copied,
    Copying,
    Exit,
    Log,
    Report,
    Send,
    SignalRank,
    StartRank,
)
from refold.train.owned_files import AgentFolder, LocalMachine
from refold.train.processes import Processes
from refold.train.progress import Reporter
from refold.train.run_settings import LOOPBACK_ADDRESS, RunSettings
from refold.train.supervisor import Supervisor

POLL_SECONDS: Seconds = 0.05
"""Interval at which the agent looks for requests and checks time limits."""


class Agent:
    """Carries out what the supervisor decides."""

    def __init__(self, program: Program, settings: RunSettings, environment: Mapping[str, str]) -> None:
        self._settings = settings
        self._folder = AgentFolder()
        if settings.change:
            self._folder.mark_as_scheduled()
        self._changes = ChangeFile(settings.change or request_path(self._folder.path))
        self._port = settings.port or free_port()
        self._supervisor = Supervisor(settings.plan, settings.devices, LocalMachine(self._folder), settings.gang)
        self._reporter = Reporter(settings.progress) if settings.progress else None
        self._environment = {"OMP_NUM_THREADS": str(_threads_per_rank(settings)), **environment}
        self._processes = Processes(program, self._folder, self._environment, connect=settings.has_channels)
        self._stop_requested = False
        self._status: int | None = None

    def run(self) -> int:
        """Run until all ranks have ended; return the exit status of the run."""
        for number in {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, self._settings.stop_signal}:
            signal.signal(number, self._on_signal)
        try:
            self._start()
            while self._status is None:
                self._step()
        finally:
            self._processes.close()
            if self._reporter:
                self._reporter.flush()
            self._folder.remove()
        return self._status

    def _start(self) -> None:
        self._do(self._supervisor.start())

    def _step(self) -> None:
        events = list(self._processes.wait(POLL_SECONDS))
        if self._stop_requested:  # first: the signal may have ended ranks too
            self._stop_requested = False
            self._do(self._supervisor.stop(self._settings.grace, self._settings.stop_signal))
        for event in events:
            match event:
                case ProcessExited(process, status):
                    self._do(self._supervisor.exited(process, status))
                case _, Copying() | Copied():
                    pass
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
                case SignalRank(process, number):
                    self._processes.signal(process, number)
                case Announce():
                    self._changes.announce()
                case Answer(answer):
                    self._changes.answer(answer)
                case Report(steps, loss, speed, plan, slow):
                    if self._reporter:
                        words = {"plan": plan, "slow": slow}
                        texts = {name: msgspec.json.encode(value).decode() for name, value in words.items() if value}
                        self._reporter.report(steps, loss, speed, texts)
                case Log(text):
                    print_line(text)
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


def free_port(address: str = LOOPBACK_ADDRESS) -> int:
    """Return a free port, for scripts that form a process group themselves."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
    return port


def _threads_per_rank(settings: RunSettings) -> int:
    ranks = max(1, settings.plan.gpus // settings.gang.instances)
    return max(1, len(os.sched_getaffinity(0)) // ranks) if hasattr(os, "sched_getaffinity") else 1


def print_line(text: str) -> None:
    """Print a line to the log of the run."""
    print(f"refold.train: {text}", file=sys.stderr, flush=True)
