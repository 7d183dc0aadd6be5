"""Time per backfill decision after a submission and after the end of a run, by queue length.

A thousand nodes with 8 GPUs are fully allocated, and jobs queue with start estimates. Then more jobs are submitted,
and runs end at times other than predicted.
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
from refold.simulator import simulate
from refold.simulator.registry import make_policy
from refold.simulator.traces import read_cluster

NODES = 1_000
RUNNING = 3_300
"""Enough jobs to fill the nodes."""

QUEUE_LENGTHS = (100, 1_000, 10_000)
MEASURED_ENDS = 150
SHAPES = (Demand(1, 1), Demand(1, 2), Demand(1, 4), Demand(1, 8), Demand(2, 8), Demand(4, 8))
WEIGHTS = (50, 10, 10, 20, 7, 3)
GOAL_MILLISECONDS = 100


def rows(quick: bool) -> list[Row]:
    """Measure the median and p99 decision times in wall-clock time, which is what users experience."""
    found: list[Row] = []
    for queued in QUEUE_LENGTHS[:2] if quick else QUEUE_LENGTHS:
        for policy in ("easy", "conservative"):
            submissions, ends = in_fresh_process(decision_milliseconds, policy, queued)
            for event, times in (("a submission", submissions), ("a run end", ends)):
                median, p99 = statistics.median(times), sorted(times)[int(0.99 * len(times))]
                text = f"{median:.1f} ms, p99 {p99:.1f} ms"
                name = f"{policy}, {queued:,} queued on {NODES:,} nodes: decision after {event}"
                found.append(at_most(name, median, GOAL_MILLISECONDS, text, "ms"))
    return found


class _MeasurementDone(Exception):
    """Raised to end the simulation when enough decisions have been measured."""


class _TimedPolicy:
    """Wraps a policy and measures its decision times, in milliseconds, once the queue is long enough."""

    name = "timed"

    def __init__(self, policy: Policy, queued: int) -> None:
        self._policy, self._queued = policy, queued
        self._recording = False
        self.submissions: list[float] = []
        self.ends: list[float] = []

    def decide(self, view: View) -> Decision:
        """Decide as the wrapped policy does, and record how long it took."""
        changes = view.changes
        times = self.ends if changes.ended else self.submissions if changes.submitted else None
        before = time.perf_counter()
        decision = self._policy.decide(view)
        elapsed = (time.perf_counter() - before) * 1e3
        self._recording = self._recording or len(view.waiting) >= self._queued
        if self._recording and times is not None:
            times.append(elapsed)
        if len(self.ends) >= MEASURED_ENDS:
            raise _MeasurementDone
        return decision


def decision_milliseconds(policy: str, queued: int) -> tuple[list[float], list[float]]:
    """Return the decision times after submissions and after run ends; runs in a fresh process."""
    rng = random.Random(1)

    def job(name: str, at: float) -> Job:
        duration = float(int(rng.lognormvariate(8, 1.5)) + 60)
        return Job(name, at, rng.choices(SHAPES, WEIGHTS)[0], duration)

    jobs = [job(f"running-{number}", 0.0) for number in range(RUNNING)]
    jobs += [job(f"queued-{number}", 60.0 * number / queued) for number in range(queued)]
    jobs += [job(f"later-{number}", 60.0 + 0.7 * number) for number in range(4_000)]
    timed = _TimedPolicy(make_policy(policy), queued)
    with suppress(_MeasurementDone):
        simulate(jobs, read_cluster(f"{NODES}x8"), timed)
    return timed.submissions, timed.ends
