"""Small windows against the exact optimum: `python -m benchmarks.placement.optimum [--quick] [--write] [--json F]`.

8 to 20 tasks, a fifth of them gangs, wait for 20 to 60 machines of openb that are filled to 70, 85, 95 or 99 %. The
optimum is the most GPU that can be placed at once: a mixed integer program (HiGHS) over which instance goes to which
machine and which GPU of it, gangs whole or not at all, with CPUs, memory and types.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_matrix

from benchmarks.measure import REPOSITORY
from benchmarks.peers import pygad_placement
from benchmarks.placement import world
from benchmarks.placement.instances import Instance, drawn
from benchmarks.placement.kept import answers
from benchmarks.placement.spread import spread
from benchmarks.table import markdown
from refold.model import Demand, Placement
from refold.packing import CPU_FREE, GPUS, MEMORY_FREE, RULES, Free, Placer

PAGE = REPOSITORY / "docs" / "results" / "placement_optimum.md"
LEVELS = (0.70, 0.85, 0.95, 0.99)
INSTANCES = 20
GANGS = 0.2
PRESSING = 1.2
PYGAD = "PyGAD"
GOAL = 0.99


class Case(msgspec.Struct, frozen=True):
    """One instance, by its numbers. `pressing`: fewer machines, and tasks for 120 % of the room."""

    level: float
    seed: int
    pressing: bool = False


class Shares(msgspec.Struct, frozen=True):
    """The optimum in thousandths of a GPU, what each rule placed, and whether the optimum was proved."""

    best: int
    placed: dict[str, int]
    proved: bool = True


# --- the optimum --------------------------------------------------------------------------------------------


class _Program:
    """Variables and constraints as they are collected."""

    def __init__(self) -> None:
        self.gain: list[float] = []
        self.most: list[float] = []
        self._entries: list[tuple[int, int, float]] = []
        self._low: list[float] = []
        self._high: list[float] = []

    def variable(self, most: float, gain: float = 0.0) -> int:
        """A whole number from 0 to `most`."""
        self.gain.append(gain)
        self.most.append(most)
        return len(self.gain) - 1

    def constrain(self, terms: Sequence[tuple[int, float]], high: float, low: float = -np.inf) -> None:
        """A sum between two bounds."""
        row = len(self._high)
        self._entries += [(row, variable, factor) for variable, factor in terms]
        self._low.append(low)
        self._high.append(high)

    def solve(self, seconds: float) -> tuple[float, bool]:
        """The largest gain, and whether it is proved; a bound from above if it is not."""
        rows, columns, factors = zip(*self._entries, strict=True)
        matrix = coo_matrix((factors, (rows, columns)), shape=(len(self._high), len(self.gain))).tocsr()
        answer = milp(
            -np.array(self.gain),
            constraints=LinearConstraint(matrix, self._low, self._high),
            integrality=np.ones(len(self.gain)),
            bounds=Bounds(0, np.array(self.most)),
            options={"time_limit": seconds, "mip_rel_gap": 0.0},
        )
        return (-answer.fun, True) if answer.status == 0 else (-answer.mip_dual_bound, False)


def optimum(instance: Instance, seconds: float = 60.0) -> tuple[int, bool]:
    """The most GPU of a window that can be placed, in thousandths; False: only a bound, for lack of time."""
    program = _Program()
    on_node: dict[int, list[tuple[int, Demand, int]]] = {}
    for demand in instance.demands:
        whole = program.variable(1, demand.total_gpu_milli)
        places = []
        for node in range(len(instance.free.cluster.nodes)):
            most = _room(instance.free, node, demand)
            if most:
                places.append(program.variable(most))
                on_node.setdefault(node, []).append((places[-1], demand, most))
        program.constrain([(place, 1.0) for place in places] + [(whole, -demand.instances)], 0.0, 0.0)
    for node, wanting in on_node.items():
        _constrain_node(program, instance.free, node, wanting)
    value, proved = program.solve(seconds)
    return round(value), proved


def _room(free: Free, node: int, demand: Demand) -> int:
    """How many instances of a demand alone could go to a node."""
    names = free.cluster.nodes
    if demand.gpu_types and demand.gpus and names[node].gpu_type not in demand.gpu_types:
        return 0
    room = [demand.instances]
    if demand.gpus:
        parts = sum(milli // demand.gpu_milli for milli in free.gpu_milli_of(node))
        enough = sum(milli >= demand.gpu_milli for milli in free.gpu_milli_of(node)) >= demand.gpus
        room.append(parts // demand.gpus if enough else 0)
    if demand.cpu_milli:
        room.append(int(free.nodes[node, CPU_FREE]) // demand.cpu_milli)
    if demand.memory_mib:
        room.append(int(free.nodes[node, MEMORY_FREE]) // demand.memory_mib)
    return min(room)


def _constrain_node(program: _Program, free: Free, node: int, wanting: Sequence[tuple[int, Demand, int]]) -> None:
    """CPUs, memory, and every GPU: shares go to one GPU each, whole ones to GPUs that nobody shares."""
    program.constrain(
        [(place, float(demand.cpu_milli)) for place, demand, _ in wanting], float(free.nodes[node, CPU_FREE])
    )
    program.constrain(
        [(place, float(demand.memory_mib)) for place, demand, _ in wanting], float(free.nodes[node, MEMORY_FREE])
    )
    on_gpu: list[list[tuple[int, float]]] = [[] for _ in range(int(free.nodes[node, GPUS]))]
    for place, demand, most in wanting:
        if demand.gpus == 0:
            continue
        parts = []
        for gpu, milli in enumerate(free.gpu_milli_of(node)):
            room = min(most, milli // demand.gpu_milli)
            if room:
                # An instance takes at most one part of a GPU, and so does every one of its like.
                part = program.variable(room)
                program.constrain([(part, 1.0), (place, -1.0)], 0.0)
                on_gpu[gpu].append((part, float(demand.gpu_milli)))
                parts.append((part, 1.0))
        program.constrain([*parts, (place, -float(demand.gpus))], 0.0, 0.0)
    for gpu, milli in enumerate(free.gpu_milli_of(node)):
        if on_gpu[gpu]:
            program.constrain(on_gpu[gpu], float(milli))


# --- the rules ----------------------------------------------------------------------------------------------


def instance_of(case: Case) -> Instance:
    """Seeded: 20 to 60 machines and 8 to 20 tasks; pressing: 8 to 16 machines, and tasks for 120 % of what is free."""
    chance = np.random.default_rng([case.seed, 5])
    if case.pressing:
        return drawn(int(chance.integers(8, 17)), 200, case.level, case.seed, GANGS, PRESSING)
    return drawn(int(chance.integers(20, 61)), int(chance.integers(8, 21)), case.level, case.seed, GANGS)


def placed_by(rule: str, instance: Instance, seed: int) -> int:
    """How much GPU of a window a rule places, in thousandths."""
    free = instance.free.copy()
    if rule == PYGAD:
        placements: Sequence[Placement | None] = pygad_placement.place_all(free, instance.demands, seed)
    else:
        placer = world.told(Placer(rule, seed), free.cluster, world.pods())
        placements = placer.place_all(free, list(instance.demands))
    return sum(
        demand.total_gpu_milli
        for demand, placement in zip(instance.demands, placements, strict=True)
        if placement is not None
    )


def compared(case: Case) -> Shares:
    """All rules on one instance. If one of them places all, that is the optimum, and need not be looked for."""
    instance = instance_of(case)
    placed = {rule: placed_by(rule, instance, case.seed) for rule in (*known_rules(), PYGAD)}
    if max(placed.values()) == instance.asked:
        return Shares(instance.asked, placed)
    best, proved = optimum(instance)
    return Shares(best, placed, proved)


def known_rules() -> list[str]:
    """Those of our rules that there are."""
    return [rule for rule in world.RULES if rule in RULES]


HEADING = """# Small windows against the optimum

