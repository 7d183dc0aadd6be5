"""Gangs on small clusters with levels, against the optimum: `python -m benchmarks.topology_optimum`.

On a cluster of at most 12 nodes with 4 GPUs, in racks and blocks, wait jobs that need 1.5 times its GPUs; half of the
gangs require one rack, one block, or segments of 2 in one rack. The largest jobs are placed first, each if it fits. The
optimum, the most GPUs that any choice and placement of the jobs can use, is found exactly by an integer linear program
(HiGHS). The same jobs without requests, on the same nodes without levels, show what the order costs by itself.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from benchmarks.table import Row, as_text, at_most
from refold.model import WHOLE, Cluster, Demand, TopologyRequest
from refold.placement import FreeResources, Placer
from refold.simulator.traces import read_cluster

CLUSTERS = ("2 blocks of 2 racks of 3x4:GB200", "4 racks of 3x4:GB200", "3 racks of 4x4:GB200", "2 racks of 4x4:GB200")
INSTANCES, WEIGHTS = (1, 2, 4, 6, 8), (8, 4, 4, 2, 1)
LOAD = 1.5


class Used(NamedTuple):
    """GPUs in use as placed, and in the optimum."""

    placed: int
    optimum: int


def main() -> None:
    """Measure and print the table. The exit status is 0 even if goals are missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.topology_optimum", description=__doc__)
    parser.add_argument("--draws", type=int, default=500, help="random clusters and jobs (default: 500)")
    parser.add_argument("--rule", default="best-fit", help="placement rule (default: best-fit)")
    given = parser.parse_args()
    found: dict[str, list[Used]] = {"without levels": [], "with requests": []}
    for seed in range(given.draws):
        chance = random.Random(seed)
        cluster = read_cluster(CLUSTERS[seed % len(CLUSTERS)])
        demands = draw(cluster, chance)
        plain = [replace(demand, topology=None) for demand in demands]
        flat = cluster.with_levels((), [()] * len(cluster.nodes))
        found["without levels"].append(Used(placed(flat, plain, given.rule), optimum(flat, plain)))
        found["with requests"].append(Used(placed(cluster, demands, given.rule), optimum(cluster, demands)))
    print(as_text([_row(name, results) for name, results in found.items()]))


def draw(cluster: Cluster, chance: random.Random) -> list[Demand]:
    """Return jobs of which each fits the empty cluster."""
    empty, demands = FreeResources(cluster), list[Demand]()
    while sum(demand.instances * demand.gpus for demand in demands) < LOAD * cluster.gpus:
        instances = chance.choices(INSTANCES, WEIGHTS)[0]
        requests = [TopologyRequest("rack"), TopologyRequest(cluster.level_names[0]), TopologyRequest(segment=2)]
        request = chance.choice(requests) if instances > 1 and chance.random() < 0.5 else None
        demand = Demand(instances, chance.choice((1, 2, 4)) if instances == 1 else 4, topology=request)
        if empty.fits_when_empty(demand):
            demands.append(demand)
    return demands


def placed(cluster: Cluster, demands: Sequence[Demand], rule: str) -> int:
    """Return the GPUs in use after all jobs that fit were placed, the largest first."""
    free, placer = FreeResources(cluster), Placer(rule)
    for demand in sorted(demands, key=lambda one: -one.total_gpus):
        placer.place(free, demand)
    return cluster.gpus - free.gpu_milli // WHOLE


def optimum(cluster: Cluster, demands: Sequence[Demand]) -> int:
    """Return the most GPUs that the jobs can use."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    program = _Program()
    on_node: list[list[tuple[int, int]]] = [[] for _ in cluster.nodes]
    for demand in demands:
        runs = program.variable(1, demand.instances * demand.gpus)
        here = [program.variable(demand.instances) for _ in cluster.nodes]
        program.row([(one, 1) for one in here] + [(runs, -demand.instances)], 0, 0)
        for node, variable in enumerate(here):
            on_node[node].append((variable, demand.gpus))
        request = demand.topology or TopologyRequest()
        if request.required:
            chosen = [(program.variable(1), nodes) for nodes in _domains(cluster, request.required)]
            program.row([(one, 1) for one, _ in chosen] + [(runs, -1)], 0, 0)
            for one, nodes in chosen:
                program.row([(here[node], 1) for node in nodes] + [(one, -demand.instances)], -demand.instances, 0)
        for nodes in _domains(cluster, request.segment_level) if request.segment else ():
            segments = program.variable(demand.instances // request.segment)
            program.row([(here[node], 1) for node in nodes] + [(segments, -request.segment)], 0, 0)
    for index, terms in enumerate(on_node):
        program.row(terms, 0, cluster.nodes[index].gpus)
    matrix = np.zeros((len(program.rows), len(program.upper)))
    for number, (terms, _, _) in enumerate(program.rows):
        for variable, factor in terms:
            matrix[number, variable] = factor
    limits = LinearConstraint(matrix, [row[1] for row in program.rows], [row[2] for row in program.rows])
    bounds = Bounds(0, np.array(program.upper, dtype=float))
    solved = milp(-np.array(program.gain), constraints=limits, bounds=bounds, integrality=np.ones(len(program.upper)))
    if solved.status != 0:
        raise RuntimeError(f"the optimum was not found: {solved.message}")
    return round(-float(solved.fun))


class _Program:
    """Variables with their upper bounds and what they add to the goal, and rows: terms, lower and upper bound."""

    def __init__(self) -> None:
        self.upper: list[int] = []
        self.gain: list[int] = []
        self.rows: list[tuple[list[tuple[int, int]], int, int]] = []

    def variable(self, upper: int, gain: int = 0) -> int:
        self.upper.append(upper)
        self.gain.append(gain)
        return len(self.upper) - 1

    def row(self, terms: list[tuple[int, int]], lower: int, upper: int) -> None:
        self.rows.append((terms, lower, upper))


def _domains(cluster: Cluster, level: str) -> list[list[int]]:
    """Return the nodes of each domain of a level."""
    found: dict[tuple[str, ...], list[int]] = {}
    for node in range(len(cluster.nodes)):
        found.setdefault(cluster.domain(node, cluster.level(level)), []).append(node)
    return list(found.values())


def _row(name: str, results: Sequence[Used]) -> Row:
    gap = 1 - sum(one.placed for one in results) / sum(one.optimum for one in results)
    optimal = sum(one.placed == one.optimum for one in results) / len(results)
    measured = f"{gap:.2%} fewer GPUs in use than in the optimum, {optimal:.0%} of {len(results)} are optimal"
    return at_most(f"gap to the optimum, {name}", gap, 0.03, measured)


if __name__ == "__main__":
    main()
