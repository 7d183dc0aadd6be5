"""How fast placements decide: `python -m benchmarks.placement.speed [--quick] [--write] [--json F]`.

A window of 100 tasks on 1,000 machines by PyGAD, by our searches and by the exact pairwise greedy; the whole openb
trace under `genetic` beside SimPy and PyGAD on its first 1 %; and the time of a decision by machines and window. CPU
time, medians of several; ratios are between times of one run.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.measure import REPOSITORY, cpu_seconds, median_cpu_seconds
from benchmarks.peers import pairwise, pygad_placement, simpy_pygad
from benchmarks.peers.pygad_placement import GENERATIONS, Pairs
from benchmarks.placement import world
from benchmarks.placement.instances import Instance, drawn
from benchmarks.placement.kept import say
from benchmarks.table import Row, as_markdown, as_plain, at_least, at_most, markdown
from refold.model import Placement
from refold.packing import RULES, Free, Placer
from refold.registry import make_policy
from refold.simulator import simulate

PAGE = REPOSITORY / "docs" / "results" / "placement_speed.md"
LEVELS = (0.70, 0.95, 0.99)
MACHINES, TASKS = 1000, 100
TIMES = 5
FIRST_PART = 0.01
GRID_MACHINES = (100, 1000, 10_000)
GRID_WINDOWS = (1, 10, 100, 1000)


class Timed:
    """What a rule did to a window: seconds, and how much GPU it placed."""

    def __init__(self, instance: Instance, place_all: Callable[[Free], Sequence[Placement | None]], times: int) -> None:
        placements = place_all(instance.free.copy())  # the first call loads the kernels
        taken = []
        for _ in range(times):
            free = instance.free.copy()
            taken.append(cpu_seconds(lambda free=free: place_all(free)))  # type: ignore[misc]
        self.seconds = statistics.median(taken)
        self.placed = sum(placement is not None for placement in placements)
        self.gpu_milli = sum(
            demand.total_gpu_milli
            for demand, placement in zip(instance.demands, placements, strict=True)
            if placement is not None
        )


def by_rule(rule: str, instance: Instance, times: int = TIMES) -> Timed:
    """One of our rules, a fresh one for each window."""

    def place_all(free: Free) -> Sequence[Placement | None]:
        return Placer(rule, 1).place_all(free, list(instance.demands))

    return Timed(instance, place_all, times)


def pygad_decision(instance: Instance, times: int) -> float:
    """Seconds of PyGAD for the first decision of a window."""
    gain = pygad_placement.gains(instance.free, instance.demands)
    return median_cpu_seconds(lambda: Pairs().search(gain, 1), times)


def argmax_seconds(instance: Instance) -> float:
    """Seconds of one exact arg-max over all pairs."""
    vectors = np.concatenate([instance.free.vector(demand) for demand in instance.demands])
    placed = np.zeros(len(instance.demands), dtype=np.bool_)
    pairwise.every_pair(instance.free.nodes, instance.free.gpus, vectors, placed)
    return (
        median_cpu_seconds(
            lambda: [pairwise.every_pair(instance.free.nodes, instance.free.gpus, vectors, placed) for _ in range(20)]
        )
        / 20
    )


def window_rows(level: float, quick: bool) -> list[Row]:
    """A window of 100 tasks on 1,000 machines."""
    instance = drawn(MACHINES, TASKS, level, seed=1)
    full = f"{level:.0%} full"
    theirs = pygad_decision(instance, 1 if quick else TIMES)
    exact = Timed(instance, lambda free: pairwise.place_all(free, instance.demands), TIMES)
    argmax = argmax_seconds(instance)
    rows = [
        Row(f"{full}: PyGAD, a generation", f"{1e3 * theirs / GENERATIONS:.2f} ms", theirs / GENERATIONS),
        Row(f"{full}: PyGAD, a decision of {GENERATIONS} generations", f"{1e3 * theirs:.0f} ms", theirs),
        Row(f"{full}: one arg-max over all pairs, compiled", f"{1e3 * argmax:.2f} ms", argmax),
        Row(f"{full}: pairwise greedy, the window", _window_text(exact), exact.seconds),
    ]
    for rule in ("best-fit", "fgd", *world.OURS):
        if rule in RULES:
            rows += _rule_rows(rule, full, instance, theirs, exact)
    return rows


def _rule_rows(rule: str, full: str, instance: Instance, theirs: float, exact: Timed) -> list[Row]:
    ours = by_rule(rule, instance)
    rows = [Row(f"{full}: {rule}, the window", _window_text(ours), ours.seconds)]
    if rule == "genetic-paper":
        ratio = theirs / (ours.seconds / max(1, ours.placed))
        rows.append(at_least(f"{full}: PyGAD / {rule}, a decision", ratio, 100, f"{ratio:.0f} ×"))
    if rule == "genetic":
        ratio = ours.gpu_milli / exact.gpu_milli
        rows.append(at_least(f"{full}: GPU placed, {rule} / pairwise greedy", ratio, 1, f"{ratio:.4f}"))
    return rows


def _window_text(timed: Timed) -> str:
    return f"{1e3 * timed.seconds:.2f} ms, {timed.placed} tasks, {timed.gpu_milli / 1000:.1f} GPUs"


def trace_rows(quick: bool) -> list[Row]:
    """All of openb under `genetic`, and its first 1 % under SimPy and PyGAD."""
    jobs, cluster = world.pods(), world.openb()
    first = jobs[: max(2, round(FIRST_PART * len(jobs)) // (10 if quick else 1))]
    theirs = simpy_pygad.run(first, cluster)
    rule = "genetic" if "genetic" in RULES else "fgd"
    simulate(jobs[:100], cluster, make_policy("fifo-skip", {"placement": rule}))
    ours = median_cpu_seconds(
        lambda: simulate(jobs, cluster, make_policy("fifo-skip", {"placement": rule})), 1 if quick else 3
    )
    what = f"SimPy + PyGAD, the first {len(first)} pods of openb"
    return [
        Row(what, f"{theirs.cpu_seconds:.2f} s, {theirs.decisions} decisions", theirs.cpu_seconds),
        Row(f"fifo-skip + {rule}, all {len(jobs):,} pods", f"{ours:.2f} s ({len(jobs) / ours:,.0f} pods/s)", ours),
        at_most(
            f"all of openb under {rule} / its first {len(first)} pods under SimPy + PyGAD",
            ours / theirs.cpu_seconds,
            1,
            f"{ours / theirs.cpu_seconds:.3f} ×",
        ),
    ]


def grid(rule: str, quick: bool) -> str:
    """The time of a decision by machines and window, at 85 % full."""
    rows = []
    for machines in GRID_MACHINES[: 2 if quick else None]:
        row = []
        for window in GRID_WINDOWS[: 3 if quick else None]:
            say(f"{rule}: {window} tasks on {machines:,} machines")
            timed = by_rule(rule, drawn(machines, window, 0.85, seed=2), 3)
            row.append(f"{1e3 * timed.seconds:.3g} ms ({1e6 * timed.seconds / window:,.0f} µs a task)")
        rows.append([f"{machines:,}", *row])
    return markdown(["machines", *(f"window of {window:,}" for window in GRID_WINDOWS[: 3 if quick else None])], rows)


HEADING = """# How fast placements decide

