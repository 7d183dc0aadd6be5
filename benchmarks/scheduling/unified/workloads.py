"""The workloads: cluster, jobs and costs of each, by draw.

Slices have 3,000 jobs. Settings are tuned on `TUNING_SLICES` (`--tuning`) and reported on `SLICES`; the two have no job
in common. Draw 0 is the trace as it is. In further draws of a slice, submissions are moved at random; in further draws
of Rubick's trace, the same jobs are assigned to the same submission times in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, NamedTuple

import msgspec
import numpy as np

from benchmarks.scheduling import runs, testbed, variants
from benchmarks.scheduling.unified.targets import Target
from benchmarks.workloads import HELIOS, PHILLY, trace_slice
from refold.model import MINUTE, Cluster, Job, Seconds
from refold.packing import FreeResources
from refold.simulator import Costs, SpeedModel
from refold.traces import read_cluster

SLICE_JOBS = 3_000
RESTART: Seconds = 78.0
MAX_SHIFT: Seconds = 30 * MINUTE
"""In further draws of a slice, each submission is up to this much earlier or later."""


class Setup(NamedTuple):
    """What is simulated. `charge`: the speeds of jobs; None: durations as recorded."""

    cluster: Cluster
    jobs: tuple[Job, ...]
    costs: Costs
    charge: SpeedModel | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload with the policies that run on it and the targets of `refold`.

    `setup` returns the workload of a draw; `settings` are further settings of policies.
    """

    name: str
    setup: Callable[[int], Setup]
    draws: int
    policies: tuple[str, ...]
    targets: tuple[Target, ...]
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    quick: bool = False
    """Whether it is part of `--quick`."""


# --- slices of Philly and Helios ----------------------------------------------------------------------------


class TraceSlices(NamedTuple):
    """A trace and a cluster that is short of GPUs for most of its slices, which begin with these job numbers."""

    file: str
    nodes: str
    reported: tuple[int, ...]
    tuning: tuple[int, ...]


SLICES = {
    "philly": TraceSlices(PHILLY, "40x8", (35_000, 10_000, 50_000, 56_000), (20_000, 25_000, 30_000)),
    "helios": TraceSlices(HELIOS, "64x8", (60_000, 40_000, 80_000, 100_000), (13_000, 20_000, 90_000)),
}
"""The first slice of each is that of the study from which the targets come, and has its own targets."""


def slice_setup(trace: str, first: int, draw: int, *, preemptible: bool = True) -> Setup:
    """Return a slice of rigid jobs."""
    slices = SLICES[trace]
    cluster = read_cluster(slices.nodes)
    free = FreeResources(cluster)
    jobs = [job for job in trace_slice(slices.file, first, SLICE_JOBS) if free.fits_when_empty(job.demand)]
    moved = shifted([msgspec.structs.replace(job, preemptible=preemptible) for job in jobs], draw)
    return Setup(cluster, moved, Costs(restart=RESTART))


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


PREEMPTING_BASELINES = ("fifo-skip", "easy", "las", "srtf")
FIRST_TARGETS = {
    "philly": (Target("delay", at_most=0.30), Target("wide_delay", at_most=0.1)),
    "helios": (Target("delay", at_most=0.16), Target("wide_delay", at_most=0.45)),
}
TARGETS_OF_OTHER_SLICES = (Target("delay", before=True), Target("wide_delay", before=True))
TARGETS_OF_ALL_SLICES = (Target("delay_p99", before=True), Target("restarts", at_most=10))
WITHOUT_PREEMPTION = (
    Target("delay", below=("fifo-skip", "easy")),
    Target("wide_delay_p99", below=("fifo",)),
)


def _slice_workloads(trace: str, tuning: bool) -> list[Workload]:
    slices = SLICES[trace]
    found = []
    for first in slices.tuning if tuning else slices.reported:
        is_first = first == slices.reported[0]
        own = FIRST_TARGETS[trace] if is_first else TARGETS_OF_OTHER_SLICES
        setup = partial(slice_setup, trace, first)
        found.append(
            Workload(
                f"{trace}-{first}",
                setup,
                5,
                ("refold", *PREEMPTING_BASELINES),
                (*own, *TARGETS_OF_ALL_SLICES),
                quick=is_first,
            )
        )
        found.append(
            Workload(
                f"no-preemption-{trace}-{first}",
                partial(setup, preemptible=False),
                5,
                ("refold", "fifo", "fifo-skip", "easy"),
                WITHOUT_PREEMPTION,
                quick=is_first,
            )
        )
    return found


# --- Rubick's trace -----------------------------------------------------------------------------------------

FIRST_TUNING_DRAW = 100
"""Draws of Rubick's trace from this number on are for tuning."""


@cache
def _charge(cluster: Cluster) -> SpeedModel:
    return testbed.charged_speeds(cluster)


def rubick_setup(draw: int, *, large: float | None = None, reshapable: bool = True, first: int = 0) -> Setup:
    """Return Rubick's trace with 78 s restarts, with the given share of large models and reshapable or rigid jobs."""
    cluster = testbed.cluster()
    jobs: tuple[Job, ...] = testbed.jobs("random-plan")
    if large is not None:
        jobs = variants.with_large_share(jobs, large, _charge(cluster), first + draw)
    else:
        jobs = variants.permuted(jobs, first + draw)
    if not reshapable:
        jobs = tuple(msgspec.structs.replace(job, reshapable=False) for job in jobs)
    return Setup(cluster, jobs, Costs(restart=RESTART, report_every=runs.REPORT_SECONDS), _charge(cluster))


def _rubick_workloads(tuning: bool) -> list[Workload]:
    setup = partial(rubick_setup, first=FIRST_TUNING_DRAW if tuning else 0)
    absolute = (
        Target("mean", at_most=0.13),
        Target("median", at_most=15),
        Target("p99", at_most=2.2),
        Target("makespan", below=("rubick",)),
    )
    relative = (Target("mean", below=("rubick",), factor=0.95),)
    return [
        Workload("rubick", setup, 10, ("refold", "rubick", "srtf", "las"), absolute, quick=True),
        *(
            Workload(
                f"rubick-large-{share:.0%}".removesuffix("%"),
                partial(setup, large=share),
                4,
                ("refold", "rubick", "srtf", "las"),
                relative,
                quick=True,
            )
            for share in (0.0, 0.1)
        ),
        Workload(
            "rubick-rigid",
            partial(setup, reshapable=False),
            5,
            ("refold", "srtf", "las", "fifo-skip"),
            (Target("mean", below=("srtf",), factor=1.1),),
            settings={"refold": {"trust_steps": False}},
            quick=True,
        ),
    ]


def workloads(tuning: bool = False) -> dict[str, Workload]:
    """Return the workloads by name: those to report or those for tuning."""
    found = [*_rubick_workloads(tuning), *_slice_workloads("philly", tuning), *_slice_workloads("helios", tuning)]
    return {workload.name: workload for workload in found}
