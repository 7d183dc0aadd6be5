"""The history of a compiled replay: the same columns as those of the journal that the general simulator would write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np

from refold.journal import Ending, History, JobColumns, Outcome, RunColumns, StartEstimateColumns
from refold.model import Allocation, Cluster, Job
from refold.packing import Floats, Ints
from refold.replays import ReplayedRuns, ReplayResult


def replayed_history(jobs: Sequence[Job], cluster: Cluster, replayed: ReplayResult) -> History:
    """Return the history of a replay of these jobs, which are sorted by submission."""
    runs = replayed.runs()
    tenants = tuple(sorted({job.tenant for job in jobs}))
    code = {tenant: index for index, tenant in enumerate(tenants)}
    gpus_of_demand = np.array([demand.total_gpus for demand in runs.tasks.demands], dtype=np.float64)
    gpus: Floats = gpus_of_demand[runs.tasks.demand_of] if len(jobs) else np.zeros(0)
    first, last = runs.number == 1, np.isnan(runs.stop_ordered)
    columns = JobColumns(
        jobs,
        submitted=runs.tasks.submitted,
        work=runs.tasks.work,
        gpus=gpus,
        tenant=np.fromiter((code[job.tenant] for job in jobs), np.int64, len(jobs)),
        first_start=_per_job(len(jobs), runs.task[first], runs.start[first]),
        ended=_per_job(len(jobs), runs.task[last], runs.end[last]),
        outcome=_outcomes(len(jobs), runs.task),
    )
    last_end = float(runs.end.max()) if len(runs.end) else 0.0
    until = max(last_end, float(runs.tasks.submitted[-1])) if len(jobs) else 0.0
    return History(cluster, columns, _run_columns(runs, gpus), tenants, (), until, _no_estimates())


def _per_job(jobs: int, job: Ints, times: Floats) -> Floats:
    column = np.full(jobs, np.nan)
    column[job] = times
    return column


def _outcomes(jobs: int, started: Ints) -> Ints:
    """Return the outcomes: jobs that fit the empty cluster have started and ended."""
    column = np.full(jobs, int(Outcome.INFEASIBLE), dtype=np.int64)
    column[started] = int(Outcome.FINISHED)
    return column


def _run_columns(runs: ReplayedRuns, gpus: Floats) -> RunColumns:
    return RunColumns(
        _Allocations(runs, np.arange(len(runs.task))),
        job=runs.task,
        number=runs.number,
        start=runs.start,
        start_step=runs.start_step,
        computing_since=runs.computing_since,
        stop_ordered=runs.stop_ordered,
        end=runs.end,
        end_step=runs.end_step,
        ending=np.where(np.isnan(runs.stop_ordered), int(Ending.FINISHED), int(Ending.STOPPED)),
        saved_before=runs.saved_before,
        saved=runs.saved,
        gpus=gpus[runs.task],
    )


def _no_estimates() -> StartEstimateColumns:
    times, numbers = np.zeros(0), np.zeros(0, dtype=np.int64)
    return StartEstimateColumns(numbers, times, times, times, times, numbers)


class _Allocations(Sequence[Allocation]):
    """The allocations of runs, made when they are asked for: most measures need none of them."""

    def __init__(self, replayed: ReplayedRuns, runs: Ints) -> None:
        self._replayed, self._runs = replayed, runs

    def __len__(self) -> int:
        return len(self._runs)

    @overload
    def __getitem__(self, at: int) -> Allocation: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Allocation]: ...

    def __getitem__(self, at: int | slice) -> Allocation | Sequence[Allocation]:
        if isinstance(at, slice):
            return _Allocations(self._replayed, self._runs[at])
        return Allocation(self._replayed.placement(int(self._runs[at])))
