"""The nodes of Slurm, as `scontrol show nodes --oneliner --details` prints them, and the cluster that they make."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import inf
from typing import NamedTuple

import msgspec

from refold.engines.slurm.programs import Run
from refold.errors import BadValue
from refold.model import MAX_GPU_TYPES, MAX_GPUS_PER_NODE, WHOLE, Cluster, Node, Seconds
from refold.planning.catalogue import gpu_link
from refold.simulator.traces import UNKNOWN_GPU_TYPE, BadCell, GpuAmount, parse_gpus

DOWN = frozenset({"DOWN", "ERROR", "FAIL", "UNKNOWN", "NOT_RESPONDING", "NO_RESPOND", "INVALID_REG", "POWERING_DOWN"})
UNAVAILABLE = frozenset({"DRAIN", "DRAINED", "DRAINING", "FAILING", "MAINT", "MAINTENANCE", "RESERVED", "FUTURE"})
REBOOT = "REBOOT"
"""Begins the states of a node that reboots."""

_FIELD = re.compile(r"\s+(?=[A-Z][A-Za-z_]*=)")
_IDLE_SIGNS = "*~#!%$@^-"
"""Signs after a state: `*` does not respond, the others are about power saving and reboots."""

_SHARDS = re.compile(r"(?:^|,)shard:(?:(?P<kind>[^:,()]+):)?(?P<count>[0-9]+)(?:\((?P<where>[^)]*)\))?")
_MANY_TYPES = re.compile(r",(?![^(]*\))")

MAX_NAMES = 100_000
"""Maximum number of names or tasks in a list."""

_OUTER_COMMA = re.compile(r",(?![^\[]*\])")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?(?::(\d{1,9}))?", re.ASCII)

_CONSTRAINT = re.compile(r"[\w.+-]+(?:([&|,])[\w.+-]+(?:\1[\w.+-]+)*)?")
"""Features joined by the same operator: those with counts, brackets or several operators are not supported."""


class SlurmNode(msgspec.Struct, frozen=True):
    """A node. `gpus`: how many of each type; `used_gpus`, `used_cpus`, `used_memory_mib`: allocated to jobs.

    A GPU of which a part is allocated is used. `shards`: in how many parts all of its GPUs can be allocated; 0: none.
    `address`: its network address; '' if unknown.
    """

    name: str
    gpus: dict[str, int]
    cpus: int
    memory_mib: int
    states: frozenset[str]
    reason: str
    partitions: tuple[str, ...]
    features: frozenset[str]
    used_gpus: dict[str, int]
    used_cpus: int
    used_memory_mib: int
    address: str = ""
    shards: int = 0

    @property
    def down_reason(self) -> str:
        """Why it is down, or ''."""
        found = sorted(self.states & DOWN)
        return f"{found[0]}{f': {self.reason}' if self.reason else ''}" if found else ""

    @property
    def drain_reason(self) -> str:
        """Why it accepts no jobs although it is not down, or ''."""
        found = sorted(state for state in self.states if state in UNAVAILABLE or state.startswith(REBOOT))
        return f"{found[0]}{f': {self.reason}' if self.reason else ''}" if found else ""


def read_nodes(run: Run) -> list[SlurmNode]:
    """Read all nodes, in Slurm's order."""
    lines = run("scontrol", "show", "nodes", "--oneliner", "--details", "--all").splitlines()
    return [_parse_node(line) for line in lines if line.startswith("NodeName=")]


def _parse_node(line: str) -> SlurmNode:
    fields: dict[str, str] = {}
    for part in _FIELD.split(line.strip()):
        name, _, value = part.partition("=")
        fields.setdefault(name, "" if value in ("(null)", "N/A") else value.strip())
    try:
        return _make_node(fields)
    except BadCell as cell:
        name = fields.get("NodeName", "?")
        raise BadValue(f"node {name}: {cell.column} is {str(cell.found)[:60]!r}, expected {cell.expected}") from None


