"""Boxes in shared memory: the state of a training while it changes from one layout to another on the same node."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from refold.train.handover import Handover, Region
from refold.train.host_tensors import Description
from refold.train.state import Box

ALIGNMENT = 64
"""Tensors begin at multiples of this offset, in bytes."""


_PAGE_BYTES = 4096


class TensorPlace(NamedTuple):
    """Where a whole tensor is in the shared memory."""

    offset: int
    shape: list[int]
    dtype: torch.dtype


Index = dict[str, TensorPlace]


def make_index(tensors: Mapping[str, Description]) -> tuple[Index, int]:
    """Return places for tensors given by name, and the size of all in bytes. Equal tensors give equal places."""
    index: Index = {}
    end = 0
    for name, (type_name, *shape) in sorted(tensors.items()):
        dtype = getattr(torch, type_name)
        index[name] = TensorPlace(end, shape, dtype)
        end += _aligned(prod(shape) * dtype.itemsize)
    return index, end


def stored_bytes(tensor: Tensor) -> int:
    """Return the size of a tensor in shared memory."""
    return _aligned(tensor.numel() * tensor.element_size())


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def reserve(path: Path, size: int) -> None:
    """Make a file of shared memory at least so large. Memory is allocated at once, so that later writes are fast."""
    with path.open("ab") as file:
        if file.seek(0, os.SEEK_END) < size:
            os.posix_fallocate(file.fileno(), 0, size)


class SharedMemory:
    """A file that is mapped into the memory of this process."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def map(self, path: Path, size: int) -> Tensor:
        """Return the first bytes of a file. It stays mapped."""
        if path != self._path or len(self._bytes) < size:
            self._path, self._bytes = path, torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8)
        return self._bytes[:size]

    def map_ahead(self, path: Path) -> None:
        """Map a file and touch its pages: later writes are three times as fast. Does not hold the interpreter lock."""
        size = path.stat().st_size
        if size:
            self.map(path, size)[::_PAGE_BYTES].sum()


class SharedState:
    """Whole tensors in shared memory, of which ranks write and read boxes."""

    def __init__(self, memory: Tensor, index: Index) -> None:
        self._index = index
        self._bytes = memory

    def write(self, boxes: Iterable[Box], handover: Handover | None) -> None:
        """Write boxes; with a handover, only what is read."""
        for box in boxes:
            part = box.share()
            if part is not None and handover is not None and box.parameter is not None:
                part = handover.part_to_write(box.parameter, part)
            if part is not None:
                rows = tuple(
                    slice(first - start, end - start) for (first, end), start in zip(part, box.offset, strict=True)
                )
                self._part(box.name, part).copy_(box.local.detach()[rows])

    def read(self, boxes: Iterable[Box], kept: Mapping[str, Tensor]) -> None:
        """Read boxes that this rank has not kept; copy those that it has, unless they are in place already."""
        with torch.no_grad():
            for box in boxes:
                own = kept.get(box.name)
                if own is None:
                    box.local.copy_(self._part(box.name, box.region()))
                elif own.data_ptr() != box.local.data_ptr():
                    box.local.copy_(own)

    def _part(self, name: str, region: Region) -> Tensor:
        return region_of(self._bytes, self._index[name], region)


def region_of(memory: Tensor, place: TensorPlace, region: Region) -> Tensor:
    """Return a region of a tensor that is in memory as a whole."""
    size = prod(place.shape) * place.dtype.itemsize
    flat: Any = memory[place.offset : place.offset + size]
    whole: Tensor = flat.view(place.dtype).view(place.shape)
    return whole[tuple(slice(*bounds) for bounds in region)]
