"""Start estimates: workloads of several days, cold and warm, with and without preemption, and measures of a history."""

from __future__ import annotations

from functools import partial
from math import nan
from typing import NamedTuple

import msgspec
import numpy as np
from scipy.stats import spearmanr

from benchmarks.scheduling.unified.targets import Target
from benchmarks.scheduling.unified.workload import Setup, Workload, feasible, shifted
from benchmarks.workloads import HELIOS, PAI, PHILLY, trace_slice
from refold.journal import History
from refold.model import DAY, Seconds
from refold.placement import Floats
from refold.simulator import START_ESTIMATES
from refold.simulator.traces import read_cluster

WEEK: Seconds = 7 * DAY
POLICIES = ("refold", "easy", "conservative")

JOBS = 12_000
EARLIER_JOBS = 4_000
"""A warm start begins this many jobs earlier; their estimates do not count."""

MIN_BOUNDS = 20
"""Weeks with fewer bounds do not count."""

TOLERANCE: Seconds = 1e-3
"""Start times and bounds are rounded separately."""


class LongSlice(NamedTuple):
    """A trace, a cluster, and the numbers of the first jobs to report and for tuning."""

    file: str
    nodes: str
    reported: int
    tuning: int


SLICES = {
    "philly": LongSlice(PHILLY, "88x8", 35_000, 20_000),
    "helios": LongSlice(HELIOS, "88x8", 60_000, 20_000),
    "pai": LongSlice(PAI, "69x8", 30_000, 10_000),
}
KEPT = Target("kept_in_worst_week", at_least=0.95)
CORRELATED = Target("rank_correlation", at_least=0.75)
NARROW = (KEPT, Target("bound_to_wait", at_most=8), CORRELATED)
NARROW_WITHOUT_PREEMPTION = (KEPT, Target("bound_to_wait", at_most=4), CORRELATED)


def estimates_setup(trace: str, first: int, draw: int, *, warm: bool, preemptible: bool) -> Setup:
    """Return a slice; a warm one begins with earlier jobs."""
    part = SLICES[trace]
    cluster, earlier = read_cluster(part.nodes), EARLIER_JOBS if warm else 0
    jobs = trace_slice(part.file, first - earlier, JOBS + earlier)
    kept = [msgspec.structs.replace(job, preemptible=preemptible) for job in feasible(jobs, cluster)]
    return Setup(cluster, shifted(kept, draw), estimates_from=jobs[earlier].submitted)


def estimate_workloads(tuning: bool) -> list[Workload]:
    """Return three traces, cold and warm, with and without preemption."""
    return [
        Workload(
            f"estimates-{trace}-{'warm' if warm else 'cold'}{'' if preemptible else '-no-preemption'}",
            partial(
                estimates_setup,
                trace,
                part.tuning if tuning else part.reported,
                warm=warm,
                preemptible=preemptible,
            ),
            1,
            POLICIES,
            NARROW if preemptible else NARROW_WITHOUT_PREEMPTION,
            settings={policy: {START_ESTIMATES: True} for policy in POLICIES},
        )
        for trace, part in SLICES.items()
        for warm in (False, True)
        for preemptible in (True, False)
    ]


def measure_estimates(history: History, estimates_from: Seconds) -> dict[str, float]:
    """Return the measures of the first start estimate of each job that waited.

    `bound_to_wait`: median time from the estimate to its bound, divided by the median wait. `not_known`: share of the
    jobs that waited without a bound.
    """
    jobs, estimates = history.jobs, history.start_estimates
    job, first = np.unique(estimates.job, return_index=True)
    bound = np.full(len(jobs), nan)
    made_at = np.full(len(jobs), nan)
    bound[job], made_at[job] = estimates.latest[first], estimates.made_at[first]
    waited = (jobs.submitted >= estimates_from) & (jobs.first_start > jobs.submitted + TOLERANCE)
    bounded = waited & (made_at <= jobs.first_start) & ~np.isnan(bound)
    if not waited.any():
        return {}
    found = {"not_known": 1 - float(bounded.sum() / waited.sum())}
    if bounded.sum() < MIN_BOUNDS:
        return found
    wait: Floats = (jobs.first_start - made_at)[bounded]
    width: Floats = (bound - made_at)[bounded]
    kept = wait <= width + TOLERANCE
    week = ((made_at[bounded] - estimates_from) // WEEK).astype(np.int64)
    by_week = [float(kept[week == one].mean()) for one in np.unique(week) if (week == one).sum() >= MIN_BOUNDS]
    return found | {
        "kept_in_worst_week": min(by_week, default=nan),
        "kept": float(kept.mean()),
        "bound_to_wait": float(np.median(width) / np.median(wait)),
        "rank_correlation": float(spearmanr(width, wait).statistic),
    }
