"""Facts, in the past tense. A fact about a run names it; one that names an older run is late and changes nothing."""

from __future__ import annotations

import msgspec

from refold.model import Allocation, Job, Reason, Seconds


class JobSubmitted(msgspec.Struct, gc=False, frozen=True, tag=True):
    """Somebody asked for something."""

    job: Job


class JobCancelled(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, tag=True):
    """Somebody does not want it any more."""

    job: str
    why: str = ""


class JobHeld(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, tag=True):
    """Nobody is to look at a job until it is released; if it runs, it stops first."""

    job: str
    reason: Reason = Reason.HELD


class JobReleased(msgspec.Struct, gc=False, frozen=True, tag=True):
    """A job that was held waits like others again, as the last of them."""

    job: str


class JobContinued(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, tag=True):
    """A job has this behind it from before the journal began."""

    job: str
    runs: int = 0
    done: Seconds = 0.0
    steps: int = 0
    gpu_seconds: float = 0.0


class PastJob(msgspec.Struct, gc=False, frozen=True, tag=True):
    """A job that was over before the journal began had lasted so long."""

    job: Job
    lasted: Seconds


class RunAdopted(msgspec.Struct, gc=False, frozen=True, tag=True):
    """A run of a job that is known was going on when the journal began."""

    job: str
    run: int
    allocation: Allocation
    since: Seconds


class RunRecalled(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, tag=True):
    """A run has to stop for a reason that is not the policy's, and its job to wait again: its node is drained."""

    job: str
    run: int
    why: str = ""


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
    """A run has ended by itself without finishing. With `retry` its job waits again, having `done` so much.

    `exit_code`: as a shell tells it, if it was a process that ended.
    """

    job: str
    run: int
    why: str = ""
    done: Seconds = 0.0
    retry: bool = False
    steps: int | None = None
    exit_code: int | None = None


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
    | JobHeld
    | JobReleased
    | JobContinued
    | PastJob
    | RunAdopted
    | RunRecalled
    | NodeLost
    | NodeReturned
    | Woke
)
