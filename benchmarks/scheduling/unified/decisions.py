"""The time of a decision on a large cluster, with the jobs of benchmarks.scheduling.speed."""

from __future__ import annotations

from math import log

from benchmarks.measure import in_fresh_process
from benchmarks.scheduling.speed import SIZES, initial_jobs, take_over, time_decisions
from benchmarks.scheduling.unified.targets import Target
from benchmarks.scheduling.unified.workload import Workload

SMALL_GPUS, LARGE_GPUS = 8_192, 32_768
"""At 32,768 GPUs, 4,000 jobs run and 4,000 are queued."""

DECISIONS = Workload(
    "decisions",
    None,
    1,
    ("refold", "rubick"),
    (Target("event_ms", at_most=150), Target("cold_ms", at_most=500), Target("growth", at_most=1)),
)


def decision_figures(policy: str) -> dict[str, float]:
    """Measure decisions in a fresh process; settings given on the command line do not apply."""
    found: dict[str, float] = in_fresh_process(time_policy, policy)
    return found


def time_policy(policy: str) -> dict[str, float]:
    """Measure decisions in this process, after a warm-up."""
    take_over(policy, initial_jobs(min(SIZES))).submit()
    small, large = (time_decisions(policy, gpus) for gpus in (SMALL_GPUS, LARGE_GPUS))
    n_log_n = LARGE_GPUS * log(LARGE_GPUS) / (SMALL_GPUS * log(SMALL_GPUS))
    event = max(large.submission, large.end)
    return {
        "event_ms": 1e3 * event,
        "cold_ms": 1e3 * large.cold,
        "growth": event / max(small.submission, small.end) / n_log_n,
    }
