"""Scenarios that are simulated on a Ray cluster. Their summaries go to the same cache as those of this machine.

All nodes need the repository, with the traces beside it, under the same path.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

import msgspec

from benchmarks.measure import REPOSITORY
from benchmarks.scheduling import runs
from benchmarks.scheduling.runs import Scenario, Summary
from refold.engines.ray import RayTasks, connected, load_ray


def simulate_on_ray(scenarios: Iterable[Scenario]) -> None:
    """Simulate the scenarios that are not in the cache, and add them to it."""
    missing = [scenario for scenario in dict.fromkeys(scenarios) if runs.cached(scenario) is None]
    if not missing:
        return
    ray, done = load_ray("--workers ray"), 0

    def advance(count: float) -> None:
        nonlocal done
        done += round(count)
        print(f"{done}/{len(missing)}", file=sys.stderr, flush=True)

    with connected(ray, python_path=REPOSITORY):
        found = RayTasks(ray).map(summarise, None, missing, advance)
    for scenario, summary in zip(missing, found, strict=True):
        path = runs.cache_path(scenario)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(summary))


def summarise(_: None, scenario: Scenario, advance: Callable[..., None]) -> Summary:
    """Simulate a scenario, in a worker."""
    summary = runs.simulate_scenario(scenario)
    advance()
    return summary
