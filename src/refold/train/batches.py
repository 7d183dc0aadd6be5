"""The batches of a training, in an order that does not depend on the plan."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    get_worker_info,
)

from refold.errors import BadInput
from refold.train.layout import RankMesh
from refold.train.losses import Batch
from refold.train.prefetch import BatchShare, Prefetcher, Read, to_device
from refold.train.samples import Epoch, SampleOrder
from refold.train.streamed_batches import StreamedBatches

_KEPT_SETTINGS = (
    *("collate_fn", "num_workers", "timeout", "worker_init_fn", "multiprocessing_context", "pin_memory_device"),
    "prefetch_factor",
)
"""Settings of a loader that decide how batches are read, and not which samples are in them."""


class Data(Protocol):
    """A data set: samples by number. Every rank reads the samples that it needs."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def __getitem__(self, index: int, /) -> Any:
        """Return a sample."""


class Batches(Protocol):
    """Where a session has its batches from."""

    def first_sample(self) -> Batch:
        """Return a batch of one sample; None if it cannot be read without going on."""

    def read(self, step: int, layout: RankMesh) -> Batch:
        """Return this rank's part of the batch of a step, on its device."""

    def state(self, step: int) -> Any:
        """Return what is needed to read the batch of a step, besides its number; None: nothing."""

    def restore(self, state: Any) -> None:
        """Continue where a state was taken."""

    def close(self) -> None:
        """End what runs in the background."""


def make_batches(data: Any, batch: int, seed: int, *, shuffle: bool) -> Batches:
    """Return the batches of a data set, of a loader of PyTorch, or of an iterable of whole batches."""
    if isinstance(data, IterableDataset):
        return StreamedBatches(DataLoader(data, batch), batch, seed)
    if isinstance(data, DataLoader):
        return _batches_of_loader(data, batch, seed)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return IndexedBatches(DataLoader(data), SampleOrder(len(data), batch, seed, shuffle=shuffle), seed)
    if isinstance(data, Iterable):
        return StreamedBatches(data, batch, seed)
    raise BadInput(f"data is a {type(data).__name__}, expected a data set, a DataLoader or an iterable of batches")


def global_batch(data: Any, batch: int | None) -> int:
    """Return the number of samples in a global batch: that of the loader if nothing else is said."""
    own = data.batch_size if isinstance(data, DataLoader) else None
    if batch is None and own is None:
        raise BadInput("pass batch=…, the number of samples in a global batch, to refold.train.start")
    if batch is not None and own is not None and batch != own:
        raise BadInput(
            f"the loader has batch_size={own}, and the global batch is {batch}: make them equal, or leave batch=… out;"
            " each rank gets its part of the batch"
        )
    return batch or own or 0


def _batches_of_loader(loader: DataLoader[Any], batch: int, seed: int) -> Batches:
    sampler = loader.sampler if loader.batch_size is not None else loader.batch_sampler
    if isinstance(sampler, DistributedSampler) or isinstance(getattr(sampler, "sampler", None), DistributedSampler):
        raise BadInput("the loader has a DistributedSampler, but the session divides batches among ranks itself")
    has_own_state = any(hasattr(part, "state_dict") for part in (loader.dataset, sampler))
    if type(loader).__iter__ not in _known_iterators() or isinstance(loader.dataset, IterableDataset):
        return StreamedBatches(loader, batch, seed)
    if has_own_state or sampler is None:
        return StreamedBatches(loader, batch, seed)
    return IndexedBatches(loader, _order_of(loader, sampler, batch, seed), seed)


def _known_iterators() -> list[Any]:
    """Return how loaders whose order is that of their sampler are iterated."""
    known: list[Any] = [DataLoader.__iter__]
    try:
        from torchdata.stateful_dataloader import StatefulDataLoader
    except ImportError:
        return known
    return [*known, StatefulDataLoader.__iter__]


def _order_of(loader: DataLoader[Any], sampler: Any, batch: int, seed: int) -> SampleOrder:
    samples, epoch = len(loader.dataset), None  # type: ignore[arg-type]
    is_shuffled = type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == samples
    if not is_shuffled and type(sampler) is not SequentialSampler:
        epoch = _epochs_of(sampler, batch, seed, in_batches=loader.batch_size is None)
        samples = len(epoch(0))
    if loader.drop_last:
        samples -= samples % batch
    return SampleOrder(samples, batch, seed, shuffle=is_shuffled, epoch=epoch)