def _make_node(fields: dict[str, str]) -> SlurmNode:
    def number(name: str) -> int:
        text = fields.get(name) or "0"
        if not text.isdecimal():
            raise BadCell(name, text, "a number")
        return int(text)

    gpus = gpus_by_type(fields.get("Gres", ""), "Gres")
    return SlurmNode(
        name=fields["NodeName"],
        gpus=gpus,
        cpus=number("CPUEfctv") or number("CPUTot"),
        memory_mib=max(0, number("RealMemory") - number("MemSpecLimit")),
        states=_states(fields.get("State", "")),
        reason=re.sub(r"\s*\[[^\]]*\]$", "", fields.get("Reason", "")),
        partitions=tuple(name for name in fields.get("Partitions", "").split(",") if name),
        features=frozenset(name for name in fields.get("ActiveFeatures", "").split(",") if name),
        used_gpus=_used_gpus(fields.get("GresUsed", ""), gpus),
        used_cpus=number("CPUAlloc"),
        used_memory_mib=number("AllocMem"),
        address=fields.get("NodeAddr", ""),
        shards=sum(int(found["count"]) for found in _SHARDS.finditer(fields.get("Gres", ""))),
    )


def _used_gpus(text: str, gpus: Mapping[str, int]) -> dict[str, int]:
    """Return the GPUs that are used, by type. Slurm lists those of which parts are used apart from the others."""
    found = gpus_by_type(text, "GresUsed")
    for item in _SHARDS.finditer(text):
        kind = item["kind"] or next(iter(gpus), "")
        found[kind] = found.get(kind, 0) + _shared_gpus(item["where"] or "")
    return {kind: min(count, gpus.get(kind, count)) for kind, count in found.items() if count}


def _shared_gpus(where: str) -> int:
    """Return of how many GPUs parts are used: 'IDX:0-1' in Slurm 22.05; in newer versions '2/4,0/4', for each GPU."""
    if each := re.findall(r"([0-9]+)/[0-9]+", where):
        return sum(count != "0" for count in each)
    indices = where.removeprefix("IDX:")
    return len(expand_tasks(indices)) if re.fullmatch(r"[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*", indices) else 0


def gpus_by_type(text: str, column: str) -> dict[str, int]:
    """Parse 'gpu:a100:4(S:0-1),gpu:v100:2,shard:8' as {'a100': 4, 'v100': 2}; GPUs without a type as {'': 4}."""
    found: dict[str, int] = {}
    for item in _MANY_TYPES.split(text):
        amount: GpuAmount = parse_gpus(item, column)
        if amount.total:
            name = amount.types[0] if amount.types else ""
            found[name] = found.get(name, 0) + amount.total
    return found


def _states(text: str) -> frozenset[str]:
    """Parse 'IDLE*+DRAIN' as IDLE, NOT_RESPONDING and DRAIN."""
    states = {part.rstrip(_IDLE_SIGNS).upper() for part in text.split("+")}
    return frozenset(states | ({"NOT_RESPONDING"} if "*" in text else set()))


def expand_hosts(text: str) -> list[str]:
    """Return the names that a list of hosts stands for, in its order."""
    if not text:
        return []
    names: list[str] = []
    for pattern in _OUTER_COMMA.split(text):
        parts = _BRACKETS.split(pattern)
        if any(bracket in part for part in parts for bracket in "[]") or not pattern:
            raise BadValue(f"{text[:80]!r} is not a list of hosts such as n[1-4,7]")
        choices = [_numbers(part) if index % 2 else [part] for index, part in enumerate(parts)]
        size = 1
        for choice in choices:
            size *= len(choice)
        if len(names) + size > MAX_NAMES:
            raise BadValue(f"{text[:80]!r} names more than {MAX_NAMES:,} hosts")
        names += map("".join, product(*choices))
    return names


def expand_tasks(text: str) -> list[int]:
    """Return the task numbers of a job array. The limit of tasks that run at once, `%3`, is ignored."""
    tasks = [int(number) for number in _numbers(text.partition("%")[0])]
    if len(tasks) > MAX_NAMES:
        raise BadValue(f"{text[:80]!r} has more than {MAX_NAMES:,} tasks")
    return tasks


def _numbers(text: str) -> list[str]:
    return [number for part in text.split(",") for number in _range(part, text)]


def _range(part: str, text: str) -> Iterator[str]:
    """Yield the numbers of '8', '08-11' or '0-15:4', with as many digits as the first."""
    match = _RANGE.fullmatch(part)
    if match is None:
        raise BadValue(f"{text[:80]!r} is not a list of numbers such as 1-4,7")
    first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
    if last < first or not step or (last - first) // step >= MAX_NAMES:
        raise BadValue(f"{text[:80]!r} is not a list of numbers such as 1-4,7")
    return (f"{number:0{len(match[1])}}" for number in range(first, last + 1, step))


