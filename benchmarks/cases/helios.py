"""The general simulator beside event loops that decide nothing, on all of Helios Venus."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from benchmarks.measure import in_fresh_process, median_cpu_seconds
from benchmarks.peers import bare_loops
from benchmarks.table import Row, at_most, skipped
from benchmarks.workloads import HELIOS, general_seconds, helios, missing

GOAL = 20
LOOPS: dict[str, tuple[str, Callable[[Sequence[float], Sequence[float]], int]]] = {
    "merged": ("bare heapq, sorted arrivals merged with a heap of departures", bare_loops.merged),
    "all_in_heap": ("bare heapq, every event through one heap", bare_loops.all_in_heap),
    "in_simpy": ("bare SimPy", bare_loops.in_simpy),
}


def rows(quick: bool) -> list[Row]:
    """Jobs per second of each, and how many times slower Refold is than each bare loop. Quick: the first 20,000."""
    why_not = missing(HELIOS)
    if why_not:
        return [skipped("Helios Venus, fifo + best-fit", why_not)]
    count = 20_000 if quick else len(helios()[0])
    seconds = statistics.median(in_fresh_process(refold, count) for _ in range(3))
    bare = {name: in_fresh_process(loop, name, count) for name in LOOPS}
    found = [Row(f"Refold fifo + best-fit, journal on, {count:,} Helios jobs", f"{count / seconds:,.0f} jobs/s")]
    found += [Row(f"{words}, same jobs", f"{count / bare[name]:,.0f} jobs/s") for name, (words, _) in LOOPS.items()]
    merged, one_heap = seconds / bare["merged"], seconds / bare["all_in_heap"]
    return [
        *found,
        at_most("bare heapq (merged) / Refold", merged, GOAL, f"{merged:.1f} ×"),
        Row("bare heapq (one heap) / Refold", f"{one_heap:.1f} ×", one_heap, f"(≤ {GOAL} ×)"),
        Row("Refold / bare SimPy", f"{bare['in_simpy'] / seconds:.2f} ×", bare["in_simpy"] / seconds),
    ]


def refold(count: int) -> float:
    """CPU seconds of the general simulator."""
    jobs, cluster = helios()
    return general_seconds(jobs[:count], cluster)


def loop(name: str, count: int) -> float:
    """CPU seconds of a bare loop."""
    jobs = helios()[0][:count]
    submitted, work = [job.submitted for job in jobs], [job.work or 0.0 for job in jobs]
    run = LOOPS[name][1]
    assert run(submitted, work) == 2 * count
    return median_cpu_seconds(lambda: run(submitted, work))
