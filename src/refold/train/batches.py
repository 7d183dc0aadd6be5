"""The batches of a training: read from a data set, in an order that does not depend on the plan."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import default_collate

from refold.train.layout import RankMesh
from refold.train.losses import Batch
from refold.train.samples import SampleOrder


class Data(Protocol):
    """A data set: samples by number. Every rank reads the samples that it needs."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def __getitem__(self, index: int, /) -> Any:
        """Return a sample."""


class BatchReader:
    """Reads batches of a data set."""

    def __init__(self, data: Data, order: SampleOrder) -> None:
        self._data = data
        self._order = order

    def read(self, step: int, layout: RankMesh) -> Batch:
        """Return this rank's part of the batch of a step, on its device."""
        samples = self._order.of_step(step, layout.position.data, layout.plan.data)
        return read_samples(self._data, samples, layout.device)


def read_samples(data: Data, samples: Iterable[int], device: torch.device) -> Batch:
    """Return samples of a data set as a batch on a device."""
    return _to_device(default_collate([data[sample] for sample in samples]), device)


def _to_device(batch: Batch, device: torch.device) -> Batch:
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {name: _to_device(part, device) for name, part in batch.items()}
    if isinstance(batch, list | tuple):
        return [_to_device(part, device) for part in batch]
    return batch
