"""The answer of a policy: what to change now. Jobs that a decision does not mention stay as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from refold.model.allocation import Allocation
from refold.model.run import Run
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
    """Stop a running job and restart it at once on another allocation, of resources that are free or its own."""

    job: str
    allocation: Allocation
    why: str = ""


class End(msgspec.Struct, gc=False, frozen=True):
    """Terminate a running job: it stops and is not queued again. `why` is shown to its owner."""

    job: str
    why: str


class Flag(msgspec.Struct, gc=False, frozen=True):
    """Warn about a running job: `why` says what is wrong, and what will happen if it persists."""

    job: str
    why: str


class StartEstimate(msgspec.Struct, gc=False, frozen=True, omit_defaults=True):
    """When a waiting job is expected to start: at `at`, and with high probability from `soonest` to `latest`.

    `latest` is an upper bound that 95 of 100 jobs meet.
    """

    job: str
    at: Seconds
    soonest: Seconds | None = None
    latest: Seconds | None = None


class HasRuns(Protocol):
    """The part of a `View` that `Decision.towards` uses: the current run of each job that has one."""

    @property
    def runs(self) -> Mapping[str, Run]: ...


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

    @staticmethod
    def towards(view: HasRuns, target: Mapping[str, Allocation], why: str = "") -> Decision:
        """Return the changes from the current allocations to `target`, which has every job that should run.

        Runs that are already stopping are left alone: pass the same target again once they have stopped.
        """
        held = {job: run.allocation for job, run in view.runs.items() if not run.stopping}
        return Decision(
            starts=tuple(Start(job, wanted) for job, wanted in target.items() if job not in view.runs),
            stops=tuple(Stop(job, why) for job in held if job not in target),
            reshapes=tuple(
                Reshape(job, wanted, why) for job, wanted in target.items() if job in held and held[job] != wanted
            ),
        )


NO_CHANGE = Decision()
"""The empty decision."""
