"""What an administrator has set up beside the nodes: partitions with their limits, and reservations.

Facts are read by two calls of scontrol; what follows from them for a node is pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import inf
from time import localtime, strftime
from typing import NamedTuple

from msgspec.structs import replace

from refold.engines.slurm.nodes import SlurmCluster, SlurmNode, expand_hosts, has_features
from refold.engines.slurm.programs import Run
from refold.engines.slurm.requests import SlurmSettings, needed_time
from refold.model import MINUTE, Job, NodeSet, Seconds
from refold.simulator.traces import BadCell, parse_time_limit

_FIELD = re.compile(r"(?:^|\s)([A-Z][A-Za-z]*)=(\S*)")
_NOTHING = ("", "(null)", "N/A", "UNLIMITED", "NONE")

LONGEST_GRACE: Seconds = 10 * MINUTE
"""Grace periods are shorter: so much longer than its time limit a job may take."""


class Partition(NamedTuple):
    """A partition. `max_time`: infinite if it has no limit. `default_time`: of jobs that say none; None: the same."""

    name: str
    is_up: bool
    state: str
    max_time: Seconds = inf
    default_time: Seconds | None = None


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

    @property
    def short_by_default(self) -> frozenset[str]:
        """The partitions where a job gets less than their limit if it says none."""
        return frozenset(
            name
            for name, each in self.partitions.items()
            if each.default_time is not None and each.default_time < each.max_time
        )


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
    state, longest = fields.get("State", "UP"), _limit(fields.get("MaxTime", ""))
    default = _limit(fields.get("DefaultTime", ""))
    return Partition(fields["PartitionName"], state == "UP", state, inf if longest is None else longest, default)


def _limit(text: str) -> Seconds | None:
    try:
        return None if text in _NOTHING else parse_time_limit(text)
    except BadCell:  # another version of Slurm: the nodes can be used nevertheless
        return None


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
    ours = [each for each in _reservations_of(node, site, now) if each.name == own]
    if own and not ours:
        return f"not in reservation {own}"
    if ours and ours[0].start > now:
        return f"reservation {own} begins on {_clock(ours[0].start)}"
    first = _next_reservation(node, settings, site, now)
    if first is not None and first.start <= now:
        return f"reserved by {first.name}" + ("" if first.end == inf else f" until {_clock(first.end)}")
    if first is not None and first.start < now + min(needed, longest_time(node, settings, site)):
        return f"reserved by {first.name} from {_clock(first.start)}; jobs whose --time ends before can start"
    states = node.states - {"RESERVED", "MAINT", "MAINTENANCE"} if ours else node.states
    if why := replace(node, states=states).drain_reason:
        return why
    if constraint and not has_features(node, constraint):
        return f"it does not have the features {constraint}"
    if node.name in expand_hosts(settings.option("exclude")):
        return "excluded by the options in refold.yaml"
    return _partition_reason(node, settings, site)


def allowed_nodes(nodes: SlurmCluster, settings: SlurmSettings, site: Site, now: Seconds, job: Job) -> NodeSet | None:
    """Return the nodes whose partitions and later reservations allow a job as long as it may take; None: all nodes."""
    limit, needed = inf if job.time_limit is None else job.time_limit, needed_time(job, LONGEST_GRACE)

    def is_allowed(node: SlurmNode) -> bool:
        longest, first = longest_time(node, settings, site), _next_reservation(node, settings, site, now)
        is_in_time = first is None or first.start <= now or first.start >= now + min(needed, longest)
        return is_in_time and (limit == inf or limit <= longest)

    found = [index for index, group in enumerate(nodes.groups) if is_allowed(group.node)]
    return None if len(found) == len(nodes.groups) else NodeSet.of(found)


def longest_time(node: SlurmNode, settings: SlurmSettings, site: Site) -> Seconds:
    """Return how long a job can take on a node at most: partitions have limits."""
    limits = site.time_limits
    return max((limits.get(name, inf) for name in _partitions_of(node, settings)), default=inf)


def _reservations_of(node: SlurmNode, site: Site, now: Seconds) -> list[SlurmReservation]:
    return [each for each in site.reservations if node.name in each.nodes and each.end > now]


def _next_reservation(node: SlurmNode, settings: SlurmSettings, site: Site, now: Seconds) -> SlurmReservation | None:
    """Return the first reservation of a node for others, which may have begun."""
    own = settings.option("reservation")
    others = (each for each in _reservations_of(node, site, now) if each.name != own)
    return min(others, key=lambda each: each.start, default=None)


def _partitions_of(node: SlurmNode, settings: SlurmSettings) -> list[str]:
    return [name for name in node.partitions if settings.partition in ("", name)]


def _partition_reason(node: SlurmNode, settings: SlurmSettings, site: Site) -> str:
    found = [site.partitions[name] for name in _partitions_of(node, settings) if name in site.partitions]
    return (
        "" if any(each.is_up for each in found) else ", ".join(f"partition {one.name} is {one.state}" for one in found)
    )


def _clock(moment: Seconds) -> str:
    return strftime("%b %d %H:%M", localtime(moment))
