"""Guarantee violations: guaranteed jobs that were slower than guaranteed, or waited although resources could be freed.

A guaranteed job within its tenant's quota is guaranteed the speed that it would have with its own plan on the resources
it requested. It uses as much of the quota as its minimum demand (`plans.Minimums`). Jobs are admitted in order of
submission, then of their ids, if they fit the remaining quota, and stay admitted until they end; a job that does not
fit does not block later jobs.

There are two kinds of violations. Each counts only after a grace period, the longest time that a stop has taken:

- *slow*: the job runs below the guaranteed speed;
- *waiting*: the job waits although its minimum demand would fit if all jobs without a guarantee released their GPUs and
  all jobs with one released the GPUs they hold above their minimum. These GPUs are assigned to the waiting jobs in
  order of submission, so that GPUs for one job do not count as a violation for two.

Only GPUs are considered, not CPUs and memory. Runs that are not preemptible keep all their GPUs.

Every other time in which a job within its quota waits is listed as well, with what it waits for. A job that is held, as
by its user, a dependency, or for a while after a failure, does not wait for GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Literal

import msgspec
import numpy as np

from refold.journal import History
from refold.model import Seconds
from refold.placement import Floats
from refold.planning.plans import GUARANTEE_TOLERANCE, Minimums, ModelledSpeedSource, Speeds, SpeedSource
from refold.simulator.results.quota_admission import admission_times, job_kinds
from refold.simulator.results.quota_waits import format_gpus, waiting_times

ViolationKind = Literal["slow", "waiting"]


class Violation(msgspec.Struct, frozen=True):
    """An interval, after the grace period, in which the guarantee of a job was violated, and the reason."""

    job: str
    since: Seconds
    until: Seconds
    kind: ViolationKind
    why: str


class QuotaWait(msgspec.Struct, frozen=True, gc=False):
    """An interval, longer than the grace period, in which a job within its quota had no run, and what it waited for."""

    job: str
    since: Seconds
    until: Seconds
    cause: str


class GuaranteeReport(msgspec.Struct, frozen=True):
    """The number of jobs with a guarantee, the number of them with violations, and the total time of violations.

    `waits`: all times in which jobs within their quota waited, whether they could have been avoided or not.
    """

    guaranteed_jobs: int
    violated_jobs: int
    seconds: Seconds
    violations: tuple[Violation, ...]
    waits: tuple[QuotaWait, ...] = ()


def find_violations(
    history: History,
    speeds: Speeds,
    speed_source: SpeedSource | None = None,
    *,
    measured: SpeedSource | None = None,
    grace: Seconds | None = None,
    tolerance: float = GUARANTEE_TOLERANCE,
) -> GuaranteeReport:
    """Find the guarantee violations of a history, with speeds from the performance model or from `speed_source`.

    `grace`: the time that it may take to free GPUs; None: the longest time that a stop has taken in the history.

    Minimum demands, and with them the use of quotas, always come from `speed_source`, because a scheduler gives
    guarantees by what it predicts. With `measured`, slow runs are determined by those speeds instead.
    """
    speed_source = speed_source or ModelledSpeedSource(speeds)
    minimums = Minimums(speeds, speed_source)
    kinds = job_kinds(history, minimums)
    admitted = admission_times(history, kinds)
    grace = longest_stop(history) if grace is None else grace
    avoidable, waits = waiting_times(history, kinds, admitted, grace)
    ids = history.jobs.jobs
    violations = [*_slow_runs(history, measured or speed_source, admitted, grace, tolerance)]
    violations += [Violation(ids[job].id, since + grace, until, "waiting", why) for job, since, until, why in avoidable]
    quota_waits = (QuotaWait(ids[job].id, since, until, why) for job, since, until, why in waits)
    violations.sort(key=lambda violation: (violation.since, violation.job))
    return GuaranteeReport(
        guaranteed_jobs=int((~np.isnan(admitted)).sum()),
        violated_jobs=len({violation.job for violation in violations}),
        seconds=sum(violation.until - violation.since for violation in violations),
        violations=tuple(violations),
        waits=tuple(sorted(quota_waits, key=lambda wait: (wait.since, wait.job))),
    )


def check_guarantees(history: History) -> GuaranteeReport | None:
    """Return the guarantees of a history by the performance model; None if no tenant has a quota."""
    if not any(tenant.quota_gpus for tenant in history.cluster.tenants):
        return None
    return find_violations(history, Speeds(history.cluster))


def longest_stop(history: History) -> Seconds:
    """Return the longest time from an order to stop a run to its end; 0 if no run was stopped."""
    stops = history.runs.end - history.runs.stop_ordered
    return float(np.nanmax(stops)) if np.isfinite(stops).any() else 0.0


def _slow_runs(
    history: History, speed_source: SpeedSource, admitted: Floats, grace: Seconds, tolerance: float
) -> Iterator[Violation]:
    """Yield the violations of runs below the guaranteed speed; consecutive slow runs of a job count as one."""
    runs, ends = history.runs, history.run_end
    since: dict[int, Seconds] = {}
    reason: dict[int, str] = {}
    until: dict[int, Seconds] = {}

    def close(job: int) -> Iterator[Violation]:
        begin = since.pop(job, None)
        if begin is not None and until[job] > begin + grace:
            yield Violation(history.jobs.jobs[job].id, begin + grace, until[job], "slow", reason[job])

    for run in map(int, np.flatnonzero(~np.isnan(admitted[runs.job]))):
        job = int(runs.job[run])
        speed = speed_source.speed(history.jobs.jobs[job], runs.allocations[run])
        slow = speed < 1 - tolerance
        if not slow or runs.start[run] > until.get(job, -inf):
            yield from close(job)
        if slow:
            if job not in since:
                since[job] = max(float(np.fmax(runs.start[run], runs.computing_since[run])), float(admitted[job]))
                reason[job] = f"{speed:.2f} × the guaranteed speed, on {format_gpus(float(runs.gpus[run]))}"
            until[job] = float(ends[run])
    for job in list(since):
        yield from close(job)