CPU time of one core, medians; kernels compiled before. Machines are drawn from openb's nodes with GPUs, filled and
then emptied to a level; tasks are GPU pods. PyGAD {version} as in [placement_window.md](placement_window.md), with who
fits where worked out for it beforehand.

Made by

<!-- not run: reads the published traces, which are not part of this repository -->
```sh
python -m benchmarks.placement.speed --write
```
"""


def main() -> None:
    """Print the page; keep it with --write."""
    words = argparse.ArgumentParser(prog="python -m benchmarks.placement.speed", description=__doc__)
    words.add_argument("--write", action="store_true", help="keep the page in docs/results")
    words.add_argument("--quick", action="store_true", help="fewer and smaller")
    words.add_argument("--json", type=Path, help="keep the numbers here")
    asked = words.parse_args()
    if world.why_not():
        print(world.why_not())
        return
    import pygad

    rows = [row for level in LEVELS[: 1 if asked.quick else None] for row in window_rows(level, asked.quick)]
    say("windows are done")
    traces = trace_rows(asked.quick)
    parts = [HEADING.format(version=pygad.__version__), "## 100 tasks on 1,000 machines\n", as_markdown(rows), ""]
    parts += ["## All of openb\n", as_markdown(traces), ""]
    for rule in (rule for rule in ("best-fit", "fgd", *world.OURS) if rule in RULES):
        parts += [f"## Time of a window, {rule}\n", grid(rule, asked.quick), ""]
    text = "\n".join(parts)
    print(text)
    if asked.json:
        asked.json.write_text(json.dumps(as_plain([*rows, *traces])), encoding="utf-8")
    if asked.write:
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
