"""The nodes of Slurm, as `scontrol show nodes --oneliner --details` prints them in every version."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from refold.engines.slurm.hostlist import expand_tasks
from refold.engines.slurm.programs import Run
from refold.errors import BadValue
from refold.simulator.traces import BadCell, GpuAmount, parse_gpus

DOWN = frozenset({"DOWN", "ERROR", "FAIL", "UNKNOWN", "NOT_RESPONDING", "NO_RESPOND", "INVALID_REG", "POWERING_DOWN"})
UNAVAILABLE = frozenset({"DRAIN", "DRAINED", "DRAINING", "FAILING", "MAINT", "MAINTENANCE", "RESERVED", "FUTURE"})
REBOOT = "REBOOT"
"""Begins the states of a node that reboots."""

_FIELD = re.compile(r"\s+(?=[A-Z][A-Za-z_]*=)")
_IDLE_SIGNS = "*~#!%$@^-"
"""Signs after a state: `*` does not respond, the others are about power saving and reboots."""

_SHARDS = re.compile(r"(?:^|,)shard:(?:(?P<kind>[^:,()]+):)?(?P<count>[0-9]+)(?:\((?P<where>[^)]*)\))?")
_MANY_TYPES = re.compile(r",(?![^(]*\))")


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