def _epochs_of(sampler: Any, batch: int, seed: int, *, in_batches: bool) -> Epoch:
    """Return the order of a sampler, which is the same on all ranks; batches of another size are left out."""
    if not hasattr(sampler, "__len__"):
        raise BadInput(f"the sampler, a {type(sampler).__name__}, has no length, so its position cannot be restored")
    generator = getattr(sampler, "generator", None)

    def draw(epoch: int) -> Sequence[int]:
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        mixed = hash((seed, epoch)) & 0x7FFF_FFFF
        if generator is not None:
            generator.manual_seed(mixed)
        with _seeded(mixed):
            drawn = list(sampler)
        return [index for part in drawn if len(part) == batch for index in part] if in_batches else drawn

    return draw


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Set the global random seeds within the context."""
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        seed_all(seed)
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


def seed_all(seed: int) -> None:
    """Set the seeds of all global generators of random numbers."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFF_FFFF)
    torch.manual_seed(seed)


class IndexedBatches:
    """Batches of a data set with an index. Each rank reads its part, as the settings of a loader say."""

    def __init__(self, loader: DataLoader[Any], order: SampleOrder, seed: int) -> None:
        self._loader = loader
        self._order = order
        self._seed = seed
        self._lock = Lock()
        self._requested: deque[BatchShare] = deque()
        self._next = self._expected = BatchShare(0, 0, 1)
        self._prefetcher: Prefetcher | None = None

    def first_sample(self) -> Batch:
        collate: Any = self._loader.collate_fn
        return to_device(collate([self._loader.dataset[0]]), torch.device("cpu"))

    def read(self, step: int, layout: RankMesh) -> Batch:
        wanted = BatchShare(step, layout.position.data, layout.plan.data)
        if wanted != self._expected or self._prefetcher is None:
            with self._lock:
                self._next = wanted
        if self._prefetcher is None:
            loader = load(self._loader, self._lists(), self._seed)
            self._prefetcher = Prefetcher(self._items(iter(loader)), layout.device)
        item = self._prefetcher.next()
        while item is not None and item.share != wanted:  # read ahead for another plan
            item = self._prefetcher.next()
        assert item is not None, "an endless sampler"
        self._expected = wanted._replace(step=step + 1)
        return item.batch

    def state(self, step: int) -> None:
        del step

    def restore(self, state: Any) -> None:
        del state

    def close(self) -> None:
        if self._prefetcher is not None:
            self._prefetcher.close()
            self._prefetcher = None

    def _items(self, batches: Iterator[Batch]) -> Iterator[Read]:
        for batch in batches:
            yield Read(self._requested.popleft(), batch)

    def _lists(self) -> Iterator[list[tuple[int, int]]]:
        """Yield what is to be read next: the numbers of samples, and of those in the data set."""
        while True:
            with self._lock:
                share = self._next
                self._next = share._replace(step=share.step + 1)
                self._requested.append(share)
            yield list(zip(self._order.positions(*share), self._order.of_step(*share), strict=True))


def load(loader: DataLoader[Any], lists: Iterable[list[tuple[int, int]]], seed: int) -> Iterable[Batch]:
    """Return batches of the data set of a loader: a number for random draws, and its number, of each sample."""
    settings = {name: getattr(loader, name) for name in _KEPT_SETTINGS}
    pins = loader.pin_memory and torch.cuda.is_available()
    samples: Any = _Samples(loader.dataset, seed)
    return DataLoader(samples, batch_sampler=lists, pin_memory=pins, **settings)  # type: ignore[arg-type]


class _Samples:
    """A data set whose random draws in worker processes depend on the seed and the number of a sample only."""

    def __init__(self, data: Data, seed: int) -> None:
        self._data = data
        self._seed = seed

    def __getitem__(self, numbers: tuple[int, int]) -> Any:
        self._set_seed(numbers[0])
        return self._data[numbers[1]]

    def __getattr__(self, name: str) -> Any:
        if name == "__getitems__" and hasattr(self._data, name):
            return self._read_all
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._data, name)  # for what `worker_init_fn` looks at

    def _read_all(self, numbers: list[tuple[int, int]]) -> Any:
        self._set_seed(numbers[0][0])
        data: Any = self._data
        return data.__getitems__([index for _, index in numbers])

    def _set_seed(self, number: int) -> None:
        if get_worker_info() is not None:
            seed_all(hash((self._seed, number)) & 0x7FFF_FFFF)
