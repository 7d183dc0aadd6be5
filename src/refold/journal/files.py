"""Journal files: a header line with cluster and policy, then one JSON line per entry; so for each epoch.

A journal is a complete record of a simulation or of a live scheduler: `replay` feeds its events to a new scheduler,
which must give the same orders on any machine.
"""

from __future__ import annotations

import gzip
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import IO, NamedTuple, Self, cast

import msgspec
from msgspec.structs import replace

from refold.core import (
    VERSION,
    Entry,
    GpuLost,
    GpuReturned,
    Header,
    NodeLost,
    NodeReturned,
    NodeUsed,
    Policy,
    Scheduler,
    StartRun,
    orders_as_recorded,
)
from refold.errors import BadFile, BadJournal
from refold.model import Cluster

_ENCODER = msgspec.json.Encoder()
_HEADER = msgspec.json.Decoder(Header)
_ENTRY = msgspec.json.Decoder(Entry)
_BUFFER_BYTES = 1 << 16
_HEADER_PREFIX = b'{"cluster"'
"""How a header begins. An entry begins with its time."""


class _Version(msgspec.Struct):
    version: int = VERSION


class JournalFile:
    """Writes a journal. If `durable`, an entry is on disk before `write` returns."""

    def __init__(self, path: Path, header: Header, durable: bool = False) -> None:
        self.path = path
        self._durable = durable
        self._file: IO[bytes] = _open(path, "wb")
        self._buffer = bytearray(_ENCODER.encode(header) + b"\n")
        if durable:
            self._sync()
            _sync_folder(path.parent)  # otherwise a crash could lose the directory entry of the new file

    def write(self, entry: Entry) -> None:
        _ENCODER.encode_into(entry, self._buffer, -1)
        self._buffer += b"\n"
        if self._durable:
            self._sync()
        elif len(self._buffer) > _BUFFER_BYTES:
            self._flush_buffer()

    def _sync(self) -> None:
        self._flush_buffer()
        self._file.flush()
        os.fsync(self._file.fileno())

    def _flush_buffer(self) -> None:
        self._file.write(self._buffer)
        self._buffer.clear()

    def close(self) -> None:
        self._flush_buffer()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_journal(path: Path) -> tuple[Header, Iterator[Entry]]:
    """Return the header of the last epoch and an iterator over its entries. An incomplete last line is ignored."""
    return read_epochs(path)[-1]


def read_epochs(path: Path) -> list[tuple[Header, Iterator[Entry]]]:
    """Return the header of each epoch and an iterator over its entries.

    An epoch replays on its own. Journals of simulations have one, the daemon's a new one when its policy or cluster
    has changed, or when it was restarted after many entries.
    """
    header, epochs, offset = _read_first_header(path), [], 0
    lines = _Lines(path, 2, 0, sys.maxsize)
    with _open(path, "rb") as file:
        for number, line in enumerate(_complete_lines(file), start=1):
            offset += len(line)
            if number == 1:
                lines = lines._replace(offset=offset)
            elif line.startswith(_HEADER_PREFIX):
                epochs.append((header, _read_entries(lines._replace(beyond=number), header.cluster)))
                header, lines = _decode_header(path, line, number), _Lines(path, number + 1, offset, sys.maxsize)
    return [*epochs, (header, _read_entries(lines, header.cluster))]


