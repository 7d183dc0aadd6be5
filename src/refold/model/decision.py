"""What a policy says: what should change now. Silence means keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from refold.model.allocation import Allocation
from refold.model.run import Run
from refold.model.units import Seconds
from refold.model.waiting import Wait


class Start(msgspec.Struct, gc=False, frozen=True):
    """Start a waiting job on this allocation, which is free now."""

    job: str
    allocation: Allocation


class Stop(msgspec.Struct, gc=False, frozen=True, omit_defaults=True):
    """Stop a running job; it goes back to waiting. `why` is for people."""

    job: str
    why: str = ""


class Reshape(msgspec.Struct, gc=False, frozen=True, omit_defaults=True):
    """Stop a running job and start it again, at once, on another allocation, which is free now or its own."""

    job: str
    allocation: Allocation
    why: str = ""


class End(msgspec.Struct, gc=False, frozen=True):
    """Stop a running job for good: it does not wait again. `why` is for its owner."""

    job: str
    why: str


class Flag(msgspec.Struct, gc=False, frozen=True):
    """Something is wrong with a running job, and what will come of it if it stays so."""

    job: str
    why: str


class StartEstimate(msgspec.Struct, gc=False, frozen=True, omit_defaults=True):
    """When a waiting job may start: probably `at`; hardly ever before `soonest`, or after `latest`, which is a promise.

    `latest` holds for 95 of 100 jobs.
    """

    job: str
    at: Seconds
    soonest: Seconds | None = None
    latest: Seconds | None = None


class Holdings(Protocol):
    """What `Decision.towards` needs to know of a View: the run of every job that has one."""

    @property
    def runs(self) -> Mapping[str, Run]: ...


class Decision(msgspec.Struct, gc=False, frozen=True, omit_defaults=True):
    """Changes, reasons and when to ask again."""

    starts: tuple[Start, ...] = ()
    stops: tuple[Stop, ...] = ()
    reshapes: tuple[Reshape, ...] = ()
    waits: tuple[Wait, ...] = ()
    start_estimates: tuple[StartEstimate, ...] = ()
    wake_at: Seconds | None = None
    flags: tuple[Flag, ...] = ()
    ends: tuple[End, ...] = ()

    @staticmethod
    def towards(view: Holdings, target: Mapping[str, Allocation], why: str = "") -> Decision:
        """The changes that lead from what is held now to `target`, which names every job that should be running.

        A run that is stopping already is left to it: say the same again when it has stopped.
        """
        held = {job: run.allocation for job, run in view.runs.items() if not run.stopping}
        return Decision(
            starts=tuple(Start(job, wanted) for job, wanted in target.items() if job not in view.runs),
            stops=tuple(Stop(job, why) for job in held if job not in target),
            reshapes=tuple(
                Reshape(job, wanted, why) for job, wanted in target.items() if job in held and held[job] != wanted
            ),
        )


KEEP = Decision()
"""Nothing should change."""
