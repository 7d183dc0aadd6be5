"""Facts, in the past tense. A fact about a run names it; one that names an older run is late and changes nothing."""

from __future__ import annotations

import msgspec

from refold.model import Job
from refold.model.units import Seconds


class JobSubmitted(msgspec.Struct, gc=False, frozen=True, tag=True):
    """Somebody asked for something."""

    job: Job


class JobCancelled(msgspec.Struct, gc=False, frozen=True, tag=True):
    """Somebody does not want it any more."""

    job: str


class RunStarted(msgspec.Struct, gc=False, frozen=True, tag=True):
    """A run has begun to compute; until then it was starting up."""

    job: str
    run: int


class RunProgressed(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, tag=True):
    """A job has done so much of its work in all, and would keep it if it stopped now; `steps`, if it counts them."""

    job: str
    run: int
    done: Seconds = 0.0
    steps: int | None = None


class RunStopped(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, tag=True):
    """A run has ended because it was told to; its job has `done` so much of its work and can go on later."""

    job: str
    run: int
    done: Seconds = 0.0
    steps: int | None = None


class RunFinished(msgspec.Struct, gc=False, frozen=True, tag=True):
    """A run has ended, and its job with it: the work is done."""

    job: str
    run: int


class RunFailed(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, tag=True):
    """A run has ended by itself without finishing. With `retry` its job waits again, having `done` so much."""

    job: str
    run: int
    why: str = ""
    done: Seconds = 0.0
    retry: bool = False
    steps: int | None = None


class NodeLost(msgspec.Struct, gc=False, frozen=True, tag=True):
    """A node takes no more work. What becomes of its runs is reported run by run."""

    node: int


class NodeReturned(msgspec.Struct, gc=False, frozen=True, tag=True):
    """A node takes work again."""

    node: int


class Woke(msgspec.Struct, gc=False, frozen=True, tag=True):
    """The moment has come that a policy asked to be woken at."""


Event = (
    JobSubmitted
    | RunFinished
    | RunStopped
    | RunStarted
    | RunProgressed
    | RunFailed
    | JobCancelled
    | NodeLost
    | NodeReturned
    | Woke
)
