"""Profiling: a wrapper around a policy that measures new model types by short runs with a few plans.

A job of a model type that was not measured beforehand tries plans on the GPUs that it holds, for a few seconds each,
and continues with the fastest. No other job is affected, and the job trains meanwhile. What was measured corrects the
speeds of all jobs of that type, for the wrapped policy as well.

Profiling runs of a model type take at most `seconds` in total, and those of all types at most a `share` of the GPU time
of all runs so far. The state counts both, so that they are kept over restarts of the daemon.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush
from math import inf
from typing import Any, NamedTuple

import msgspec

from refold.core import Policy, View
from refold.errors import BadInput, BadValue
from refold.model import WHOLE, Allocation, Decision, End, Job, Plan, Reshape, Run, Seconds, Stop, run_plan
from refold.planning.plans import CATALOGUE_ONLY, Knowledge, Layout, WorkloadKind, workload_kind
from refold.policies.common.progress_estimator import ProgressEstimator

MAX_MEASURING: Seconds = 20.0
"""How long a profiling run trains at most, besides the changes of plan before and after it."""

MIN_MEASURED: Seconds = 3.0
"""A speed is known when reports span this time."""

MIN_REMAINING = 10.0
"""A job is profiled only if it will still run for this many times the duration of a profiling run."""

MIN_GAIN = 0.05
"""After profiling, a job changes to another plan only if that is faster by this share."""

MIN_DELAY: Seconds = 1.0
"""Smallest delay of a wake-up."""


class ProfilingLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of profiling: seconds for each model type on a GPU type, and share of the GPU time of all runs."""

    seconds: Seconds = 210.0
    share: float = 0.01

    def __post_init__(self) -> None:
        if not (0 <= self.seconds < inf and 0 <= self.share <= 1):
            limits = f"seconds {self.seconds} and share {self.share}"
            raise BadValue(f"profile has {limits}, expected seconds ≥ 0 and a share from 0 to 1")

    @staticmethod
    def from_settings(settings: ProfilingLimits | Mapping[str, Any]) -> ProfilingLimits:
        """Return limits from a mapping, as in a journal's header."""
        if isinstance(settings, ProfilingLimits):
            return settings
        try:
            return msgspec.convert(settings, ProfilingLimits)
        except msgspec.ValidationError as error:
            raise BadInput(
                f"profile is {settings!r}: {error}; expected false, or {{seconds: 210, share: 0.01}}"
            ) from None


class _ProfilingStep(NamedTuple):
    """The next step: a reshape, if it is due, and otherwise when to look again."""

    reshape: Reshape | None = None
    wake_at: Seconds = inf


_Shape = tuple[WorkloadKind, str, Layout]


