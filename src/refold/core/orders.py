"""Instructions to a back end, in the imperative."""

from __future__ import annotations

import msgspec

from refold.model import Allocation


class StartRun(msgspec.Struct, gc=False, frozen=True, tag=True):
    """Start the `run`-th run of `job` on this allocation."""

    job: str
    run: int
    allocation: Allocation


class StopRun(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, tag=True):
    """Have this run save what it has and end; report when it has."""

    job: str
    run: int
    why: str = ""


Order = StartRun | StopRun
