"""Placement on racks: time and occupancy with and without levels and segments. `python -m benchmarks.topology`.

With `--load`, a trace of such jobs is simulated instead: arrivals at random times, with EASY backfill. With
`--decisions`, `refold` decides about such a trace on 128 racks of 32 nodes with 8 GPUs, where all wide jobs declare
communication; CPU time of each decision at which jobs wait.

A cluster of NVL72 racks is kept full: jobs arrive in a fixed random order, each is placed as soon as it fits, and
while the next one does not fit, randomly chosen jobs end. Half of the jobs with 16 instances or more need segments, of
4 or, from 32 instances on, of 16. All cases of a draw have the same jobs. CPU time of the placement rule, on one core.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from benchmarks.measure import cpu_seconds
from benchmarks.table import Row, as_text, at_least, at_most
from refold.core import View
from refold.journal import PackedHistoryJournal
from refold.model import WHOLE, Cluster, Decision, Demand, Job, Level, Link, Placement, TopologyRequest
from refold.placement import FreeResources, Placer
from refold.simulator import simulate
from refold.simulator.registry import make_policy
from refold.simulator.traces import read_cluster

INSTANCES = (1, 2, 4, 8, 16, 32, 64, 128)
WEIGHTS = (60, 10, 10, 8, 6, 3, 2, 1)
LOG_SECONDS, LOG_SPREAD, MAX_SECONDS = 8.0, 1.2, 86_400.0
"""Run times: the median is 50 min, the mean 1.7 h."""
MIN_WIDE, SMALL_SEGMENT, LARGE_SEGMENT = 16, 4, 16


class Result(NamedTuple):
    """Mean CPU seconds of a placement, mean part of the GPUs in use, and gangs placed against their request."""

    seconds: float
    occupancy: float
    violations: int


def main() -> None:
    """Measure and print the table. The exit status is 0 even if goals are missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.topology", description=__doc__)
    parser.add_argument(
        "--racks", type=int, default=278, help="racks of 18 nodes with 4 GPUs (default: 278, 5,004 nodes)"
    )
    parser.add_argument("--tries", type=int, default=20_000, help="placements that are tried (default: 20000)")
    parser.add_argument("--draws", type=int, default=5, help="draws of jobs (default: 5)")
    parser.add_argument("--rules", nargs="+", default=["best-fit", "worth"], help="placement rules")
    parser.add_argument("--load", type=float, help="simulate jobs that arrive at this load, such as 0.95")
    parser.add_argument("--jobs", type=int, default=20_000, help="jobs that are simulated (default: 20000)")
    parser.add_argument("--decisions", action="store_true", help="time the decisions of refold on 32,768 GPUs")
    given = parser.parse_args()
    if given.racks * LARGE_SEGMENT < max(INSTANCES):
        parser.error(f"--racks is {given.racks}: the largest job needs {max(INSTANCES) // LARGE_SEGMENT} racks")
    if given.decisions:
        print(as_text(decision_rows(given.load or 1.1, given.jobs, given.draws)))
        return
    if given.load is not None:
        print(as_text(simulated_rows(given.racks, given.load, given.jobs, given.draws)))
        return
    print(as_text([row for rule in given.rules for row in rows(rule, given.racks, given.tries, given.draws)]))


def rows(rule: str, racks: int, tries: int, draws: int) -> list[Row]:
    """Compare a rule with levels, and with segments, with the same rule on the same cluster without levels."""
    levels = read_cluster(f"{racks} racks of 18x4:GB200")
    flat = levels.with_levels((), [()] * len(levels.nodes))
    cases = {"without levels": (flat, False), "with levels": (levels, False), "with segments": (levels, True)}
    found: dict[str, list[Result]] = {name: [] for name in cases}
    for seed in range(draws):  # in turn, since other load on the machine changes
        for name, (cluster, segments) in cases.items():
            found[name].append(fill(cluster, rule, segments, tries, seed))
    base = found["without levels"]
    result = [_time_row(f"{rule}, {name}", results, base) for name, results in found.items()]
    result += [_occupancy_row(f"{rule}, {name}", results, base) for name, results in found.items()]
    violations = sum(one.violations for results in found.values() for one in results)
    return [*result, at_most(f"{rule}: gangs placed against their request", violations, 0, f"{violations}", "gangs")]


def simulated_rows(racks: int, load: float, count: int, draws: int) -> list[Row]:
    """Compare the occupancy of a simulated cluster with levels, and with segments, with that without levels."""
    levels = read_cluster(f"{racks} racks of 18x4:GB200")
    cases = {
        "without levels": (levels.with_levels((), [()] * len(levels.nodes)), False),
        "with levels": (levels, False),
        "with segments": (levels, True),
    }
    found: dict[str, list[Result]] = {name: [] for name in cases}
    for seed in range(draws):
        for name, (cluster, segments) in cases.items():
            found[name].append(simulated(cluster, _arrivals(cluster, load, count, segments, seed)))
    base = found["without levels"]
    rows = [_occupancy_row(f"{load:.0%} load, {name}", results, base) for name, results in found.items()]
    violations = sum(one.violations for results in found.values() for one in results)
    return [*rows, at_most("gangs placed against their request", violations, 0, f"{violations}", "gangs")]


def _arrivals(cluster: Cluster, load: float, count: int, segments: bool, seed: int) -> tuple[Job, ...]:
    """Return jobs with log-normal run times that arrive at random times."""
    shapes, times = random.Random(seed), random.Random(seed + 1_000_000)
    demands = [_draw(shapes, segments) for _ in range(count)]
    work = [min(times.lognormvariate(LOG_SECONDS, LOG_SPREAD), MAX_SECONDS) for _ in demands]
    mean = statistics.mean(demand.total_gpus * seconds for demand, seconds in zip(demands, work, strict=True))
    at = accumulate(times.expovariate(load * cluster.gpus / mean) for _ in demands)
    columns = enumerate(zip(at, demands, work, strict=True))
    return tuple(Job(f"j{number}", now, demand, seconds) for number, (now, demand, seconds) in columns)


