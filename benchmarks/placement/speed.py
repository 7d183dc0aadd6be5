"""Speed of placement rules: `python -m benchmarks.placement.speed [--quick] [--write] [--json F]`.

A window of 100 tasks on 1,000 machines with PyGAD, our rules and the exact pairwise greedy placement; all of openb with
`genetic`, compared with SimPy and PyGAD on its first 1 %; and the time per window by number of machines and window
size. Medians of CPU time; ratios are between times of one run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.measure import cpu_seconds, median_cpu_seconds
from benchmarks.peers import pairwise, pygad_placement, simpy_pygad
from benchmarks.peers.pygad_placement import GENERATIONS, PairSearch
from benchmarks.placement import workloads
from benchmarks.placement.instances import Instance, draw_instance
from benchmarks.placement.result_cache import print_progress
from benchmarks.result_page import measurement_parser, publish
from benchmarks.table import Row, as_markdown, as_plain, at_least, at_most, markdown
from refold.model import Placement
from refold.placement import RULES, FreeResources, Placer
from refold.simulator import simulate
from refold.simulator.registry import make_policy

PAGE = Path(__file__).with_name("speed.md")
LEVELS = (0.70, 0.95, 0.99)
MACHINES, TASKS = 1000, 100
REPEATS = 5
TRACE_SHARE = 0.01
GRID_MACHINES = (100, 1000, 10_000)
GRID_WINDOWS = (1, 10, 100, 1000)


class WindowTiming:
    """CPU seconds of placing a window (median), the number of placed tasks, and their GPU capacity."""

    def __init__(
        self, instance: Instance, place_all: Callable[[FreeResources], Sequence[Placement | None]], repeats: int
    ) -> None:
        placements = place_all(instance.free.copy())  # the first call imports
        seconds = []
        for _ in range(repeats):
            free = instance.free.copy()
            seconds.append(cpu_seconds(lambda free=free: place_all(free)))  # type: ignore[misc]
        self.seconds = statistics.median(seconds)
        self.placed = sum(placement is not None for placement in placements)
        self.gpu_milli = sum(
            demand.total_gpu_milli
            for demand, placement in zip(instance.demands, placements, strict=True)
            if placement is not None
        )


def time_rule(rule: str, instance: Instance, repeats: int = REPEATS) -> WindowTiming:
    """Measure a placement rule, with a new placer for each repeat."""

    def place_all(free: FreeResources) -> Sequence[Placement | None]:
        return Placer(rule, 1).place_all(free, list(instance.demands))

    return WindowTiming(instance, place_all, repeats)


def pygad_decision(instance: Instance, repeats: int) -> float:
    """Measure the time of PyGAD for the first decision of a window."""
    gain = pygad_placement.gains(instance.free, instance.demands)
    return median_cpu_seconds(lambda: PairSearch().search(gain, 1), repeats)


def argmax_seconds(instance: Instance) -> float:
    """Measure the time of one exact arg-max over all pairs."""
    return median_cpu_seconds(lambda: pygad_placement.gains(instance.free, instance.demands).argmax(), REPEATS)


def window_rows(level: float, quick: bool) -> list[Row]:
    """Measure a window of 100 tasks on 1,000 machines."""
    instance = draw_instance(MACHINES, TASKS, level, seed=1)
    full = f"{level:.0%} full"
    pygad = pygad_decision(instance, 1 if quick else REPEATS)
    exact = WindowTiming(instance, lambda free: pairwise.place_all(free, instance.demands), REPEATS)
    argmax = argmax_seconds(instance)
    rows = [
        Row(f"{full}: PyGAD, one generation", f"{1e3 * pygad / GENERATIONS:.2f} ms", pygad / GENERATIONS),
        Row(f"{full}: PyGAD, one decision ({GENERATIONS} generations)", f"{1e3 * pygad:.0f} ms", pygad),
        Row(f"{full}: one arg-max over all pairs, NumPy", f"{1e3 * argmax:.2f} ms", argmax),
        Row(f"{full}: pairwise greedy, window", _window_text(exact), exact.seconds),
    ]
    for rule in ("best-fit", "fgd", *workloads.OURS):
        if rule in RULES:
            rows += _rule_rows(rule, full, instance, pygad, exact)
    return rows


def _rule_rows(rule: str, full: str, instance: Instance, pygad: float, exact: WindowTiming) -> list[Row]:
    timing = time_rule(rule, instance)
    rows = [Row(f"{full}: {rule}, window", _window_text(timing), timing.seconds)]
    if rule == "genetic-paper":
        ratio = pygad / (timing.seconds / max(1, timing.placed))
        rows.append(at_least(f"{full}: PyGAD / {rule}, one decision", ratio, 100, f"{ratio:.0f} ×"))
    if rule == "genetic":
        ratio = timing.gpu_milli / exact.gpu_milli
        rows.append(at_least(f"{full}: GPU placed, {rule} / pairwise greedy", ratio, 1, f"{ratio:.4f}"))
    return rows


def _window_text(timing: WindowTiming) -> str:
    return f"{1e3 * timing.seconds:.2f} ms, {timing.placed} tasks, {timing.gpu_milli / 1000:.1f} GPUs"


def trace_rows(quick: bool) -> list[Row]:
    """Measure all of openb with `genetic`, and its first 1 % with SimPy and PyGAD."""
    jobs, cluster = workloads.pods(), workloads.openb()
    first = jobs[: max(2, round(TRACE_SHARE * len(jobs)) // (10 if quick else 1))]
    peer = simpy_pygad.run(first, cluster)
    rule = "genetic" if "genetic" in RULES else "fgd"
    simulate(jobs[:100], cluster, make_policy("fifo-skip", {"placement": rule}))
    seconds = median_cpu_seconds(
        lambda: simulate(jobs, cluster, make_policy("fifo-skip", {"placement": rule})), 1 if quick else 3
    )
    name = f"SimPy + PyGAD, first {len(first)} pods of openb"
    rate = f"{seconds:.2f} s ({len(jobs) / seconds:,.0f} pods/s)"
    return [
        Row(name, f"{peer.cpu_seconds:.2f} s, {peer.decisions} decisions", peer.cpu_seconds),
        Row(f"fifo-skip + {rule}, all {len(jobs):,} pods", rate, seconds),
        at_most(
            f"all of openb with {rule} / first {len(first)} pods with SimPy + PyGAD",
            seconds / peer.cpu_seconds,
            1,
            f"{seconds / peer.cpu_seconds:.3f} ×",
        ),
    ]


def grid(rule: str, quick: bool) -> str:
    """Measure the time per window by number of machines and window size, at 85 % full."""
    rows = []
    for machines in GRID_MACHINES[: 2 if quick else None]:
        row = []
        for window in GRID_WINDOWS[: 3 if quick else None]:
            print_progress(f"{rule}: {window} tasks on {machines:,} machines")
            timing = time_rule(rule, draw_instance(machines, window, 0.85, seed=2), 3)
            row.append(f"{1e3 * timing.seconds:.3g} ms ({1e6 * timing.seconds / window:,.0f} µs per task)")
        rows.append([f"{machines:,}", *row])
    return markdown(["machines", *(f"window of {window:,}" for window in GRID_WINDOWS[: 3 if quick else None])], rows)


HEADING = """# Speed of placement rules

