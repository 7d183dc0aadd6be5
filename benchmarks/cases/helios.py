"""The general simulator compared with event loops without scheduling decisions, on all of Helios Venus."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from benchmarks.measure import in_fresh_process, median_cpu_seconds
from benchmarks.peers import bare_loops
from benchmarks.table import Row, at_most, skipped
from benchmarks.workloads import HELIOS, HELIOS_JOBS, general_seconds, helios, missing

GOAL = 20
LOOPS: dict[str, tuple[str, Callable[[Sequence[float], Sequence[float]], int]]] = {
    "merged": ("bare heapq, sorted arrivals merged with a heap of departures", bare_loops.merged),
    "all_in_heap": ("bare heapq, every event through one heap", bare_loops.all_in_heap),
    "in_simpy": ("bare SimPy", bare_loops.in_simpy),
}


def rows(quick: bool) -> list[Row]:
    """Measure jobs per second and ratios: medians of three alternating runs. Quick: the first 20,000 jobs."""
    unavailable = missing(HELIOS)
    if unavailable:
        return [skipped("Helios Venus, fifo + best-fit", unavailable)]
    count = 20_000 if quick else HELIOS_JOBS
    rounds = [_run_all(count) for _ in range(3)]
    seconds = {name: statistics.median(times[name] for times in rounds) for name in rounds[0]}
    ratio = {name: statistics.median(times["refold"] / times[name] for times in rounds) for name in LOOPS}
    found = [Row(f"Refold fifo + best-fit, journal on, {count:,} Helios jobs", _per_second(count, seconds["refold"]))]
    found += [Row(f"{title}, same jobs", _per_second(count, seconds[name])) for name, (title, _) in LOOPS.items()]
    return [
        *found,
        at_most("bare heapq (merged) / Refold", ratio["merged"], GOAL, f"{ratio['merged']:.1f} ×"),
        Row("bare heapq (one heap) / Refold", f"{ratio['all_in_heap']:.1f} ×", ratio["all_in_heap"], f"(≤ {GOAL} ×)"),
        Row("bare SimPy / Refold", f"{ratio['in_simpy']:.1f} ×", ratio["in_simpy"]),
    ]


def _run_all(count: int) -> dict[str, float]:
    """Return the CPU seconds of Refold and of each loop, run one after the other."""
    refold_seconds: float = in_fresh_process(refold, count)
    return {"refold": refold_seconds, **{name: in_fresh_process(loop, name, count) for name in LOOPS}}


def _per_second(count: int, seconds: float) -> str:
    return f"{count / seconds:,.0f} jobs/s"


def refold(count: int) -> float:
    """Return the CPU seconds of the general simulator."""
    return general_seconds(*helios(count))


def loop(name: str, count: int) -> float:
    """Return the median CPU seconds of a bare event loop."""
    jobs, _ = helios(count)
    submitted, work = [job.submitted for job in jobs], [job.work or 0.0 for job in jobs]
    run = LOOPS[name][1]
    assert run(submitted, work) == 2 * count, f"not every one of {count} jobs arrived and departed"
    return median_cpu_seconds(lambda: run(submitted, work))
