"""Small windows compared with the optimum: `python -m benchmarks.placement.optimum [--quick] [--write] [--json F]`.

8 to 20 tasks, a fifth of them gangs, wait for 20 to 60 machines of openb that are filled to 70, 85, 95 or 99 %. The
optimum is the maximum GPU capacity that can be allocated to the window at once: a mixed integer program (HiGHS) that
assigns instances to machines and GPUs, places gangs completely or not at all, and respects CPUs, memory and types.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_matrix

from benchmarks.peers import pygad_placement
from benchmarks.placement import workloads
from benchmarks.placement.confidence import interval
from benchmarks.placement.instances import Instance, draw_instance
from benchmarks.placement.result_cache import cached_results
from benchmarks.result_page import measurement_parser, publish
from benchmarks.table import markdown
from refold.model import Demand, Placement
from refold.placement import CPU_FREE, GPUS, MEMORY_FREE, RULES, FreeResources, Placer

PAGE = Path(__file__).with_name("optimum.md")
LEVELS = (0.70, 0.85, 0.95, 0.99)
INSTANCES = 20
GANGS = 0.2
PRESSURE = 1.2
PYGAD = "PyGAD"
GOAL = 0.99


class Case(msgspec.Struct, frozen=True):
    """Parameters of an instance. `overloaded`: fewer machines, and tasks that request 120 % of the free capacity."""

    level: float
    seed: int
    overloaded: bool = False


class Comparison(msgspec.Struct, frozen=True):
    """The optimum and the allocation of each rule in thousandths of a GPU; `proved`: the optimum is exact."""

    best: int
    placed: dict[str, int]
    proved: bool = True


# --- the optimum --------------------------------------------------------------------------------------------


class _Program:
    """The variables and constraints of the integer program."""

    def __init__(self) -> None:
        self.gain: list[float] = []
        self.upper: list[float] = []
        self._entries: list[tuple[int, int, float]] = []
        self._low: list[float] = []
        self._high: list[float] = []

    def variable(self, upper: float, gain: float = 0.0) -> int:
        """Add an integer variable from 0 to `upper`; return its index."""
        self.gain.append(gain)
        self.upper.append(upper)
        return len(self.gain) - 1

    def constrain(self, terms: Sequence[tuple[int, float]], high: float, low: float = -np.inf) -> None:
        """Add a constraint on a weighted sum."""
        row = len(self._high)
        self._entries += [(row, variable, factor) for variable, factor in terms]
        self._low.append(low)
        self._high.append(high)

    def solve(self, seconds: float) -> tuple[float, bool]:
        """Return the maximum gain and True, or an upper bound and False if the time limit was reached."""
        rows, columns, factors = zip(*self._entries, strict=True)
        matrix = coo_matrix((factors, (rows, columns)), shape=(len(self._high), len(self.gain))).tocsr()
        solution = milp(
            -np.array(self.gain),
            constraints=LinearConstraint(matrix, self._low, self._high),
            integrality=np.ones(len(self.gain)),
            bounds=Bounds(0, np.array(self.upper)),
            options={"time_limit": seconds, "mip_rel_gap": 0.0},
        )
        return (-solution.fun, True) if solution.status == 0 else (-solution.mip_dual_bound, False)


def optimum(instance: Instance, seconds: float = 60.0) -> tuple[int, bool]:
    """Return the maximum allocation of a window in thousandths of a GPU; False: only an upper bound, time limit."""
    program = _Program()
    on_node: dict[int, list[tuple[int, Demand, int]]] = {}
    for demand in instance.demands:
        placed = program.variable(1, demand.total_gpu_milli)
        counts = []
        for node in range(len(instance.free.cluster.nodes)):
            limit = _max_instances(instance.free, node, demand)
            if limit:
                counts.append(program.variable(limit))
                on_node.setdefault(node, []).append((counts[-1], demand, limit))
        program.constrain([(count, 1.0) for count in counts] + [(placed, -demand.instances)], 0.0, 0.0)
    for node, candidates in on_node.items():
        _constrain_node(program, instance.free, node, candidates)
    value, proved = program.solve(seconds)
    return round(value), proved


def _max_instances(free: FreeResources, node: int, demand: Demand) -> int:
    """Return how many instances of the demand fit on a node, without any other demand."""
    nodes = free.cluster.nodes
    if demand.gpu_types and demand.gpus and nodes[node].gpu_type not in demand.gpu_types:
        return 0
    limits = [demand.instances]
    if demand.gpus:
        shares = sum(milli // demand.gpu_milli for milli in free.gpu_milli_of(node))
        enough = sum(milli >= demand.gpu_milli for milli in free.gpu_milli_of(node)) >= demand.gpus
        limits.append(shares // demand.gpus if enough else 0)
    if demand.cpu_milli:
        limits.append(int(free.nodes[node, CPU_FREE]) // demand.cpu_milli)
    if demand.memory_mib:
        limits.append(int(free.nodes[node, MEMORY_FREE]) // demand.memory_mib)
    return min(limits)


def _constrain_node(
    program: _Program, free: FreeResources, node: int, candidates: Sequence[tuple[int, Demand, int]]
) -> None:
    """Constrain CPUs, memory and each GPU of a node. `candidates`: variable, demand, maximum number of instances."""
    program.constrain(
        [(count, float(demand.cpu_milli)) for count, demand, _ in candidates], float(free.nodes[node, CPU_FREE])
    )
    program.constrain(
        [(count, float(demand.memory_mib)) for count, demand, _ in candidates], float(free.nodes[node, MEMORY_FREE])
    )
    on_gpu: list[list[tuple[int, float]]] = [[] for _ in range(int(free.nodes[node, GPUS]))]
    for count, demand, max_instances in candidates:
        if demand.gpus == 0:
            continue
        parts = []
        for gpu, milli in enumerate(free.gpu_milli_of(node)):
            limit = min(max_instances, milli // demand.gpu_milli)
            if limit:
                # Each instance uses a GPU at most once.
                part = program.variable(limit)
                program.constrain([(part, 1.0), (count, -1.0)], 0.0)
                on_gpu[gpu].append((part, float(demand.gpu_milli)))
                parts.append((part, 1.0))
        program.constrain([*parts, (count, -float(demand.gpus))], 0.0, 0.0)
    for gpu, milli in enumerate(free.gpu_milli_of(node)):
        if on_gpu[gpu]:
            program.constrain(on_gpu[gpu], float(milli))


# --- the rules ----------------------------------------------------------------------------------------------


def instance_of(case: Case) -> Instance:
    """Draw 20 to 60 machines and 8 to 20 tasks; if overloaded, 8 to 16 machines and tasks for 120 % of the free GPU."""
    rng = np.random.default_rng([case.seed, 5])
    if case.overloaded:
        return draw_instance(int(rng.integers(8, 17)), 200, case.level, case.seed, GANGS, PRESSURE)
    return draw_instance(int(rng.integers(20, 61)), int(rng.integers(8, 21)), case.level, case.seed, GANGS)


def placed_by(rule: str, instance: Instance, seed: int) -> int:
    """Return how much of a window a rule places, in thousandths of a GPU."""
    free = instance.free.copy()
    if rule == PYGAD:
        placements: Sequence[Placement | None] = pygad_placement.place_all(free, instance.demands, seed)
    else:
        placer = workloads.observed(Placer(rule, seed), free.cluster, workloads.pods())
        placements = placer.place_all(free, list(instance.demands))
    return sum(
        demand.total_gpu_milli
        for demand, placement in zip(instance.demands, placements, strict=True)
        if placement is not None
    )


def compare_rules(case: Case) -> Comparison:
    """Run all rules on one instance. If a rule places everything, that is the optimum, and the solver is not run."""
    instance = instance_of(case)
    placed = {rule: placed_by(rule, instance, case.seed) for rule in (*known_rules(), PYGAD)}
    if max(placed.values()) == instance.requested:
        return Comparison(instance.requested, placed)
    best, proved = optimum(instance)
    return Comparison(best, placed, proved)


def known_rules() -> list[str]:
    """Return the placement rules that exist."""
    return [rule for rule in workloads.RULES if rule in RULES]


HEADING = """# Small windows compared with the optimum

