"""Clusters as shorthand: '16x8:A100', or '8 racks of 18x4:GB200'."""

from __future__ import annotations

import re
from collections.abc import Iterator

from refold.errors import BadValue
from refold.model import MAX_GPUS_PER_NODE, RACK_LEVEL, Cluster, Level, Node

UNKNOWN_GPU_TYPE = "GPU"
"""The type name of GPUs whose type is not given."""

MAX_NODES = 100_000
"""Maximum number of nodes in a cluster; a larger number is most likely a typing error."""

_NODES = r"(\d{1,18})[xX×](\d{1,18})(?::([^+,:\s]+))?"
_LEVEL = r"(\d{1,6}) ([a-z]+?)s? of "
_SHORTHAND = re.compile(rf"\s*((?:{_LEVEL})*){_NODES}\s*", re.ASCII)


def is_shorthand(text: str) -> bool:
    return all(_SHORTHAND.fullmatch(part) for part in text.split("+"))


def from_shorthand(text: str) -> Cluster:
    """Parse '135x8', '16x8:A100+4x2:T4' or '2 blocks of 8 racks of 18x4:GB200'; CPUs and memory are unknown."""
    nodes: list[Node] = []
    levels: tuple[str, ...] | None = None
    for part in text.split("+"):
        match = _SHORTHAND.fullmatch(part)
        if match is None:
            expected = "shorthand such as 16x8, 16x8:A100 or 8 racks of 18x4:GB200"
            raise BadValue(f"{part!r} is not a cluster; expected {expected}")
        counts = [(int(count), name) for count, name in re.findall(_LEVEL, match[1])]
        names = tuple(name for _, name in counts)
        if levels not in (None, names):
            found = " and in ".join("/".join(each or ("no levels",)) for each in (names, levels or ()))
            raise BadValue(f"{text!r} has nodes in {found}, expected the same levels")
        levels = names
        nodes += list(_nodes(text, part, counts, match, nodes))
    described = tuple(Level(name) for name in levels or ())
    return Cluster(tuple(nodes), name=text, cpus_known=False, memory_known=False, levels=described)


def _nodes(
    text: str, part: str, counts: list[tuple[int, str]], match: re.Match[str], before: list[Node]
) -> Iterator[Node]:
    count, gpus, gpu_type = int(match[4]), int(match[5]), match[6] or UNKNOWN_GPU_TYPE
    total = count
    for domains, _ in counts:
        total *= domains
    if not 0 < total <= MAX_NODES - len(before):
        raise BadValue(f"{text!r} has too few or too many nodes, expected 1 to {MAX_NODES:,} in total")
    if gpus > MAX_GPUS_PER_NODE:
        raise BadValue(f"{part!r} has {gpus:,} GPUs per node, expected 0 to {MAX_GPUS_PER_NODE}")
    first = [len({node.domains[: level + 1] for node in before}) for level in range(len(counts))]
    for index in range(total):
        path, size = [], total
        for level, (domains, name) in enumerate(counts):
            size //= domains
            path.append(f"{name}{first[level] + index // size}")
        rack = next((domain for domain, (_, name) in zip(path, counts, strict=True) if name == RACK_LEVEL), "")
        yield Node(f"node{len(before) + index}", gpus, gpu_type if gpus else "", rack=rack, domains=tuple(path))
