"""The order of samples: a function of seed and step only, so that it does not depend on the plan."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from refold.errors import BadInput


class SampleOrder:
    """The samples of each step: epochs of all samples in an order drawn anew for each epoch, divided into batches.

    A batch may begin in one epoch and end in the next.
    """

    def __init__(self, samples: int, batch: int, seed: int, *, shuffle: bool = True) -> None:
        if samples < 1 or batch < 1:
            raise BadInput(f"the data set has {samples} samples and the batch {batch}, expected at least 1 of each")
        self.batch = batch
        self._samples = samples
        self._seed = seed
        self._shuffle = shuffle
        self._epoch = lru_cache(maxsize=2)(self._order_of_epoch)

    def of_step(self, step: int, part: int = 0, parts: int = 1) -> list[int]:
        """Return the samples of one of `parts` equal parts of the batch of a step."""
        size = self.batch // parts
        first = step * self.batch + part * size
        return [self._sample(position) for position in range(first, first + size)]

    def _sample(self, position: int) -> int:
        epoch, index = divmod(position, self._samples)
        return int(self._epoch(epoch)[index]) if self._shuffle else index

    def _order_of_epoch(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self._seed, epoch]).permutation(self._samples)
