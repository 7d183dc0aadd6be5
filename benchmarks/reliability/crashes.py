"""Crash scenarios of the tests with other random seeds: daemons are killed at named points."""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import fill

import msgspec

from benchmarks.measure import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "tests" / "helpers"))

from crash_points import POINTS
from crash_setups import survive_crashes

FIRST_SEED = 1_000
"""Smaller seeds are used by the tests."""


class CrashResults(msgspec.Struct, frozen=True):
    """Number of scenarios, how often a daemon was killed at each point, and the violated guarantees as messages."""

    scenarios: int
    kills: dict[str, int]
    violations: list[str]
    minutes: float


def run_scenarios(scenarios: int, at_once: int = 1) -> CrashResults:
    """Run crash scenarios, `at_once` of them concurrently."""
    points = list(POINTS)
    kills: Counter[str] = Counter()
    violations: list[str] = []
    start = time.monotonic()

    def run_scenario(number: int) -> None:
        point = points[number % len(points)]
        with tempfile.TemporaryDirectory(prefix="refold-crash-") as folder:
            try:
                kills.update(survive_crashes(Path(folder), FIRST_SEED + number, [point]))
            except AssertionError as error:
                violations.append(f"seed {FIRST_SEED + number}, {point}: {error}")
                print(violations[-1], file=sys.stderr)
        if number % 10 == 9:
            progress = f"{number + 1} scenarios, {kills.total()} kills, {len(violations)} violated guarantees"
            print(progress, file=sys.stderr)

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(run_scenario, range(scenarios)))
    counts = {point: kills[point] for point in points}
    return CrashResults(scenarios, counts, violations, (time.monotonic() - start) / 60)


def table(results: CrashResults) -> str:
    """Describe the results in a paragraph."""
    counts = results.kills.values()
    text = (
        f"{results.scenarios} scenarios of 12 jobs each; daemons were killed {sum(counts)} times, at {len(counts)} "
        f"kinds of points {min(counts)} to {max(counts)} times each; guarantees violated: {len(results.violations)}. "
        f"It took {results.minutes:.0f} minutes."
    )
    return fill(text, 120)
