"""Why a job waits: one reason from a closed list, with counts. Waiting is data, not an error."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Reason(StrEnum):
    """The closed list. The words are what `refold queue` prints in brackets."""

    AHEAD = "Ahead"  # others are before it in the queue
    RESOURCES = "Resources"  # no place for it now
    INFEASIBLE = "Infeasible"  # no place for it even in an empty cluster
    RESERVED = "Reserved"  # there is room now, but others before it are promised it
    RELEASING = "Releasing"  # its place is being given back by runs that are stopping
    HELD = "Held"  # somebody has said that it is to wait until it is released
    DEPENDENCY = "Dependency"  # it waits for other jobs to finish
    BACKOFF = "Backoff"  # it has failed, and is tried again after a pause
    LIMIT = "Limit"  # its tenant uses as many GPUs as it may
    NOT_LOOKED_AT = "NotLookedAt"  # the policy has not come to it yet


class Shortage(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Room for how many of the instances, and how many nodes lack what for one of them.

    Each node is counted once, under the first thing it lacks.
    """

    instances: int = 1
    room: int = 0
    nodes: int = 0
    fit: int = 0
    down: int = 0
    wrong_type: int = 0
    too_small: int = 0
    few_gpus: int = 0
    few_cpus: int = 0
    little_memory: int = 0
    at_power_limit: int = 0

    def text(self, gpus: str) -> str:
        """'0 of 12 nodes fit: 7 × less than 8 GPUs free, 4 × another GPU type, 1 × down'."""
        lacks = (
            (self.few_gpus, f"less than {gpus} free"),
            (self.wrong_type, "another GPU type"),
            (self.too_small, "too few GPUs at all"),
            (self.few_cpus, "too few free CPUs"),
            (self.little_memory, "too little free memory"),
            (self.at_power_limit, "rack at its power limit"),
            (self.down, "down"),
        )
        why = ", ".join(f"{count} × {what}" for count, what in lacks if count)
        gang = f"room for {self.room} of {self.instances} instances, " if self.instances > 1 else ""
        return f"{gang}{self.fit} of {self.nodes} nodes fit" + (f": {why}" if why else "")


class Wait(msgspec.Struct, gc=False, frozen=True, omit_defaults=True):
    """That a job waits, and why; `ahead` counts jobs, `shortage` counts nodes."""

    job: str
    reason: Reason
    ahead: int = 0
    shortage: Shortage | None = None
