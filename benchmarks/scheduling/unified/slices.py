"""Slices of Philly and Helios: 3,000 rigid jobs, with and without preemption.

Settings are tuned on the slices `tuning` and reported on `reported`; they have no job in common.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import msgspec

from benchmarks.scheduling.unified.targets import Target
from benchmarks.scheduling.unified.workload import Setup, Workload, feasible, shifted
from benchmarks.workloads import HELIOS, PHILLY, trace_slice
from refold.model import Cluster, Job
from refold.simulator.traces import read_cluster

SLICE_JOBS = 3_000
DRAWS = 5


class TraceSlices(NamedTuple):
    """A trace and a cluster that is short of GPUs for most of its slices, which begin with these job numbers."""

    file: str
    nodes: str
    reported: tuple[int, ...]
    tuning: tuple[int, ...]

    @property
    def cluster(self) -> Cluster:
        """The cluster on which the slices run."""
        return read_cluster(self.nodes)

    def jobs(self, first: int) -> list[Job]:
        """Return the jobs of a slice that fit the cluster."""
        return feasible(trace_slice(self.file, first, SLICE_JOBS), self.cluster)


SLICES = {
    "philly": TraceSlices(PHILLY, "40x8", (35_000, 10_000, 50_000, 56_000), (20_000, 25_000, 30_000)),
    "helios": TraceSlices(HELIOS, "64x8", (60_000, 40_000, 80_000, 100_000), (13_000, 20_000, 90_000)),
}
"""The first slice of each is that of the study from which the targets come, and has its own targets."""

FIRST_TARGETS = {
    "philly": (Target("delay", at_most=0.30), Target("wide_delay", at_most=0.1)),
    "helios": (Target("delay", at_most=0.16), Target("wide_delay", at_most=0.45)),
}
TARGETS_OF_OTHER_SLICES = (Target("delay", before=True, strict=True), Target("wide_delay", before=True, strict=True))
TARGETS_OF_ALL_SLICES = (Target("delay_p99", before=True), Target("restarts", at_most=10, worst_draw=True))
TARGETS_WITHOUT_PREEMPTION = (
    Target("delay", no_worse_than=("fifo-skip", "easy", "easy-shortest"), factor=0.9),
    Target("wide_delay_p99", no_worse_than=("fifo",)),
    Target("longest", no_worse_than=("easy",), factor=1.1),
)


def slice_setup(trace: str, first: int, draw: int, *, preemptible: bool = True) -> Setup:
    """Return a slice of rigid jobs."""
    slices = SLICES[trace]
    jobs = [msgspec.structs.replace(job, preemptible=preemptible) for job in slices.jobs(first)]
    return Setup(slices.cluster, shifted(jobs, draw))


def slice_workloads(tuning: bool) -> list[Workload]:
    """Return the slices with preemption, then those without."""
    chosen = [
        (trace, first) for trace, slices in SLICES.items() for first in (slices.tuning if tuning else slices.reported)
    ]
    return [_with_preemption(*one) for one in chosen] + [_without_preemption(*one) for one in chosen]


def _with_preemption(trace: str, first: int) -> Workload:
    is_first = first == SLICES[trace].reported[0]
    own = FIRST_TARGETS[trace] if is_first else TARGETS_OF_OTHER_SLICES
    return Workload(
        f"{trace}-{first}",
        partial(slice_setup, trace, first),
        DRAWS,
        ("refold", "fifo-skip", "easy", "las", "las-10-restarts", "srtf"),
        (*own, *TARGETS_OF_ALL_SLICES),
        quick=is_first,
    )


def _without_preemption(trace: str, first: int) -> Workload:
    return Workload(
        f"no-preemption-{trace}-{first}",
        partial(slice_setup, trace, first, preemptible=False),
        DRAWS,
        ("refold", "fifo", "fifo-skip", "easy", "easy-shortest"),
        TARGETS_WITHOUT_PREEMPTION,
        quick=first == SLICES[trace].reported[0],
    )
