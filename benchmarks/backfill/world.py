"""The workloads and the policies that are compared.

The slices of the traces lie after those by which the policies' settings were chosen: jobs 0 to 15,000 of Helios and
PAI, and 20,000 to 35,000 of Philly.
"""

from __future__ import annotations

from functools import cache
from math import ceil

import msgspec
import numpy as np

from benchmarks.workloads import HELIOS, PAI, PHILLY, PHILLY_NODES, TRACES, missing
from refold.core import Policy
from refold.model import MINUTE, Cluster, Job
from refold.packing import Free
from refold.registry import make_policy
from refold.traces import read_cluster, read_trace

JOBS = 20_000
QUICK_JOBS = 2_000
LIMIT_SEED = 1
OVERSTATED = 10.0
"""Users say limits of up to so many times the true duration, log-uniformly."""

LIMITS_IN = 5 * MINUTE
"""Limits are multiples of this."""


class Slice(msgspec.Struct, frozen=True):
    """Jobs of a trace, by the order of submission, beginning with the `first`."""

    name: str
    file: str
    first: int


SLICES = {
    one.name: one
    for one in (Slice("Helios", HELIOS, 60_000), Slice("Philly", PHILLY, 35_000), Slice("PAI", PAI, 30_000))
}


class Workload(msgspec.Struct, frozen=True):
    """Jobs on a cluster, arriving `load` times as fast as they did. `busy`: on a cluster that is short of GPUs."""

    trace: str
    nodes: str
    busy: bool
    load: float = 1.0
    count: int = JOBS

    @property
    def key(self) -> str:
        """Short, for names of files."""
        cluster = self.nodes.partition(".")[0]
        return f"{self.trace.lower()}-{cluster}-{self.load:g}-{self.count}"

    @property
    def title(self) -> str:
        """For people."""
        count, _, each = self.nodes.partition("x")
        cluster = f"{count} × {each}" if each else "552 nodes"
        return f"{self.trace}, {cluster}, {self.load:g} ×"

    @property
    def cluster(self) -> Cluster:
        """Where the jobs run."""
        return read_cluster(TRACES / self.nodes if "." in self.nodes else self.nodes)

    def jobs(self, limits: bool = False) -> tuple[Job, ...]:
        """The jobs that fit; time 0 is the first submission. With `limits`, users have said how long they may last."""
        free = Free(self.cluster)
        jobs = [job for job in _jobs_of(self.trace, self.count) if free.fits_when_empty(job.demand)]
        said = _limits(jobs) if limits else [None] * len(jobs)
        return tuple(
            msgspec.structs.replace(job, submitted=job.submitted / self.load, time_limit=limit)
            for job, limit in zip(jobs, said, strict=True)
        )


HELIOS_OWN = Workload("Helios", "135x8", False)
HELIOS_BUSY = Workload("Helios", "88x8", True)
PHILLY_OWN = Workload("Philly", PHILLY_NODES, False)
PHILLY_BUSY = Workload("Philly", "88x8", True)
PAI_OWN = Workload("PAI", "69x8", True)
"""The file holds 8.2 % of the tasks, so the cluster is 8.2 % of the 6,742 GPUs; it is busy as it is."""

LOADS = (1.0, 1.2)
FEWER = {("88x8", "Helios", 1.2): 10_000, ("69x8", "PAI", 1.2): 10_000}
"""Where thousands wait at once, and a policy that promises something to each of them takes minutes: so many jobs."""

WORKLOADS = tuple(
    msgspec.structs.replace(one, load=load, count=FEWER.get((one.nodes, one.trace, load), JOBS))
    for one in (HELIOS_BUSY, PHILLY_BUSY, PAI_OWN, HELIOS_OWN, PHILLY_OWN)
    for load in LOADS
)
QUICK = (
    Workload("Helios", "64x8", True, count=QUICK_JOBS),
    Workload("Philly", "40x8", True, count=QUICK_JOBS),
    Workload("PAI", "69x8", True, count=QUICK_JOBS),
)
"""So few jobs would not fill the larger clusters."""


class Contender(msgspec.Struct, frozen=True):
    """A policy with its settings. `rank`: the lowest are run first, as most depends on them."""

    name: str
    policy: str
    settings: tuple[tuple[str, str], ...] = ()
    rank: int = 1

    @property
    def wants_limits(self) -> bool:
        """Whether users have to say how long their jobs may last; nobody else is told."""
        return ("durations", "limit") in self.settings

    def make(self) -> Policy:
        """A new one, that has seen nothing."""
        return make_policy(self.policy, dict(self.settings))


def _contender(name: str, policy: str, rank: int = 1, **settings: str) -> Contender:
    return Contender(name, policy, tuple(settings.items()), rank)


FIFO = _contender("fifo", "fifo", rank=0)
SKIP = _contender("fifo-skip", "fifo-skip")
EASY = _contender("easy, predicted", "easy", rank=0, durations="predicted")
EASY_KNOWN = _contender("easy, known", "easy", rank=0, durations="known")
CONSERVATIVE = _contender("conservative, predicted", "conservative", rank=0, durations="predicted")
CONSERVATIVE_KNOWN = _contender("conservative, known", "conservative", rank=0, durations="known")
SHORTEST = _contender("easy, shortest, predicted", "easy", order="shortest", durations="predicted")
SHORTEST_KNOWN = _contender("easy, shortest, known", "easy", order="shortest", durations="known")
SJF = _contender("sjf, predicted", "sjf", durations="predicted")
SJF_KNOWN = _contender("sjf, known", "sjf", durations="known")
EASY_LIMITS = _contender("easy, limits", "easy", rank=2, durations="limit")
CONSERVATIVE_LIMITS = _contender("conservative, limits", "conservative", rank=3, durations="limit")
NO_STOPS = _contender("easy, no stops, predicted", "easy", durations="predicted", preempt="never")
CONTENDERS = (
    FIFO,
    SKIP,
    EASY_LIMITS,
    EASY,
    NO_STOPS,
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
"""The same policy with predictions, and as an oracle."""


def why_not() -> str:
    """Why nothing can be measured here; empty if it can."""
    return missing(HELIOS, PHILLY, PAI, PHILLY_NODES)


@cache
def _jobs_of(trace: str, count: int) -> tuple[Job, ...]:
    part = SLICES[trace]
    jobs = read_trace(TRACES / part.file).jobs[part.first : part.first + count]
    begin = jobs[0].submitted
    return tuple(msgspec.structs.replace(job, submitted=job.submitted - begin) for job in jobs)


def _limits(jobs: list[Job]) -> list[float | None]:
    times = OVERSTATED ** np.random.default_rng(LIMIT_SEED).random(len(jobs))
    return [
        ceil((job.work or 0.0) * float(overstated) / LIMITS_IN) * LIMITS_IN
        for job, overstated in zip(jobs, times, strict=True)
    ]
