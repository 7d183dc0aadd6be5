"""Orders: instructions to a back end."""

from __future__ import annotations

import msgspec

from refold.model import Allocation


class StartRun(msgspec.Struct, gc=False, frozen=True, tag=True):
    """Start the `run`-th run of `job` on an allocation."""

    job: str
    run: int
    allocation: Allocation


class StopRun(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, tag=True):
    """Stop a run, after it has saved its progress; the back end reports when it has ended."""

    job: str
    run: int
    why: str = ""


Order = StartRun | StopRun
