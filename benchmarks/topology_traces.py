"""Wide jobs of traces on racks: completion times with and without topology. `python -m benchmarks.topology_traces`.

Racks have 4 nodes of 8 GPUs; links between racks are 4 or 8 times slower. Half of the wide jobs, drawn at random, are
bound by communication: it takes half of their step time in as few racks as possible. Each draw has other jobs of the
trace and other such jobs. The same policy runs on the same cluster without and with levels; in both cases, the simulator
charges the links that a gang crosses.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from benchmarks.table import Row, as_text, at_most
from benchmarks.workloads import HELIOS, PHILLY, trace_slice
from refold.journal import PackedHistoryJournal
from refold.model import Cluster, Demand, Job, Level, Link, TopologyRequest
from refold.placement import FreeResources
from refold.planning.plans import Crossings, Speeds
from refold.simulator import Costs, CrossingSpeeds, RecordedSpeeds, simulate
from refold.simulator.registry import make_policy
from refold.simulator.traces import read_cluster

COMMUNICATION = 0.5
RESTART_SECONDS = 78.0
BANDWIDTH = 25.0


class Workload(NamedTuple):
    """A trace, its cluster, and from how many GPUs on a job is wide (Philly has none with 64)."""

    file: str
    racks: int
    first: int
    wide_gpus: int


WORKLOADS = {"helios": Workload(HELIOS, 34, 20_000, 64), "philly": Workload(PHILLY, 78, 10_000, 16)}


class Times(NamedTuple):
    """Mean completion times of jobs bound by communication, and of all others."""

    bound: float
    others: float


def main() -> None:
    """Measure and print the table. The exit status is 0 even if goals are missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.topology_traces", description=__doc__)
    parser.add_argument("--jobs", type=int, default=8000, help="jobs of each draw (default: 8000)")
    parser.add_argument("--draws", type=int, default=5, help="draws (default: 5)")
    parser.add_argument("--policy", default="refold", help="scheduling policy (default: refold)")
    parser.add_argument("--traces", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS), help="traces")
    given = parser.parse_args()
    for trace in given.traces:
        for slower in (4, 8):
            pairs = [compare(WORKLOADS[trace], slower, given.jobs, draw, given.policy) for draw in range(given.draws)]
            print(as_text(_rows(f"{trace}, {slower} × slower", pairs)), flush=True)


def compare(workload: Workload, slower: int, count: int, draw: int, policy: str) -> tuple[Times, Times]:
    """Return the times without and with levels."""
    levels = _cluster(workload.racks, slower)
    flat = levels.with_levels((), [()] * len(levels.nodes))
    jobs = _jobs(workload, flat, count, draw)
    bound = {job.id for job in jobs if job.demand.topology is not None}
    return _times(jobs, flat, levels, bound, policy), _times(jobs, levels, levels, bound, policy)


def _cluster(racks: int, slower: int) -> Cluster:
    cluster = read_cluster(f"{racks} racks of 4x8:V100")
    link = Link("infiniband", BANDWIDTH)
    return replace(cluster, levels=(Level("rack", link),), network=Link("between racks", BANDWIDTH / slower))


def _jobs(workload: Workload, cluster: Cluster, count: int, draw: int) -> tuple[Job, ...]:
    """Return consecutive jobs of a trace, of which some declare their communication."""
    free, chance = FreeResources(cluster), random.Random(draw)
    jobs = trace_slice(workload.file, workload.first * (draw + 1) % 100_000, count)
    found: list[Job] = []
    for job in jobs:
        if not free.fits_when_empty(job.demand):
            continue
        is_wide = job.demand.total_gpus >= workload.wide_gpus and job.demand.instances > 1
        found.append(_bound(job) if is_wide and chance.random() < 0.5 else job)
    return tuple(found)


def _bound(job: Job) -> Job:
    demand: Demand = replace(job.demand, topology=TopologyRequest(communication=COMMUNICATION))
    return replace(job, demand=demand)


def _times(jobs: Sequence[Job], cluster: Cluster, actual: Cluster, bound: set[str], policy: str) -> Times:
    charge = CrossingSpeeds(RecordedSpeeds(cluster), Crossings(Speeds(actual), modelled=False))
    journal = PackedHistoryJournal(cluster)
    simulate(
        jobs, cluster, make_policy(policy, {}), journal=journal, charge=charge, costs=Costs(restart=RESTART_SECONDS)
    )
    history = journal.packed_history()
    taken: dict[bool, list[float]] = {True: [], False: []}
    for index, job in enumerate(history.jobs.jobs):
        taken[job.id in bound].append(float(history.jobs.ended[index] - history.jobs.submitted[index]))
    return Times(statistics.mean(taken[True]), statistics.mean(taken[False]))


def _rows(what: str, pairs: Sequence[tuple[Times, Times]]) -> list[Row]:
    rows = []
    for name, limit in (("bound", 0.75), ("others", 1.02)):
        ratios = [getattr(after, name) / getattr(before, name) for before, after in pairs]
        hours = [statistics.mean(getattr(one, name) for one in column) / 3600 for column in zip(*pairs, strict=True)]
        measured = f"{hours[0]:.2f} → {hours[1]:.2f} h, {statistics.mean(ratios):.2f} × ({min(ratios):.2f} to {max(ratios):.2f})"
        label = "bound by communication" if name == "bound" else "all others"
        rows.append(at_most(f"{what}: mean completion time, {label}", statistics.mean(ratios), limit, measured))
    return rows


if __name__ == "__main__":
    main()
