"""Where the instances of a demand may be placed: a set of nodes, and what it requests of their domains. Compiled."""

from __future__ import annotations

import cython
import numpy as np

from refold.model import Cluster, Demand, NodeSet, TopologyRequest
from refold.model.arrays import view
from refold.placement.layout import (
    FIRST_NODE,
    LAST_NODE,
    MOST,
    NO_SUCH_LEVEL,
    ON_ALL_NODES,
    PART,
    PREFERRED,
    REQUEST_COLUMNS,
    REQUIRED,
    SEGMENT,
    SEGMENT_LEVEL,
    UNLIMITED,
    Ints,
    Words,
)

if not cython.compiled:
    from refold.placement.layout import Need

ONE = 1


class AllowedRows:
    """Sets of nodes and requests, one row each. Rows are only added, so that a `Need` stays valid.

    `domain_of` has the domain of each node at each level, by number. `domains` has, for each level and domain, the
    domain around it, its first and its last node. The rest is for temporary use: how many instances fit into each, and
    the first and the last node of the part that is being placed.
    """

    def __init__(
        self, array: Words, request_array: Ints, domain_of: Ints, domains: Ints, number: Ints, used: int = 2
    ) -> None:
        self.array, self.request_array, self.used = array, request_array, used
        self.tables = (domain_of, domains, number)
        self.words, self.requests = view(array), view(request_array)
        self.domain_of, self.domains, self.number = view(domain_of), view(domains), view(number)
        self.counts = view(np.zeros(domains.shape[:2], dtype=np.int64))
        self.part_first = self.part_last = 0

    def __reduce__(self) -> tuple[object, ...]:
        return AllowedRows, (self.array, self.request_array, *self.tables, self.used)

    def add(self, nodes: NodeSet | None, request: Ints) -> int:
        """Return a new row with a set of nodes (None: all) and a request, as returned by `encode_request`."""
        if self.used == len(self.array):
            self.array = np.concatenate([self.array, np.zeros_like(self.array)])
            self.request_array = np.concatenate([self.request_array, np.zeros_like(self.request_array)])
            self.words, self.requests = view(self.array), view(self.request_array)
        count = 8 * self.array.shape[1]
        bits = nodes.bits[:count].ljust(count, b"\0") if nodes is not None else b"\xff" * count
        self.array[self.used] = np.frombuffer(bits, dtype="<u8")
        self.request_array[self.used] = request
        self.request_array[self.used, ON_ALL_NODES] = nodes is None
        self.used += 1
        return self.used - 1


def empty_allowed_rows(cluster: Cluster) -> AllowedRows:
    """Return the rows of a cluster, with its domains, without any set of nodes."""
    levels, nodes = len(cluster.levels), len(cluster.nodes)
    paths = [[node.domains[: level + 1] for node in cluster.nodes] for level in range(levels)]
    index_of = [{path: index for index, path in enumerate(dict.fromkeys(of_nodes))} for of_nodes in paths]
    number = np.array([len(index) for index in index_of], dtype=np.int64)
    domain_of = np.zeros((levels, nodes), dtype=np.int64)
    domains = np.zeros((levels, int(number.max(initial=0)), 3), dtype=np.int64)
    for level, index in enumerate(index_of):
        for node, path in enumerate(paths[level]):
            domain_of[level, node] = index[path]
        for path, domain in index.items():
            members = np.flatnonzero(domain_of[level] == domain)
            parent = index_of[level - 1][path[:level]] if level else 0
            domains[level, domain] = parent, members.min(), members.max()
    words = np.zeros((4, (nodes + 63) // 64), np.uint64)
    return AllowedRows(words, np.zeros((4, REQUEST_COLUMNS), np.int64), domain_of, domains, number)


def encode_request(demand: Demand, cluster: Cluster) -> Ints:
    """Return the request of a demand as a row, with levels by number; without levels and requests, it has zeros."""
    request = demand.topology if demand.instances > 1 else None
    row = np.zeros(REQUEST_COLUMNS, dtype=np.int64)
    if cluster.levels or (request is not None and request.is_binding):
        request = request or TopologyRequest()
        row[SEGMENT] = request.segment or 1
        row[REQUIRED] = _level_number(request.required, cluster) if request.required or request.most else 0
        row[MOST] = request.most or 1
        row[SEGMENT_LEVEL] = _level_number(request.segment_level, cluster)
        preferred = request.preferred if request.preferred in cluster.level_names else ""
        row[PREFERRED] = _level_number(preferred, cluster)
        if NO_SUCH_LEVEL in row[:SEGMENT]:
            row[REQUIRED] = NO_SUCH_LEVEL
    return row


def _level_number(name: str, cluster: Cluster) -> int:
    """Return the number of a level: 1 for the outermost, that of the innermost one for ''."""
    if not cluster.levels or (name and name not in cluster.level_names):
        return NO_SUCH_LEVEL
    return cluster.level(name) + 1


def is_allowed(allowed: AllowedRows, node: int, need: Need) -> bool:
    """Whether a node is among those on which an instance may be placed."""
    return need.allowed == 0 or allowed.words[need.allowed, node >> 6] >> (node & 63) & 1 != 0


def has_request(allowed: AllowedRows, need: Need) -> bool:
    """Whether the instances are placed by domains."""
    return need.allowed != 0 and allowed.requests[need.allowed, SEGMENT] != 0


def segment_size(allowed: AllowedRows, need: Need) -> int:
    """Return how many instances must be in one domain of the segment level; 1 if all must be in a smaller one."""
    row = need.allowed
    if not has_request(allowed, need) or allowed.requests[row, REQUIRED] > allowed.requests[row, SEGMENT_LEVEL]:
        return 1
    return allowed.requests[row, SEGMENT]


def room_of_largest(allowed: AllowedRows, level: int, number: int) -> int:
    """Return how much fits into so many domains of a level, those with the most room."""
    total, found, above = 0, 0, UNLIMITED
    if number >= allowed.number[level]:
        for domain in range(allowed.number[level]):
            total += allowed.counts[level, domain]
        return total
    while found < number and above > 0:
        most, same = 0, 0
        for domain in range(allowed.number[level]):
            room = allowed.counts[level, domain]
            if most < room < above:
                most, same = room, 1
            elif room == most:
                same += 1
        total += most * min(same, number - found)
        found, above = found + same, most
    return total


def allow_part(allowed: AllowedRows, row: int, level: int, domain: int) -> None:
    for word in range(allowed.part_first >> 6, (allowed.part_last >> 6) + 1):
        allowed.words[PART, word] = 0
    allowed.part_first, allowed.part_last = (
        allowed.domains[level, domain, FIRST_NODE],
        allowed.domains[level, domain, LAST_NODE],
    )
    for node in range(allowed.part_first, allowed.part_last + 1):
        if allowed.domain_of[level, node] == domain:
            allowed.words[PART, node >> 6] |= allowed.words[row, node >> 6] & (ONE << (node & 63))
