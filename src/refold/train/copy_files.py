"""Files of copies in the shared memory of a host, and their parts over the network. No PyTorch.

A file has a place for every whole tensor, and is sparse: only what is written takes memory. Beside it is a header. An
agent serves parts of complete copies to ranks and agents of other hosts, and fetches parts that no other host has.
"""

from __future__ import annotations

import mmap
import os
import socket
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from refold.errors import BadFile, Disconnected
from refold.model import Seconds
from refold.train.copies import CopySource, CopyToLoad, HostCopy, TensorRegions, merged, volume
from refold.train.group_link import Greeting, LineReader, dial, send_line
from refold.train.handover import Region
from refold.train.messages import Copied

CHUNK_BYTES = 1 << 24
"""Parts are sent in pieces of at most about this size."""

WINDOW = 4
"""How many pieces are requested before the first of them has arrived."""

PART_SECONDS: Seconds = 20.0
"""Time limit for a piece of a copy."""

SPARE = 1.1
"""Free memory that must be there, as a multiple of what is written."""


_LIMITS = {
    "": ("memory.max", "memory.current"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes"),
}
"""Files with limit and use of memory, by the controllers of a hierarchy of cgroups: version 2, and version 1."""


class CopyHeader(msgspec.Struct, frozen=True):
    """What belongs to a copy besides the tensors. `places`: offset, size of an element, and shape of each of them.

    `description`: what ranks need to know of the tensors, and of the training.
    """

    places: dict[str, list[int]]
    size: int
    description: list[Any]


class PartRequest(msgspec.Struct, frozen=True):
    """Send a region of a tensor of a copy; without a name, the header."""

    generation: int
    step: int
    slot: int
    name: str = ""
    region: Region = ()


class PartReply(msgspec.Struct, frozen=True):
    """What follows: so many bytes; or why not."""

    size: int
    error: str = ""


def copy_path(state: str | Path, slot: int) -> Path:
    """Return the file of one of the two copies."""
    return Path(f"{state}.copy-{slot}")


def header_path(path: Path) -> Path:
    """Return the file beside a copy that has its header."""
    return path.with_name(f"{path.name}.json")


def extend(path: Path, size: int) -> None:
    """Let a file have at least this size, without memory for what is not written."""
    with path.open("ab") as file:
        if file.seek(0, os.SEEK_END) < size:
            file.truncate(size)


def free_bytes(path: Path) -> int:
    """Return how much may be written in the folder of a file. In shared memory it counts as memory of this process."""
    space = os.statvfs(path.parent)
    return min(space.f_bavail * space.f_frsize, *memory_left(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")))


def memory_left(groups: Path, own: Path) -> list[int]:
    """Return what each limit of the memory of a process leaves; `own`: its cgroups. The cache of files is free."""
    left = [sys.maxsize]
    for line in own.read_text().splitlines() if own.exists() else ():
        _, controllers, name = line.split(":", 2)
        if (files := _LIMITS.get(controllers)) is None:
            continue
        folder = groups / controllers / name.lstrip("/")
        for level in (folder, *folder.parents):
            with suppress(OSError, ValueError):  # 'max', or not a cgroup
                limit, used = (int((level / file).read_text()) for file in files)
                stat = (level / "memory.stat").read_text().split()
                left.append(limit - used + int(stat[stat.index("inactive_file") + 1]))
    return left


def read_header(path: Path) -> CopyHeader:
    """Return the header of a copy."""
    try:
        return msgspec.json.decode(header_path(path).read_bytes(), type=CopyHeader)
    except (OSError, msgspec.DecodeError) as error:
        raise BadFile(header_path(path), f"cannot be read as the header of a copy: {error}") from None


def chunks_of(region: Region, item: int) -> Iterator[Region]:
    """Divide a region into pieces of bounded size, along its first dimensions."""
    if not region or volume(region) * item <= CHUNK_BYTES:
        yield region
        return
    (first, end), *others = region
    row = max(1, volume(tuple(others)) * item)
    rows = CHUNK_BYTES // row
    if rows:
        for begin in range(first, end, rows):
            yield ((begin, min(begin + rows, end)), *others)
    else:
        for index in range(first, end):
            for rest in chunks_of(tuple(others), item):
                yield ((index, index + 1), *rest)


class MappedCopy:
    """A file of a copy, mapped into memory."""

    def __init__(self, path: Path, header: CopyHeader, *, writable: bool = False) -> None:
        self._header = header
        with path.open("r+b" if writable else "rb") as file:
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            self._bytes = np.frombuffer(mmap.mmap(file.fileno(), header.size, access=access), dtype=np.uint8)

    def region(self, name: str, region: Region) -> np.ndarray:
        """Return a region of a tensor: bytes, with those of an element as the last dimension."""
        offset, item, *shape = self._header.places[name]
        whole = self._bytes[offset : offset + item * prod(shape)].reshape(*shape, item)
        part: np.ndarray = whole[tuple(slice(*bounds) for bounds in region)]
        return part


class PartReader:
    """Reads parts of a copy from another host."""

    def __init__(self, secret: bytes, source: CopySource, copy: CopyToLoad) -> None:
        self._key = (copy.generation, copy.step, copy.slot)
        self._connection, self._lines = dial((source.address, source.port), secret, Greeting("copies"), PART_SECONDS)

    def header(self) -> CopyHeader:
        """Return the header of the copy."""
        send_line(self._connection, PartRequest(*self._key))
        return msgspec.json.decode(self._receive(), type=CopyHeader)

    def parts(self, wanted: Mapping[str, list[Region]], items: Mapping[str, int]) -> Iterator[tuple[str, Region, Any]]:
        """Return regions of tensors as bytes, in pieces of bounded size; `items`: sizes of their elements."""
        chunks = (
            (name, piece) for name in wanted for region in wanted[name] for piece in chunks_of(region, items[name])
        )
        under_way: deque[tuple[str, Region]] = deque()
        for name, piece in chunks:
            send_line(self._connection, PartRequest(*self._key, name, piece))
            under_way.append((name, piece))
            if len(under_way) == WINDOW:
                yield (*under_way[0], self._receive())
                under_way.popleft()
        while under_way:
            yield (*under_way[0], self._receive())
            under_way.popleft()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _receive(self) -> bytearray:
        line = self._lines.line()
        if not line:
            raise Disconnected("the host with a part of the state has closed the connection")
        reply = msgspec.json.decode(line, type=PartReply)
        if reply.error:
            raise Disconnected(f"a part of the state cannot be read: {reply.error}")
        data = bytearray(reply.size)
        self._lines.fill(memoryview(data))
        return data


class CopyFiles:
    """The copies of this host, by slot."""

    def __init__(self, secret: bytes, state: Path) -> None:
        self._secret = secret
        self._state = state
        self._complete: dict[int, HostCopy] = {}
        self._written: dict[tuple[int, int, int], list[TensorRegions]] = {}
        self._lock = threading.Lock()
        self._turn = 0

    def held(self) -> list[HostCopy]:
        """Return the complete copies."""
        return list(self._complete.values())

    def invalidate(self, slot: int) -> bool:
        """Note that a file is going to change; return whether there was a copy."""
        return self._complete.pop(slot, None) is not None

    def complete(self, copied: Copied) -> bool:
        """Note what a rank has written; return whether that of all ranks of this host is complete."""
        key = (copied.generation, copied.step, copied.slot)
        self._written = {other: parts for other, parts in self._written.items() if other == key}
        parts = self._written.setdefault(key, [])
        parts.append(copied.regions)
        if len(parts) < copied.ranks:
            return False
        del self._written[key]
        header = read_header(copy_path(self._state, copied.slot))
        self._complete[copied.slot] = HostCopy(*key, _elements(header), merged(parts))
        return True

    def forget_unfinished(self) -> None:
        """Forget what ranks have written that have ended."""
        self._written.clear()

    def begin_generation(self, slot: int | None) -> None:
        """Keep no copy but the one with which a generation begins. What is still being fetched is given up."""
        with self._lock:
            self._turn += 1
        for other in {0, 1} - {slot}:
            self.invalidate(other)
            for path in (copy_path(self._state, other), header_path(copy_path(self._state, other))):
                path.unlink(missing_ok=True)

    def serve(self, connection: socket.socket, lines: LineReader) -> None:
        """Answer requests for parts until the connection ends."""
        connection.settimeout(PART_SECONDS)
        mapped: dict[tuple[int, int, int], MappedCopy] = {}
        while line := lines.line():
            request = msgspec.json.decode(line, type=PartRequest)
            key = (request.generation, request.step, request.slot)
            path = copy_path(self._state, request.slot)
            held = self._complete.get(request.slot)
            if held is None or (held.generation, held.step) != key[:2]:
                send_line(connection, PartReply(0, f"there is no copy of step {request.step} here"))
                continue
            if not request.name:
                header = header_path(path).read_bytes()
                send_line(connection, PartReply(len(header)))
                connection.sendall(header)
                continue
            if key not in mapped:
                mapped = {key: MappedCopy(path, read_header(path))}
            part = np.ascontiguousarray(mapped[key].region(request.name, request.region))
            send_line(connection, PartReply(part.nbytes))
            connection.sendall(part.reshape(-1).data)

    def fetch(self, copy: CopyToLoad) -> HostCopy:
        """Fetch parts of a copy from other hosts; return this host's part with them."""
        turn = self._turn
        path = copy_path(self._state, copy.slot)
        held = self._complete.get(copy.slot)
        is_same = held is not None and (held.generation, held.step) == (copy.generation, copy.step)
        if not is_same:
            self.invalidate(copy.slot)
        fetched: list[TensorRegions] = [held.regions] if held is not None and is_same else []
        for source in copy.sources.values():
            reader = PartReader(self._secret, source, copy)
            try:
                header = reader.header()
                if not fetched:
                    header_path(path).write_bytes(msgspec.json.encode(header))
                self._write(path, header, source.regions, reader, turn)
            finally:
                reader.close()
            fetched.append(source.regions)
        return HostCopy(copy.generation, copy.step, copy.slot, _elements(header), merged(fetched))

    def add(self, copy: HostCopy) -> None:
        """Note what was fetched."""
        held = self._complete.get(copy.slot)
        if held is None or held.key <= copy.key:
            self._complete[copy.slot] = copy

    def _write(self, path: Path, header: CopyHeader, wanted: TensorRegions, reader: PartReader, turn: int) -> None:
        items = {name: place[1] for name, place in header.places.items()}
        size = sum(volume(region) * items[name] for name, regions in wanted.items() for region in regions)
        if free_bytes(path) < size * SPARE:
            raise BadFile(path, f"cannot hold {size} bytes of the copy of another host")
        extend(path, header.size)
        mapped = MappedCopy(path, header, writable=True)
        for name, region, data in reader.parts(wanted, items):
            part = mapped.region(name, region)
            with self._lock:
                if turn != self._turn:
                    raise Disconnected("it is no longer needed")
                part[...] = np.frombuffer(data, dtype=np.uint8).reshape(part.shape)


def _elements(header: CopyHeader) -> dict[str, int]:
    return {name: prod(place[2:]) for name, place in header.places.items()}