class Profiling:
    """A policy that profiles new model types, one run at a time."""

    def __init__(
        self,
        policy: Policy,
        limits: ProfilingLimits,
        knowledge: Knowledge = CATALOGUE_ONLY,
        restart_seconds: Seconds = 78.0,
    ) -> None:
        """`knowledge`, `restart_seconds`: those of the policy."""
        self.name = policy.name
        self.oracle = bool(getattr(policy, "oracle", False))
        self._policy = policy
        self._limits = limits
        self._knowledge, self._restart_seconds = knowledge, restart_seconds
        self._estimator: ProgressEstimator | None = None
        self._plans: dict[_Shape, list[Plan]] = {}
        self._tried: set[tuple[_Shape, Plan]] = set()
        self._wakes = _Wakes()

    def decide(self, view: View) -> Decision:
        """Return the decision of the wrapped policy, with the next step of profiling."""
        decision = self._policy.decide(view)
        if not view.measured_speeds:
            return decision
        estimator = self._observe(view)
        profiled = next((run for run in view.runs.values() if view.is_profiling(run.job)), None)
        if profiled is not None and not profiled.stopping and not self._is_finished(view, profiled, estimator):
            decision = _without_change_of_plan(decision, profiled)
        step = self._next_step(view, decision, profiled, estimator)
        wake_at = self._wakes.next(view.now, decision.wake_at, step.wake_at)
        if step.reshape is None:
            return decision if wake_at == decision.wake_at else msgspec.structs.replace(decision, wake_at=wake_at)
        return msgspec.structs.replace(decision, reshapes=(*decision.reshapes, step.reshape), wake_at=wake_at)

    def _observe(self, view: View) -> ProgressEstimator:
        """Learn measured speeds, and note which plans have been tried."""
        if self._estimator is None:
            self._estimator = ProgressEstimator(view, self._knowledge, self._restart_seconds)
        self._estimator.learn(view)
        for run in view.runs.values():
            if run.profiling and run.allocation.plan is not None:
                self._tried.add((_shape(view, view.active[run.job], run), run.allocation.plan))
        return self._estimator

    def _next_step(
        self, view: View, decision: Decision, profiled: Run | None, estimator: ProgressEstimator
    ) -> _ProfilingStep:
        changes: tuple[Stop | Reshape | End, ...] = (*decision.stops, *decision.reshapes, *decision.ends)
        changing = {change.job for change in changes}
        if profiled is None:
            steps = [
                self._continue(view, run, estimator) if run.profiling else self._begin(view, run, estimator)
                for run in view.runs.values()
                if run.job not in changing and not run.stopping and view.measured_seconds(run.job) >= MIN_MEASURED
            ]
            due = (step for step in steps if step.reshape is not None)
            return next(due, _ProfilingStep(wake_at=min((step.wake_at for step in steps), default=inf)))
        if profiled.job in changing or profiled.stopping:
            return _ProfilingStep()
        if not self._is_finished(view, profiled, estimator):
            return _ProfilingStep(wake_at=self._deadline(view, profiled, estimator))
        following = self._continue(view, profiled, estimator)
        return following if following.reshape else _ProfilingStep(wake_at=profiled.since + profiled.profiling)

    def _continue(self, view: View, run: Run, estimator: ProgressEstimator) -> _ProfilingStep:
        """Return what follows a profiling run: the next one, else the fastest plan."""
        following = self._begin(view, run, estimator)
        if following.reshape is not None:
            return following
        return _ProfilingStep(self._fastest(view, run, estimator), following.wake_at)

    def _is_finished(self, view: View, run: Run, estimator: ProgressEstimator) -> bool:
        """Return whether a profiling run has measured its speed, or has no time left."""
        is_measured = view.measured_seconds(run.job) >= MIN_MEASURED
        return is_measured or view.now >= self._deadline(view, run, estimator)

    def _deadline(self, view: View, run: Run, estimator: ProgressEstimator) -> Seconds:
        """Return when a profiling run must be changed, so that its time is sufficient for the change as well."""
        return run.since + run.profiling - estimator.restart_cost(view, view.active[run.job])

    def _begin(self, view: View, run: Run, estimator: ProgressEstimator) -> _ProfilingStep:
        """Return the next profiling run of a job; nothing if there is none, or if it is too expensive."""
        job = view.active[run.job]
        if not _can_profile(view, job, run) or not estimator.speeds.can_model(job):
            return _ProfilingStep()
        plan = self._next_plan(view, job, run, estimator)
        if plan is None:
            return _ProfilingStep()
        seconds = MAX_MEASURING + 2 * estimator.restart_cost(view, job)
        spent = view.profiling_seconds(job.workload, _gpu_type(view, run))
        remaining = estimator.remaining_work(view, job) / estimator.speed(job, run.allocation)
        if spent + seconds > self._limits.seconds or remaining < MIN_REMAINING * seconds:
            return _ProfilingStep()
        gpu_seconds = view.profiling_gpu_seconds + seconds * run.allocation.gpu_milli / WHOLE
        missing = gpu_seconds - self._limits.share * view.used_gpu_seconds
        if missing > 0:
            rate = self._limits.share * sum(other.allocation.gpu_milli for other in view.runs.values()) / WHOLE
            return _ProfilingStep(wake_at=view.now + missing / rate if rate else inf)
        why = f"profiling of {job.workload}: measure {plan}"
        return _ProfilingStep(Reshape(job.id, Allocation(run.allocation.placement, plan), why, seconds))

    def _next_plan(self, view: View, job: Job, run: Run, estimator: ProgressEstimator) -> Plan | None:
        """Return the next plan to measure on the GPUs of a run."""
        shape, cpus = _shape(view, job, run), run.allocation.cpu_milli / WHOLE
        _, gpu_type, layout = shape
        speeds = estimator.speeds
        if shape not in self._plans:
            self._plans[shape] = speeds.plans_to_profile(job, gpu_type, layout, cpus)
        memory = sum(share.memory_mib for share in run.allocation.placement)
        for plan in self._plans[shape]:
            if (shape, plan) in self._tried or not speeds.is_worth_measuring(job, gpu_type, layout, plan):
                continue
            if not plan.offload or speeds.with_plan(job, gpu_type, layout, cpus, plan).host_mib <= memory:
                return plan
        return None

    def _fastest(self, view: View, run: Run, estimator: ProgressEstimator) -> Reshape | None:
        """Let a job continue with the fastest plan that is known, if that pays back or its own is still unknown."""
        job, speeds = view.active[run.job], estimator.speeds
        _, gpu_type, layout = _shape(view, job, run)
        best = speeds.fastest(job, gpu_type, layout, run.allocation.cpu_milli / WHOLE)
        plan = run_plan(job, run.allocation)
        if best is None or plan is None or best.plan == plan or not view.is_preemptible(job.id):
            return None
        reshape = Reshape(job.id, Allocation(run.allocation.placement, best.plan))
        if speeds.is_worth_measuring(job, gpu_type, layout, plan):
            return msgspec.structs.replace(reshape, why=f"profiling of {job.workload}: no speed of {plan} in time")
        speed = estimator.speed(job, run.allocation)
        remaining = estimator.remaining_work(view, job)
        saved = remaining / speed - remaining / best.steps_per_second
        if best.steps_per_second < (1 + MIN_GAIN) * speed or saved <= estimator.restart_cost(view, job):
            return None
        gain = best.steps_per_second / speed - 1
        why = f"profiled {job.workload}: {best.plan} is the fastest plan, {gain:+.0%} speed"
        return msgspec.structs.replace(reshape, why=why)


