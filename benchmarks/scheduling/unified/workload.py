"""A workload: cluster, jobs and costs, by draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import msgspec
import numpy as np

from benchmarks.scheduling import testbed
from benchmarks.scheduling.unified.targets import Target
from refold.model import MINUTE, Cluster, Job, Seconds
from refold.placement import FreeResources
from refold.simulator import Costs, MeasuredSpeeds

RESTART: Seconds = 78.0
COSTS = Costs(restart=RESTART)
MAX_SHIFT: Seconds = MINUTE
"""In further draws of a slice, each submission is up to this much earlier or later."""


class Setup(NamedTuple):
    """What is simulated. `charge`: measured speeds of jobs; None: durations as recorded.

    Start estimates are measured for jobs that are submitted at `estimates_from` or later; None: not at all.
    """

    cluster: Cluster
    jobs: tuple[Job, ...]
    costs: Costs = COSTS
    charge: MeasuredSpeeds | None = None
    estimates_from: Seconds | None = None


class Variant(NamedTuple):
    """A policy with other settings, or with jobs that may be stopped at most so many times."""

    policy: str
    settings: Mapping[str, Any] = {}
    restarts_at_most: int | None = None


RESTARTS_AT_MOST = 10
"""How often `refold` restarts a job at most."""

WITHOUT_FAIR_SHARE = "refold-without-fair-share"

VARIANTS = {
    "las-10-restarts": Variant("las", restarts_at_most=RESTARTS_AT_MOST),
    "easy-shortest": Variant("easy", {"order": "shortest"}),
    WITHOUT_FAIR_SHARE: Variant("refold", {"fair_share": 0.0}),
}
"""Variants by the names under which they stand in tables."""


def variant_of(name: str) -> Variant:
    """Return a variant, or the policy of that name as it is."""
    return VARIANTS.get(name, Variant(name))


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload with the policies that run on it and the targets of `refold`.

    `setup` returns the workload of a draw; None: nothing is simulated, but decisions on a large cluster are timed.
    `settings` are further settings of policies. `quick`: it is part of `--quick`.
    """

    name: str
    setup: Callable[[int], Setup] | None
    draws: int
    policies: tuple[str, ...]
    targets: tuple[Target, ...]
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    quick: bool = False


def feasible(jobs: Sequence[Job], cluster: Cluster) -> list[Job]:
    """Return the jobs that fit the empty cluster."""
    free = FreeResources(cluster)
    return [job for job in jobs if free.fits_when_empty(job.demand)]


def shifted(jobs: Sequence[Job], draw: int) -> tuple[Job, ...]:
    """Return the jobs with each submission moved by up to MAX_SHIFT; draw 0: the jobs as they are."""
    if draw == 0:
        return tuple(jobs)
    shifts = np.random.default_rng(draw).uniform(-MAX_SHIFT, MAX_SHIFT, len(jobs)).tolist()
    moved = [
        msgspec.structs.replace(job, submitted=max(0.0, job.submitted + shift))
        for job, shift in zip(jobs, shifts, strict=True)
    ]
    return tuple(sorted(moved, key=lambda job: job.submitted))


@cache
def measured_speeds(cluster: Cluster) -> MeasuredSpeeds:
    """Return the measured speeds of Rubick's testbed."""
    return testbed.charged_speeds(cluster)