{count} instances at each level. Machines are drawn from openb's nodes with GPUs, filled by pods until they are full
and then emptied, pod by pod, to a level. A window of GPU pods waits, a fifth of them gangs of two to four: 8 to 20 for
20 to 60 machines; or, for 8 to 16 machines, as many as ask for 120 % of what is free. The optimum is the most GPU of
the window that can be placed, gangs whole or not at all: a mixed integer program. The tables have the part of the
optimum that each rule places, in percent: mean ± half of its 95 % confidence interval. Greedy rules place the window
in its order. `PyGAD` is the paper's search ([placement_window.md](placement_window.md)).

Made by

<!-- not run: reads the published traces, which are not part of this repository -->
```sh
python -m benchmarks.placement.optimum --write
```
"""


def table(found: dict[float, list[Shares]]) -> str:
    """Percent of the optimum, a row for each rule and a column for each level."""
    rules = list(next(iter(found.values()))[0].placed)
    rows = [[rule, *(_of_optimum(cases, rule) for cases in found.values())] for rule in rules]
    rows.append(["instances where something can be placed", *(str(len(_with_room(of))) for of in found.values())])
    rows.append(
        ["optimum not proved within a minute", *(str(sum(not one.proved for one in of)) for of in found.values())]
    )
    return markdown(["rule", *(f"{level:.0%} full" for level in found)], rows)


def _with_room(cases: Sequence[Shares]) -> list[Shares]:
    return [case for case in cases if case.best]


def _of_optimum(cases: Sequence[Shares], rule: str) -> str:
    parts = [case.placed[rule] / case.best for case in _with_room(cases)]
    return spread(parts).text(1) if parts else "no room"


def verdict(found: dict[float, list[Shares]], rule: str = "genetic") -> str:
    """Whether a rule is within one percent of the optimum."""
    parts = {level: fmean(one.placed[rule] / one.best for one in _with_room(of)) for level, of in found.items()}
    missed = [f"{level:.0%}" for level, part in parts.items() if part < GOAL]
    return f"Goal: `{rule}` within 1 % of the optimum at every level: " + (
        f"**missed** at {', '.join(missed)}." if missed else "met."
    )


TITLES = {False: "8 to 20 tasks", True: "As many tasks as ask for 120 % of what is free"}


def report(count: int) -> tuple[str, dict[str, Any]]:
    """The page, and its numbers."""
    parts, plain = [HEADING.format(count=count)], {}
    for pressing, title in TITLES.items():
        found = _found(count, pressing)
        parts += [f"## {title}\n", table(found), ""]
        if "genetic" in RULES:
            parts += [verdict(found), ""]
        plain[title] = {str(level): msgspec.to_builtins(of) for level, of in found.items()}
    return "\n".join(parts), plain


def _found(count: int, pressing: bool) -> dict[float, list[Shares]]:
    cases = {level: [Case(level, seed, pressing) for seed in range(count)] for level in LEVELS}
    sources = ["benchmarks/placement/instances.py", "benchmarks/peers/pygad_placement.py"]
    answered = answers(compared, [case for of in cases.values() for case in of], Shares, sources)
    return {level: [answered[case] for case in of] for level, of in cases.items()}


def main() -> None:
    """Print the page; keep it with --write."""
    words = argparse.ArgumentParser(prog="python -m benchmarks.placement.optimum", description=__doc__)
    words.add_argument("--write", action="store_true", help="keep the page in docs/results")
    words.add_argument("--quick", action="store_true", help="five instances a level")
    words.add_argument("--json", type=Path, help="keep the numbers here")
    asked = words.parse_args()
    if world.why_not():
        print(world.why_not())
        return
    text, plain = report(5 if asked.quick else INSTANCES)
    print(text)
    if asked.json:
        asked.json.write_text(json.dumps(plain), encoding="utf-8")
    if asked.write:
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
