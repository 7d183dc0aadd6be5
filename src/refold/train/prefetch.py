"""Reads batches in the background, and copies them to the device, while the training computes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from queue import Full, Queue
from typing import Any, NamedTuple

import torch
from torch import Tensor

from refold.train.losses import Batch

_DEPTH = 2
"""Batches that wait to be used; one more is being read."""

_POLL_SECONDS = 0.05


class BatchShare(NamedTuple):
    """One of `parts` equal parts of the batch of a step."""

    step: int
    part: int
    parts: int


class Read(NamedTuple):
    """A batch that was read: a share, or the whole batch of which a share is to be taken."""

    share: BatchShare
    batch: Batch
    whole: Batch = None
    copied: Any = None
    """The event after which the batch is on its device."""


class Prefetcher:
    """Runs an iterator in a thread, a few items ahead. Errors of the iterator are raised by `next`."""

    def __init__(self, items: Iterator[Read], device: torch.device) -> None:
        self._items = items
        self._device = device
        self._queue: Queue[Read | BaseException | None] = Queue(_DEPTH)
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="refold-data", daemon=True)
        self._thread.start()

    def next(self) -> Read | None:
        """Return the next item, when it is there; None after the last one."""
        if self._is_closed.is_set():
            return None
        item = self._queue.get()
        if item is None or isinstance(item, BaseException):
            self._is_closed.set()
        if isinstance(item, BaseException):
            raise item
        if item is not None and item.copied is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(item.copied)
            each_tensor(item.batch, lambda tensor: tensor.record_stream(current))
        return item

    def close(self) -> None:
        """End the thread."""
        self._is_closed.set()
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        is_cuda = self._device.type == "cuda"
        stream = torch.cuda.Stream(self._device) if is_cuda else None  # type: ignore[no-untyped-call]
        try:
            for item in self._items:
                with torch.cuda.stream(stream) if stream is not None else nullcontext():
                    batch = to_device(item.batch, self._device)
                    copied = stream.record_event() if stream is not None else None
                if not self._put(item._replace(batch=batch, copied=copied)):
                    return
            self._put(None)
        except BaseException as error:
            self._put(error)

    def _put(self, item: Read | BaseException | None) -> bool:
        """Put an item into the queue; return False if that is closed."""
        while not self._is_closed.is_set():
            try:
                self._queue.put(item, timeout=_POLL_SECONDS)
            except Full:
                continue
            return True
        return False


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return a batch on a device."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {name: to_device(part, device) for name, part in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(part, device) for part in batch))
    if isinstance(batch, list | tuple):
        return [to_device(part, device) for part in batch]
    return batch


def each_tensor(batch: Batch, do: Callable[[Tensor], object]) -> None:
    """Do something with each tensor of a batch."""
    if isinstance(batch, Tensor):
        do(batch)
    elif isinstance(batch, Mapping | list | tuple):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            each_tensor(part, do)
