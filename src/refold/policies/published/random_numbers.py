"""Random numbers for kernels: those of a NumPy generator. Compiled."""

from __future__ import annotations

from typing import Any

import cython
import numpy as np

if not cython.compiled:

    def bits_of(generator: np.random.Generator) -> Any:
        return generator.bit_generator.ctypes

    def next_double(bits: Any) -> float:
        return float(bits.next_double(bits.state))

    def next_uint32(bits: Any) -> int:
        return int(bits.next_uint32(bits.state))


LOW_BITS = (1 << 32) - 1


class RandomNumbers:
    """The random numbers of a generator, which are drawn from its state."""

    def __init__(self, generator: np.random.Generator) -> None:
        self.generator = generator
        self.bits = bits_of(generator)

    def uniform(self) -> float:
        """Return the same as `generator.random()`."""
        return next_double(self.bits)

    def below(self, bound: int) -> int:
        """Return the same as `generator.integers(0, bound)`, which uses Lemire's method, for bounds below 2³²."""
        if bound == 1:
            return 0
        product = next_uint32(self.bits) * bound
        if product & LOW_BITS < bound:
            while product & LOW_BITS < (LOW_BITS + 1 - bound) % bound:
                product = next_uint32(self.bits) * bound
        return product >> 32
