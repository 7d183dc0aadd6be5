"""Which domains the instances of a gang are placed in, and how many in each. Compiled.

All of a gang goes into the domain with the least room that is enough: one of the preferred level if possible, else of
the next outer one. A gang that does not fit into one domain is divided: the domains with the most room first, the rest
again into the one with the least room that is enough. So domains stay whole for large gangs, and gangs cross few links.
Instances are counted in segments as far as they must stay together.
"""

from __future__ import annotations

import cython
import numpy as np

from refold.model import WHOLE
from refold.model.arrays import view
from refold.placement.layout import (
    CPU_TOTAL,
    MEMORY_TOTAL,
    MOST,
    NO_SUCH_LEVEL,
    ON_ALL_NODES,
    PARENT,
    PREFERRED,
    REQUIRED,
    SEGMENT_LEVEL,
    UNLIMITED,
)

if not cython.compiled:
    from refold.placement.allowed import AllowedRows, has_request, room_of_largest, segment_size
    from refold.placement.kernels import (
        EncodedDemand,
        FreeArrays,
        candidate_row,
        fits,
        instances_that_fit,
        max_gpus_per_node,
        words_per_row,
    )
    from refold.placement.layout import Need, trailing_zeros

ONE = 1


class Parts:
    """The parts of a gang: domains of the innermost level, and how many instances are placed in each."""

    def __init__(self) -> None:
        self.size = 0
        self.make_room(64)

    def make_room(self, parts: int) -> None:
        self.domain, self.instances = view(np.zeros(parts, dtype=np.int64)), view(np.zeros(parts, dtype=np.int64))


def limit_by_domains(free: FreeArrays, demand: EncodedDemand, fitting: int) -> int:
    """Return how many of the instances that fit can be placed as their demand requests of domains."""
    allowed, need = free.allowed, demand.need
    if not has_request(allowed, need):
        return fitting
    required = allowed.requests[need.allowed, REQUIRED]
    if required == NO_SUCH_LEVEL:
        return 0
    count_room(free, allowed, need)
    level = max(required - 1, 0)
    most = room_of_largest(allowed, level, allowed.requests[need.allowed, MOST] if required else allowed.number[0])
    segment = segment_size(allowed, need) if level < allowed.requests[need.allowed, SEGMENT_LEVEL] else 1
    return min(most * segment, need.instances)


