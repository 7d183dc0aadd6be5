"""Copies of the state of a training in memory of hosts: which is complete, and who reads what from whom. No I/O.

A host has regions of named tensors. Those of one copy come from one layout, so two regions of a tensor are equal or
have nothing in common.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import NamedTuple

import msgspec

from refold.train.handover import Region, intersection

TensorRegions = dict[str, list[Region]]
"""Regions by name of the tensor."""


class HostCopy(msgspec.Struct, frozen=True):
    """What a host has of the copy of a step. `elements`: sizes of the whole tensors."""

    generation: int
    step: int
    slot: int
    elements: dict[str, int]
    regions: TensorRegions

    @property
    def key(self) -> tuple[int, int, int]:
        """What all parts of one copy have in common; a larger one is newer."""
        return self.step, self.generation, self.slot


class CopySource(msgspec.Struct, frozen=True):
    """A host that has parts of a copy, and where it serves them."""

    address: str
    port: int
    regions: TensorRegions


class CopyToLoad(msgspec.Struct, frozen=True):
    """A copy, and who has which parts of it, by instance."""

    generation: int
    step: int
    slot: int
    sources: dict[int, CopySource]


class Piece(NamedTuple):
    """A part of a tensor, and the host from which it is read."""

    host: int
    region: Region


def volume(region: Region) -> int:
    """Return the number of elements of a region."""
    return prod(end - first for first, end in region)


def merged(parts: Iterable[TensorRegions]) -> TensorRegions:
    """Return the regions of several lists, each once."""
    found: defaultdict[str, set[Region]] = defaultdict(set)
    for part in parts:
        for name, regions in part.items():
            found[name].update(regions)
    return {name: sorted(regions) for name, regions in found.items()}


def newest_complete(copies: Mapping[int, Sequence[HostCopy]]) -> dict[int, HostCopy]:
    """Return the newest copy of which some hosts have all parts together: what each of them has; empty if none."""
    by_key: defaultdict[tuple[int, int, int], dict[int, HostCopy]] = defaultdict(dict)
    for host, held in copies.items():
        for copy in held:
            by_key[copy.key][host] = copy
    for key in sorted(by_key, reverse=True):
        found = by_key[key].values()
        elements = {name: size for copy in found for name, size in copy.elements.items()}
        if is_complete([copy.regions for copy in found], elements):
            return by_key[key]
    return {}


def is_complete(parts: Iterable[TensorRegions], elements: Mapping[str, int]) -> bool:
    """Whether several lists of regions together have all elements of some tensors."""
    held = merged(parts)
    return all(sum(map(volume, held.get(name, []))) >= size for name, size in elements.items())


def parts_to_back_up(copies: Mapping[int, HostCopy], hosts: Sequence[int]) -> dict[int, dict[int, TensorRegions]]:
    """Return what each host must fetch from which other one, so that no part of a copy is on a single host.

    The host after one that is the only one to have a part fetches it: each gets about as much as it gives.
    """
    holders: defaultdict[tuple[str, Region], list[int]] = defaultdict(list)
    for host in hosts:
        for name, regions in copies[host].regions.items() if host in copies else ():
            for region in regions:
                holders[name, region].append(host)
    result: dict[int, dict[int, TensorRegions]] = {}
    for (name, region), held_by in holders.items():
        if len(held_by) == 1 and len(hosts) > 1:
            source = held_by[0]
            target = hosts[(hosts.index(source) + 1) % len(hosts)]
            result.setdefault(target, {}).setdefault(source, {}).setdefault(name, []).append(region)
    return result


def pieces_of(name: str, wanted: Region, holdings: Mapping[int, TensorRegions], own: int, turn: int) -> list[Piece]:
    """Return the pieces of which a region consists, and from which host each is read: from the own one if it can be.

    `turn`: a number that differs between readers, so that they do not all read from the same host.
    """
    holders: defaultdict[Region, list[int]] = defaultdict(list)
    for host in sorted(holdings):
        for region in holdings[host].get(name, ()):
            if (common := intersection(region, wanted)) is not None:
                holders[common].append(host)
    return [Piece(own if own in hosts else hosts[turn % len(hosts)], region) for region, hosts in holders.items()]
