"""What one decision of conservative backfill takes, after an arrival and after an end, by how many jobs wait.

A thousand nodes of 8 GPUs are full, and so many jobs wait, each with a promised place; then more come, and runs end
when they do and not when they were predicted to.
"""

from __future__ import annotations

import random
import statistics
import time
from contextlib import suppress

from benchmarks.measure import in_fresh_process
from benchmarks.table import Row, at_most
from refold.core import Policy, View
from refold.model import Decision, Demand, Job
from refold.registry import make_policy
from refold.simulator import simulate
from refold.traces import read_cluster

NODES = 1_000
RUNNING = 3_300
"""As many jobs as fill the nodes."""

WAITING = (100, 1_000, 10_000)
MEASURED = 150
SHAPES = (Demand(1, 1), Demand(1, 2), Demand(1, 4), Demand(1, 8), Demand(2, 8), Demand(4, 8))
WEIGHTS = (50, 10, 10, 20, 7, 3)
GOAL_MILLISECONDS = 100


def rows(quick: bool) -> list[Row]:
    """The median and the longest decision, in wall-clock time, since that is what somebody waits for."""
    found: list[Row] = []
    for waiting in WAITING[:2] if quick else WAITING:
        for policy in ("easy", "conservative"):
            arrivals, ends = in_fresh_process(milliseconds, policy, waiting)
            for what, times in (("an arrival", arrivals), ("an end", ends)):
                median, most = statistics.median(times), sorted(times)[int(0.99 * len(times))]
                text = f"{median:.1f} ms, p99 {most:.1f} ms"
                name = f"{policy}, {waiting:,} waiting on {NODES:,} nodes: a decision after {what}"
                found.append(at_most(name, median, GOAL_MILLISECONDS, text, "ms"))
    return found


class _Enough(Exception):
    """Everything was measured."""


class _Timed:
    """A policy, with a watch."""

    name = "timed"

    def __init__(self, policy: Policy, waiting: int) -> None:
        self._policy, self._waiting = policy, waiting
        self._measures = False
        self.arrivals: list[float] = []
        self.ends: list[float] = []

    def decide(self, view: View) -> Decision:
        """Decide, and note how long it took."""
        changes = view.changes
        times = self.ends if changes.ended else self.arrivals if changes.submitted else None
        before = time.perf_counter()
        decision = self._policy.decide(view)
        spent = (time.perf_counter() - before) * 1e3
        self._measures = self._measures or len(view.waiting) >= self._waiting
        if self._measures and times is not None:
            times.append(spent)
        if len(self.ends) >= MEASURED:
            raise _Enough
        return decision


def milliseconds(policy: str, waiting: int) -> tuple[list[float], list[float]]:
    """How long decisions took after arrivals, and after ends, in a process of its own."""
    chance = random.Random(1)

    def job(name: str, at: float) -> Job:
        lasts = float(int(chance.lognormvariate(8, 1.5)) + 60)
        return Job(name, at, chance.choices(SHAPES, WEIGHTS)[0], lasts)

    jobs = [job(f"runs-{number}", 0.0) for number in range(RUNNING)]
    jobs += [job(f"waits-{number}", 60.0 * number / waiting) for number in range(waiting)]
    jobs += [job(f"comes-{number}", 60.0 + 0.7 * number) for number in range(4_000)]
    timed = _Timed(make_policy(policy), waiting)
    with suppress(_Enough):
        simulate(jobs, read_cluster(f"{NODES}x8"), timed)
    return timed.arrivals, timed.ends