Medians of CPU time on one core. Machines are drawn from the openb nodes with GPUs, filled
and then emptied to a level; tasks are GPU pods. PyGAD {version} as in [window.md](window.md), with
precomputed feasibility.

Generated by

<!-- not run: reads the published traces, which are not part of this repository -->
```sh
python -m benchmarks.placement.speed --write
```
"""


def main() -> None:
    """Print the page; write it with --write."""
    quick = "run fewer and smaller measurements"
    options = measurement_parser("benchmarks.placement.speed", __doc__, quick).parse_args()
    if message := workloads.missing_data():
        print(message)
        return
    import pygad

    rows = [row for level in LEVELS[: 1 if options.quick else None] for row in window_rows(level, options.quick)]
    print_progress("windows done")
    traces = trace_rows(options.quick)
    parts = [HEADING.format(version=pygad.__version__), "## 100 tasks on 1,000 machines\n", as_markdown(rows), ""]
    parts += ["## All of openb\n", as_markdown(traces), ""]
    for rule in (rule for rule in ("best-fit", "fgd", *workloads.OURS) if rule in RULES):
        parts += [f"## Time per window, {rule}\n", grid(rule, options.quick), ""]
    publish(options, PAGE, "\n".join(parts), as_plain([*rows, *traces]))


if __name__ == "__main__":
    main()
