"""One attempt of a job on one allocation. Every report names its run, so a late report is seen to be late."""

from __future__ import annotations

import msgspec

from refold.model.allocation import Allocation
from refold.model.units import Seconds


class Run(msgspec.Struct, gc=False, frozen=True, omit_defaults=True):
    """The `number`-th attempt of `job`, ordered at `since`; `stopping` once it has been told to stop."""

    job: str
    number: int
    allocation: Allocation
    since: Seconds
    stopping: bool = False
