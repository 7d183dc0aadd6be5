"""Data sets that are computed instead of downloaded: a sample is a function of the seed and its number.

Each has a structure that a model can learn, so that the loss falls.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

CHOICES = 4
"""How many tokens may follow a token, and how many words a topic has."""

IGNORED = -100
"""The label of tokens that are not predicted, as in `torch.nn.functional.cross_entropy`."""


class SlowData:
    """A data set whose samples take time to load. Replicas load their samples at the same time."""

    def __init__(self, data: Any, milliseconds: float) -> None:
        self._data = data
        self._seconds = milliseconds / 1000

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return a sample."""
        time.sleep(self._seconds)
        sample: dict[str, Tensor] = self._data[index]
        return sample


class MarkovText:
    """Random walks over tokens: after each token, one of four comes next. A sample has one token more than `length`."""

    def __init__(self, vocabulary: int, length: int, samples: int = 100_000, seed: int = 0) -> None:
        self._length = length
        self._samples = samples
        self._seed = seed
        self._next = np.random.default_rng(seed).integers(vocabulary, size=(vocabulary, CHOICES)).tolist()

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return a text and the tokens that follow each of its tokens."""
        tokens = torch.tensor(self._walk(index))
        return {"input_ids": tokens[:-1], "labels": tokens[1:]}

    def _walk(self, index: int) -> list[int]:
        random = np.random.default_rng([self._seed, index])
        tokens = [int(random.integers(len(self._next)))]
        for choice in random.integers(CHOICES, size=self._length):
            tokens.append(self._next[tokens[-1]][choice])
        return tokens


class MaskedText:
    """Texts about one of several topics, with four words each. One token in eight is masked, and is to be predicted.

    All samples have equally many masked tokens: the mean loss of a batch does not depend on its division then.
    """

    def __init__(self, vocabulary: int, length: int, samples: int = 100_000, seed: int = 0) -> None:
        self._topics = np.random.default_rng(seed).permutation(vocabulary).reshape(-1, CHOICES)
        self._mask = vocabulary
        self._length = length
        self._samples = samples
        self._seed = seed

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return a text with masked tokens, and the masked tokens."""
        random = np.random.default_rng([self._seed, index])
        tokens = torch.from_numpy(random.choice(random.choice(self._topics), self._length))
        masked = torch.zeros(self._length, dtype=torch.bool)
        masked[torch.from_numpy(random.permutation(self._length)[: max(1, self._length // 8)])] = True
        return {
            "input_ids": torch.where(masked, self._mask, tokens),
            "labels": torch.where(masked, tokens, IGNORED),
        }


class PatternImages:
    """Noisy images, one pattern per class, cut into patches."""

    def __init__(self, classes: int, patches: int, values: int, samples: int = 100_000, seed: int = 0) -> None:
        self._patterns = torch.from_numpy(np.random.default_rng(seed).normal(size=(classes, patches, values))).float()
        self._samples = samples
        self._seed = seed

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return the patches of an image, and its class."""
        label = index % len(self._patterns)
        pattern = self._patterns[label]
        noise = np.random.default_rng([self._seed, index]).normal(size=tuple(pattern.shape))
        return {"patches": pattern + 2 * torch.from_numpy(noise).float(), "labels": torch.tensor(label)}
