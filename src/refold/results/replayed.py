"""The history of a compiled replay: the same columns as those of the journal that the general simulator would write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np

from refold.journal import Ending, History, JobColumns, Outcome, RunColumns, StartEstimateColumns
from refold.model import Allocation, Cluster, Job
from refold.packing import Floats, Ints
from refold.simulator import ReplayResult


def replayed_history(jobs: Sequence[Job], cluster: Cluster, replayed: ReplayResult) -> History:
    """Return the history of a replay of these jobs, which are sorted by submission."""
    started, ended = replayed.started, replayed.ended
    ran = np.flatnonzero(~np.isnan(started))
    runs = ran[np.argsort(replayed.start_number[ran])]
    tenants = tuple(sorted({job.tenant for job in jobs}))
    code = {tenant: index for index, tenant in enumerate(tenants)}
    gpus_of_demand = np.array([demand.total_gpus for demand in replayed.tasks.demands], dtype=np.float64)
    gpus: Floats = gpus_of_demand[replayed.tasks.demand_of] if len(jobs) else np.zeros(0)
    columns = JobColumns(
        jobs,
        submitted=replayed.tasks.submitted,
        work=replayed.tasks.work,
        gpus=gpus,
        tenant=np.fromiter((code[job.tenant] for job in jobs), np.int64, len(jobs)),
        first_start=started,
        ended=ended,
        outcome=np.where(np.isnan(started), int(Outcome.INFEASIBLE), int(Outcome.FINISHED)),
    )
    last_end = float(ended[ran].max()) if len(ran) else 0.0
    until = max(last_end, float(replayed.tasks.submitted[-1])) if len(jobs) else 0.0
    return History(cluster, columns, _run_columns(replayed, runs, gpus), tenants, (), until, _no_estimates())


def _run_columns(replayed: ReplayResult, runs: Ints, gpus: Floats) -> RunColumns:
    count = len(runs)
    return RunColumns(
        _Allocations(replayed, runs),
        job=runs,
        number=np.ones(count, dtype=np.int64),
        start=replayed.started[runs],
        start_step=replayed.start_step[runs],
        computing_since=replayed.started[runs],
        stop_ordered=np.full(count, np.nan),
        end=replayed.ended[runs],
        end_step=replayed.end_step[runs],
        ending=np.full(count, int(Ending.FINISHED), dtype=np.int64),
        saved_before=np.zeros(count),
        saved=np.full(count, np.nan),
        gpus=gpus[runs],
    )


def _no_estimates() -> StartEstimateColumns:
    times, numbers = np.zeros(0), np.zeros(0, dtype=np.int64)
    return StartEstimateColumns(numbers, times, times, times, times, numbers)


class _Allocations(Sequence[Allocation]):
    """The allocations of runs, made when they are asked for: most measures need none of them."""

    def __init__(self, replayed: ReplayResult, runs: Ints) -> None:
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
