"""Connections between the hosts of a run: messages between agents, and requests for parts of copies. No PyTorch.

Both ends prove that they know the secret of the run: HMAC-SHA256 over random numbers of both. What is sent afterwards
is neither encrypted nor signed, like the collectives of the training. Every wait has a bound.
"""

from __future__ import annotations

import fcntl
import hmac
import os
import queue
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from io import BufferedReader

import msgspec

from refold.errors import BadInput, Disconnected
from refold.model import Seconds

CONNECT_SECONDS: Seconds = 1.0
"""Time limit for a connection and its handshake."""

SEND_SECONDS: Seconds = 2.0
"""Time limit for sending a message."""

DIAL_SECONDS: Seconds = 0.3
"""Time between two attempts to connect."""

SILENCE_MILLISECONDS = 5000
"""The system gives up a connection whose data is not acknowledged for so long; a new one is then tried."""

_NONCE_BYTES = 32
_MAX_LINE = 1 << 28
_TCP_USER_TIMEOUT = 18
_SIOCGIFADDR = 0x8915

Address = tuple[str, int]


class Greeting(msgspec.Struct, frozen=True):
    """What both ends say of themselves: agents their instance, incarnation and port; readers of copies `purpose`."""

    purpose: str
    instance: int = -1
    incarnation: str = ""
    port: int = 0


class Peer(msgspec.Struct, frozen=True):
    """Another agent: who it is, and where it listens."""

    instance: int
    incarnation: str
    address: str
    port: int


def _proof(secret: bytes, side: bytes, *nonces: bytes) -> bytes:
    return hmac.new(secret, side + b"".join(nonces), sha256).digest()


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        chunk = connection.recv(size - len(received))
        if not chunk:
            raise Disconnected("the other host has closed the connection")
        received += chunk
    return received


def _shake_hands(connection: socket.socket, secret: bytes, *, dials: bool) -> None:
    """Let both ends prove that they know the secret; the one that dials goes first."""
    own = os.urandom(_NONCE_BYTES)
    connection.sendall(own)
    other = _receive_exactly(connection, _NONCE_BYTES)
    nonces = (own, other) if dials else (other, own)
    mine, theirs = (b"dials", b"listens") if dials else (b"listens", b"dials")
    if dials:
        connection.sendall(_proof(secret, mine, *nonces))
    if not hmac.compare_digest(_receive_exactly(connection, 32), _proof(secret, theirs, *nonces)):
        raise BadInput("the other host does not know the secret of this run")
    if not dials:
        connection.sendall(_proof(secret, mine, *nonces))


def send_line(connection: socket.socket, message: object) -> None:
    """Send a message as a line of JSON."""
    connection.sendall(msgspec.json.encode(message) + b"\n")


class LineReader:
    """Reads lines, and bytes between them."""

    def __init__(self, connection: socket.socket) -> None:
        self._file = BufferedReader(socket.SocketIO(connection, "r"), 1 << 16)

    def line(self) -> bytes:
        """Return the next line; empty at the end of the connection."""
        return self._file.readline(_MAX_LINE)

    def fill(self, memory: memoryview) -> None:
        """Read as many bytes as the memory has."""
        done = 0
        while done < len(memory):
            count = self._file.readinto(memory[done:])
            if not count:
                raise Disconnected("the other host has closed the connection")
            done += count


def dial(address: Address, secret: bytes, greeting: Greeting, timeout: Seconds) -> tuple[socket.socket, LineReader]:
    """Connect to a host; return the connection, and what reads from it."""
    connection = socket.create_connection(address, CONNECT_SECONDS)
    try:
        _shake_hands(connection, secret, dials=True)
        send_line(connection, greeting)
        connection.settimeout(timeout)
        return connection, LineReader(connection)
    except BaseException:
        connection.close()
        raise


Serve = Callable[[socket.socket, LineReader], None]


