"""Tensors outside of a model: in memory of the host, and described as JSON and as plain values."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

CHUNK_BYTES = 2**28
"""Tensors share allocations of this size; PyTorch rounds others up to a power of two."""

ALIGNMENT = 256


def host_tensors(like: Sequence[Tensor], *, pinned: bool) -> list[Tensor]:
    """Return an uninitialised tensor on the host for each of some tensors."""
    result: list[Tensor] = []
    chunk, used = torch.empty(0, dtype=torch.uint8), 0
    for tensor in like:
        size = tensor.numel() * tensor.element_size()
        if used + size > len(chunk):
            chunk, used = torch.empty(max(size, CHUNK_BYTES), dtype=torch.uint8, pin_memory=pinned), 0
        result.append(chunk[used : used + size].view(tensor.dtype).view(tensor.shape))
        used += -(-size // ALIGNMENT) * ALIGNMENT
    return result


class HostReserve:
    """Tensors on the host, page-locked so that copies of those of a GPU are fast, that were allocated in advance.

    Allocating takes as long as copying 30 times as much (H200: 0.6 s per GiB), so it is done while the training
    goes on.
    """

    def __init__(self) -> None:
        self._tensors: list[Tensor] = []

    def fill(self, like: Sequence[Tensor]) -> None:
        """Allocate tensors like these."""
        self._tensors = host_tensors(like, pinned=any(tensor.is_cuda for tensor in like))

    def take(self, like: Sequence[Tensor]) -> Iterator[Tensor]:
        """Return tensors like these: those that were allocated in advance, if they are equal in size."""
        if [tensor.shape for tensor in self._tensors] != [tensor.shape for tensor in like]:
            self.fill(like)
        taken, self._tensors = self._tensors, []
        return iter(taken)


# Descriptions of tensors as JSON: type and shape.

Description = list[Any]
"""The name of a type, followed by a shape."""


def describe(dtype: torch.dtype, shape: Iterable[int]) -> Description:
    """Return the description of a tensor."""
    return [str(dtype).removeprefix("torch."), *shape]


def empty_tensor(description: Description, device: torch.device | None = None) -> Tensor:
    """Return an uninitialised tensor by its description."""
    dtype, *shape = description
    return torch.empty(shape, dtype=getattr(torch, dtype), device=device)


# State of learning-rate schedulers and groups of parameters as values that JSON can express, and back.


def plain(value: Any) -> Any:
    """Return a value without tensors and scalars of NumPy: numbers instead."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value.item() if hasattr(value, "item") else value


def restored(value: Any, like: Any) -> Any:
    """Return a value that was JSON with the types of a similar one. JSON has no tensors, tuples or numbers as keys."""
    if isinstance(value, dict) and isinstance(like, dict):
        numbers = any(isinstance(key, int) for key in like)
        parts = {int(key) if numbers else key: part for key, part in value.items()}
        result = copy.copy(like)  # a Counter, for example
        result.clear()
        result.update({key: restored(part, like.get(key)) for key, part in parts.items()})
        return result
    if isinstance(value, list) and isinstance(like, list | tuple):
        parts_like = [*like, *[None] * len(value)]
        return type(like)(restored(part, part_like) for part, part_like in zip(value, parts_like, strict=False))
    return torch.full_like(like, value) if isinstance(like, Tensor) else value
