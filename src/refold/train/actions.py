"""What the supervisor of a run lets its agent do."""

from __future__ import annotations

import msgspec

from refold.model import ChangeAnswer, Plan
from refold.train.messages import ToRank


class StartRank(msgspec.Struct, frozen=True):
    """Start a rank as process number `process`; `devices` replaces CUDA_VISIBLE_DEVICES if it is not None."""

    process: int
    rank: int
    ranks: int
    devices: str | None


class Send(msgspec.Struct, frozen=True):
    """Send a message to a process."""

    process: int
    message: ToRank


class SignalRank(msgspec.Struct, frozen=True):
    """Send a signal to a process."""

    process: int
    number: int


class Announce(msgspec.Struct, frozen=True):
    """Let the back end know that the run can be changed."""


class Answer(msgspec.Struct, frozen=True):
    """Answer a request of the back end."""

    answer: ChangeAnswer


class Report(msgspec.Struct, frozen=True):
    """Report the progress of the training: finished steps, and the loss and speed of the last ones if known.

    `plan`: the plan in use, if it is not the requested one.
    """

    steps: int
    loss: float | None = None
    samples_per_second: float | None = None
    plan: Plan | None = None


class Log(msgspec.Struct, frozen=True):
    """Print a line to the log of the run."""

    text: str


class Exit(msgspec.Struct, frozen=True):
    """End the agent; all ranks have ended."""

    status: int


Action = StartRank | Send | SignalRank | Announce | Answer | Report | Log | Exit
