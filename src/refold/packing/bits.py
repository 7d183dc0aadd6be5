"""What kernels need: views of arrays, and bit operations, for which compiled kernels use those of `c_types.pxd`."""

from __future__ import annotations

from typing import TypeVar, cast

Array = TypeVar("Array")


def trailing_zeros(word: int) -> int:
    """Return the index of the lowest set bit of a word that is not 0."""
    return (int(word) & -int(word)).bit_length() - 1


def count_ones(word: int) -> int:
    """Return the number of set bits of a word."""
    return int(word).bit_count()


def view(array: Array) -> Array:
    """Return a view of an array whose elements are Python's numbers: kernels that are not compiled rely on these."""
    return cast(Array, memoryview(array))  # type: ignore[arg-type]
