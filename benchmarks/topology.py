"""Placement on racks: time and occupancy with and without levels and segments. `python -m benchmarks.topology`.

A cluster of NVL72 racks is kept full: jobs arrive in a fixed random order, each is placed as soon as it fits, and
while the next one does not fit, randomly chosen jobs end. Half of the jobs with 16 instances or more need segments, of
4 or, from 32 instances on, of 16. All cases of a draw have the same jobs. CPU time of the placement rule, on one core.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from typing import NamedTuple

from msgspec.structs import replace

from benchmarks.table import Row, as_text, at_least, at_most
from refold.model import WHOLE, Cluster, Demand, Placement, TopologyRequest
from refold.placement import FreeResources, Placer
from refold.simulator.traces import read_cluster

INSTANCES = (1, 2, 4, 8, 16, 32, 64, 128)
WEIGHTS = (60, 10, 10, 8, 6, 3, 2, 1)
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
    given = parser.parse_args()
    if given.racks * LARGE_SEGMENT < max(INSTANCES):
        parser.error(f"--racks is {given.racks}: the largest job needs {max(INSTANCES) // LARGE_SEGMENT} racks")
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
