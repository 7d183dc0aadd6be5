"""What an administrator has set up beside the nodes: partitions with their limits, and reservations.

Facts are read by two calls of scontrol; what follows from them for a node is pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from time import localtime, strftime
from typing import NamedTuple

from msgspec.structs import replace

from refold.engines.slurm.nodes import SlurmNode, expand_hosts, has_features
from refold.engines.slurm.programs import Run
from refold.engines.slurm.requests import SlurmSettings
from refold.model import Seconds
from refold.simulator.traces import parse_time_limit

_FIELD = re.compile(r"(?:^|\s)([A-Z][A-Za-z]*)=(\S*)")
_NOTHING = ("", "(null)", "N/A", "UNLIMITED", "NONE")


class Partition(NamedTuple):
    """A partition. `max_time`: infinite if it has no limit."""

    name: str
    is_up: bool
    state: str
    max_time: Seconds = inf


class SlurmReservation(NamedTuple):
    """Nodes that only some may use for a time, such as for maintenance."""

    name: str
    nodes: frozenset[str]
    start: Seconds
    end: Seconds


class Site(NamedTuple):
    """Partitions by name, and reservations that have not ended."""

    partitions: Mapping[str, Partition] = {}
    reservations: Sequence[SlurmReservation] = ()

    @property
    def time_limits(self) -> dict[str, Seconds]:
        """The limits of partitions that have one."""
        return {name: each.max_time for name, each in self.partitions.items() if each.max_time < inf}


def read_site(run: Run) -> Site:
    """Read partitions and reservations. Raises SlurmError."""
    partitions = map(
        _partition, _records(run("scontrol", "show", "partitions", "--oneliner", "--all"), "PartitionName")
    )
    found = _records(run("scontrol", "show", "reservations", "--oneliner"), "ReservationName")
    return Site({each.name: each for each in partitions}, tuple(map(_reservation, found)))


def _records(text: str, key: str) -> list[dict[str, str]]:
    return [dict(_FIELD.findall(line)) for line in text.splitlines() if line.startswith(f"{key}=")]


def _partition(fields: Mapping[str, str]) -> Partition:
    state, limit = fields.get("State", "UP"), fields.get("MaxTime", "")
    seconds = None if limit in _NOTHING else parse_time_limit(limit)
    return Partition(fields["PartitionName"], state == "UP", state, inf if seconds is None else seconds)


def _reservation(fields: Mapping[str, str]) -> SlurmReservation:
    nodes = fields.get("Nodes", "")
    return SlurmReservation(
        fields["ReservationName"],
        frozenset(() if nodes in _NOTHING else expand_hosts(nodes)),
        _moment(fields.get("StartTime", ""), 0.0),
        _moment(fields.get("EndTime", ""), inf),
    )


def _moment(text: str, unknown: Seconds) -> Seconds:
    return float(text) if text.isdecimal() else unknown


def drain_reason(node: SlurmNode, settings: SlurmSettings, site: Site, now: Seconds, needed: Seconds) -> str:
    """Return why a job that needs this long, submitted with these settings, cannot start on a node now; '' if it can.

    A reservation that the options name is the daemon's own: its nodes are reserved, and can be used.
    """
    own, constraint = settings.option("reservation"), settings.option("constraint")
    reserved = [each for each in site.reservations if node.name in each.nodes and each.end > now]
    is_own = any(each.name == own for each in reserved)
    if own and not is_own:
        return f"not in reservation {own}"
    if why := _reservation_reason([each for each in reserved if each.name != own], now, needed):
        return why
    states = node.states - {"RESERVED", "MAINT", "MAINTENANCE"} if is_own else node.states
    if why := replace(node, states=states).drain_reason:
        return why
    if constraint and not has_features(node, constraint):
        return f"it does not have the features {constraint}"
    if node.name in expand_hosts(settings.option("exclude")):
        return "excluded by the options in refold.yaml"
    return _partition_reason(node, settings, site)


def _partition_reason(node: SlurmNode, settings: SlurmSettings, site: Site) -> str:
    names = [name for name in node.partitions if settings.partition in ("", name)]
    found = [site.partitions[name] for name in names if name in site.partitions]
    return (
        "" if any(each.is_up for each in found) else ", ".join(f"partition {one.name} is {one.state}" for one in found)
    )


def _reservation_reason(reserved: Iterable[SlurmReservation], now: Seconds, needed: Seconds) -> str:
    first = min(reserved, key=lambda each: each.start, default=None)
    if first is None or first.start >= now + needed:
        return ""
    if first.start <= now:
        return f"reserved by {first.name}" + ("" if first.end == inf else f" until {_clock(first.end)}")
    return f"reserved by {first.name} from {_clock(first.start)}; jobs whose --time ends before can start"


def _clock(moment: Seconds) -> str:
    return strftime("%b %d %H:%M", localtime(moment))
