"""Copies of the state in the memory of hosts, from the point of view of a rank: it writes its parts, and loads them."""

from __future__ import annotations

import logging
import os
from collections import Counter, defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from refold.errors import Disconnected
from refold.model import Seconds
from refold.train.channel import RankChannel
from refold.train.copies import CopyToLoad, TensorRegions, merged, pieces_of, volume
from refold.train.copy_files import (
    SPARE,
    CopyHeader,
    MappedCopy,
    PartReader,
    copy_path,
    extend,
    free_bytes,
    header_path,
    read_header,
)
from refold.train.device_stage import DeviceStage
from refold.train.handover import Region
from refold.train.messages import Change, Copied, Copying
from refold.train.run_settings import SECRET_VARIABLE
from refold.train.shared_state import SharedMemory, make_index, region_of
from refold.train.state import Box
from refold.train.training_state import Facts, TrainingState, gather, merge

log = logging.getLogger("refold.train")


class StateCopies:
    """The copies of one generation. All methods are collective."""

    def __init__(self, change: Change, channel: RankChannel) -> None:
        assert change.copies is not None
        self._orders = change.copies
        self._generation = change.generation
        self._state = Path(change.state)
        self._slot = change.copies.slot
        self._channel = channel
        self._memory = {0: SharedMemory(), 1: SharedMemory()}
        self._stage = DeviceStage() if torch.cuda.is_available() else None
        self.fits = True
        """Whether the hosts have memory for the copies."""
        self.has_replicas = False
        """Whether each part of the last copy was in memory of ranks on two hosts."""

    def write(self, state: TrainingState, facts: Facts, *, wait: bool = False) -> Seconds | None:
        """Write this rank's parts, unless there is not enough memory; return how long that held up the training.

        Parts on a GPU are copied while the training goes on, unless it is to wait. None: memory is being prepared for
        that; try again later.
        """
        began = perf_counter()
        boxes = [box for box in state.boxes if volume(box.region())]
        path, host = copy_path(self._state, self._slot), self._orders.host
        own = [(box.name, box.region()) for box in boxes]
        described = {box.name: box.description() for box in boxes}
        tables = gather((host, own, described, state.optimizer.slots(), _room(path)))
        index, size = make_index(merge(table[2] for table in tables))
        writers = _writers([(table[0], table[1]) for table in tables])
        holders = Counter((name, region) for _, name, region in writers)
        self.has_replicas = min(holders.values(), default=0) > 1
        items = {name: place.dtype.itemsize for name, place in index.items()}
        if not self._has_room(tables, writers, items):
            return perf_counter() - began
        written = [box for box in boxes if writers[host, box.name, box.region()] == dist.get_rank()]
        on_device = [box.local.detach() for box in written if box.local.is_cuda]
        if self._stage is not None and not all(gather(self._stage.prepare(on_device, wait=wait))):
            return None
        self._channel.send(Copying(self._slot))
        extend(path, size)
        memory = self._memory[self._slot].map(path, size)
        ranks = [rank for rank, table in enumerate(tables) if table[0] == host]
        if dist.get_rank() == ranks[0]:
            places = {name: [place.offset, items[name], *place.shape] for name, place in index.items()}
            whole, slots = merge(table[2] for table in tables), merge(table[3] for table in tables)
            header_path(path).write_bytes(msgspec.json.encode(CopyHeader(places, size, [whole, slots, facts])))
        dist.barrier()  # the header is there before any rank of this host has finished
        regions = merged({box.name: [box.region()]} for box in written)
        copied = Copied(self._generation, facts["step"], self._slot, len(ranks), regions)
        targets = [region_of(memory, index[box.name], box.region()) for box in written]
        self._fill_memory([box.local.detach() for box in written], targets, copied)
        if wait:
            self.finish()
        self._slot = 1 - self._slot
        return perf_counter() - began

    def before_update(self) -> None:
        """Call this before the state is changed."""
        if self._stage is not None:
            self._stage.before_update()

    def finish(self) -> None:
        """Wait until the last copy is complete."""
        if self._stage is not None:
            self._stage.finish()

    def _fill_memory(self, sources: list[Tensor], targets: list[Tensor], copied: Copied) -> None:
        """Copy tensors to shared memory, and tell the agent when they are there."""
        pairs = list(zip(sources, targets, strict=True))
        for source, target in pairs:
            if not source.is_cuda:
                target.copy_(source)
        if self._stage is None:
            self._channel.send(copied)
        else:
            self._stage.copy([pair for pair in pairs if pair[0].is_cuda], partial(self._channel.send, copied))

    def load(self, state: TrainingState) -> Facts:
        """Load this rank's parts: from this host, else from others."""
        copy, own = self._orders.load, self._orders.host
        assert copy is not None
        path = copy_path(self._state, copy.slot)
        header = read_header(path) if own in copy.sources else self._fetch_header(copy)
        _, slots, facts = header.description
        state.optimizer.create_state(slots)
        state.expect_user_state(facts)
        boxes = {box.name: box for box in state.boxes}
        holdings = {host: source.regions for host, source in copy.sources.items()}
        wanted: defaultdict[int, TensorRegions] = defaultdict(dict)
        for name, box in boxes.items():
            for piece in pieces_of(name, box.region(), holdings, own, dist.get_rank()):
                wanted[piece.host].setdefault(name, []).append(piece.region)
        with torch.no_grad():
            if regions := wanted.pop(own, None):
                mapped = MappedCopy(path, header)
                for name, parts in regions.items():
                    for region in parts:
                        _fill(boxes[name], region, mapped.region(name, region))
        if wanted:
            with ThreadPoolExecutor(len(wanted)) as pool:
                work = [
                    pool.submit(self._fetch, copy, host, regions, boxes, header) for host, regions in wanted.items()
                ]
                for future in work:
                    future.result()
        state.optimizer.write_back()
        return dict(facts)

    def _fetch_header(self, copy: CopyToLoad) -> CopyHeader:
        for source in copy.sources.values():
            reader = PartReader(_secret(), source, copy)
            try:
                return reader.header()
            finally:
                reader.close()
        raise Disconnected("no host has the copy")

    def _fetch(
        self, copy: CopyToLoad, host: int, regions: TensorRegions, boxes: Mapping[str, Box], header: CopyHeader
    ) -> None:
        reader = PartReader(_secret(), copy.sources[host], copy)
        items = {name: place[1] for name, place in header.places.items()}
        try:
            with torch.no_grad():
                for name, region, data in reader.parts(regions, items):
                    _fill(boxes[name], region, data)
        finally:
            reader.close()

    def _has_room(
        self, tables: list[Any], writers: Mapping[tuple[int, str, Region], int], items: Mapping[str, int]
    ) -> bool:
        """Whether all hosts have memory for this copy, and for as much of another host; the same on every rank."""
        needed: defaultdict[int, int] = defaultdict(int)
        for host, name, region in writers:
            needed[host] += volume(region) * items[name]
        room = {table[0]: table[4] for table in tables}
        times = 2 if self._stage is None else 3
        short = [host for host, size in needed.items() if room[host] < times * size * SPARE]
        if short and self.fits and dist.get_rank() == 0:
            size = needed[short[0]]
            log.warning(
                "instance %d has no memory for a copy of the state (%d × %d bytes); none is kept", short[0], times, size
            )
        self.fits = not short
        return self.fits


def _room(path: Path) -> int:
    """Return how much memory a copy may take: what is free, and what its file has already."""
    used = path.stat().st_blocks * 512 if path.exists() else 0
    return free_bytes(path) + used


def _writers(tables: list[tuple[int, list[tuple[str, Region]]]]) -> dict[tuple[int, str, Region], int]:
    """Return which rank of each host writes each region: the first that has it."""
    writers: dict[tuple[int, str, Region], int] = {}
    for rank, (host, regions) in enumerate(tables):
        for name, region in regions:
            writers.setdefault((host, name, region), rank)
    return writers


def _fill(box: Box, region: Region, data: Any) -> None:
    """Copy bytes to a region of a tensor of this rank."""
    rows = tuple(slice(first - at, end - at) for (first, end), at in zip(region, box.offset, strict=True))
    target: Tensor = box.local[rows]
    flat: Any = data if isinstance(data, bytearray) else np.array(data).reshape(-1)
    target.copy_(torch.frombuffer(flat, dtype=box.local.dtype).view(target.shape))


def _secret() -> bytes:
    return os.environ[SECRET_VARIABLE].encode()
