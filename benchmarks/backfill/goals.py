"""The goals, and whether they were met, by policy and workload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.backfill.experiment import CONSERVATIVE, EASY, FIFO, PREDICTED_AND_KNOWN, PolicyConfig, Workload
from benchmarks.backfill.runs import WHOLE_NODES, Result, Results, Run
from benchmarks.table import Row, Verdict
from refold.model import MINUTE, Seconds, format_duration

MIN_FIFO_WAIT: Seconds = MINUTE
"""Workloads with a shorter mean waiting under fifo leave nothing to improve."""

SHARE_GOAL, COVERAGE_GOAL = 0.80, 0.95
GOAL_CONFIGS = {"easy": EASY, "conservative": CONSERVATIVE}
"""The configurations with goals: the default, predicted durations."""


class GoalResult(NamedTuple):
    """A measurement on one workload as text, and its distance from the goal; `margin` ≥ 0 if the goal is met."""

    workload: Workload
    text: str
    margin: float


def fifo_mean(results: Results, workload: Workload) -> float:
    """Return the mean waiting under fifo; 0 if it was not run."""
    result = results.get(Run(workload, FIFO))
    return 0.0 if result is None else result.waiting.mean or 0.0


def oracle_share(results: Results, workload: Workload, name: str) -> float | None:
    """Return the share of the improvement with known durations that predictions reach; see `improvement_share`."""
    predicted, known = PREDICTED_AND_KNOWN[name]
    return improvement_share(results, workload, predicted, known)


def improvement_share(
    results: Results, workload: Workload, config: PolicyConfig, reference: PolicyConfig
) -> float | None:
    """Return the improvement of mean waiting over fifo as a share of that of `reference`; None below MIN_FIFO_WAIT."""
    result, best = (results.get(Run(workload, one)) for one in (config, reference))
    fifo = fifo_mean(results, workload)
    if result is None or best is None or fifo <= MIN_FIFO_WAIT:
        return None
    assert result.waiting.mean is not None and best.waiting.mean is not None
    improvement = fifo - best.waiting.mean
    return (fifo - result.waiting.mean) / improvement if improvement > 0 else None


def rows(results: Results, workloads: Sequence[Workload]) -> list[Row]:
    """Return a row for each goal and policy: the number of workloads on which it is met, and the worst."""
    found = []
    for name in GOAL_CONFIGS:
        shares = [_share_result(results, workload, name) for workload in workloads]
        found.append(_row(f"{name}: share of the oracle's improvement", f"≥ {SHARE_GOAL:.0%}", shares))
    for name, config in GOAL_CONFIGS.items():
        coverage = [_coverage_result(results, workload, config) for workload in workloads]
        found.append(_row(f"{name}: start bounds met", f"≥ {COVERAGE_GOAL:.0%}", coverage))
    for name, config in GOAL_CONFIGS.items():
        whole = [_whole_nodes_result(results, workload, config) for workload in workloads]
        found.append(_row(f"{name}: p99 waiting of whole-node jobs", "≤ fifo", whole))
    return found


def _row(name: str, goal: str, by_workload: Sequence[GoalResult | None]) -> Row:
    measured = [one for one in by_workload if one is not None]
    if not measured:
        return Row(name, "not measured", goal=goal, verdict="skipped")
    worst = min(measured, key=lambda one: one.margin)
    met = sum(one.margin >= 0 for one in measured)
    verdict: Verdict = "met" if met == len(measured) else "missed"
    text = f"on {met} of {len(measured)} workloads; worst: {worst.text} ({worst.workload.title})"
    return Row(name, text, worst.margin, goal, verdict)


def _share_result(results: Results, workload: Workload, name: str) -> GoalResult | None:
    share = oracle_share(results, workload, name)
    return None if share is None else GoalResult(workload, f"{share:.1%}", share - SHARE_GOAL)


def _coverage_result(results: Results, workload: Workload, config: PolicyConfig) -> GoalResult | None:
    result = results.get(Run(workload, config))
    if result is None or result.start_estimates is None or result.start_estimates.coverage is None:
        return None
    coverage = result.start_estimates.coverage
    return GoalResult(workload, f"{coverage:.1%} of {result.start_estimates.bounded:,}", coverage - COVERAGE_GOAL)


def _whole_nodes_result(results: Results, workload: Workload, config: PolicyConfig) -> GoalResult | None:
    p99, fifo = whole_nodes_p99(results.get(Run(workload, config))), whole_nodes_p99(results.get(Run(workload, FIFO)))
    if p99 is None or fifo is None or p99 == fifo == 0.0:
        return None
    text = f"{format_duration(p99)}, fifo {format_duration(fifo)}"
    return GoalResult(workload, text, (fifo - p99) / max(fifo, MIN_FIFO_WAIT))


def whole_nodes_p99(result: Result | None) -> float | None:
    """Return the p99 waiting of jobs that take whole nodes."""
    return None if result is None else result.sizes[WHOLE_NODES].p99
