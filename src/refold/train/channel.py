"""The connection between the agent of a run and a rank: JSON lines over a Unix socket. No PyTorch.

The agent listens at a socket per rank, whose path is in the environment of the rank as REFOLD_AGENT.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from refold.errors import Disconnected, RanksLost, WaitTimeout
from refold.model import Seconds
from refold.train.messages import Change, ToAgent, ToRank

AGENT_VARIABLE = "REFOLD_AGENT"

Sent = TypeVar("Sent")
Received = TypeVar("Received")

_CHUNK_BYTES = 1 << 16


class Channel(Generic[Sent, Received]):
    """One end of a connection."""

    def __init__(self, connection: socket.socket, receives: type[Received] | object, peer: str) -> None:
        self._connection = connection
        self._decoder: msgspec.json.Decoder[Received] = msgspec.json.Decoder(receives)
        self._peer = peer
        self._partial = b""
        self._received: deque[Received] = deque()
        self._closed = False
        self._sending = threading.Lock()

    def fileno(self) -> int:
        """Return the descriptor of the socket, for `select`."""
        return self._connection.fileno()

    def send(self, message: Sent) -> None:
        """Send a message."""
        try:
            with self._sending:  # copies are reported by a thread of their own
                self._connection.sendall(msgspec.json.encode(message) + b"\n")
        except OSError as error:
            raise self._disconnected() from error

    def poll(self) -> Received | None:
        """Return the next message if there is one; raise `Disconnected` if there will be none."""
        self._read()
        if self._received:
            return self._received.popleft()
        if self._closed:
            raise self._disconnected()
        return None

    def wait(self, timeout: Seconds | None = None) -> Received:
        """Wait for the next message and return it; raise `Disconnected` if there will be none."""
        while (message := self.poll()) is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise WaitTimeout(f"{self._peer} sent no message within {timeout:g} s")
        return message

    def close(self) -> None:
        """Close the connection."""
        self._closed = True
        self._connection.close()

    def _read(self) -> None:
        """Read what has arrived, without waiting."""
        while not self._closed:
            try:
                chunk = self._connection.recv(_CHUNK_BYTES, socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                chunk = b""
            self._closed = not chunk
            *lines, self._partial = (self._partial + chunk).split(b"\n")
            self._received.extend(map(self._decoder.decode, lines))

    def _disconnected(self) -> Disconnected:
        return Disconnected(f"{self._peer} has ended")


AgentChannel = Channel[ToRank, ToAgent]
"""The agent's end."""


class RankChannel(Channel[ToAgent, ToRank]):
    """The rank's end. A thread can listen as well, to hear of lost ranks while this one waits for them."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection, ToRank, "the agent")
        self._changed = threading.Condition(threading.RLock())
        self._is_listening = False
        self._loss: Change | None = None

    def listen(self, on_loss: Callable[[], None]) -> None:
        """From now on, call `on_loss` in another thread when ranks are lost; `poll` and `wait` raise `RanksLost`."""
        self._is_listening = True
        threading.Thread(target=self._listen, args=(on_loss,), daemon=True).start()

    def poll(self) -> ToRank | None:
        """Return the next message if there is one; raise `Disconnected` if there will be none."""
        with self._changed:
            return super().poll()

    def wait(self, timeout: Seconds | None = None) -> ToRank:
        """Wait for the next message and return it; raise `Disconnected` if there will be none."""
        if not self._is_listening:
            return super().wait(timeout)
        with self._changed:
            while (message := self.poll()) is None:
                if not self._changed.wait(timeout):
                    raise WaitTimeout(f"the agent sent no message within {timeout:g} s")
            return message

    def take_loss(self, timeout: Seconds) -> Change | None:
        """Wait until the agent has said what to do without the ranks that are lost; None: it says nothing."""
        with self._changed:
            self._changed.wait_for(lambda: self._loss or self._closed, timeout)
            loss, self._loss = self._loss, None
            return loss

    @property
    def has_loss(self) -> bool:
        """Whether the agent has said that ranks are lost."""
        return self._loss is not None

    def _listen(self, on_loss: Callable[[], None]) -> None:
        while not self._closed:
            select.select([self._connection], [], [])
            with self._changed, suppress(RanksLost):
                before = self._loss
                self._read()
            if self._loss is not before:
                on_loss()

    def _read(self) -> None:
        with self._changed:
            super()._read()
            messages = list(self._received)
            losses = [number for number, each in enumerate(messages) if isinstance(each, Change) and each.lost]
            if losses:  # what came before is no longer of use
                found = messages[losses[-1]]
                assert isinstance(found, Change)
                self._loss, self._received = found, deque(messages[losses[-1] + 1 :])
            self._changed.notify_all()
            if self._is_listening and self._loss is not None:
                raise RanksLost("ranks of this run are lost")


class Listener:
    """Listens for one rank at a path of its own, so that messages of earlier ranks cannot be mistaken for its."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        self._socket.listen(1)

    def fileno(self) -> int:
        """Return the descriptor of the socket, for `select`."""
        return self._socket.fileno()

    def accept(self) -> AgentChannel:
        """Return the connection of the rank, and stop listening."""
        connection, _ = self._socket.accept()
        self.close()
        return Channel(connection, ToAgent, "the rank")

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()
        self.path.unlink(missing_ok=True)


def connect(environment: Mapping[str, str] = os.environ) -> RankChannel | None:
    """Return the connection of this rank to its agent; None if the process was started without one.

    From then on the stop signal, which reaches all processes of a run, has no effect here: the agent sends `Stop`.
    """
    path = environment.get(AGENT_VARIABLE)
    if not path:
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(path)
    except OSError as error:
        connection.close()
        raise Disconnected(f"no agent listens at {path} ({AGENT_VARIABLE}): {error.strerror}") from None
    if threading.current_thread() is threading.main_thread():
        _ignore(signal.Signals[f"SIG{environment.get('REFOLD_STOP_SIGNAL', 'TERM')}"])
    return RankChannel(connection)


def _ignore(number: signal.Signals) -> None:
    """Ignore a signal in this process, but not in its children, which are ended by such signals."""
    previous = signal.signal(number, lambda *_: None) or signal.SIG_DFL
    os.register_at_fork(after_in_child=lambda: signal.signal(number, previous))
