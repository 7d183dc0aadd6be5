"""Bit operations of kernels that are not compiled; compiled ones use those of `c_types.pxd`."""

from __future__ import annotations


def trailing_zeros(word: int) -> int:
    """Return the index of the lowest set bit of a word that is not 0."""
    return (int(word) & -int(word)).bit_length() - 1


def count_ones(word: int) -> int:
    """Return the number of set bits of a word."""
    return int(word).bit_count()
