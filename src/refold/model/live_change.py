"""What a back end and the agent of a run tell each other when processes are to continue under another plan."""

from __future__ import annotations

from typing import Literal

import msgspec

from refold.model.plan import Plan
from refold.model.units import Seconds

ChangeWay = Literal["live", "warm", "cold"]
"""How a plan was changed: processes stayed, new processes with state in memory, or restarted from a checkpoint."""


class ChangeRequest(msgspec.Struct, frozen=True):
    """Train with another plan, as run `run`.

    `devices`: the new value of CUDA_VISIBLE_DEVICES; None: there are no GPUs, or they stay the same. `way`: a live
    change keeps processes where it can, a warm one replaces all of them.
    """

    run: int
    plan: Plan
    devices: str | None = None
    way: Literal["live", "warm"] = "live"


class ChangeAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to the request for run `run`: the plan in use from `step` on; or `error`, if it was not carried out.

    `phases`: seconds without training, by phase. `why`: why the plan is not the requested one. `way`: how the plan was
    changed, whatever was requested.
    """

    run: int
    plan: Plan | None = None
    step: int | None = None
    phases: dict[str, Seconds] = {}
    why: str = ""
    error: str = ""
    way: ChangeWay = "live"

    def __post_init__(self) -> None:
        if (self.plan is None) is not bool(self.error):
            raise ValueError("an answer has either a plan or an error")
