"""Journals as files: one JSON line per entry, after a line that says on what and by which policy.

A journal is the whole of a simulation or of a live scheduler's life: `replay` feeds its facts to a new scheduler
and sees the same orders come out, on any machine.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from math import inf
from pathlib import Path
from types import TracebackType
from typing import IO, Self, cast

import msgspec

from refold.core import VERSION, Entry, Header, NodeLost, NodeReturned, Policy, Scheduler, StartRun
from refold.errors import BadFile, BadJournal
from refold.model import Cluster

_ENCODER = msgspec.json.Encoder()
_HEADER = msgspec.json.Decoder(Header)
_ENTRY = msgspec.json.Decoder(Entry)
_WRITE_OUT_AT = 1 << 16


class _Version(msgspec.Struct):
    version: int = VERSION


class JournalFile:
    """Writes a journal. With `safe`, an entry is on disk before `write` returns."""

    def __init__(self, path: Path, header: Header, safe: bool = False) -> None:
        self.path = path
        self._safe = safe
        self._file: IO[bytes] = _open(path, "wb")
        self._pending = bytearray(_ENCODER.encode(header) + b"\n")
        if safe:
            self._make_safe()
            _sync_folder(path.parent)  # or the name of the new file could be lost

    def write(self, entry: Entry) -> None:
        """One entry more."""
        _ENCODER.encode_into(entry, self._pending, -1)
        self._pending += b"\n"
        if self._safe:
            self._make_safe()
        elif len(self._pending) > _WRITE_OUT_AT:
            self._write_out()

    def _make_safe(self) -> None:
        self._write_out()
        self._file.flush()
        os.fsync(self._file.fileno())

    def _write_out(self) -> None:
        self._file.write(self._pending)
        self._pending.clear()

    def close(self) -> None:
        """Write out what is left."""
        self._write_out()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_journal(path: Path) -> tuple[Header, Iterator[Entry]]:
    """The header, and the entries one after the other. A last line that was cut off is left out."""
    try:
        with _open(path, "rb") as file:
            line = file.readline()
        version = msgspec.json.decode(line, type=_Version).version
        if version != VERSION:
            raise BadFile(path, f"is a journal of version {version}, expected {VERSION}")
        header = _HEADER.decode(line)
    except (OSError, EOFError, zlib.error) as error:
        raise BadFile(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    except msgspec.MsgspecError as error:
        raise BadFile(path, f"is not a journal: {error}") from None
    return header, _entries(path, header.cluster)


def _entries(path: Path, cluster: Cluster) -> Iterator[Entry]:
    last = -inf
    with _open(path, "rb") as file:
        for number, line in enumerate(_whole_lines(file), start=1):
            if number == 1:
                continue  # the header
            try:
                entry = _ENTRY.decode(line)
            except msgspec.MsgspecError as error:
                raise BadFile(path, f"line {number} is not an entry: {error}") from None
            if not last <= entry.now < inf:
                raise BadFile(path, f"line {number} is at {entry.now} s, after one at {last} s")
            _check_places(path, number, entry, cluster)
            last = entry.now
            yield entry


def _check_places(path: Path, number: int, entry: Entry, cluster: Cluster) -> None:
    """What an entry says of nodes and GPUs is about some that exist."""
    for event in entry.events:
        if isinstance(event, NodeLost | NodeReturned) and not 0 <= event.node < len(cluster.nodes):
            raise BadFile(path, f"line {number} names node {event.node}, the cluster has {len(cluster.nodes)}")
    for order in entry.orders:
        if isinstance(order, StartRun):
            for share in order.allocation.placement:
                if not 0 <= share.node < len(cluster.nodes):
                    raise BadFile(path, f"line {number} names node {share.node}, the cluster has {len(cluster.nodes)}")
                gpus = cluster.nodes[share.node].gpus
                if not all(0 <= gpu < gpus for gpu in share.gpus):
                    raise BadFile(path, f"line {number} names GPUs {share.gpus} of a node that has {gpus}")


def _whole_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Up to where the writer died, perhaps in the middle of a line: nobody has acted on that one."""
    with suppress(EOFError, zlib.error):
        yield from (line for line in file if line.endswith(b"\n"))


def replay(header: Header, entries: Iterator[Entry], policy: Policy) -> Iterator[tuple[Entry, Entry]]:
    """Feed the facts of a journal to a new scheduler: pairs of what was recorded and what comes out now."""
    scheduler = Scheduler(header.cluster, policy, refused=lambda _: None)
    for recorded in entries:
        yield recorded, scheduler.step(recorded.now, recorded.events)


def check_replay(header: Header, entries: Iterator[Entry], policy: Policy) -> int:
    """Replay a journal; raise where the orders differ. Returns how many entries agreed."""
    number = 0
    for number, (recorded, again) in enumerate(replay(header, entries, policy), start=1):
        if recorded.orders != again.orders:
            raise BadJournal(
                f"entry {number} at {recorded.now} s: the journal has {_first_difference(recorded, again)}"
            )
    return number


def _first_difference(recorded: Entry, again: Entry) -> str:
    for one, other in zip(recorded.orders, again.orders, strict=False):
        if one != other:
            return f"{one}, replay gives {other}"
    more, fewer = len(recorded.orders), len(again.orders)
    return f"{more} orders, replay gives {fewer}"


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
