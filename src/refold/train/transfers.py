"""Which rank sends which part of the state to whom, when ranks of old and new layouts form a group. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from refold.train.copies import is_complete, pieces_of
from refold.train.handover import Region, Regions


class Holding(NamedTuple):
    """What a rank has: the regions of a step, and the sizes of the whole tensors; step -1: nothing of use."""

    step: int
    regions: Regions
    elements: Mapping[str, int]


class Transfer(NamedTuple):
    """A region of a tensor goes from one rank to another, or stays on one rank that gets a new tensor."""

    name: str
    region: Region
    source: int
    target: int


def newest_holdings(holdings: Sequence[Holding]) -> dict[int, Regions]:
    """Return what the ranks have that have come furthest, by rank; empty if that is not the whole state."""
    newest = max(holding.step for holding in holdings)
    found = {rank: holding for rank, holding in enumerate(holdings) if holding.step == newest}
    elements = {name: size for holding in found.values() for name, size in holding.elements.items()}
    tables = [{name: [region] for name, region in holding.regions.items()} for holding in found.values()]
    if newest < 0 or not is_complete(tables, elements):
        return {}
    return {rank: holding.regions for rank, holding in found.items()}


def transfers(held: Mapping[int, Regions], wanted: Sequence[Regions]) -> Iterator[Transfer]:
    """Return what is sent, in the same order on all ranks. Ranks that have equal regions take turns as sources."""
    tables = {rank: {name: [region] for name, region in regions.items()} for rank, regions in held.items()}
    for target, regions in enumerate(wanted):
        for turn, (name, region) in enumerate(sorted(regions.items())):
            for source, part in pieces_of(name, region, tables, target, target + turn):
                yield Transfer(name, part, source, target)
