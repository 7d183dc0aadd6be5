"""Accuracy of the start estimates of a history, and how many jobs overtook each job. See docs/measures.md.

Only estimates made before the first start of a job count; those of a preempted job refer to a later start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from refold.journal import TIME_TOLERANCE_SECONDS, History, Outcome
from refold.model import Seconds
from refold.placement import Floats, Ints

MIN_WAIT_SECONDS: Seconds = 10.0
"""Shorter waits count as this long in relative errors."""


class StartError(msgspec.Struct, frozen=True):
    """Errors of start estimates: actual minus estimated first start. `relative` is the error divided by the wait."""

    count: int = 0
    median: Seconds | None = None
    mean_absolute: Seconds | None = None
    p90_absolute: Seconds | None = None
    relative: float | None = None


class StartEstimateGroup(msgspec.Struct, frozen=True):
    """Start estimates of a group of jobs.

    `bounded` jobs were given a latest start with their first estimate. Of these, `met` jobs started by then and
    `missed` jobs did not; `undecided` ones left the queue, or the history ended, before the bound. `coverage` is the
    number of met bounds divided by that of met and missed ones. `postponed` jobs were given a later bound afterwards,
    `postponements` times in total. `width` is the median time from the estimate to the bound, `lateness` the mean delay
    beyond missed bounds. `error` refers to the first estimate of each job, `last_error` to the last before its start.
    """

    name: str
    jobs: int
    bounded: int
    met: int
    missed: int
    undecided: int
    coverage: float | None
    postponed: int
    postponements: int
    width: Seconds | None
    lateness: Seconds | None
    error: StartError
    last_error: StartError


class StartEstimateMeasures(msgspec.Struct, frozen=True):
    """Start estimates of all jobs, and by job size."""

    all: StartEstimateGroup
    sizes: tuple[StartEstimateGroup, ...]


def measure_start_estimates(history: History, names: Sequence[str], group: Ints) -> StartEstimateMeasures | None:
    """Measure the start estimates of all jobs and of each group; None if no job was given an estimate."""
    jobs = _estimated_jobs(history)
    if jobs is None:
        return None
    group_of = group[jobs.job]
    groups = [
        _measure_group(name, jobs, group_of == index) for index, name in enumerate(names) if (group_of == index).any()
    ]
    return StartEstimateMeasures(_measure_group("all", jobs, np.ones(len(jobs.job), dtype=np.bool_)), tuple(groups))


@dataclass(frozen=True, slots=True, eq=False)
class _EstimatedJobs:
    """Columns with one entry per job that was given a start estimate.

    `left_queue` is when the job first started, or else ended, or else the end of the history.
    """

    job: Ints
    made_at: Floats
    at: Floats
    latest: Floats
    last_at: Floats
    postponements: Ints
    submitted: Floats
    started: Floats
    left_queue: Floats


def _estimated_jobs(history: History) -> _EstimatedJobs | None:
    jobs, estimates = history.jobs, history.start_estimates
    counts = ~(estimates.made_at > jobs.first_start[estimates.job])  # true if the job never started
    order = np.flatnonzero(counts)[np.argsort(estimates.job[counts], kind="stable")]
    if not len(order):
        return None
    job, first = np.unique(estimates.job[order], return_index=True)
    last = np.append(first[1:], len(order)) - 1
    ended = np.where(np.isnan(jobs.ended[job]), history.until, jobs.ended[job])
    started = jobs.first_start[job]
    return _EstimatedJobs(
        job,
        made_at=estimates.made_at[order[first]],
        at=estimates.at[order[first]],
        latest=estimates.latest[order[first]],
        last_at=estimates.at[order[last]],
        postponements=np.add.reduceat(estimates.postponed[order], first),
        submitted=jobs.submitted[job],
        started=started,
        left_queue=np.where(np.isnan(started), ended, started),
    )


def _measure_group(name: str, estimated: _EstimatedJobs, chosen: NDArray[np.bool_]) -> StartEstimateGroup:
    bounded = chosen & ~np.isnan(estimated.latest)
    lateness = estimated.left_queue - estimated.latest
    missed = bounded & (lateness > TIME_TOLERANCE_SECONDS)
    met = bounded & ~missed & ~np.isnan(estimated.started)
    decided = int(met.sum() + missed.sum())
    return StartEstimateGroup(
        name,
        jobs=int(chosen.sum()),
        bounded=int(bounded.sum()),
        met=int(met.sum()),
        missed=int(missed.sum()),
        undecided=int(bounded.sum()) - decided,
        coverage=int(met.sum()) / decided if decided else None,
        postponed=int((estimated.postponements[chosen] > 0).sum()),
        postponements=int(estimated.postponements[chosen].sum()),
        width=_median((estimated.latest - estimated.made_at)[bounded]),
        lateness=float(lateness[missed].mean()) if missed.any() else None,
        error=_error(estimated, estimated.at, chosen),
        last_error=_error(estimated, estimated.last_at, chosen),
    )


def _error(jobs: _EstimatedJobs, estimate: Floats, chosen: NDArray[np.bool_]) -> StartError:
    started = chosen & ~np.isnan(jobs.started)
    if not started.any():
        return StartError()
    error = (jobs.started - estimate)[started]
    waited = np.maximum((jobs.started - jobs.submitted)[started], MIN_WAIT_SECONDS)
    return StartError(
        len(error),
        _median(error),
        float(np.abs(error).mean()),
        float(np.percentile(np.abs(error), 90)),
        _median(np.abs(error) / waited),
    )


def _median(values: Floats) -> float | None:
    return float(np.median(values)) if len(values) else None


def count_overtaking(history: History) -> Floats:
    """Return, for each job, the number of jobs submitted later that started before its first start.

    A job that never started can be overtaken until it is cancelled or the history ends. NaN for infeasible jobs.
    """
    jobs = history.jobs
    infeasible = jobs.outcome == Outcome.INFEASIBLE
    waited_until = np.where(np.isnan(jobs.first_start), jobs.ended, jobs.first_start)
    left_queue = np.where(np.isnan(waited_until), np.inf, waited_until)
    times, rank = np.unique(
        np.concatenate([left_queue, np.nan_to_num(jobs.first_start, nan=np.inf)]), return_inverse=True
    )
    started = np.where(np.isnan(jobs.first_start), len(times), rank[len(jobs) :])
    order = np.argsort(jobs.submitted, kind="stable")
    submission = np.unique(jobs.submitted[order], return_inverse=True)[1]
    counts = np.empty(len(jobs), dtype=np.float64)
    counts[order] = _count_overtaking(submission, rank[: len(jobs)][order], started[order], len(times))
    return np.where(infeasible, np.nan, counts)


def _count_overtaking(submission: Ints, left_queue: Ints, started: Ints, times: int) -> Ints:
    """Return, for each job in order of submission, the number of later jobs with `started` < its `left_queue`.

    Jobs submitted at the same time are not later than each other. `started` is sorted bit by bit, from the highest. At
    each bit, the later jobs with the same higher bits as `left_queue` are at `first` to `last`: where its bit is 1,
    those of them with a 0 started before.
    """
    counts = np.zeros(len(submission), dtype=np.int64)
    first, last = np.searchsorted(submission, submission, side="right"), np.full(len(submission), len(submission))
    for bit in reversed(range(times.bit_length())):
        is_set = started >> bit & 1 == 1
        zeros = np.concatenate([[0], np.cumsum(~is_set)])
        first_zero, last_zero = zeros[first], zeros[last]
        follows = left_queue >> bit & 1 == 1
        counts += np.where(follows, last_zero - first_zero, 0)
        first = np.where(follows, zeros[-1] + first - first_zero, first_zero)
        last = np.where(follows, zeros[-1] + last - last_zero, last_zero)
        started = np.concatenate([started[~is_set], started[is_set]])
    return counts
