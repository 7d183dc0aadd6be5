"""What Refold knows about each job in a scheduling round: shapes, remaining work, weight, guarantee, overtaking."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum, auto
from functools import cached_property
from math import inf

import msgspec
import numpy as np

from refold.core import TenantUser, View
from refold.errors import BadValue
from refold.model import Allocation, Seconds
from refold.placement import Floats, Ints
from refold.planning.plans import Spread
from refold.policies.common import Option, Options
from refold.policies.refold.arrivals import ArrivalSummary
from refold.policies.refold.kernels import DelayColumns, DelayRules, Weighed, weigh_jobs
from refold.policies.refold.sources import JobSources
from refold.policies.refold.table import Flags

FREQUENT_WIDE_JOBS = 18.0
"""Wide jobs are frequent if at least one of so many jobs is wide: `wide_weight` is the weight of each of them."""


RESTARTED_OVERTAKING_SHARE = 0.9
"""The least `overtaking_share` of jobs that have run before and may be stopped again.

They wait because they turned out to be long, and with the usual share would go before the short ones again.
"""


class RefoldSettings(msgspec.Struct, frozen=True):
    """The settings of the policy that a round uses."""

    restart_seconds: Seconds
    gpu_price: float
    weight_doubling_seconds: Seconds
    delay_doubling_seconds: Seconds
    overtaking_share: float
    wide_weight: float
    wide_share: float
    preemption_margin: float
    max_restarts: int
    max_preemptors: int

    def __post_init__(self) -> None:
        """Reject values that are out of range."""
        at_least_0 = ("restart_seconds", "gpu_price", "wide_weight", "max_restarts", "max_preemptors")
        for name, least in (*((name, 0) for name in at_least_0), ("preemption_margin", 1)):
            if not least <= getattr(self, name) < inf:
                raise BadValue(f"{name} is {getattr(self, name)}, expected a number ≥ {least}")
        for name in ("weight_doubling_seconds", "delay_doubling_seconds"):
            if not getattr(self, name) > 0:
                raise BadValue(f"{name} is {getattr(self, name)}, expected a number > 0")
        for name in ("wide_share", "overtaking_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise BadValue(f"{name} is {getattr(self, name)}, expected a number from 0 to 1")


class Protection(Enum):
    """For which jobs a run must not be stopped: for none, for all, or for those that are not more urgent than it."""

    NONE = auto()
    UNLESS_OVERDUE = auto()
    FROM_EQUALS = auto()
    FROM_ALL = auto()


class RoundJobs:
    """All waiting and running jobs at the time of a view, to which the sources have been updated."""

    def __init__(self, view: View, sources: JobSources, settings: RefoldSettings, arrivals: ArrivalSummary) -> None:
        guarantees = sources.guarantees
        self.view, self._now, self.settings = view, view.now, settings
        self.arrivals = arrivals
        self._estimator, self._guarantees = sources.estimator, guarantees
        self._durations = sources.expected_service.durations
        self.guaranteed = sources.guaranteed
        self.table, self._facts, self.by_id = sources.table, sources.facts, sources.by_id
        self.kinds = sources.kinds
        self.with_shapes, self.with_range = sources.with_shapes, sources.with_range
        self.guarantee_options = {
            job_id: guarantees.sufficient_options(self.by_id[job_id]) for job_id in self.guaranteed
        }
        self._remaining_times: dict[str, tuple[Allocation, Seconds]] = {}
        self._fair_weights = sources.fair_share.weights(view, self.by_id.values())
        self.work: Floats = self.table.column("work")
        """Remaining GPU-seconds by row, which count more if the user has used more than others."""
        if self._fair_weights:
            self.work = self.work / np.fromiter(map(self._fair_weight, self.table.ids), np.float64)
        self.is_preferred_wide_job = self._choose_wide_jobs()
        weighed = self._weigh()
        self._delay_weights = weighed.weights
        self.overdue: Flags = weighed.is_overdue
        """By row, which waiting jobs were overtaken so much that they go first."""
        self.weighted_work: Floats = weighed.work
        """Work divided by the weight of a second of delay, by row."""

    def _choose_wide_jobs(self) -> Flags:
        """Return by row which wide jobs of unknown length have the weight of many.

        These are running ones first, then those with the least work, until they use `wide_share` of the GPUs: under
        overload, all of them together would leave little for other jobs.
        """
        is_wide, is_running = self.table.column("may_be_preferred"), self.table.column("is_running")
        is_chosen = np.zeros(len(self.table), dtype=np.bool_)
        if not is_wide.any():
            return is_chosen
        left = self.settings.wide_share * self.view.cluster.gpus
        for wide in ((is_wide & is_running).nonzero()[0], (is_wide & ~is_running).nonzero()[0]):
            gpus = self.table.column("gpus")[wide]
            if gpus.sum() < left:  # no need to sort them
                is_chosen[wide] = True
                left -= gpus.sum()
                continue
            is_chosen[self._least_work(wide, left)] = True
            break
        return is_chosen

    def _least_work(self, rows: Ints, gpus: float) -> Ints:
        """Return those of the rows with the least work, until they use so many GPUs."""
        work = self.work[rows]
        order = np.argsort(work)
        count = self._count_within(rows[order], gpus)
        if 0 < count < len(order) and work[order[count - 1]] == work[order[count]]:  # equal jobs are sorted by job
            ordered = self.table.sort(rows, work)
            return ordered[: self._count_within(ordered, gpus)]
        chosen: Ints = rows[order[:count]]
        return chosen

    def _count_within(self, rows: Ints, gpus: float) -> int:
        """Return how many of the rows come before so many GPUs are used."""
        left_before = np.subtract.accumulate(np.append(gpus, self.table.column("gpus")[rows]))[:-1]
        return int(np.count_nonzero(left_before > 0))

    @cached_property
    def fewest_gpus(self) -> Ints:
        """The GPUs of the smallest shape, by kind of job."""
        return np.array([options.fewest_gpus for options in self.kinds], dtype=np.int64)

    @cached_property
    def last_speeds(self) -> Floats:
        """The speed of the last shape, by kind of job."""
        return np.array([options[-1].speed for options in self.kinds], dtype=np.float64)

    def options_of(self, job_id: str) -> Options:
        """Return the shapes that a job may have."""
        return self._facts[job_id].options

    def weighted_work_of(self, job_id: str) -> float:
        """Return the remaining work of a job, divided by the weight of a second of its delay."""
        return float(self.weighted_work[self.table.row_of[job_id]])

    def in_order(self, rows: Ints) -> Ints:
        """Sort jobs: guaranteed first, then by priority, then overdue ones as submitted, then by weighted work."""
        if len(rows) < 2:
            return rows
        table, is_first, is_guaranteed = self.table, self.overdue[rows], self.flags(self.guaranteed)[rows]
        rank = np.where(is_first, table.column("submitted")[rows], self.weighted_work[rows])
        return table.sort(rows, ~is_guaranteed, -table.column("priority")[rows], ~is_first, rank)

    def waiting(self, without: Collection[str]) -> Ints:
        """Return the rows of the waiting jobs, except some."""
        return self._waiting if not without else self._waiting[~self.flags(without)[self._waiting]]

    @cached_property
    def _waiting(self) -> Ints:
        """The rows of the waiting jobs."""
        waiting: Ints = (~self.table.column("is_running")).nonzero()[0]
        return waiting

    def flags(self, job_ids: Collection[str]) -> Flags:
        """Return by row which jobs are among these."""
        flags = np.zeros(len(self.table), dtype=np.bool_)
        flags[self.table.rows(job_ids)] = True
        return flags

    def weight(self, job_id: str) -> float:
        """Return the weight of a second of delay of a job."""
        weight = float(self._delay_weights[self.table.row_of[job_id]])
        return weight * self._fair_weight(job_id) if self._fair_weights else weight

    def _weigh(self) -> Weighed:
        """Return by row what a second of delay counts, and which jobs are overdue."""
        settings = self.settings
        rules = DelayRules(
            settings.weight_doubling_seconds,
            settings.delay_doubling_seconds,
            self._wide_weight() if settings.wide_weight else 0.0,
            settings.overtaking_share,
            max(settings.overtaking_share, RESTARTED_OVERTAKING_SHARE),
        )
        columns = self.table.columns(DelayColumns)
        return weigh_jobs(self._now, rules, columns, self.is_preferred_wide_job, self.work)

    def _wide_weight(self) -> float:
        """Return the weight of a preferred wide job, which grows with the third power of how rare wide jobs are.

        Rare ones delay few others; frequent ones take GPUs from each other.
        """
        rarity = max(1.0, self.arrivals.jobs_per_wide_job / FREQUENT_WIDE_JOBS)
        return float(max(1.0, self.settings.wide_weight * rarity**3))

    def _fair_weight(self, job_id: str) -> float:
        job = self.by_id[job_id]
        return self._fair_weights.get(TenantUser(job.tenant, job.user), 1.0)

    def knows_work(self, job_id: str) -> bool:
        """Return whether the remaining work of a job is known, not predicted."""
        return self._facts[job_id].is_known

    def is_wide_beyond_share(self, job_id: str) -> bool:
        """Return whether a wide job of unknown length does not have the weight of many."""
        row = self.table.row_of[job_id]
        return bool(self.table.value("may_be_preferred", job_id) and not self.is_preferred_wide_job[row])

    def protection(self, job_id: str) -> Protection:
        """Return for which jobs a run must not be stopped.

        One that was changed a short time ago, or has not begun yet, is protected; see `ProgressEstimator.settled_at`.
        One of unknown length is protected if it was restarted too often or too recently. With every restart it may run
        longer, so that restarts take only a part of its time.
        """
        if not self.is_settled(job_id):
            return Protection.FROM_EQUALS
        if self.knows_work(job_id):
            return Protection.NONE
        starts, age = self.view.run_count(job_id), self.view.now - self.view.runs[job_id].since
        if starts > self.settings.max_restarts:
            return Protection.FROM_EQUALS
        return Protection.UNLESS_OVERDUE if age < self.restart_cost(job_id) * starts else Protection.NONE

    def is_settled(self, job_id: str) -> bool:
        """Return whether a job does not run, or may be changed again."""
        run = self.view.runs.get(job_id)
        return run is None or self._estimator.settled_at(self.view, run) <= self.view.now

    def next_settled_at(self) -> Seconds:
        """Return when the next run may be changed again that now should not."""
        if not self.view.knows_change_costs:
            return inf
        moments = (self._estimator.settled_at(self.view, run) for run in self.view.runs.values())
        return min((moment for moment in moments if moment > self.view.now), default=inf)

    def have_unbegun_runs(self) -> bool:
        """Return whether a run is left to begin."""
        runs = self.view.runs.values() if self.view.knows_change_costs else ()
        return any(self._estimator.is_left_to_begin(self.view, run) for run in runs)

    @property
    def uses_fair_share(self) -> bool:
        """Whether weights depend on what users have used."""
        return bool(self._fair_weights)

    def is_ahead_by_fair_share(self, job_id: str, other: str) -> bool:
        """Return whether a job has less weighted work than another only because its user has used less."""
        if not self._fair_weights or self.weighted_work_of(job_id) >= self.weighted_work_of(other):
            return False
        unfair = [self.weighted_work_of(one) * self._fair_weight(one) for one in (job_id, other)]
        return unfair[0] >= unfair[1]

    def has_other_shapes(self, job_id: str) -> bool:
        """Return whether a job has more than one possible shape."""
        return len(self.guarantee_options.get(job_id) or self.options_of(job_id)) > 1

    def _remaining_work(self, job_id: str) -> float:
        """Return the remaining work in steps; in seconds for a job with unknown speed."""
        return float(self.table.value("remaining", job_id))

    def run_time(self, job_id: str, option: Option) -> Seconds:
        """Return the seconds that a job takes in a shape for its remaining work."""
        return self._remaining_work(job_id) / option.speed

    def remaining_time(self, job_id: str, held: Allocation) -> Seconds:
        """Return the seconds until a job ends with an allocation, with the rest of its startup if it has it already."""
        last = self._remaining_times.get(job_id)
        if last is None or last[0] is not held:
            seconds = self._remaining_work(job_id) / self.speed(job_id, held)
            run = self.view.runs.get(job_id)
            is_unchanged = run is not None and run.allocation == held
            last = held, seconds + (self.startup_seconds(job_id) if is_unchanged else 0.0)
            self._remaining_times[job_id] = last
        return last[1]

    def remaining_time_quantile(self, job_id: str, quantile: float) -> Seconds:
        """Return the seconds after which a job will have ended with this probability, if it runs from now on."""
        run, job = self.view.runs.get(job_id), self.by_id[job_id]
        if self.knows_work(job_id):
            return self._remaining_work(job_id) / (
                self.speed(job_id, run.allocation) if run else self.options_of(job_id).top_speed
            )
        if run is None:
            return self._durations.remaining_time(self.view, job).quantile(quantile)
        return self._durations.remaining_run_time(self.view, run, quantile)

    def startup_seconds(self, job_id: str) -> Seconds:
        """Return how much longer the run of a job will be starting up; 0 if it is not running."""
        run = self.view.runs.get(job_id)
        return self._estimator.startup_seconds(self.view, run) if run is not None else 0.0

    def restart_cost(self, job_id: str, option: Option | None = None) -> Seconds:
        """Return the cost of reshaping a job, to an option if one is given; 0 if it is not running."""
        if job_id not in self.view.runs:
            return 0.0
        return self._estimator.restart_cost(self.view, self.by_id[job_id], option.demand if option else None)

    def delay_per_gpu_second(self, jobs: int) -> float:
        """Return the price of a GPU-second: the delay of so many waiting jobs, in seconds."""
        return self.settings.gpu_price * jobs / max(self.view.cluster.gpus, 1)

    def speed(self, job_id: str, held: Allocation) -> float:
        """Return the steps per second of a job with an allocation."""
        return self._estimator.speed(self.by_id[job_id], held)

    def slowdown(self, job_id: str, held: Allocation) -> float:
        """Return the step time of a job with an allocation, divided by that on as few domains as possible."""
        return self._estimator.crossings.slowdown(self.by_id[job_id], held)

    def packed(self, held: Allocation) -> Spread:
        """Return the spread of an allocation if it were on as few domains as possible."""
        return self._estimator.crossings.packed(held)

    def requested_speed(self, job_id: str) -> float | None:
        """Return the steps per second of what a job requested; None if its speed is unknown."""
        speeds, job = self._estimator.speeds, self.by_id[job_id]
        return speeds.requested_speed(job).steps_per_second if speeds.can_model(job) else None

    def meets_guarantee(self, job_id: str, held: Allocation) -> bool:
        """Return whether a guaranteed job is as fast as guaranteed, as modelled and as measured."""
        job = self.by_id[job_id]
        if self._guarantees.is_too_slow(job, (held.gpus_on_node, held.plan)):
            return False
        return self._guarantees.is_fast_enough(job, self.speed(job_id, held))

    def is_overdue(self, job_id: str) -> bool:
        """Return whether a waiting job was overtaken so much that it goes first."""
        return bool(self.overdue[self.table.row_of[job_id]])

    def goes_before(self, job_id: str, other: str) -> bool:
        """Return whether a job goes before another in order of guarantee, priority and submission."""
        one, two = (
            (name not in self.guaranteed, -self.by_id[name].priority, self.by_id[name].submitted)
            for name in (job_id, other)
        )
        return one < two
