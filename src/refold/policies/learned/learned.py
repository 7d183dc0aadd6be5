"""The learned policy: jobs in the order of a score that was trained in simulations.

The score is a function of what is expected of a job's run time, its size, its delay and the length of the queue. A job
that does not fit stops runs whose score is higher by a learned margin, if they may be stopped, were not restarted too
often and have run for long enough to pay for a restart. Jobs that have been delayed for longer than a learned time go
first, and the first of them that cannot start has a reservation. Jobs run as they were requested.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import floor, inf
from typing import Any

import numpy as np

from refold.catalogue import read_table
from refold.core import View
from refold.errors import BadValue
from refold.model import (
    NO_CHANGE,
    Allocation,
    Cluster,
    Decision,
    Demand,
    Job,
    Placement,
    Run,
    Seconds,
    Share,
    Start,
    Stop,
)
from refold.packing import FreeResources, PlacementRule, indices_from_mask, mask_from_indices
from refold.policies.common import DurationSource, DurationSourceName, Reasons, ended_jobs
from refold.policies.learned.arrays import (
    CLAIMS,
    RESERVES,
    REVIEW_SECONDS,
    STARTS,
    STOPS,
    WAITS,
    JobColumns,
    RoundLimits,
    RoundResult,
    RunColumns,
    Shares,
)
from refold.policies.learned.columns import Expectations, job_columns, share_rows
from refold.policies.learned.parameters import Parameters
from refold.policies.learned.round import plan_round

SHIPPED_WEIGHTS = "learned.yaml"
"""The file of the catalogue with the weights that ship with the package."""


class Learned:
    """Order, preemption and reservations by a score that was trained in simulations."""

    name = "learned"

    def __init__(
        self,
        weights: Parameters | Mapping[str, Any] | None = None,
        restart_seconds: float = 78.0,
        max_restarts: int = 10,
        durations: DurationSourceName = "predicted",
    ) -> None:
        """Create the policy.

        `weights`: parameters, by default those that ship with the package; on the command line, the file that `refold
        learn` wrote. `restart_seconds`: assumed cost of a restart. `max_restarts`: how often a job is preempted.
        `durations`: source of run times.
        """
        for name, value in (("restart_seconds", restart_seconds), ("max_restarts", max_restarts)):
            if not 0 <= value < inf:
                raise BadValue(f"{name} is {value}, expected a number ≥ 0")
        self.oracle = durations == "known"
        parameters = self.shipped_parameters() if weights is None else Parameters.from_settings(weights)
        self._weights = parameters.weights()
        self._restart_seconds, self._max_restarts = float(restart_seconds), int(max_restarts)
        self._durations = DurationSource(durations)
        self._jobs = _JobTable()
        self._reasons = Reasons()

    @staticmethod
    def shipped_parameters() -> Parameters:
        """Return the parameters that ship with the package."""
        return read_table(SHIPPED_WEIGHTS, Parameters)

    def decide(self, view: View) -> Decision:
        """Run a scheduling round, if jobs wait."""
        self._durations.observe(view)
        self._forget_ended(view)
        if not view.waiting:
            self._reasons.clear()
            return NO_CHANGE
        waiting, running = list(view.waiting.values()), [view.active[job_id] for job_id in view.runs]
        for job in (*waiting, *running):
            if job not in self._jobs:
                self._add(view, job)
        planned = self._plan(view, waiting, running)
        return self._decision(view, planned)

    def _forget_ended(self, view: View) -> None:
        for job_id in ended_jobs(view):
            self._jobs.remove(job_id)

    def _add(self, view: View, job: Job) -> None:
        """Add a job with what is expected of its run time now."""
        slot = self._jobs.add(job)
        remaining = self._durations.remaining_time(view, job)
        if remaining.total is None:
            self._jobs.expected.set_known(slot, view.done(job.id) + remaining.exact)
        else:
            self._jobs.expected.set_predicted(slot, remaining.total)

    def _plan(self, view: View, waiting: Sequence[Job], running: Sequence[Job]) -> _PlannedRound:
        jobs, free = [*waiting, *running], view.trial().free
        planned = _PlannedRound(waiting, running, _shares(view, waiting, running))
        plan_round(
            view.now,
            self._weights,
            RoundLimits(self._restart_seconds, self._max_restarts, float(max(view.cluster.gpus, 1))),
            self._jobs.columns(jobs),
            _run_columns(view, waiting, running),
            planned.shares,
            self._jobs.rule(free),
            free.arrays,
            np.arange(len(waiting)),
            np.arange(len(waiting), len(jobs)),
            planned.result,
        )
        return planned

    def _decision(self, view: View, planned: _PlannedRound) -> Decision:
        starts = tuple(Start(job.id, Allocation(placement)) for job, placement in planned.starts())
        stops = tuple(Stop(job.id, f"{self.name}: preempted for {by.id}") for job, by in planned.stops())
        kept_off = self._note_reserved(view, planned)
        waits = self._reasons.collect_all(view, starts, planned.claimers(), behind=kept_off)
        is_review_useful = len(starts) < len(view.waiting) and bool(view.runs or starts)
        wake_at = (floor(view.now / REVIEW_SECONDS) + 1.0) * REVIEW_SECONDS if is_review_useful else None
        if not (starts or stops or waits or wake_at):
            return NO_CHANGE
        return Decision(starts=starts, stops=stops, waits=waits, wake_at=wake_at)

    def _note_reserved(self, view: View, planned: _PlannedRound) -> set[str]:
        """Note which jobs wait only because of a reservation, and return them."""
        kept_off: set[str] = set()
        if planned.has_reservation:
            free, fits = view.trial().free, dict[Demand, bool]()
            for job in planned.left_waiting():
                if job.demand not in fits:
                    fits[job.demand] = job.demand.instances == 1 and free.fits_one_instance(job.demand)
                if fits[job.demand]:
                    self._reasons.note_reserved(job)
                    kept_off.add(job.id)
        return kept_off


class _PlannedRound:
    """What a round decides: the placements of jobs that start, and an action for each waiting job and each run."""

    def __init__(self, waiting: Sequence[Job], running: Sequence[Job], shares: Shares) -> None:
        self._jobs, self._waiting = [*waiting, *running], len(waiting)
        self.shares = shares
        self.result = RoundResult(*(np.zeros(len(self._jobs), dtype=np.int64) for _ in range(2)))

    @property
    def has_reservation(self) -> bool:
        return RESERVES in self.result.action

    def starts(self) -> Iterable[tuple[Job, Placement]]:
        for index in self._indices(STARTS):
            demand, first = self._jobs[index].demand, int(self.shares.first_row[index])
            rows = self.shares.placements[first : first + demand.instances].tolist()
            yield (
                self._jobs[index],
                tuple(
                    Share(node, indices_from_mask(mask), demand.gpu_milli, demand.cpu_milli, demand.memory_mib)
                    for node, mask in rows
                ),
            )

    def stops(self) -> Iterable[tuple[Job, Job]]:
        """Return the jobs whose runs are stopped, and those that they are stopped for."""
        return ((self._jobs[index], self._jobs[self.result.stopped_for[index]]) for index in self._indices(STOPS))

    def claimers(self) -> set[str]:
        return {self._jobs[index].id for index in self._indices(CLAIMS)}

    def left_waiting(self) -> Iterable[Job]:
        """Return the jobs that neither start nor have a claim or a reservation."""
        return (self._jobs[index] for index in self._indices(WAITS) if index < self._waiting)

    def _indices(self, action: int) -> list[int]:
        found: list[int] = np.flatnonzero(self.result.action == action).tolist()
        return found


class _JobTable:
    """What is known of all current jobs, in columns; rows of jobs that have ended are used again."""

    def __init__(self) -> None:
        self.expected = Expectations.allocate(64)
        self._row_of: dict[str, int] = {}
        self._unused: list[int] = list(range(64))
        self._numbers: dict[Demand, int] = {}
        self._rule: tuple[Cluster, int, PlacementRule] | None = None

    def __contains__(self, job: Job) -> bool:
        return job.id in self._row_of

    def add(self, job: Job) -> int:
        """Add a job; return its row."""
        if not self._unused:
            self._unused = list(range(len(self.expected.known), 2 * len(self.expected.known)))
            self.expected = self.expected.doubled()
        self._numbers.setdefault(job.demand, len(self._numbers))
        row = self._row_of[job.id] = self._unused.pop()
        return row

    def remove(self, job_id: str) -> None:
        """Remove a job that has ended, if it is there."""
        row = self._row_of.pop(job_id, None)
        if row is not None:
            self._unused.append(row)

    def columns(self, jobs: Sequence[Job]) -> JobColumns:
        """Return the columns of these jobs."""
        rows = [self._row_of[job.id] for job in jobs]
        numbers = [self._numbers[job.demand] for job in jobs]
        return job_columns(jobs, numbers, self.expected.rows(rows))

    def rule(self, free: FreeResources) -> PlacementRule:
        """Return the placement rule for the demands of all jobs so far."""
        if self._rule is None or self._rule[:2] != (free.cluster, len(self._numbers)):
            rule = PlacementRule.allocate("best-fit", free, list(self._numbers))
            self._rule = free.cluster, len(self._numbers), rule
        return self._rule[2]


def _run_columns(view: View, waiting: Sequence[Job], running: Sequence[Job]) -> RunColumns:
    now, runs = view.now, [view.runs[job.id] for job in running]
    since = [inf] * len(waiting) + [_computing_since(view, run) for run in runs]
    done = [view.done(job.id) for job in waiting] + [
        view.done(job.id) - max(0.0, now - begin) for job, begin in zip(running, since[len(waiting) :], strict=True)
    ]
    is_fixed = [not view.is_preemptible(run.job) or not view.is_placement_up(run.allocation.placement) for run in runs]
    return RunColumns(
        np.array([inf] * len(waiting) + [run.since for run in runs]),
        np.array(since),
        np.array(done),
        np.array([view.run_count(job.id) for job in (*waiting, *running)], dtype=np.int64),
        np.array([0] * len(waiting) + [run.allocation.gpu_milli for run in runs], dtype=np.int64),
        np.array([False] * len(waiting) + is_fixed),
        np.array([False] * len(waiting) + [run.stopping for run in runs]),
    )


def _computing_since(view: View, run: Run) -> Seconds:
    since = view.computing_since(run.job)
    return run.since if since is None else since


def _shares(view: View, waiting: Sequence[Job], running: Sequence[Job]) -> Shares:
    """Return rows for waiting jobs, and what running ones hold."""
    empty = share_rows([job.demand for job in waiting])
    held = [view.held_by(job.id) for job in running]
    rows = [(share.node, mask_from_indices(share.gpus)) for placement in held for share in placement]
    amounts = [(share.gpu_milli, share.cpu_milli, share.memory_mib) for placement in held for share in placement]
    ends = empty.first_row[-1] + np.cumsum([len(placement) for placement in held], dtype=np.int64)
    return Shares(
        np.concatenate([empty.first_row, ends]),
        np.concatenate([empty.placements, np.array(rows, dtype=np.int64).reshape(len(rows), 2)]),
        np.concatenate([empty.amounts, np.array(amounts, dtype=np.int64).reshape(len(amounts), 3)]),
    )
