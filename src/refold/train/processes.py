"""The processes of an agent: the fork server, the ranks, and the channels to them."""

from __future__ import annotations

import select
import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Protocol

from refold.errors import Disconnected
from refold.model import Seconds
from refold.train import fork_server
from refold.train.channel import AGENT_VARIABLE, AgentChannel, Listener
from refold.train.fork_server import ProcessExited, Program, SignalProcess, StartProcess
from refold.train.messages import ToAgent, ToRank
from refold.train.owned_files import AgentFolder


class HasDescriptor(Protocol):
    """What `select` can wait for."""

    def fileno(self) -> int:
        """Return a descriptor."""


class Processes:
    """Starts ranks, and reports their messages and exits. If the fork server dies, its ranks have died too.

    `connect`: whether ranks get a channel. The ranks of a run with several instances do not: they meet at an address,
    and follow the stop signal themselves.
    """

    def __init__(
        self, program: Program, folder: AgentFolder, environment: Mapping[str, str], *, connect: bool = True
    ) -> None:
        self._connects = connect
        self._program = program
        self._folder = folder
        self._environment = environment
        self._listeners: dict[int, Listener] = {}
        self._channels: dict[int, AgentChannel] = {}
        self._running: set[int] = set()
        self._server, self._orders = fork_server.start(program, environment)

    def start(self, process: int, environment: Mapping[str, str]) -> None:
        """Start a rank."""
        if self._server.poll() is not None:
            self._server, self._orders = fork_server.start(self._program, self._environment)
        variables = dict(environment)
        if self._connects:
            self._listeners[process] = Listener(self._folder.new_socket())
            variables[AGENT_VARIABLE] = str(self._listeners[process].path)
        self._running.add(process)
        with suppress(Disconnected):  # `wait` reports it
            self._orders.send(StartProcess(process, self._program, variables))

    def signal(self, process: int, number: int) -> None:
        """Send a signal to a rank and its children."""
        with suppress(Disconnected):
            self._orders.send(SignalProcess(process, number))

    def send(self, process: int, message: ToRank) -> None:
        """Send a message to a rank; `wait` reports the exit of one that is gone."""
        with suppress(Disconnected):
            if channel := self._channels.get(process):
                channel.send(message)

    def running(self) -> list[int]:
        """Return the ranks that have not ended."""
        return sorted(self._running)

    def wait(self, timeout: Seconds, *others: HasDescriptor) -> Iterator[ProcessExited | tuple[int, ToAgent]]:
        """Wait for messages and exits, and return them; the messages of a process come before its exit.

        Do not wait any longer if there is something to read elsewhere.
        """
        listeners = [listener.fileno() for listener in self._listeners.values()]
        channels = [channel.fileno() for channel in self._channels.values()]
        select.select(
            [self._orders.fileno(), *listeners, *channels, *(other.fileno() for other in others)], [], [], timeout
        )
        for process in sorted(self._running):
            yield from self._messages(process)
        for event in self._exits():
            yield from self._messages(event.process)
            self._forget(event.process)
            yield event

    def close(self) -> None:
        """End the fork server, and with it all ranks that still run."""
        for process in list(self._running):
            self.signal(process, signal.SIGKILL)
            self._forget(process)
        self._orders.close()
        self._server.wait()

    def _messages(self, process: int) -> Iterator[tuple[int, ToAgent]]:
        listener = self._listeners.get(process)
        if listener and select.select([listener], [], [], 0)[0]:
            self._channels[process] = self._listeners.pop(process).accept()
        channel = self._channels.get(process)
        try:
            while channel and (message := channel.poll()) is not None:
                yield process, message
        except Disconnected:
            self._channels.pop(process).close()

    def _exits(self) -> Iterator[ProcessExited]:
        try:
            while (event := self._orders.poll()) is not None:
                yield event
        except Disconnected:
            self._server.wait()
            for process in sorted(self._running):
                yield ProcessExited(process, -signal.SIGKILL)

    def _forget(self, process: int) -> None:
        self._running.discard(process)
        for sockets in (self._listeners, self._channels):
            if connection := sockets.pop(process, None):
                connection.close()
