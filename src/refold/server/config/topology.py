"""The section `topology` of `refold.yaml`: levels of the cluster, and the domains of nodes by node expression."""

from __future__ import annotations

import msgspec

from refold.errors import BadValue
from refold.model import Level
from refold.model.documents import Part, convert
from refold.server.config.values import Name


class Topology(msgspec.Struct, frozen=True):
    """Levels, outermost first, and the domains of each node that is listed. Without levels: those of the engine."""

    levels: tuple[Level, ...] = ()
    domains: dict[str, tuple[str, ...]] = {}


class TopologyConfig(msgspec.Struct, frozen=True):
    """The keys. `domains`: for node expressions such as `a[0-15]`, the domain at each level."""

    levels: tuple[Level, ...] = ()
    domains: dict[str, dict[str, Name]] = {}


def read_topology(part: Part) -> Topology:
    """Read the section. Each node is listed once, with a domain at each level."""
    from refold.simulator.traces import node_names  # slow to import

    config = convert(part, TopologyConfig)
    levels = [level.name for level in config.levels]
    if not levels and config.domains:
        raise part.at("domains").error("has no effect: no levels are configured")
    if len(set(levels)) != len(levels):
        raise part.at("levels").unexpected("levels with different names")
    found: dict[str, tuple[str, ...]] = {}
    for pattern, domains in config.domains.items():
        here = part.at("domains", pattern)
        if domains.keys() != set(levels):
            raise here.unexpected(f"a domain at each of the levels {', '.join(levels)}")
        try:
            nodes = node_names(pattern)
        except BadValue as error:
            raise here.error(error) from None
        if twice := [node for node in nodes if node in found]:
            raise here.error(f"node {twice[0]!r} is listed twice")
        found |= dict.fromkeys(nodes, tuple(domains[level] for level in levels))
    return Topology(config.levels, found)