class _Wakes:
    """The wake-up times of the policy and of profiling. A decision can request only one, so others are kept."""

    def __init__(self) -> None:
        self._pending: list[Seconds] = []
        self._own: Seconds = inf
        """The next wake-up for profiling that was requested. When it comes, the time is estimated anew."""

    def next(self, now: Seconds, of_policy: Seconds | None, own: Seconds) -> Seconds | None:
        """Return the next wake-up time to request; None: no other than those requested already."""
        if of_policy is not None:
            heappush(self._pending, of_policy)
        if self._own <= now:
            self._own = inf
        if max(own, now + MIN_DELAY) < self._own < inf or own < self._own == inf:
            self._own = max(own, now + MIN_DELAY)
            heappush(self._pending, self._own)
        while self._pending and self._pending[0] <= now:
            heappop(self._pending)
        return heappop(self._pending) if self._pending else None


def _can_profile(view: View, job: Job, run: Run) -> bool:
    """Return whether a job may try plans on its GPUs: its plan is not pinned, and nothing else is promised to it."""
    is_guaranteed = bool(view.cluster.tenants) and job.job_class == "guaranteed"
    shares = run.allocation.placement
    on_one_node = len(shares) == 1 and len(shares[0].gpus) > 0 and shares[0].gpu_milli == WHOLE
    is_free = job.reshapable and job.plan is None and job.change_limit is None
    may_change = is_free and view.is_preemptible(job.id) and not run.stopping
    return may_change and bool(job.workload and job.batch) and on_one_node and not is_guaranteed


def _gpu_type(view: View, run: Run) -> str:
    return view.cluster.nodes[run.allocation.placement[0].node].gpu_type


def _shape(view: View, job: Job, run: Run) -> _Shape:
    return workload_kind(job), _gpu_type(view, run), run.allocation.gpus_on_node


def _without_change_of_plan(decision: Decision, profiled: Run) -> Decision:
    """Return a decision that does not end a profiling run only to change its plan."""
    kept = tuple(
        reshape
        for reshape in decision.reshapes
        if reshape.job != profiled.job or reshape.allocation.placement != profiled.allocation.placement
    )
    return decision if len(kept) == len(decision.reshapes) else msgspec.structs.replace(decision, reshapes=kept)