{count} instances at each level. Machines are drawn from the openb nodes with GPUs, filled with pods, and then emptied,
pod by pod, to a level. The window has 8 to 20 GPU pods for 20 to 60 machines, a fifth of them gangs of two to four; or,
for 8 to 16 machines, as many as request 120 % of the free GPU capacity. The optimum is the maximum GPU capacity of the
window that can be placed, gangs completely or not at all, from a mixed integer program. The tables show the share of
the optimum that each rule places, in percent: mean ± half of the 95 % confidence interval. Greedy rules place the
window in its order. `PyGAD` is the paper's search ([window.md](window.md)).

Generated by

<!-- not run: reads the published traces, which are not part of this repository -->
```sh
python -m benchmarks.placement.optimum --write
```
"""


def table(found: dict[float, list[Comparison]]) -> str:
    """Format the share of the optimum by rule and level."""
    rules = list(next(iter(found.values()))[0].placed)
    rows = [[rule, *(_share_of_optimum(cases, rule) for cases in found.values())] for rule in rules]
    rows.append(["instances in which a task fits", *(str(len(_feasible(cases))) for cases in found.values())])
    rows.append(
        [
            "optimum not proved within a minute",
            *(str(sum(not one.proved for one in cases)) for cases in found.values()),
        ]
    )
    return markdown(["rule", *(f"{level:.0%} full" for level in found)], rows)


def _feasible(cases: Sequence[Comparison]) -> list[Comparison]:
    return [case for case in cases if case.best]


def _share_of_optimum(cases: Sequence[Comparison], rule: str) -> str:
    shares = [case.placed[rule] / case.best for case in _feasible(cases)]
    return interval(shares).text(1) if shares else "no task fits"


def verdict(found: dict[float, list[Comparison]], rule: str = "genetic") -> str:
    """Return a sentence on whether a rule is within one percent of the optimum."""
    shares = {level: fmean(one.placed[rule] / one.best for one in _feasible(of)) for level, of in found.items()}
    missed = [f"{level:.0%}" for level, share in shares.items() if share < GOAL]
    return f"Goal: `{rule}` within 1 % of the optimum at every level: " + (
        f"**missed** at {', '.join(missed)}." if missed else "met."
    )


TITLES = {False: "8 to 20 tasks", True: "Tasks that request 120 % of the free GPU capacity"}


def report(count: int) -> tuple[str, dict[str, Any]]:
    """Return the page and its numbers."""
    parts, plain = [HEADING.format(count=count)], {}
    for overloaded, title in TITLES.items():
        found = _compare_all(count, overloaded)
        parts += [f"## {title}\n", table(found), ""]
        if "genetic" in RULES:
            parts += [verdict(found), ""]
        plain[title] = {str(level): msgspec.to_builtins(of) for level, of in found.items()}
    return "\n".join(parts), plain


def _compare_all(count: int, overloaded: bool) -> dict[float, list[Comparison]]:
    cases = {level: [Case(level, seed, overloaded) for seed in range(count)] for level in LEVELS}
    sources = ["benchmarks/placement/instances.py", "benchmarks/peers/pygad_placement.py"]
    results = cached_results(compare_rules, [case for of in cases.values() for case in of], Comparison, sources)
    return {level: [results[case] for case in of] for level, of in cases.items()}


def main() -> None:
    """Print the page; write it with --write."""
    options = measurement_parser("benchmarks.placement.optimum", __doc__, "use five instances per level").parse_args()
    if message := workloads.missing_data():
        print(message)
        return
    text, plain = report(5 if options.quick else INSTANCES)
    publish(options, PAGE, text, plain)


if __name__ == "__main__":
    main()
