"""What a job uses over time, as the API shows it."""

from __future__ import annotations

import msgspec


class UseSample(msgspec.Struct, frozen=True):
    """What a job used at a time. `cpus`: on average over ten seconds. `utilisation`: of its GPUs, in percent.

    `samples_per_second` and `loss`: as the job last reported them. null: not measured.
    """

    at: float
    cpus: float | None = None
    memory_mib: int | None = None
    utilisation: float | None = None
    samples_per_second: float | None = None
    loss: float | None = None


class JobUse(msgspec.Struct, frozen=True):
    """What a job has used since it started, or since the daemon did."""

    samples: list[UseSample]
