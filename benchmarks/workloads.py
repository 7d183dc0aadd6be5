"""The published traces used as workloads, and timed runs of the general simulator."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from benchmarks.measure import REPOSITORY, cpu_seconds
from refold.core import Header, StartRun
from refold.journal import JournalFile, read_journal
from refold.model import Cluster, Job
from refold.placement import FreeResources
from refold.simulator import simulate
from refold.simulator.registry import make_policy
from refold.simulator.traces import enlarge, read_cluster, read_trace

TRACES = REPOSITORY.parent / "shared" / "data" / "traces"
HELIOS = "jobs_helios_venus.csv.gz"
HELIOS_JOBS = 125_303
PHILLY = "jobs_philly.csv.gz"
PHILLY_NODES = "nodes_philly_552.csv.gz"
PAI = "jobs_pai2020_sub60k.csv.gz"
PAI_NODES = "nodes_pai2020.csv.gz"
OPENB = "jobs_openb_default.csv.gz"
PAI_SAMPLE = 0.082
"""Share of all tasks that the PAI file contains."""


def missing(*files: str) -> str:
    """Return which of the trace files are not available, as a message; empty if all are."""
    absent = [file for file in files if not (TRACES / file).exists()]
    return f"no {', '.join(absent)} in ../shared/data/traces" if absent else ""


def philly(count: int) -> tuple[tuple[Job, ...], Cluster]:
    """Return the first `count` jobs of Microsoft Philly and its cluster of 552 nodes."""
    return read_trace(TRACES / PHILLY).jobs[:count], read_cluster(TRACES / PHILLY_NODES)


def helios(count: int) -> tuple[tuple[Job, ...], Cluster]:
    """Return the first `count` jobs of Helios Venus and its cluster of 135 nodes with 8 GPUs."""
    return read_trace(TRACES / HELIOS).jobs[:count], read_cluster("135x8:V100")


def pai() -> tuple[tuple[Job, ...], Cluster]:
    """Return the PAI sample enlarged to the full load, and its cluster. Instances of tasks have one GPU each."""
    sample = read_trace(TRACES / PAI, gpus_per_instance=1)
    return enlarge(sample, 1 / PAI_SAMPLE, seed=1).jobs, read_cluster(TRACES / PAI_NODES)


class Slice(NamedTuple):
    """Consecutive jobs of a trace from job number `first` on, and a cluster (a file of the traces, or shorthand)."""

    name: str
    file: str
    first: int
    cluster: str

    def load(self, count: int) -> tuple[tuple[Job, ...], Cluster]:
        """Return the next `count` jobs that fit the cluster, from time 0, and the cluster."""
        cluster = read_cluster(TRACES / self.cluster if (TRACES / self.cluster).exists() else self.cluster)
        free = FreeResources(cluster)
        jobs = trace_slice(self.file, self.first, 2 * count)
        return tuple(job for job in jobs if free.fits_when_empty(job.demand))[:count], cluster


@cache
def trace_slice(file: str, first: int, count: int) -> tuple[Job, ...]:
    """Return `count` jobs of a trace, in order of submission from job number `first`, which is submitted at 0."""
    jobs = read_trace(TRACES / file).jobs[first : first + count]
    begin = jobs[0].submitted
    return tuple(msgspec.structs.replace(job, submitted=job.submitted - begin) for job in jobs)


def simulate_with_journal(
    jobs: Sequence[Job], cluster: Cluster, policy: str, settings: dict[str, Any], journal: Path
) -> float:
    """Run the general simulator with a journal file; return the CPU seconds, including closing the file."""
    scheduling_policy = make_policy(policy, settings)

    def run() -> None:
        with JournalFile(journal, Header(cluster, policy, settings)) as file:
            simulate(jobs, cluster, scheduling_policy, journal=file)

    return cpu_seconds(run)


def general_seconds(jobs: Sequence[Job], cluster: Cluster, policy: str = "fifo", placement: str = "best-fit") -> float:
    """Return the CPU seconds of a run with a temporary journal, after a short run that imports what is needed."""
    with tempfile.TemporaryDirectory() as folder:
        journal, settings = Path(folder) / "journal.jsonl", {"placement": placement}
        simulate_with_journal(jobs[:100], cluster, policy, settings, journal)
        return simulate_with_journal(jobs, cluster, policy, settings, journal)


def starts_in(journal: Path) -> Iterator[tuple[str, float]]:
    """Yield the job ID and the time of every run start in a journal."""
    _, entries = read_journal(journal)
    for entry in entries:
        for order in entry.orders:
            if isinstance(order, StartRun):
                yield order.job, entry.now