class GpuGroup(NamedTuple):
    """The GPUs of one type on one node: a node of the scheduler. `slurm_type`: '' if Slurm does not name it."""

    node: SlurmNode
    slurm_type: str
    gpus: int
    gpu_type: str

    @property
    def share(self) -> float:
        """Its part of the CPUs and the memory of the node."""
        return self.gpus / sum(self.node.gpus.values())


class SlurmCluster(NamedTuple):
    """The cluster, and the groups of GPUs that it was made from. Both have the same order.

    `time_limits`: those of partitions; partitions that are not there have none. `short_by_default`: partitions where a
    job gets a shorter limit than that if it says none. `notes`: what could not be represented.
    """

    cluster: Cluster
    groups: tuple[GpuGroup, ...]
    time_limits: Mapping[str, Seconds] = {}
    short_by_default: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()

    def time_limit(self, partition: str) -> Seconds:
        """Return the longest time that a job of a partition can take."""
        return self.time_limits.get(partition, inf)

    def indices(self, name: str) -> list[int]:
        """Return the nodes of the cluster that are on a node of Slurm."""
        return [index for index, group in enumerate(self.groups) if group.node.name == name]

    def accepted_types(
        self, partitions: Collection[str], slurm_types: Collection[str] = (), features: str = ""
    ) -> tuple[str, ...]:
        """Return the GPU types of nodes in one of the partitions, with GPUs of one of these types, and the features."""
        return tuple(
            sorted(
                {
                    group.gpu_type
                    for group in self.groups
                    if not {*partitions}.isdisjoint(group.node.partitions)
                    and (not slurm_types or group.slurm_type in slurm_types)
                    and has_features(group.node, features)
                }
            )
        )


def constraint_features(constraint: str) -> frozenset[str]:
    """Return the features that a constraint names; none if it is not supported."""
    return frozenset(re.split(r"[&|,]", constraint)) if _CONSTRAINT.fullmatch(constraint) else frozenset()


def has_features(node: SlurmNode, constraint: str) -> bool:
    """Whether a node has the features of a constraint. A constraint that is not supported is ignored."""
    wanted = constraint_features(constraint)
    if "|" in constraint:
        return not wanted or not wanted.isdisjoint(node.features)
    return wanted <= node.features


def map_nodes(nodes: Iterable[SlurmNode], features: Collection[str] = (), name: str = "slurm") -> SlurmCluster:
    """Return the cluster of the nodes with GPUs. `features`: those that jobs ask for."""
    groups = [
        GpuGroup(node, gpu_type, min(count, MAX_GPUS_PER_NODE), gpu_type or UNKNOWN_GPU_TYPE)
        for node in nodes
        if node.partitions
        for gpu_type, count in node.gpus.items()
    ]
    if not groups:
        raise BadValue("Slurm has no nodes with GPUs (Gres=gpu:…) in a partition")
    named = _distinguish(groups, {*features})
    memory_known = all(group.node.memory_mib > 1 for group in groups)  # 1 MiB is Slurm's default
    return SlurmCluster(Cluster(tuple(map(_model_node, named)), name=name, memory_known=memory_known), tuple(named))


def _distinguish(groups: Sequence[GpuGroup], features: set[str]) -> list[GpuGroup]:
    """Add to the GPU types what distinguishes nodes with the same GPUs for jobs."""
    kinds: dict[str, set[str]] = {}
    traits = [",".join(sorted({*group.node.partitions, *(features & group.node.features)})) for group in groups]
    for group, trait in zip(groups, traits, strict=True):
        kinds.setdefault(group.gpu_type, set()).add(trait)
    count = sum(map(len, kinds.values()))
    if count > MAX_GPU_TYPES:
        raise BadValue(
            f"partitions, and features that jobs ask for, divide the GPU nodes into {count} kinds, "
            f"expected at most {MAX_GPU_TYPES}"
        )
    return [
        group._replace(gpu_type=f"{group.gpu_type}/{trait}") if len(kinds[group.gpu_type]) > 1 else group
        for group, trait in zip(groups, traits, strict=True)
    ]


def _model_node(group: GpuGroup) -> Node:
    node = group.node
    several = len(node.gpus) > 1
    return Node(
        f"{node.name}:{group.slurm_type or UNKNOWN_GPU_TYPE}" if several else node.name,
        group.gpus,
        group.gpu_type,
        int(node.cpus * WHOLE * group.share),
        int(node.memory_mib * group.share),
        inside=gpu_link(group.gpu_type),
    )
