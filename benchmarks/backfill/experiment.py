"""The workloads and policy configurations of the experiment.

The trace slices come after those used to tune the policy settings: jobs 0 to 15,000 of Helios and PAI, and 20,000 to
35,000 of Philly.
"""

from __future__ import annotations

from math import ceil

import msgspec
import numpy as np

from benchmarks.workloads import HELIOS, PAI, PHILLY, PHILLY_NODES, TRACES, missing, trace_slice
from refold.core import Policy
from refold.model import MINUTE, Cluster, Job
from refold.placement import FreeResources
from refold.simulator.registry import START_ESTIMATES, make_policy
from refold.simulator.traces import read_cluster

JOBS = 20_000
QUICK_JOBS = 2_000
LIMIT_SEED = 1
MAX_OVERESTIMATE = 10.0
"""Time limits are up to this many times the true duration, log-uniformly distributed."""

LIMIT_STEP = 5 * MINUTE
"""Time limits are multiples of this."""


class Slice(msgspec.Struct, frozen=True):
    """Jobs of a trace in order of submission, starting with job number `first`."""

    name: str
    file: str
    first: int


SLICES = {
    one.name: one
    for one in (Slice("Helios", HELIOS, 60_000), Slice("Philly", PHILLY, 35_000), Slice("PAI", PAI, 30_000))
}


class Workload(msgspec.Struct, frozen=True):
    """Jobs on a cluster, arriving `load` times as fast as in the trace. `busy`: the cluster is short of GPUs."""

    trace: str
    nodes: str
    busy: bool
    load: float = 1.0
    count: int = JOBS

    @property
    def key(self) -> str:
        """Short name for files."""
        cluster = self.nodes.partition(".")[0]
        return f"{self.trace.lower()}-{cluster}-{self.load:g}-{self.count}"

    @property
    def title(self) -> str:
        """Name for tables and charts."""
        count, _, each = self.nodes.partition("x")
        cluster = f"{count} × {each}" if each else "552 nodes"
        return f"{self.trace}, {cluster}, {self.load:g} ×"

    @property
    def cluster(self) -> Cluster:
        """The cluster on which the jobs run."""
        return read_cluster(TRACES / self.nodes if "." in self.nodes else self.nodes)

    def jobs(self, limits: bool = False) -> tuple[Job, ...]:
        """Return the jobs that fit the empty cluster, with times from the first submission; `limits`: time limits."""
        free = FreeResources(self.cluster)
        part = SLICES[self.trace]
        jobs = [job for job in trace_slice(part.file, part.first, self.count) if free.fits_when_empty(job.demand)]
        time_limits = _draw_limits(jobs) if limits else [None] * len(jobs)
        return tuple(
            msgspec.structs.replace(job, submitted=job.submitted / self.load, time_limit=limit)
            for job, limit in zip(jobs, time_limits, strict=True)
        )


HELIOS_OWN = Workload("Helios", "135x8", False)
HELIOS_BUSY = Workload("Helios", "88x8", True)
PHILLY_OWN = Workload("Philly", PHILLY_NODES, False)
PHILLY_BUSY = Workload("Philly", "88x8", True)
PAI_OWN = Workload("PAI", "69x8", True)
"""The file contains 8.2 % of the tasks, so the cluster has 8.2 % of the 6,742 GPUs. It is busy at the original load."""

LOADS = (1.0, 1.2)
FEWER_JOBS = {("88x8", "Helios", 1.2): 10_000, ("69x8", "PAI", 1.2): 10_000}
"""Number of jobs of workloads with thousands of queued jobs, on which conservative backfill takes minutes."""

WORKLOADS = tuple(
    msgspec.structs.replace(one, load=load, count=FEWER_JOBS.get((one.nodes, one.trace, load), JOBS))
    for one in (HELIOS_BUSY, PHILLY_BUSY, PAI_OWN, HELIOS_OWN, PHILLY_OWN)
    for load in LOADS
)
QUICK = (
    Workload("Helios", "64x8", True, count=QUICK_JOBS),
    Workload("Philly", "40x8", True, count=QUICK_JOBS),
    Workload("PAI", "69x8", True, count=QUICK_JOBS),
)
"""Smaller clusters, because so few jobs would not fill the larger ones."""


class PolicyConfig(msgspec.Struct, frozen=True):
    """A policy with its settings. Runs with a lower `rank` start first, because more of the page depends on them."""

    name: str
    policy: str
    settings: tuple[tuple[str, str], ...] = ()
    rank: int = 1

    @property
    def uses_limits(self) -> bool:
        """Whether the policy uses time limits; other policies get jobs without limits."""
        return ("durations", "limit") in self.settings

    def make(self) -> Policy:
        """Create the policy, with estimates of when waiting jobs start."""
        return make_policy(self.policy, {**dict(self.settings), START_ESTIMATES: True})


def _config(name: str, policy: str, rank: int = 1, **settings: str) -> PolicyConfig:
    return PolicyConfig(name, policy, tuple(settings.items()), rank)


FIFO = _config("fifo", "fifo", rank=0)
SKIP = _config("fifo-skip", "fifo-skip")
EASY = _config("easy, predicted", "easy", rank=0, durations="predicted")
EASY_KNOWN = _config("easy, known", "easy", rank=0, durations="known")
CONSERVATIVE = _config("conservative, predicted", "conservative", rank=0, durations="predicted")
CONSERVATIVE_KNOWN = _config("conservative, known", "conservative", rank=0, durations="known")
SHORTEST = _config("easy, shortest, predicted", "easy", order="shortest", durations="predicted")
SHORTEST_KNOWN = _config("easy, shortest, known", "easy", order="shortest", durations="known")
SJF = _config("sjf, predicted", "sjf", durations="predicted")
SJF_KNOWN = _config("sjf, known", "sjf", durations="known")
EASY_LIMITS = _config("easy, limits", "easy", rank=2, durations="limit")
CONSERVATIVE_LIMITS = _config("conservative, limits", "conservative", rank=3, durations="limit")
NO_PREEMPTION = _config("easy, no preempt, predicted", "easy", durations="predicted", preempt="never")
CONFIGS = (
    FIFO,
    SKIP,
    EASY_LIMITS,
    EASY,
    NO_PREEMPTION,
    EASY_KNOWN,
    CONSERVATIVE_LIMITS,
    CONSERVATIVE,
    CONSERVATIVE_KNOWN,
    SHORTEST,
    SHORTEST_KNOWN,
    SJF,
    SJF_KNOWN,
)
PREDICTED_AND_KNOWN = {
    "easy": (EASY, EASY_KNOWN),
    "conservative": (CONSERVATIVE, CONSERVATIVE_KNOWN),
    "easy, shortest first": (SHORTEST, SHORTEST_KNOWN),
    "sjf": (SJF, SJF_KNOWN),
}
"""The same policy with predicted and with known durations."""


def missing_files() -> str:
    """Return which trace files are not available, as a message; empty if all are."""
    return missing(HELIOS, PHILLY, PAI, PHILLY_NODES)


def _draw_limits(jobs: list[Job]) -> list[float | None]:
    factors = MAX_OVERESTIMATE ** np.random.default_rng(LIMIT_SEED).random(len(jobs))
    return [
        ceil((job.work or 0.0) * float(factor) / LIMIT_STEP) * LIMIT_STEP
        for job, factor in zip(jobs, factors, strict=True)
    ]