def _read_first_header(path: Path) -> Header:
    try:
        with _open(path, "rb") as file:
            line = file.readline()
        version = msgspec.json.decode(line, type=_Version).version
        if version != VERSION:
            raise BadFile(path, f"is a journal of version {version}, expected {VERSION}")
        return _HEADER.decode(line)
    except (OSError, EOFError, zlib.error) as error:
        raise BadFile(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    except msgspec.MsgspecError as error:
        raise BadFile(path, f"is not a journal: {error}") from None


def _decode_header(path: Path, line: bytes, number: int) -> Header:
    try:
        return _HEADER.decode(line)
    except msgspec.MsgspecError as error:
        raise BadFile(path, f"line {number} is not the header of an epoch: {error}") from None


class _Lines(NamedTuple):
    """The lines of a file from number `first`, at byte `offset`, to before number `beyond`."""

    path: Path
    first: int
    offset: int
    beyond: int


def _read_entries(lines: _Lines, cluster: Cluster) -> Iterator[Entry]:
    path, last = lines.path, -inf
    with _open(path, "rb") as file:
        file.seek(lines.offset)
        for number, line in zip(range(lines.first, lines.beyond), _complete_lines(file), strict=False):
            try:
                entry = _ENTRY.decode(line)
            except msgspec.MsgspecError as error:
                raise BadFile(path, f"line {number} is not an entry: {error}") from None
            if not last <= entry.now < inf:
                raise BadFile(path, f"line {number} is at {entry.now} s, expected a time from {last} s on")
            _check_indices(path, number, entry, cluster)
            last = entry.now
            yield entry


def _check_indices(path: Path, number: int, entry: Entry, cluster: Cluster) -> None:
    """Check that the nodes and GPUs of an entry exist."""
    for event in entry.events:
        if not isinstance(event, NodeLost | NodeReturned | GpuLost | GpuReturned | NodeUsed):
            continue
        if not 0 <= event.node < len(cluster.nodes):
            raise BadFile(path, f"line {number} has node {event.node}, but the cluster has {len(cluster.nodes)} nodes")
        gpus = cluster.nodes[event.node].gpus
        if isinstance(event, GpuLost | GpuReturned) and not 0 <= event.gpu < gpus:
            raise BadFile(path, f"line {number} has GPU {event.gpu} of a node with {gpus} GPUs")
    for order in entry.orders:
        allocation = order.allocation if isinstance(order, StartRun) else order.next
        if allocation is not None:
            for share in allocation.placement:
                if not 0 <= share.node < len(cluster.nodes):
                    nodes = f"the cluster has {len(cluster.nodes)} nodes"
                    raise BadFile(path, f"line {number} has node {share.node}, but {nodes}")
                gpus = cluster.nodes[share.node].gpus
                if not all(0 <= gpu < gpus for gpu in share.gpus):
                    raise BadFile(path, f"line {number} has GPUs {share.gpus} of a node with {gpus} GPUs")


def _complete_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Return the lines up to where the writer crashed: the orders of an incomplete line were not carried out."""
    with suppress(EOFError, zlib.error):
        yield from (line for line in file if line.endswith(b"\n"))


def replay(header: Header, entries: Iterator[Entry], policy: Policy) -> Iterator[tuple[Entry, Entry]]:
    """Feed the events of a journal to a new scheduler; return pairs of recorded and replayed entries.

    A replayed entry has its orders as the journal would have them.
    """
    scheduler = Scheduler(header.cluster, policy, on_rejection=lambda _: None)
    for recorded in entries:
        replayed = scheduler.repeat(recorded)
        if replayed.orders != recorded.orders:
            replayed = replace(replayed, orders=orders_as_recorded(replayed.orders, recorded.orders))
        yield recorded, replayed


def check_replay(header: Header, entries: Iterator[Entry], policy: Policy) -> int:
    """Replay a journal, and raise BadJournal at the first difference of orders. Returns the number of entries."""
    number = 0
    for number, (recorded, replayed) in enumerate(replay(header, entries, policy), start=1):
        if recorded.orders != replayed.orders:
            raise BadJournal(
                f"entry {number} at {recorded.now} s: the journal has {_first_difference(recorded, replayed)}"
            )
    return number


def _first_difference(recorded: Entry, replayed: Entry) -> str:
    for recorded_order, replayed_order in zip(recorded.orders, replayed.orders, strict=False):
        if recorded_order != replayed_order:
            return f"{recorded_order}, the replay gives {replayed_order}"
    recorded_count, replayed_count = len(recorded.orders), len(replayed.orders)
    return f"{recorded_count} orders, the replay gives {replayed_count}"


def _open(path: Path, mode: str) -> IO[bytes]:
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(path, mode, compresslevel=3))
    return cast(IO[bytes], path.open(mode))


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
