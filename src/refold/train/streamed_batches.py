"""Batches from a stream: an iterable of whole batches, of which each rank takes its part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from time import monotonic
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from refold.errors import BadInput
from refold.model import Seconds
from refold.train.layout import RankMesh
from refold.train.losses import Batch
from refold.train.micro_batches import batch_size, take
from refold.train.prefetch import BatchShare, Prefetcher, Read, each_tensor, to_device

SNAPSHOT_SECONDS: Seconds = 1.0
"""Time between two positions of a stream that are remembered. What it has yielded since then is read again."""


class StreamedBatches:
    """Whole batches of an iterable, which yields the same on every rank.

    Its position is that of its `state_dict`, if it has one; else a stream that begins anew is read up to there.
    """

    def __init__(self, stream: Iterable[Batch], batch: int, seed: int) -> None:
        self._stream: Any = stream
        self._batch = batch
        self._seed = seed
        self._share = BatchShare(0, 0, 1)
        self._step = self._epoch = self._first_of_epoch = 0
        self._is_restored = False
        self._has_state = hasattr(stream, "state_dict") and hasattr(stream, "load_state_dict")
        self._snapshots: list[dict[str, Any]] = [{"step": 0, "epoch": 0, "state": None, "at": 0.0}]
        self._prefetcher: Prefetcher | None = None
        self._checked: RankMesh | None = None

    def first_sample(self) -> Batch:
        return None

    def read(self, step: int, layout: RankMesh) -> Batch:
        wanted = self._share = BatchShare(step, layout.position.data, layout.plan.data)
        item = self._next(step, layout.device)
        while item.share.step < step:
            item = self._next(step, layout.device)
        if layout is not self._checked:
            _check_equal(item.whole)
            self._checked = layout
        if item.share == wanted:
            return item.batch
        return to_device(self._part(item.whole, wanted), layout.device)

    def _next(self, first: int, device: torch.device) -> Read:
        """Return the next batch, from step `first` on."""
        item = self._prefetcher.next() if self._prefetcher else None
        while item is None:
            if self._prefetcher is not None:
                self._begin_next_epoch()
            self._prefetcher = Prefetcher(self._items(self._iterate(), first), device)
            item = self._prefetcher.next()
        return item

    def _begin_next_epoch(self) -> None:
        if self._step == self._first_of_epoch and not self._is_restored:
            raise BadInput("the data has no whole batches, or can be iterated only once")
        self._epoch, self._first_of_epoch, self._is_restored = self._epoch + 1, self._step, False

    def state(self, step: int) -> dict[str, Any] | None:
        usable = [each for each in self._snapshots if each["step"] <= step]
        self._snapshots = [usable[-1], *(each for each in self._snapshots if each["step"] > step)]
        return usable[-1]

    def restore(self, state: Any) -> None:
        self._snapshots = [{**state, "at": 0.0}]
        self._step = self._first_of_epoch = state["step"]
        self._epoch = state["epoch"]
        if state["state"] is not None:
            self._stream.load_state_dict(state["state"])
            self._is_restored = True

    def close(self) -> None:
        if self._prefetcher is not None:
            self._prefetcher.close()
            self._prefetcher = None

    def _items(self, batches: Iterator[Batch], first: int) -> Iterator[Read]:
        """Yield the batches of an epoch, from step `first` on."""
        for whole in batches:
            if not self._is_whole(whole, is_first=self._step == 0):
                continue
            self._step += 1
            self._remember()
            if self._step > first:
                share = self._share._replace(step=self._step - 1)
                host = to_device(whole, torch.device("cpu"))
                yield Read(share, self._part(host, share), host)

    def _iterate(self) -> Iterator[Batch]:
        """Begin an epoch. Only the main thread may fork workers: PyTorch cannot clean up after it in others."""
        parts: list[Any] = [self._stream, getattr(self._stream, "dataset", None)]
        for part in parts:
            if hasattr(part, "set_epoch"):
                part.set_epoch(self._epoch)
        if isinstance(self._stream, DataLoader):
            if self._stream.generator is None:
                self._stream.generator = torch.Generator()
            self._stream.generator.manual_seed(hash((self._seed, self._epoch)) & 0x7FFF_FFFF)
        return iter(self._stream)

    def _is_whole(self, batch: Batch, *, is_first: bool) -> bool:
        """Whether a batch has all samples; the last one of an epoch may have fewer, and is left out."""
        size = batch_size(batch)
        if size > self._batch or (is_first and size < self._batch):
            raise BadInput(
                f"the data yields a batch of {size} samples, expected whole batches of {self._batch}, of which each "
                "rank takes its part"
            )
        return size == self._batch

    def _remember(self) -> None:
        """Remember the position of the stream from time to time."""
        now = monotonic()
        if self._has_state and now - self._snapshots[-1]["at"] >= SNAPSHOT_SECONDS:
            state = self._stream.state_dict()
            self._snapshots.append({"step": self._step, "epoch": self._epoch, "state": state, "at": now})

    def _part(self, batch: Batch, share: BatchShare) -> Batch:
        size = self._batch // share.parts
        return take(batch, slice(share.part * size, (share.part + 1) * size))


def _check_equal(batch: Batch) -> None:
    """Raise an error if ranks have read different batches. Collective."""
    own: list[str] = []
    each_tensor(batch, lambda tensor: own.append(str(tensor.double().sum().item())))
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, own)
    if any(other != found[0] for other in found):
        raise BadInput("the ranks read different batches from the data: let its order depend on a fixed seed")
