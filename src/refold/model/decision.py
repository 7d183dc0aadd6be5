"""The answer of a policy: what to change now. Jobs that a decision does not mention stay as they are."""

from __future__ import annotations

from typing import Literal

import msgspec

from refold.model.allocation import Allocation
from refold.model.units import Seconds
from refold.model.waiting import Wait


class Start(msgspec.Struct, gc=False, frozen=True):
    """Start a waiting job on an allocation that is free now."""

    job: str
    allocation: Allocation


class Stop(msgspec.Struct, gc=False, frozen=True, omit_defaults=True):
    """Preempt a running job: it stops and is queued again. `why` is shown to users."""

    job: str
    why: str = ""


class Reshape(msgspec.Struct, gc=False, frozen=True, omit_defaults=True):
    """Stop a running job and restart it at once on another allocation, of resources that are free or its own.

    `profiling`: for how many seconds of the next run its purpose is to measure its speed; 0: it has no such purpose.
    """

    job: str
    allocation: Allocation
    why: str = ""
    profiling: Seconds = 0.0


class End(msgspec.Struct, gc=False, frozen=True):
    """Terminate a running job: it stops and is not queued again. `why` is shown to its owner."""

    job: str
    why: str


FlagRule = Literal["no progress", "time limit", "unusual run time"]
"""What a flag is about: a run makes no progress, is beyond its time limit, or far beyond its predicted run time."""


class Flag(msgspec.Struct, gc=False, frozen=True, omit_defaults=True):
    """Warn about a running job: `why` says what is wrong, and what will happen if it persists.

    `rule`: the watch rule that the run violates.
    """

    job: str
    why: str
    rule: FlagRule = "no progress"


class StartEstimate(msgspec.Struct, gc=False, frozen=True, omit_defaults=True):
    """When a waiting job is expected to start: at `at`, and with high probability from `soonest` to `latest`.

    `latest` is an upper bound that 95 of 100 jobs meet.
    """

    job: str
    at: Seconds
    soonest: Seconds | None = None
    latest: Seconds | None = None


class Decision(msgspec.Struct, gc=False, frozen=True, omit_defaults=True):
    """What to change now, why jobs wait, when they are expected to start, and when to call the policy again."""

    starts: tuple[Start, ...] = ()
    stops: tuple[Stop, ...] = ()
    reshapes: tuple[Reshape, ...] = ()
    waits: tuple[Wait, ...] = ()
    start_estimates: tuple[StartEstimate, ...] = ()
    wake_at: Seconds | None = None
    flags: tuple[Flag, ...] = ()
    ends: tuple[End, ...] = ()


NO_CHANGE = Decision()
"""The empty decision."""