def simulated(cluster: Cluster, jobs: Sequence[Job]) -> Result:
    """Return the occupancy between the submission of the first quarter and that of the last job."""
    journal = PackedHistoryJournal(cluster)
    seconds = cpu_seconds(lambda: simulate(jobs, cluster, make_policy("easy", {}), journal=journal))
    runs = journal.packed_history().runs
    first, last = jobs[len(jobs) // 4].submitted, jobs[-1].submitted
    overlap = np.clip(np.minimum(runs.end, last) - np.maximum(runs.start, first), 0.0, None)
    placed = zip(runs.allocations, runs.job.tolist(), strict=True)
    by_row = journal.packed_history().jobs.jobs
    violations = sum(
        not by_row[job].demand.is_met_by([share.node for share in held.placement], cluster) for held, job in placed
    )
    return Result(seconds, float((overlap * runs.gpus).sum() / ((last - first) * cluster.gpus)), violations)


class _Timed:
    """A policy whose decisions with waiting jobs are timed."""

    def __init__(self) -> None:
        self.policy, self.seconds = make_policy("refold", {}), list[float]()
        self.name = self.policy.name

    def decide(self, view: View) -> Decision:
        before = time.process_time()
        decision = self.policy.decide(view)
        if view.waiting:
            self.seconds.append(time.process_time() - before)
        return decision


def decision_rows(load: float, count: int, draws: int) -> list[Row]:
    """Time decisions on 32,768 GPUs without and with levels."""
    levels = replace(read_cluster("128 racks of 32x8:H100"), network=Link("ethernet", 50.0))
    levels = replace(levels, levels=(Level("rack", Link("infiniband", 400.0)),))
    rows = []
    for name, cluster in (("without", levels.with_levels((), [()] * len(levels.nodes))), ("with", levels)):
        seconds: list[float] = []
        for seed in range(draws):
            policy = _Timed()
            simulate([_declaring(job) for job in _arrivals(cluster, load, count, False, seed)], cluster, policy)
            seconds += policy.seconds
        median, high = (float(np.quantile(seconds, share)) * 1000 for share in (0.5, 0.99))
        measured = f"median {median:.1f} ms, 99 % within {high:.1f} ms, {len(seconds):,} decisions"
        rows.append(at_most(f"decision on 32,768 GPUs {name} levels", high, 150.0, measured, "ms"))
    return rows


def _declaring(job: Job) -> Job:
    demand = replace(job.demand, gpus=2 * job.demand.gpus, topology=TopologyRequest(communication=0.5))
    return replace(job, demand=demand)


def fill(cluster: Cluster, rule: str, segments: bool, tries: int, seed: int) -> Result:
    """Keep a cluster full for so many placements; the first quarter does not count for the occupancy."""
    free, placer = FreeResources(cluster), Placer(rule)
    jobs, ends = random.Random(seed), random.Random(seed + 1_000_000)
    running: list[Placement] = []
    occupancy: list[float] = []
    seconds, violations = 0.0, 0
    demand = _draw(jobs, segments)
    for number in range(tries):
        before = time.process_time()
        placement = placer.place(free, demand)
        seconds += time.process_time() - before
        if placement is None:
            free.release(running.pop(ends.randrange(len(running))))
        else:
            violations += 0 if demand.is_met_by([share.node for share in placement], cluster) else 1
            running.append(placement)
            demand = _draw(jobs, segments)
        if number >= tries // 4:
            occupancy.append(1 - free.gpu_milli / WHOLE / cluster.gpus)
    return Result(seconds / tries, statistics.mean(occupancy), violations)


def _draw(jobs: random.Random, segments: bool) -> Demand:
    """Return the next job. The same numbers are drawn with and without segments."""
    instances = jobs.choices(INSTANCES, WEIGHTS)[0]
    gpus, is_segmented = jobs.choice((1, 2, 4)), jobs.random() < 0.5
    demand = Demand(instances, gpus if instances == 1 else 4)
    if not (segments and is_segmented and instances >= MIN_WIDE):
        return demand
    size = LARGE_SEGMENT if instances > MIN_WIDE else SMALL_SEGMENT
    return replace(demand, topology=TopologyRequest(segment=size))


def _time_row(what: str, results: list[Result], base: list[Result]) -> Row:
    micros = [one.seconds * 1e6 for one in results]
    measured = f"{statistics.median(micros):.1f} µs ({min(micros):.1f} to {max(micros):.1f})"
    if results is base:
        return Row(f"{what}: time", measured)
    ratio = statistics.median(one.seconds / other.seconds for one, other in zip(results, base, strict=True))
    return at_most(f"{what}: time", ratio, 1.5, f"{measured}, {ratio:.2f} ×")


def _occupancy_row(what: str, results: list[Result], base: list[Result]) -> Row:
    parts = [one.occupancy * 100 for one in results]
    differences = [(one.occupancy - other.occupancy) * 100 for one, other in zip(results, base, strict=True)]
    measured = f"{statistics.mean(parts):.2f} % ({min(parts):.2f} to {max(parts):.2f})"
    if results is base:
        return Row(f"{what}: GPUs in use", measured)
    measured += f", {min(differences):+.2f} to {max(differences):+.2f}"
    return at_least(f"{what}: GPUs in use", statistics.mean(differences), -1.0, measured, "points")


if __name__ == "__main__":
    main()