def count_room(free: FreeArrays, allowed: AllowedRows, need: Need) -> None:
    """Count how many instances fit into each domain; from the segment level outwards, how many segments."""
    low, innermost = candidate_row(need), allowed.number.shape[0] - 1
    if low <= max_gpus_per_node(free) and _only_whole_gpus_matter(free, allowed, need):
        for domain in range(allowed.number[innermost]):
            allowed.counts[innermost, domain] = free.room[low, domain]
        for whole in range(low + 1, max_gpus_per_node(free) + 1):
            here = min(need.instances, whole // need.gpus)
            for domain in range(allowed.number[innermost]):
                allowed.counts[innermost, domain] += free.room[whole, domain] * here
    else:
        for domain in range(allowed.number[innermost]):
            allowed.counts[innermost, domain] = 0
        if low <= max_gpus_per_node(free):
            _count_by_node(free, allowed, need, low)
    _count_outwards(allowed, need)


def _only_whole_gpus_matter(free: FreeArrays, allowed: AllowedRows, need: Need) -> bool:
    """Whether instances need whole GPUs of any type only, and may be placed on all nodes."""
    return (
        need.gpus > 0
        and need.milli == WHOLE
        and need.types == -1
        and allowed.requests[need.allowed, ON_ALL_NODES] != 0
        and (need.cpu == 0 or free.nodes[0, CPU_TOTAL] == UNLIMITED)
        and (need.memory == 0 or free.nodes[0, MEMORY_TOTAL] == UNLIMITED)
    )


def _count_by_node(free: FreeArrays, allowed: AllowedRows, need: Need, low: int) -> None:
    innermost = allowed.number.shape[0] - 1
    for word in range(words_per_row(free)):
        pending = free.bits[low, word] & allowed.words[need.allowed, word]
        while pending:
            node = (word << 6) + trailing_zeros(pending)
            pending &= pending - ONE
            if fits(free, node, need):
                allowed.counts[innermost, allowed.domain_of[innermost, node]] += instances_that_fit(free, node, need)


def _count_outwards(allowed: AllowedRows, need: Need) -> None:
    """Sum up the instances of inner domains, in segments from the segment level outwards."""
    segment = segment_size(allowed, need)
    for level in range(allowed.number.shape[0] - 1):
        for domain in range(allowed.number[level]):
            allowed.counts[level, domain] = 0
    for level in range(allowed.number.shape[0] - 1, -1, -1):
        if segment > 1 and level + 1 == allowed.requests[need.allowed, SEGMENT_LEVEL]:
            for domain in range(allowed.number[level]):
                room = allowed.counts[level, domain]  # most have no room for a segment, and division is slow
                allowed.counts[level, domain] = room // segment if room >= segment else 0
        if level > 0:
            for domain in range(allowed.number[level]):
                parent = allowed.domains[level, domain, PARENT]
                allowed.counts[level - 1, parent] += allowed.counts[level, domain]


def choose_domains(free: FreeArrays, allowed: AllowedRows, need: Need, parts: Parts) -> bool:
    """Divide a gang into parts, in the order of its instances; False: it does not fit as requested."""
    parts.size = 0
    required, preferred = allowed.requests[need.allowed, REQUIRED] - 1, allowed.requests[need.allowed, PREFERRED] - 1
    if required < -1:
        return False
    count_room(free, allowed, need)
    level = max(required, preferred)
    while level >= 0:
        domain = _smallest(allowed, level, -1, _wanted(allowed, need, level, need.instances))
        if domain >= 0:
            _divide(allowed, need, level, domain, need.instances, parts)
            return True
        if level == required:
            break
        level -= 1
    outer, most = max(level, 0), allowed.requests[need.allowed, MOST] if level >= 0 else allowed.number[0]
    if room_of_largest(allowed, outer, most) < _wanted(allowed, need, outer, need.instances):
        return False
    _divide(allowed, need, outer - 1, -1, need.instances, parts)
    return True


def _wanted(allowed: AllowedRows, need: Need, level: int, instances: int) -> int:
    """Return instances as they are counted at a level: in segments from the segment level outwards."""
    if level < allowed.requests[need.allowed, SEGMENT_LEVEL]:
        return instances // segment_size(allowed, need)
    return instances


def _smallest(allowed: AllowedRows, level: int, parent: int, wanted: int) -> int:
    """Return the domain with the least room that is enough, in a domain of the next outer level (-1: any); or -1."""
    best, least = -1, 0
    for domain in range(allowed.number[level]):
        room = allowed.counts[level, domain]
        if room < wanted or (best >= 0 and room >= least):
            continue
        if parent < 0 or allowed.domains[level, domain, PARENT] == parent:
            best, least = domain, room
    return best


def _largest(allowed: AllowedRows, level: int, parent: int) -> int:
    """Return the domain with the most room in a domain of the next outer level (-1: any)."""
    best, most = -1, 0
    for domain in range(allowed.number[level]):
        if allowed.counts[level, domain] <= most:
            continue
        if parent < 0 or allowed.domains[level, domain, PARENT] == parent:
            best, most = domain, allowed.counts[level, domain]
    return best


def _divide(allowed: AllowedRows, need: Need, level: int, domain: int, instances: int, parts: Parts) -> None:
    if level == allowed.number.shape[0] - 1:
        parts.domain[parts.size], parts.instances[parts.size] = domain, instances
        parts.size += 1
        return
    inner = level + 1
    unit = instances // _wanted(allowed, need, inner, instances)
    while instances > 0:
        chosen = _largest(allowed, inner, domain)
        here = allowed.counts[inner, chosen] * unit
        if here >= instances:
            chosen, here = _smallest(allowed, inner, domain, instances // unit), instances
        _divide(allowed, need, inner, chosen, here, parts)
        allowed.counts[inner, chosen] = 0
        instances -= here
