"""The measures of one run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.scheduling import testbed
from benchmarks.scheduling.unified.estimates import measure_estimates
from benchmarks.scheduling.unified.workload import Setup
from refold.journal import History
from refold.model import HOUR
from refold.placement import Floats
from refold.planning.plans import Speeds
from refold.simulator import MeasuredSpeeds
from refold.simulator.results import find_violations, measure

WIDE_GPUS = 8


def measure_run(history: History, setup: Setup) -> dict[str, float]:
    """Return the measures of a history in which all jobs have ended."""
    found = measure_times(history, setup)
    if setup.estimates_from is not None:
        found |= measure_estimates(history, setup.estimates_from)
    if any(job.user for job in history.jobs.jobs):
        found |= measure_fairness(history)
    if setup.charge is not None and setup.cluster.tenants:
        found |= measure_guarantees(history, setup.charge)
    return found


def measure_times(history: History, setup: Setup) -> dict[str, float]:
    """Return completion times and delays in hours (the median in seconds), and the most restarts of a job."""
    jobs = history.jobs
    work = np.array([setup.charge.work(job) if setup.charge else job.work for job in jobs.jobs], dtype=np.float64)
    completion: Floats = jobs.ended - jobs.submitted
    delay: Floats = (completion - work) / HOUR
    runs_of_job = np.bincount(history.runs.job, minlength=len(jobs))
    found = {
        "mean": float(completion.mean()) / HOUR,
        "median": float(np.median(completion)),
        "p99": float(np.percentile(completion, 99)) / HOUR,
        "makespan": (float(history.run_end.max()) - history.first_submission) / HOUR,
        "delay": float(delay.mean()),
        "delay_p99": float(np.percentile(delay, 99)),
        "longest": float(delay.max()),
        "restarts": float(runs_of_job.max() - 1),
    }
    wide = delay[jobs.gpus >= WIDE_GPUS]
    if len(wide):
        found |= {"wide_delay": float(wide.mean()), "wide_delay_p99": float(np.percentile(wide, 99))}
    return found


def measure_fairness(history: History) -> dict[str, float]:
    """Return Jain's index over users and tenants, and finish-time fairness (docs/measures.md)."""
    found = measure(history)
    users = tuple(sorted({job.user for job in history.jobs.jobs}))
    user_of_job = np.array([users.index(job.user) for job in history.jobs.jobs], dtype=np.int64)
    by_user = measure(replace(history, tenants=users, jobs=replace(history.jobs, tenant=user_of_job)))
    fairness = found.finish_time_fairness
    assert found.jain_tenants is not None and by_user.jain_tenants is not None
    assert fairness.mean is not None and fairness.p99 is not None
    return {
        "jain_users": by_user.jain_tenants,
        "jain_tenants": found.jain_tenants,
        "finish_time_fairness": fairness.mean,
        "finish_time_fairness_p99": fairness.p99,
    }


def measure_guarantees(history: History, charge: MeasuredSpeeds) -> dict[str, float]:
    """Return the number of jobs whose guarantee is violated, and of those that waited within their quota.

    Guarantees are given by predicted speeds; `violations_measured` counts by measured ones, which no policy knows in
    advance. `quota_waits` also counts jobs that could have started only if other guaranteed jobs had been moved.
    """
    speeds = Speeds(history.cluster, testbed.knowledge())
    predicted, measured = (find_violations(history, speeds, measured=source) for source in (None, charge))
    return {
        "violations": float(predicted.violated_jobs),
        "violations_measured": float(measured.violated_jobs),
        "quota_waits": float(len({wait.job for wait in predicted.waits})),
    }
