"""Jobs that did not finish, and why. Means over finished jobs do not include them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from refold.journal import History, Outcome
from refold.model import Cluster, Job, format_count

_REASONS = {
    Outcome.FAILED: "failed",
    Outcome.CANCELLED: "cancelled",
    Outcome.RUNNING: "still running at the end",
    Outcome.WAITING: "still waiting at the end",
}


def describe_unfinished(history: History) -> str:
    """Describe the jobs that did not finish, such as '2 of 60 jobs did not finish: 2 failed'; '' if all finished."""
    jobs = history.jobs
    unfinished = jobs.outcome != Outcome.FINISHED
    count = int(unfinished.sum())
    if not count:
        return ""
    never_started = int((unfinished & np.isnan(jobs.first_start)).sum())
    started = f" ({never_started:,} never started)" if never_started else ""
    summary = f"{count:,} of {format_count(len(jobs), 'job')} did not finish{started}"
    return f"{summary}: {' · '.join(_reasons(history))}"


def _reasons(history: History) -> list[str]:
    outcome = history.jobs.outcome
    infeasible = [history.jobs.jobs[index] for index in np.flatnonzero(outcome == Outcome.INFEASIBLE).tolist()]
    absent = sum(requests_only_absent_types(job, history.cluster) for job in infeasible)
    reasons = []
    if absent:
        reasons.append(f"{absent:,} can never fit: the cluster has only {_list_types(history.cluster.type_names)}")
    if len(infeasible) > absent:
        reasons.append(f"{len(infeasible) - absent:,} can never fit, even on the empty cluster")
    counts = {why: int((outcome == code).sum()) for code, why in _REASONS.items()}
    return reasons + [f"{count:,} {why}" for why, count in counts.items() if count]


def requests_only_absent_types(job: Job, cluster: Cluster) -> bool:
    """Return whether the job requests GPU types of which the cluster has none."""
    demand = job.demand
    return bool(demand.gpus and demand.gpu_types) and not set(demand.gpu_types) & set(cluster.type_names)


def _list_types(names: Sequence[str]) -> str:
    return ", ".join(names) or "no GPUs"
