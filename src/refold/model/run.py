"""One attempt of a job on one allocation. Every report names its run, so that late reports can be recognised."""

from __future__ import annotations

import msgspec

from refold.model.allocation import Allocation
from refold.model.units import Seconds


class Run(msgspec.Struct, gc=False, frozen=True, omit_defaults=True):
    """The `number`-th run of `job` (from 1), ordered at `since`; `stopping` once its stop has been ordered."""

    job: str
    number: int
    allocation: Allocation
    since: Seconds
    stopping: bool = False
