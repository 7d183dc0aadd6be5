"""Daemons that are killed at named points, hundreds of times: the tests' own worlds, with other seeds."""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from benchmarks.measure import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "tests" / "helpers"))

from crash_points import POINTS
from crashing import survived

FIRST_SEED = 1_000
"""The seeds before are the tests'."""


class Crashed(msgspec.Struct, frozen=True):
    """What came of it: worlds, and how often a daemon died at each point; promises that were broken, in words."""

    worlds: int
    deaths: dict[str, int]
    broken: list[str]
    minutes: float


def crash(worlds: int, at_once: int = 1) -> Crashed:
    """Live through so many worlds."""
    points = list(POINTS)
    deaths: Counter[str] = Counter()
    broken: list[str] = []
    began = time.monotonic()

    def one(number: int) -> None:
        point = points[number % len(points)]
        with tempfile.TemporaryDirectory(prefix="refold-crash-") as folder:
            try:
                deaths.update(survived(Path(folder), FIRST_SEED + number, point))
            except AssertionError as error:
                broken.append(f"seed {FIRST_SEED + number}, {point}: {error}")
                print(broken[-1], file=sys.stderr)
        if number % 10 == 9:
            print(f"{number + 1} worlds, {deaths.total()} deaths, {len(broken)} broken", file=sys.stderr)

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(one, range(worlds)))
    counted = {point: deaths[point] for point in points}
    return Crashed(worlds, counted, broken, (time.monotonic() - began) / 60)


def table(found: Crashed) -> str:
    """By kind of point."""
    rows = [f"| {point} | {count} |" for point, count in found.deaths.items()]
    total = sum(found.deaths.values())
    return "\n".join(
        [
            f"{found.worlds} worlds of 12 jobs each; daemons were killed {total} times; "
            f"promises broken: {len(found.broken)}. It took {found.minutes:.0f} minutes.",
            "",
            "| killed | times |",
            "|---|---:|",
            *rows,
            f"| all | {total} |",
        ]
    )
