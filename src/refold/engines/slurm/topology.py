"""The levels of a cluster as `scontrol show topology` prints them: switches (tree) or blocks (block)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from refold.engines.slurm.nodes import SlurmCluster, expand_hosts
from refold.engines.slurm.programs import Run, SlurmError
from refold.engines.slurm.requests import BLOCK_LEVEL
from refold.errors import BadValue
from refold.model import MAX_LEVELS, Level

_RECORD = re.compile(r"^(SwitchName|BlockName|AggregatedBlock)=(\S+) (.*)$", re.MULTILINE)
_FIELD = re.compile(r"(\w+)=(\S*)")
_KINDS = {
    "SwitchName": ("switch", "Level"),
    "BlockName": (BLOCK_LEVEL, "BlockSize"),
    "AggregatedBlock": (BLOCK_LEVEL, "BlockSize"),
}
"""The name of the innermost level, and the field by which records are divided into levels."""


class SlurmTopology(NamedTuple):
    """Levels, outermost first, and the domains of each node. Without levels: a flat topology, or none.

    `problem`: why what Slurm has printed could not be used.
    """

    levels: tuple[str, ...] = ()
    domains: Mapping[str, tuple[str, ...]] = {}
    problem: str = ""

    def after(self, known: SlurmTopology) -> SlurmTopology:
        """Return it with the domains that nodes had before: a node that is not configured any more has none."""
        same = known.domains if known.levels == self.levels else {}
        return self._replace(domains={**same, **self.domains})


def read_topology(run: Run) -> SlurmTopology:
    """Read the topology. Raises SlurmError if the controller has not answered; an error of another kind: no levels."""
    try:
        return parse_topology(run("scontrol", "show", "topology"))
    except SlurmError as error:
        if error.is_transient:
            raise
    except BadValue as error:
        return SlurmTopology(problem=str(error))
    return SlurmTopology()


def parse_topology(text: str) -> SlurmTopology:
    """Parse the lines of switches or blocks. Raises BadValue.

    A switch lists all nodes below it. A node that is connected to an outer switch without one between is, at the level
    between, in a domain of its inner switch.
    """
    levels: dict[int, dict[str, str]] = {}
    base = ""
    for kind, name, rest in _RECORD.findall(text):
        fields = dict(_FIELD.findall(rest))
        base, number = _KINDS[kind]
        size = fields.get(number, "0")
        domains = levels.setdefault(int(size) if size.isdecimal() else 0, {})
        for node in expand_hosts(fields.get("Nodes", "").replace("(null)", "")):
            if domains.setdefault(node, name) != name:
                raise BadValue(f"node {node} is in {domains[node]} and in {name}")
    if not levels:
        return SlurmTopology()
    inner, *outer = sorted(levels)
    paths: dict[str, tuple[str, ...]] = {node: (name,) for node, name in levels[inner].items()}
    for level in outer:
        paths = {node: (levels[level].get(node, path[0]), *path) for node, path in paths.items()}
    return SlurmTopology((*(f"{base}{level}" for level in reversed(outer)), base), paths)


def with_levels(found: SlurmCluster, topology: SlurmTopology) -> SlurmCluster:
    """Return the cluster with the levels. An outer level of which all nodes are in one domain is left out."""
    if not topology.levels:
        return found._replace(notes=_notes(topology.problem))
    names = [group.node.name for group in found.groups]
    if missing := [name for name in names if name not in topology.domains]:
        return found._replace(notes=_notes(f"node {missing[0]} is in no {topology.levels[-1]}"))
    first, last = max(0, len(topology.levels) - MAX_LEVELS), len(topology.levels) - 1
    while first < last and len({topology.domains[name][first] for name in names}) == 1:
        first += 1
    levels = list(map(Level, topology.levels[first:]))
    return found._replace(cluster=found.cluster.with_levels(levels, [topology.domains[name][first:] for name in names]))


def _notes(problem: str) -> tuple[str, ...]:
    return (f"Slurm's topology is not used: {problem}",) if problem else ()
