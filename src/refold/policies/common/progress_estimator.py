"""Estimates of speed and remaining work, as a policy assumes them.

Speeds come from the performance model. Remaining work comes from the number of steps that jobs declare and report;
between two reports a run is assumed to progress at its modelled speed. The remaining work of a job without a number of
steps is predicted, if the policy predicts; otherwise a job is assumed to have as much left as it has done, as is
typical of run time distributions (and as in Tiresias).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import get_args

from refold.core import View
from refold.errors import BadValue
from refold.model import WHOLE, Allocation, ChangeWay, Demand, Job, Run, Seconds
from refold.planning.plans import Crossings, Knowledge, Speeds
from refold.policies.common.durations import ExpectedService

MIN_REMAINING_STEPS = 0.5
"""A job that still runs has at least this much left: part of its last step."""

MIN_REMAINING_TIME: Seconds = 60.0
"""A job without a number of steps has at least this much left."""

MIN_RESTART_SECONDS: Seconds = 1.0
"""A change is not worthwhile if it saves less, even if it was measured to cost almost nothing."""

MIN_BETWEEN_CHANGES: Seconds = 60.0
CHANGE_COSTS_BETWEEN = 20
"""Between two changes of a run there is at least this time, and that of so many changes: they take 5 % of its time."""

MAX_BEGIN_SECONDS: Seconds = 300.0
"""A run that has not reported a step after this time is changed as others."""

CHANGE_WAYS: tuple[ChangeWay, ...] = get_args(ChangeWay)
RESTART: tuple[ChangeWay, ...] = ("cold",)


class ProgressEstimator:
    """Speed and remaining work of jobs on one cluster."""

    def __init__(
        self,
        view: View,
        knowledge: Knowledge,
        restart_seconds: Seconds,
        *,
        trust_steps: bool = True,
        expected_service: ExpectedService | None = None,
        assumes_scaling: bool = False,
    ) -> None:
        """Create the estimator.

        `restart_seconds`: cost of changing a run. `trust_steps`: whether declared numbers of steps are taken as exact.
        `expected_service`: predictions for jobs whose work is not known; None: as much as they have done.
        `assumes_scaling`: see `Speeds`.
        """
        if restart_seconds < 0:
            raise BadValue(f"restart_seconds is {restart_seconds}, expected seconds ≥ 0")
        self.speeds = Speeds(view.cluster, knowledge, assumes_scaling=assumes_scaling)
        self.crossings = Crossings(self.speeds)
        self.restart_seconds = restart_seconds
        self._trust_steps = trust_steps
        self._expected_service = expected_service
        self._last: dict[str, tuple[Allocation, float]] = {}
        """Last allocation of each job whose speed was computed, and that speed."""
        self._knows_work: dict[str, bool] = {}

    def speed(self, job: Job, allocation: Allocation) -> float:
        """Return steps per second on an allocation; 1 for a job with unknown speed, whose work is in seconds."""
        last = self._last.get(job.id)
        if last is None or last[0] is not allocation:
            last = self._last[job.id] = allocation, self._compute_speed(job, allocation)
        return last[1]

    def learn(self, view: View) -> bool:
        """Correct the estimates by the speeds measured so far; return whether any has changed."""
        if not view.measured_speeds or not self.speeds.learn(view.measured_speeds):
            return False
        self._last.clear()
        self._knows_work.clear()
        return True

    def forget(self, job_id: str) -> None:
        """Drop what is cached for a job that has ended."""
        self._last.pop(job_id, None)
        self._knows_work.pop(job_id, None)

    def _compute_speed(self, job: Job, allocation: Allocation) -> float:
        slowdown = self.crossings.slowdown(job, allocation)
        if not self.speeds.can_model(job):
            return 1.0 / slowdown
        gpu_type = self.speeds.cluster.nodes[allocation.placement[0].node].gpu_type
        plan = allocation.plan or self.speeds.own_plan(job)
        cpus = allocation.cpu_milli / WHOLE
        modelled = self.speeds.with_plan(job, gpu_type, allocation.gpus_on_node, cpus, plan)
        return modelled.steps_per_second / slowdown

    def remaining_work(self, view: View, job: Job) -> float:
        """Return the remaining work in steps; in seconds for a job with unknown speed."""
        if self.knows_work(job):
            assert job.steps is not None
            return max(job.steps - self._steps_done(view, job), MIN_REMAINING_STEPS)
        requested_speed = self.requested_speed(job)
        if self._expected_service is not None:
            return self._expected_service.seconds(view, job) * requested_speed
        done = self._steps_done(view, job) if self.speeds.can_model(job) else view.done(job.id)
        return max(done, MIN_REMAINING_TIME * requested_speed)

    def requested_speed(self, job: Job) -> float:
        """Return the steps per second of what a job requested; 1 for a job with unknown speed, as in `speed`."""
        return self.speeds.requested_speed(job).steps_per_second if self.speeds.can_model(job) else 1.0

    def knows_work(self, job: Job) -> bool:
        """Return whether the remaining work of a job follows from its steps and its modelled speed."""
        known = self._knows_work.get(job.id)
        if known is None:
            known = job.steps is not None and self._trust_steps and self.speeds.can_model(job)
            self._knows_work[job.id] = known
        return known

    def _steps_done(self, view: View, job: Job) -> float:
        """Return the steps last reported plus those assumed since; for a job without steps, estimated from its work."""
        if job.steps is None:
            return view.done(job.id) * self.speeds.requested_speed(job).steps_per_second
        steps, reported_at = view.steps_done(job.id)
        run = view.runs.get(job.id)
        if run is None or run.stopping:
            return steps
        since = self._computing_since(view, run)
        computing = view.now - (since if since > reported_at else reported_at)
        return steps + computing * self.speed(job, run.allocation) if computing > 0 else steps

    def restart_cost(self, view: View, job: Job, demand: Demand | None = None) -> Seconds:
        """Return the cost of changing the run of a job: in the cheapest way, as measured, else as assumed.

        `demand`: what the run will have. If it needs other nodes, the run can only be restarted there.
        """
        ways = CHANGE_WAYS if demand is None or _stays_on_nodes(view, job, demand) else RESTART
        measured = _measured_cost(view, job, ways)
        return self.restart_seconds if measured is None else max(measured, MIN_RESTART_SECONDS)

    def settled_at(self, view: View, run: Run) -> Seconds:
        """Return from when on a run should be changed again, unless a guarantee or its priority demands it.

        So changes, whose cost must have been measured, take at most a small part of its time. A run that has not
        reported a step of its job yet, and would waste its startup, should be left to begin.
        """
        job = view.active[run.job]
        cost = _measured_cost(view, job, CHANGE_WAYS)
        if cost is None:
            return -inf
        if self.is_left_to_begin(view, run):
            return run.since + MAX_BEGIN_SECONDS
        return view.changed_at(job.id) + max(MIN_BETWEEN_CHANGES, CHANGE_COSTS_BETWEEN * cost)

    def is_left_to_begin(self, view: View, run: Run) -> bool:
        """Return whether a run of a job that declares steps has not reported one yet, and is young."""
        job = view.active[run.job]
        is_young = view.now < run.since + MAX_BEGIN_SECONDS
        return bool(job.steps) and is_young and view.steps_done(job.id)[1] == -inf

    def startup_seconds(self, view: View, run: Run) -> Seconds:
        """Return how much longer a run will be starting up."""
        return max(0.0, self._computing_since(view, run) - view.now)

    def _computing_since(self, view: View, run: Run) -> Seconds:
        since = view.computing_since(run.job)
        if since is None:
            return view.now
        restarting = run.number > 1 and since == run.since  # it has not reported yet that it computes
        return since + self.restart_cost(view, view.active[run.job]) if restarting else since


def _measured_cost(view: View, job: Job, ways: Iterable[ChangeWay]) -> Seconds | None:
    """Return the least that a change in one of these ways has cost last; None if none was measured."""
    return min((cost for way in ways if (cost := view.change_seconds(job, way)) is not None), default=None)


def _stays_on_nodes(view: View, job: Job, demand: Demand) -> bool:
    """Return whether a run can get a demand on its present nodes, so that its processes may stay."""
    run = view.runs.get(job.id)
    if run is None or len(run.allocation.placement) != demand.instances:
        return False
    nodes = [(share.node, view.cluster.nodes[share.node]) for share in run.allocation.placement]
    return all(demand.gpus <= node.gpus and demand.accepts(index, node) for index, node in nodes)
