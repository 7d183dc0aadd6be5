"""Jobs that did not finish, and why: what a mean over the finished ones does not tell."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from refold.journal import History, Outcome
from refold.model import Cluster, Job

_WHY = {
    Outcome.FAILED: "failed",
    Outcome.CANCELLED: "cancelled",
    Outcome.RUNNING: "still running at the end",
    Outcome.WAITING: "still waiting at the end",
}


def unfinished_text(history: History) -> str:
    """'12 of 60 jobs did not finish (10 never started): 10 never fit the cluster · 2 failed'; '' if all did."""
    jobs = history.jobs
    missing = jobs.outcome != Outcome.FINISHED
    count = int(missing.sum())
    if not count:
        return ""
    never_started = int((missing & np.isnan(jobs.first_start)).sum())
    started = f" ({never_started:,} never started)" if never_started else ""
    of_all = f"{count:,} of {len(jobs):,} job{'s' * (len(jobs) != 1)} did not finish{started}"
    return f"{of_all}: {' · '.join(_reasons(history))}"


def _reasons(history: History) -> list[str]:
    outcome = history.jobs.outcome
    never = [history.jobs.jobs[index] for index in np.flatnonzero(outcome == Outcome.INFEASIBLE).tolist()]
    absent = sum(asks_for_absent_types(job, history.cluster) for job in never)
    reasons = []
    if absent:
        reasons.append(f"{absent:,} never fit: the cluster has {_types(history.cluster.type_names)} only")
    if len(never) > absent:
        reasons.append(f"{len(never) - absent:,} never fit, even in the empty cluster")
    counts = {why: int((outcome == code).sum()) for code, why in _WHY.items()}
    return reasons + [f"{count:,} {why}" for why, count in counts.items() if count]


def asks_for_absent_types(job: Job, cluster: Cluster) -> bool:
    """Whether it asks for GPU types, none of which the cluster has."""
    demand = job.demand
    return bool(demand.gpus and demand.gpu_types) and not set(demand.gpu_types) & set(cluster.type_names)


def _types(names: Sequence[str]) -> str:
    return ", ".join(names) or "no GPUs"
