"""How good the promised starts of a history were, and who was passed over. Definitions are in docs/measures.md.

Only what was said before a job's first start counts: what is said to a job that was stopped is about another wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from refold.journal import History, Outcome
from refold.model import Seconds
from refold.packing import Floats, Ints, compiled

SLACK: Seconds = 1e-3
"""Ends and starts are rounded each on its own: so much later is not later."""

SHORT: Seconds = 10.0
"""No wait is taken to be shorter than this where an error is compared with it."""


class StartError(msgspec.Struct, frozen=True):
    """How far first starts were from when they were expected: actual less expected. `relative` is to the wait."""

    count: int = 0
    median: Seconds | None = None
    mean_absolute: Seconds | None = None
    p90_absolute: Seconds | None = None
    relative: float | None = None


class StartEstimateGroup(msgspec.Struct, frozen=True):
    """Promises to some of the jobs. `undecided`: the history, or the job, ended before its promise did.

    `error` is that of the first thing said of each job, `last_error` that of the last before it started; `width` is the
    median time from saying to the promised bound, `late` the mean lateness of broken promises.
    """

    name: str
    jobs: int
    promised: int
    kept: int
    broken: int
    undecided: int
    share_kept: float | None
    renewed: int
    renewals: int
    width: Seconds | None
    late: Seconds | None
    error: StartError
    last_error: StartError


class StartEstimateMeasures(msgspec.Struct, frozen=True):
    """Promises to all jobs, and by size."""

    all: StartEstimateGroup
    sizes: tuple[StartEstimateGroup, ...]


def promise_measures(history: History, names: Sequence[str], group: Ints) -> StartEstimateMeasures | None:
    """How well promises were kept, also of each group of jobs; None where nobody was told when it may start."""
    told = _told(history)
    if told is None:
        return None
    of = group[told.job]
    groups = [_measured(name, told, of == number) for number, name in enumerate(names) if (of == number).any()]
    return StartEstimateMeasures(_measured("all", told, np.ones(len(told.job), dtype=np.bool_)), tuple(groups))


@dataclass(frozen=True, slots=True, eq=False)
class _ToldStart:
    """One entry per job that was told when it may start. `left` is when it first started, or else ceased to wait."""

    job: Ints
    made: Floats
    at: Floats
    latest: Floats
    last_at: Floats
    renewals: Ints
    submitted: Floats
    started: Floats
    left: Floats


def _told(history: History) -> _ToldStart | None:
    jobs, said = history.jobs, history.promises
    counts = ~(said.made > jobs.first_start[said.job])  # also where it never started
    order = np.flatnonzero(counts)[np.argsort(said.job[counts], kind="stable")]
    if not len(order):
        return None
    job, first = np.unique(said.job[order], return_index=True)
    last = np.append(first[1:], len(order)) - 1
    renewed = np.zeros(len(order), dtype=np.int64)
    before, after = order[:-1], order[1:]
    renewed[1:] = (said.job[before] == said.job[after]) & (said.latest[after] > said.latest[before] + SLACK)
    ended = np.where(np.isnan(jobs.ended[job]), history.until, jobs.ended[job])
    started = jobs.first_start[job]
    return _ToldStart(
        job,
        made=said.made[order[first]],
        at=said.at[order[first]],
        latest=said.latest[order[first]],
        last_at=said.at[order[last]],
        renewals=np.add.reduceat(renewed, first),
        submitted=jobs.submitted[job],
        started=started,
        left=np.where(np.isnan(started), ended, started),
    )


def _measured(name: str, told: _ToldStart, chosen: NDArray[np.bool_]) -> StartEstimateGroup:
    promised = chosen & ~np.isnan(told.latest)
    late = told.left - told.latest
    broken = promised & (late > SLACK)
    kept = promised & ~broken & ~np.isnan(told.started)
    decided = int(kept.sum() + broken.sum())
    return StartEstimateGroup(
        name,
        jobs=int(chosen.sum()),
        promised=int(promised.sum()),
        kept=int(kept.sum()),
        broken=int(broken.sum()),
        undecided=int(promised.sum()) - decided,
        share_kept=int(kept.sum()) / decided if decided else None,
        renewed=int((told.renewals[chosen] > 0).sum()),
        renewals=int(told.renewals[chosen].sum()),
        width=_median((told.latest - told.made)[promised]),
        late=float(late[broken].mean()) if broken.any() else None,
        error=_error(told, told.at, chosen),
        last_error=_error(told, told.last_at, chosen),
    )


def _error(told: _ToldStart, expected: Floats, chosen: NDArray[np.bool_]) -> StartError:
    started = chosen & ~np.isnan(told.started)
    if not started.any():
        return StartError()
    error = (told.started - expected)[started]
    waited = np.maximum((told.started - told.submitted)[started], SHORT)
    return StartError(
        len(error),
        _median(error),
        float(np.abs(error).mean()),
        float(np.percentile(np.abs(error), 90)),
        _median(np.abs(error) / waited),
    )


def _median(values: Floats) -> float | None:
    return float(np.median(values)) if len(values) else None


def passed_over(history: History) -> Floats:
    """Of each job, how many that were submitted later started before it first did; nan of one that never fits.

    A job that has not started is passed over until it is cancelled, or for as long as the history lasts.
    """
    jobs = history.jobs
    never = jobs.outcome == Outcome.INFEASIBLE
    waited_until = np.where(np.isnan(jobs.first_start), jobs.ended, jobs.first_start)
    left = np.where(np.isnan(waited_until), np.inf, waited_until)
    moments, rank = np.unique(np.concatenate([left, np.nan_to_num(jobs.first_start, nan=np.inf)]), return_inverse=True)
    started = np.where(np.isnan(jobs.first_start), len(moments), rank[len(jobs) :])
    order = np.argsort(jobs.submitted, kind="stable")
    submission = np.unique(jobs.submitted[order], return_inverse=True)[1]
    counts = np.empty(len(jobs), dtype=np.float64)
    counts[order] = _later_but_started_before(submission, rank[: len(jobs)][order], started[order], len(moments))
    return np.where(never, np.nan, counts)


@compiled
def _later_but_started_before(submission: Ints, left: Ints, started: Ints, moments: int) -> Ints:
    """For each job, in the order of submission, the later ones with `started` below its `left`.

    A Fenwick tree holds the starts of all later jobs. Jobs of one submission are not later than each other.
    """
    jobs = len(submission)
    tree = np.zeros(moments + 1, dtype=np.int64)
    found = np.zeros(jobs, dtype=np.int64)
    job = jobs - 1
    while job >= 0:
        together = job
        while together >= 0 and submission[together] == submission[job]:
            place = left[together]  # sums what is at 0 … left - 1
            while place > 0:
                found[together] += tree[place]
                place -= place & -place
            together -= 1
        while job > together:
            place = started[job] + 1
            while place <= moments:
                tree[place] += 1
                place += place & -place
            job -= 1
    return found
