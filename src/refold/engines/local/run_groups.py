"""The cgroups of runs: limits that the kernel enforces, what processes have used, and reliable kills.

The types, and what a machine without cgroups has. A run is named by a hash of its mark, since other users can read the
names of cgroups, but must not know marks. Each instance has a cgroup of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol

import msgspec

from refold.model import MiB, Milli, RunUsage, Seconds, Share, format_memory


class ResourceLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an instance may use. 0: no limit."""

    cpu_milli: Milli = 0
    memory_mib: MiB = 0


class GroupPlace(msgspec.Struct, frozen=True):
    """The cgroup in which an instance is to be started, and its limits. `run`: its name, see `group_name`."""

    run: str
    instance: int
    limits: ResourceLimits = ResourceLimits()


class InstanceUsage(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an instance has used. None: not measured. `oom_kills`: processes that ran out of memory and were killed."""

    instance: int
    cpu_seconds: Seconds | None = None
    peak_memory_mib: MiB | None = None
    oom_kills: int = 0


class RunGroups(Protocol):
    """The cgroups of runs, by their names. `enforced`: the resources whose limits the kernel enforces."""

    enforced: frozenset[str]
    usable: bool

    def members(self, run: str) -> list[int]:
        """Return the pids of all processes of a run."""

    def kill(self, run: str) -> None:
        """Kill all processes of a run, so that none escapes by forking."""

    def limit(self, place: GroupPlace) -> None:
        """Change the limits of an instance that is running."""

    def usage(self, run: str) -> Sequence[InstanceUsage]:
        """Return what each instance of a run has used until now."""

    def remove(self, run: str) -> None:
        """Remove the cgroups of a run whose processes have ended."""

    def runs(self) -> list[str]:
        """Return the runs that have cgroups, also those that an earlier daemon has left."""

    def close(self) -> None:
        """Remove what is not in use: the daemon ends."""


class NoGroups:
    """No cgroups: nothing is enforced or measured, and runs are found by their marks and sessions."""

    enforced: frozenset[str] = frozenset()
    usable = False

    def members(self, run: str) -> list[int]:  # noqa: ARG002
        return []

    def kill(self, run: str) -> None:
        """Do nothing."""

    def limit(self, place: GroupPlace) -> None:
        """Do nothing."""

    def usage(self, run: str) -> Sequence[InstanceUsage]:  # noqa: ARG002
        return []

    def remove(self, run: str) -> None:
        """Do nothing."""

    def runs(self) -> list[str]:
        return []

    def close(self) -> None:
        """Do nothing."""


NO_GROUPS = NoGroups()


def group_name(mark: str) -> str:
    """Return the name of a run among cgroups."""
    return hashlib.sha256(mark.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def limits_of(share: Share) -> ResourceLimits:
    """Return the limits of an instance: what it was given. What it did not request is not limited."""
    return ResourceLimits(share.cpu_milli, share.memory_mib)


def total_usage(usage: Sequence[InstanceUsage]) -> RunUsage:
    seconds = [one.cpu_seconds for one in usage if one.cpu_seconds is not None]
    peaks = [one.peak_memory_mib for one in usage if one.peak_memory_mib is not None]
    killed = any(one.oom_kills for one in usage)
    return RunUsage(round(sum(seconds), 3) if seconds else None, max(peaks, default=None), killed)


def describe_limits(groups: RunGroups) -> str:
    """Say which requests are enforced."""
    match sorted(groups.enforced):
        case ["cpus", "memory"]:
            return "enforced"
        case ["cpus"]:
            return "CPUs enforced"
        case ["memory"]:
            return "memory enforced"
        case _:
            return "counted"


def out_of_memory_text(limits: ResourceLimits) -> str:
    """Say why the kernel killed a process. Without a limit, it was not the job alone that used all memory."""
    if limits.memory_mib:
        return f"out of memory: a process was killed at the limit of {format_memory(limits.memory_mib)}"
    return "out of memory: the machine had none left, and a process was killed"
