"""The order of samples: a function of seed and step only, so that it does not depend on the plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import cast

import numpy as np

from refold.errors import BadInput

Epoch = Callable[[int], Sequence[int]]
"""Returns the samples of an epoch in their order, by its number."""


def shuffled(samples: int, seed: int) -> Epoch:
    """Return epochs of all samples, in an order drawn anew for each epoch."""
    return lambda epoch: cast("Sequence[int]", np.random.default_rng([seed, epoch]).permutation(samples))


class SampleOrder:
    """The samples of each step: epochs, divided into batches. A batch may begin in one epoch and end in the next."""

    def __init__(
        self, samples: int, batch: int, seed: int = 0, *, shuffle: bool = True, epoch: Epoch | None = None
    ) -> None:
        """`epoch`: returns the order of an epoch, of which the first `samples` are used (default: shuffled or not)."""
        if samples < 1 or batch < 1:
            raise BadInput(f"the data set has {samples} samples and the batch {batch}, expected at least 1 of each")
        self.batch = batch
        self._samples = samples
        self._epoch = lru_cache(maxsize=2)(epoch or (shuffled(samples, seed) if shuffle else lambda _: range(samples)))

    def of_step(self, step: int, part: int = 0, parts: int = 1) -> list[int]:
        """Return the samples of one of `parts` equal parts of the batch of a step."""
        return [self._sample(position) for position in self.positions(step, part, parts)]

    def positions(self, step: int, part: int = 0, parts: int = 1) -> range:
        """Return the numbers of the samples of a part of a batch, counted over all epochs."""
        size = self.batch // parts
        first = step * self.batch + part * size
        return range(first, first + size)

    def _sample(self, position: int) -> int:
        epoch, index = divmod(position, self._samples)
        order = self._epoch(epoch)
        if len(order) < self._samples:
            raise BadInput(f"epoch {epoch} has {len(order)} samples, and the first one had {self._samples}")
        return int(order[index])
