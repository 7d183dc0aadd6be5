"""The history of a compiled replay: the same columns as those of the journal that the general simulator would write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np

from refold.journal import Ending, History, JobColumns, Outcome, RunColumns, StartEstimateColumns
from refold.model import Allocation, Cluster, Job
from refold.placement import Floats, Ints
from refold.simulator.replays import ReplayResult


def replayed_history(jobs: Sequence[Job], cluster: Cluster, replayed: ReplayResult) -> History:
    """Return the history of a replay of these jobs, which are sorted by submission."""
    tasks = replayed.tasks
    tenants = tuple(sorted({job.tenant for job in jobs}))
    code = {tenant: index for index, tenant in enumerate(tenants)}
    gpus_of_demand = np.array([demand.total_gpus for demand in tasks.demands], dtype=np.float64)
    gpus: Floats = gpus_of_demand[tasks.demand_of] if len(jobs) else np.zeros(0)
    columns = JobColumns(
        jobs,
        submitted=tasks.submitted,
        work=tasks.work,
        gpus=gpus,
        tenant=np.fromiter((code[job.tenant] for job in jobs), np.int64, len(jobs)),
        first_start=replayed.started,
        ended=replayed.ended,
        outcome=np.where(np.isnan(replayed.started), int(Outcome.INFEASIBLE), int(Outcome.FINISHED)),
    )
    runs = _run_columns(replayed, gpus)
    last_end = float(runs.end.max()) if len(runs.end) else 0.0
    until = max(last_end, float(tasks.submitted[-1])) if len(jobs) else 0.0
    return History(cluster, columns, runs, tenants, (), until, _no_estimates())


def _run_columns(replayed: ReplayResult, gpus: Floats) -> RunColumns:
    """Return the runs in the order of starts: one of each task that fits the empty cluster, to completion."""
    task = replayed.start_order()
    start, not_stopped = replayed.started[task], np.full(len(task), np.nan)
    return RunColumns(
        _Allocations(replayed, task),
        job=task,
        number=np.ones(len(task), dtype=np.int64),
        start=start,
        start_step=replayed.start_step[task],
        computing_since=start,
        stop_ordered=not_stopped,
        end=replayed.ended[task],
        end_step=replayed.end_step[task],
        ending=np.full(len(task), int(Ending.FINISHED)),
        saved_before=np.zeros(len(task)),
        saved=not_stopped,
        gpus=gpus[task],
    )


def _no_estimates() -> StartEstimateColumns:
    times, numbers = np.zeros(0), np.zeros(0, dtype=np.int64)
    return StartEstimateColumns(numbers, times, times, times, times, numbers)


class _Allocations(Sequence[Allocation]):
    """The allocations of runs, made when they are asked for: most measures need none of them."""

    def __init__(self, replayed: ReplayResult, tasks: Ints) -> None:
        self._replayed, self._tasks = replayed, tasks

    def __len__(self) -> int:
        return len(self._tasks)

    @overload
    def __getitem__(self, at: int) -> Allocation: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Allocation]: ...

    def __getitem__(self, at: int | slice) -> Allocation | Sequence[Allocation]:
        if isinstance(at, slice):
            return _Allocations(self._replayed, self._tasks[at])
        return Allocation(self._replayed.placement(int(self._tasks[at])))