class GroupLink:
    """The connections of one agent: it dials the others, and listens. Messages arrive in `inbox`."""

    def __init__(self, secret: bytes, instance: int, incarnation: str, listen: Address, serve: Serve) -> None:
        self.inbox: queue.SimpleQueue[tuple[Peer, bytes]] = queue.SimpleQueue()
        self._secret = secret
        self._serve = serve
        self._listener = _listen(listen)
        self.port: int = self._listener.getsockname()[1]
        self._greeting = Greeting("agent", instance, incarnation, self.port)
        self._lock = threading.Lock()
        self._connections: dict[int, tuple[Peer, socket.socket]] = {}
        self._seeds: list[Address] = []
        self._instance_at: dict[Address, int] = {}
        self._dialled: set[Address] = set()
        self._known: dict[int, Peer] = {}
        self._refused: list[Peer] = []
        self._closed = threading.Event()
        self._wakeup, self._waker = socket.socketpair()
        self._wakeup.setblocking(False)
        self._waker.setblocking(False)
        for work in (self._accept, self._dial_all):
            threading.Thread(target=work, daemon=True).start()

    def fileno(self) -> int:
        """Return a descriptor that is readable when there are messages."""
        return self._wakeup.fileno()

    def add_seeds(self, seeds: list[Address]) -> None:
        """Dial these addresses until all of them are connected."""
        self._seeds = seeds

    def know(self, peers: Mapping[int, Peer]) -> None:
        """Note where other agents listen."""
        with self._lock:
            others = {number: peer for number, peer in peers.items() if number != self._greeting.instance}
            self._known = {**others, **self._known}

    def peers(self) -> dict[int, Peer]:
        """Return where other agents listen, as far as this one knows."""
        with self._lock:
            return dict(self._known)

    def take_refused(self) -> list[Peer]:
        """Return the agents that no longer exist: their hosts refuse connections to their ports."""
        with self._lock:
            refused, self._refused = self._refused, []
        return refused

    def take_messages(self) -> list[tuple[Peer, bytes]]:
        """Return the messages that have arrived."""
        with suppress(BlockingIOError):
            self._wakeup.recv(1 << 16)
        messages = []
        with suppress(queue.Empty):
            while True:
                messages.append(self.inbox.get_nowait())
        return messages

    def send(self, instance: int, message: object) -> None:
        """Send a message, if the other agent is connected; who does not take it in time is disconnected."""
        with self._lock:
            found = self._connections.get(instance)
        if found is not None:
            try:
                send_line(found[1], message)
            except OSError:
                self._drop(*found)

    def close(self) -> None:
        """Close all connections."""
        self._closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            connections = list(self._connections.values())
        for peer, connection in connections:
            self._drop(peer, connection)
        self._wakeup.close()
        self._waker.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._welcome, args=(connection,), daemon=True).start()

    def _welcome(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(CONNECT_SECONDS)
            _shake_hands(connection, self._secret, dials=False)
            reader = LineReader(connection)
            greeting = msgspec.json.decode(reader.line(), type=Greeting)
            if greeting.purpose == "copies":
                self._serve(connection, reader)
                return
            send_line(connection, self._greeting)
            self._read(connection, reader, greeting)
        except (OSError, BadInput, Disconnected, msgspec.DecodeError):
            pass
        finally:
            connection.close()

    def _dial_all(self) -> None:
        while not self._closed.wait(DIAL_SECONDS):
            for address, peer in self._to_dial():
                self._dialled.add(address)
                threading.Thread(target=self._dial, args=(address, peer), daemon=True).start()

    def _to_dial(self) -> list[tuple[Address, Peer | None]]:
        """Return the addresses of agents that are not connected."""
        with self._lock:
            connected = {self._greeting.instance, *self._connections}
            known = [peer for number, peer in self._known.items() if number not in connected]
            seeds = [seed for seed in self._seeds if self._instance_at.get(seed) not in connected]
        wanted: dict[Address, Peer | None] = {**dict.fromkeys(seeds), **{(p.address, p.port): p for p in known}}
        return [(address, peer) for address, peer in wanted.items() if address not in self._dialled]

    def _dial(self, address: Address, peer: Peer | None) -> None:
        try:
            connection, reader = dial(address, self._secret, self._greeting, CONNECT_SECONDS)
            with connection:
                greeting = msgspec.json.decode(reader.line(), type=Greeting)
                self._instance_at[address] = greeting.instance
                self._read(connection, reader, greeting, is_dialled=True)
        except ConnectionRefusedError:
            if peer is not None:
                with self._lock:
                    self._refused.append(peer)
        except (OSError, BadInput, Disconnected, msgspec.DecodeError):
            pass
        finally:
            self._dialled.discard(address)

    def _read(
        self, connection: socket.socket, reader: LineReader, greeting: Greeting, *, is_dialled: bool = False
    ) -> None:
        """Read messages until the connection ends."""
        peer = Peer(greeting.instance, greeting.incarnation, connection.getpeername()[0], greeting.port)
        is_preferred = is_dialled == (self._greeting.instance > peer.instance)
        if peer.instance == self._greeting.instance:
            return
        self._register(peer, connection, is_preferred=is_preferred)
        connection.settimeout(None)
        _set_limits(connection)
        try:
            while line := reader.line():
                self.inbox.put((peer, line))
                with suppress(OSError):  # it is full, or closed
                    self._waker.send(b"\0")
        finally:
            self._drop(peer, connection)

    def _register(self, peer: Peer, connection: socket.socket, *, is_preferred: bool) -> None:
        """Send on one connection per agent: of two, the one that the agent with the higher number has dialled.

        Both are read: the other agent may have sent something on the other one before it knew of this one.
        """
        with self._lock:
            old = self._connections.get(peer.instance)
            is_same = old is not None and old[0].incarnation == peer.incarnation
            if is_same and not is_preferred:
                return
            self._known[peer.instance] = peer
            self._connections[peer.instance] = (peer, connection)
        if old is not None and not is_same:
            _shut(old[1])

    def _drop(self, peer: Peer, connection: socket.socket) -> None:
        with self._lock:
            if self._connections.get(peer.instance, (None, None))[1] is connection:
                del self._connections[peer.instance]
        _shut(connection)


def _listen(address: Address) -> socket.socket:
    """Listen at an address; if its port is not free, at another one."""
    try:
        return socket.create_server(address, reuse_port=False)
    except OSError:
        return socket.create_server((address[0], 0))


def _set_limits(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, _TCP_USER_TIMEOUT, SILENCE_MILLISECONDS)
    seconds = int(SEND_SECONDS)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds.to_bytes(8, "little") + bytes(8))


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def own_address(towards: Address) -> str:
    """Return the address of this host from which it reaches another one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(towards)
        address: str = probe.getsockname()[0]
    return address


def interface_of(address: str) -> str:
    """Return the name of the network interface that has an address; empty if none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        wanted = socket.inet_aton(socket.gethostbyname(address))
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if answer[20:24] == wanted:
                    return name
    return ""
