"""Which guaranteed jobs are within the quota of their tenant, and since when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from refold.journal import History, Outcome
from refold.model import Demand, Job, Seconds
from refold.placement import Bools, Floats, Ints
from refold.planning.plans import Minimums

GPU_TOLERANCE = 1e-6
"""Rounding error, in GPUs, of sums of GPU fractions."""

ROWS_AT_ONCE = 1 << 16


class JobKinds(NamedTuple):
    """What guarantees depend on: a row per job. `demand`: number of its minimum demand among `demands`."""

    demands: Sequence[Demand]
    demand: Ints
    guaranteed: Bools
    preemptible: Bools
    reshapable: Bools

    def minimum(self, job: int) -> Demand:
        return self.demands[int(self.demand[job])]


def job_kinds(history: History, minimums: Minimums) -> JobKinds:
    """Return what guarantees depend on. Jobs of one kind are looked at once."""
    numbers: dict[Demand, int] = {}

    def number(job: Job) -> int:
        return numbers.setdefault(minimums.for_job(job), len(numbers))

    by_kind = history.jobs.by_kind
    demand = by_kind(number)
    return JobKinds(
        tuple(numbers),
        demand,
        by_kind(lambda job: job.job_class == "guaranteed") != 0,
        by_kind(lambda job: job.preemptible) != 0,
        by_kind(lambda job: job.reshapable) != 0,
    )


def admission_times(history: History, kinds: JobKinds) -> Floats:
    """Return the time from which each guaranteed job is within its tenant's quota, until it ends; nan: never.

    Without quotas there are no guarantees: the cluster cannot guarantee resources to all jobs.
    """
    admitted: Floats = np.full(len(history.jobs), np.nan)
    if not history.cluster.tenants:
        return admitted
    sizes = [demand.total_gpus for demand in kinds.demands]
    quotas = [history.cluster.quota_gpus(tenant) for tenant in history.tenants]
    queues: dict[int, list[int]] = defaultdict(list)
    used: dict[int, float] = defaultdict(float)
    for now, job, is_submission in _submissions_and_ends(history, kinds):
        tenant = int(history.jobs.tenant[job])
        queue = queues[tenant]
        if is_submission:
            queue.append(job)
        elif not np.isnan(admitted[job]):
            used[tenant] -= sizes[kinds.demand[job]]
        else:
            queue.remove(job)
        for queued in [job] if is_submission else list(queue):
            need = sizes[kinds.demand[queued]]
            if used[tenant] + need <= quotas[tenant] + GPU_TOLERANCE:
                used[tenant] += need
                admitted[queued] = now
                queue.remove(queued)
    return admitted


def _submissions_and_ends(history: History, kinds: JobKinds) -> Iterator[tuple[Seconds, int, bool]]:
    """Yield time, job and whether it is a submission, for all feasible guaranteed jobs, in order of time.

    At the same time, ends come before submissions, and these are in the order of job ids.
    """
    jobs = history.jobs
    chosen = np.flatnonzero(kinds.guaranteed & (jobs.outcome != Outcome.INFEASIBLE))
    ended = chosen[~np.isnan(jobs.ended[chosen])]
    time = np.concatenate([jobs.submitted[chosen], jobs.ended[ended]])
    is_last = np.concatenate([np.ones(len(chosen), dtype=bool), jobs.ended[ended] <= jobs.submitted[ended]])
    job = np.concatenate([chosen, ended])
    order = np.lexsort((job, is_last, time))
    time, is_last, job = time[order], is_last[order], job[order]
    is_new = np.concatenate([[True], (time[1:] != time[:-1]) | (is_last[1:] != is_last[:-1])])
    edges = np.append(np.flatnonzero(is_new), len(time))
    for first, end in zip(edges[:-1][np.diff(edges) > 1], edges[1:][np.diff(edges) > 1], strict=True):
        job[first:end] = sorted(job[first:end].tolist(), key=lambda at: jobs.jobs[at].id)
    seen: Bools = np.zeros(len(jobs), dtype=bool)
    for now, index in rows(np.arange(len(job)), time, job):
        yield now, index, not seen[index]
        seen[index] = True


def rows(order: Ints, *columns: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of columns in this order, as numbers of Python, of which only some are in memory at a time."""
    for first in range(0, len(order), ROWS_AT_ONCE):
        some = order[first : first + ROWS_AT_ONCE]
        yield from zip(*(column[some].tolist() for column in columns), strict=True)
