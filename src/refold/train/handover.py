"""Which parts of its state a rank writes for others when the layout changes, and which it keeps. No PyTorch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

Region = tuple[tuple[int, int], ...]
"""A rectangular part of a tensor: the first index, and the one after the last, in each dimension."""

Regions = Mapping[str, Region]
"""The regions of the parameters that a rank has, by name."""


def intersection(one: Region, other: Region) -> Region | None:
    """Return what two regions of a tensor have in common; None if that is nothing."""
    common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return None if any(first >= end for first, end in common) else common


class Handover:
    """Says what a rank writes and keeps, given the regions of all ranks before and after a change of the layout.

    A rank keeps the regions that do not change. Parts of others are not kept: memory would be needed for both.
    """

    def __init__(self, rank: int, before: Sequence[Regions], after: Sequence[Regions]) -> None:
        self._kept = {name for name, region in after[rank].items() if before[rank].get(name) == region}
        self._wanted = defaultdict[str, set[Region]](set)
        for old, new in zip(before, after, strict=True):
            for name, region in new.items():
                if old.get(name) != region:
                    self._wanted[name].add(region)

    def keeps(self, parameter: str) -> bool:
        """Return whether this rank has the same region of a parameter before and after the change."""
        return parameter in self._kept

    def part_to_write(self, parameter: str, share: Region) -> Region | None:
        """Return which part of its share of a parameter this rank has to write: at least what ranks will read of it."""
        wanted = {intersection(share, region) for region in self._wanted[parameter]} - {None}
        return share if len(wanted) > 1 else next(iter(wanted), None)
