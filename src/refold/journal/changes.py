"""Changes: what an entry of a journal changed about jobs, runs and nodes, without late and duplicate reports."""

from __future__ import annotations

import msgspec

from refold.journal.records import JobRecord, RunRecord
from refold.model import FlagRule, Plan, Reason, Seconds


class Submitted(msgspec.Struct, frozen=True):
    record: JobRecord


class Held(msgspec.Struct, frozen=True):
    """A job was held, or will be when its current run has ended. `run`: number of that run, 0 if there is none."""

    record: JobRecord
    reason: Reason
    run: int


class Released(msgspec.Struct, frozen=True):
    """The hold of a job, or its pending hold, was removed. `run`: number of its current run, 0 if there is none."""

    record: JobRecord
    run: int


class Cancelled(msgspec.Struct, frozen=True):
    """A job was cancelled: by a user, or for the reason `why`. If it runs, it ends with its run."""

    record: JobRecord
    why: str


class Placed(msgspec.Struct, frozen=True):
    """A run was ordered to start, or was adopted."""

    record: JobRecord
    run: RunRecord


class RunBegan(msgspec.Struct, frozen=True):
    """A run reported that it computes."""

    record: JobRecord
    run: RunRecord


class PlanReplaced(msgspec.Struct, frozen=True):
    """A run uses another plan than the one that was ordered, because its job cannot use that."""

    record: JobRecord
    run: RunRecord
    ordered: Plan


class StopOrdered(msgspec.Struct, frozen=True):
    """A run was ordered to stop. `ends_job`: the policy ends the job with it."""

    record: JobRecord
    run: RunRecord
    why: str
    ends_job: bool


class Flagged(msgspec.Struct, frozen=True):
    """A run violates a watch rule."""

    record: JobRecord
    why: str
    run: int
    rule: FlagRule


class RunEnded(msgspec.Struct, frozen=True):
    """A run has ended. `requeued`: its job waits again; otherwise its end follows."""

    record: JobRecord
    run: RunRecord
    requeued: bool


class JobEnded(msgspec.Struct, frozen=True):
    """A job has ended, as its state says. Its record does not change any more."""

    record: JobRecord


class NodeChange(msgspec.Struct, frozen=True):
    """A node, or one of its GPUs, went down or came up. `why`: the reason why it went down, if one was given.

    `drained`: it was taken out of service: drained, or not in the cluster.
    """

    at: Seconds
    node: int
    up: bool
    gpu: int | None = None
    why: str = ""
    drained: bool = False


JobChange = (
    Submitted
    | Held
    | Released
    | Cancelled
    | Placed
    | RunBegan
    | PlanReplaced
    | StopOrdered
    | Flagged
    | RunEnded
    | JobEnded
)
Change = JobChange | NodeChange
