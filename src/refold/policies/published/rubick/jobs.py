"""What Rubick knows about each job: gains and losses with the resources that it has so far, from sensitivity curves.

A curve is the speed of a job by number of GPUs, with the best plan for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

from refold.core import View
from refold.model import Allocation, Job, Milli, Plan, Seconds
from refold.planning.plans import Curve, CurvePoint, Speed, requested_layout
from refold.policies.common import GuaranteeRules, Option, OptionCache, ProgressEstimator
from refold.policies.published.rubick.ledger import Ledger, NodeShare

MIN_GAIN_PER_GPU = 0.01
"""Smallest gain per additional GPU that counts, as a fraction of the requested speed: less is not worth a GPU."""

AGEING_SECONDS: Seconds = 200_000.0
"""Jobs that have waited this long go first: the value of the paper's artifact."""


class GpuCurve(NamedTuple):
    """GPU sensitivity curve of a job on one GPU type: gain from one more GPU and loss from one fewer, by GPU count.

    The curve is a step function. Between two steps, each GPU gains an equal part of the next step.
    """

    points: tuple[CurvePoint, ...]
    gpu_type: str
    gains: list[float]
    losses: list[float]

    @staticmethod
    def from_points(points: Sequence[CurvePoint], gpu_type: str) -> GpuCurve:
        """Return the curve through points of increasing amounts of GPUs."""
        curve = Curve(tuple(points))
        reached = [0, *(int(point.amount) for point in points)]
        gains = [curve.slope(lower) for lower, upper in pairwise(reached) for _ in range(lower, upper)]
        losses = [curve.slope_below(gpus) for gpus in range(reached[-1] + 1)]
        return GpuCurve(curve.points, gpu_type, gains, losses)

    @property
    def max_gpus(self) -> int:
        """Largest useful number of GPUs."""
        return int(self.points[-1].amount)

    def gain(self, gpus: int) -> float:
        """Return the gain from one more GPU than `gpus`."""
        return self.gains[gpus] if gpus < len(self.gains) else 0.0

    def loss(self, gpus: int) -> float:
        """Return the loss from one GPU fewer than `gpus`."""
        return self.losses[gpus] if gpus < len(self.losses) else 0.0


class SensitivityCurves:
    """Resource sensitivity curves, normalised by the speed of the request, cached by job and by kind of job."""

    def __init__(self, estimator: ProgressEstimator, options: OptionCache) -> None:
        self._estimator, self.options = estimator, options
        self.guarantees = GuaranteeRules(estimator, options)
        self._by_kind: dict[tuple[object, ...], GpuCurve] = {}
        self._by_job: dict[str, GpuCurve] = {}

    def for_job(self, job: Job) -> GpuCurve:
        """Return the curve on the job's fastest GPU type, without points that gain less than `MIN_GAIN_PER_GPU`."""
        curve = self._by_job.get(job.id)
        if curve is None:
            curve = self._by_job[job.id] = self._find_curve(job)
        return curve

    def clear(self) -> None:
        """Drop everything cached: estimated speeds have changed."""
        self._by_kind.clear()
        self._by_job.clear()
        self.options.clear()
        self.guarantees.clear()

    def forget(self, job_id: str) -> None:
        """Drop everything cached for a job that has ended."""
        self._by_job.pop(job_id, None)
        self.options.forget(job_id)
        self._estimator.forget(job_id)

    def _find_curve(self, job: Job) -> GpuCurve:
        options = self.options.for_job(job)
        key = (id(options), job.demand, job.plan)
        if key not in self._by_kind:
            speeds = self._estimator.speeds
            requested_speed = speeds.requested_speed(job).steps_per_second
            best = max(options, key=lambda option: option.speed)
            gpu_type = best.demand.gpu_types[0] if len(best.demand.gpu_types) == 1 else speeds.types_for(job)[0]
            points: list[CurvePoint] = []
            for option in options:
                speed = option.speed / requested_speed
                gain = speed - points[-1].samples_per_second if points else inf
                more = option.gpus - points[-1].amount if points else 1
                same_type = option.demand.gpu_types == best.demand.gpu_types
                if same_type and gain > 0 and gain >= MIN_GAIN_PER_GPU * more:
                    points.append(CurvePoint(option.gpus, speed, option.plan or speeds.own_plan(job)))
            self._by_kind[key] = GpuCurve.from_points(points, gpu_type)
        return self._by_kind[key]

    def speed_on(self, job: Job, gpu_type: str, layout: tuple[int, ...], cpus: float) -> Speed | None:
        """Return the job's best speed on a layout with the plans that this variant may choose, and with its own."""
        speeds = self._estimator.speeds
        best = (speeds.fastest if self.options.plans else speeds.scaled)(job, gpu_type, layout, cpus)
        if layout == requested_layout(job):
            own = speeds.with_plan(job, gpu_type, layout, cpus, speeds.own_plan(job))
            return max((best, own), key=lambda speed: speed.steps_per_second) if best else own
        return best


def ages_at(job: Job) -> Seconds:
    """Return when a job that still waits goes first."""
    return job.submitted + AGEING_SECONDS


class RubickJobs:
    """All waiting and running jobs at the time of a view: curves, guarantees and age."""

    def __init__(self, view: View, estimator: ProgressEstimator, curves: SensitivityCurves, resources: bool) -> None:
        """`resources`: whether jobs may get other amounts of resources than they requested."""
        self.view, self.resources = view, resources
        self._estimator, self._curves = estimator, curves
        self.by_id: dict[str, Job] = {**view.waiting, **view.active}
        self.guaranteed = curves.guarantees.guaranteed_jobs(view)
        self.aged = {job.id for job in view.waiting.values() if view.now - job.submitted >= AGEING_SECONDS}

    def can_model(self, job_id: str) -> bool:
        """Return whether the speed of a job is known."""
        return self._estimator.speeds.can_model(self.by_id[job_id])

    def curve(self, job_id: str) -> GpuCurve:
        """Return the sensitivity curve of a job on its fastest GPU type."""
        return self._curves.for_job(self.by_id[job_id])

    def accepts(self, job_id: str, node: int) -> bool:
        """Whether a node has the GPU type of a job's curve, and is among those that the job is allowed on."""
        job, spec = self.by_id[job_id], self.view.cluster.nodes[node]
        return spec.gpu_type == self.curve(job_id).gpu_type and job.demand.accepts(node, spec)

    def sufficient_options(self, job_id: str) -> tuple[Option, ...]:
        """Return the options that satisfy the guarantee, by increasing GPUs."""
        return self._curves.guarantees.sufficient_options(self.by_id[job_id])

    def options(self, job_id: str) -> tuple[Option, ...]:
        """Return the shapes that a job may have; of a guaranteed job, those that satisfy the guarantee."""
        if job_id in self.guaranteed:
            return self.sufficient_options(job_id)
        return self._curves.options.for_job(self.by_id[job_id])

    def minimum(self, job_id: str) -> int:
        """Return the minimum resource demand in GPUs: by guarantee, else of the job's own range, else 0."""
        job = self.by_id[job_id]
        if job_id in self.guaranteed:
            return self._curves.guarantees.minimum_option(job).gpus
        return job.gpu_range[0] if job.gpu_range else 0

    def is_fast_enough(self, job_id: str, speed: Speed) -> bool:
        """Return whether a speed meets the guarantee of a job; True for jobs without a guarantee."""
        if job_id not in self.guaranteed:
            return True
        return self._curves.guarantees.is_fast_enough(self.by_id[job_id], speed.steps_per_second)

    def speed(self, job_id: str, held: Allocation | None) -> float:
        """Return a job's speed with an allocation; 0 if it has none."""
        return self._estimator.speed(self.by_id[job_id], held) if held is not None else 0.0

    def restart_cost(self, job_id: str) -> Seconds:
        """Return the cost of changing the run of a job."""
        return self._estimator.restart_cost(self.view, self.by_id[job_id])

    def remaining_work(self, job_id: str) -> float:
        """Return the remaining steps of a job."""
        return self._estimator.remaining_work(self.view, self.by_id[job_id])

    def speed_on(self, job_id: str, layout: tuple[int, ...], cpus: float) -> Speed | None:
        """Return the best speed on a layout of the job's GPU type; None if no plan fits."""
        return self._curves.speed_on(self.by_id[job_id], self.curve(job_id).gpu_type, layout, cpus)

    def gain_of(self, job_id: str, lower: Speed, higher: Speed) -> float:
        """Return the difference of two speeds, normalised by the speed of the request."""
        requested = self._estimator.speeds.requested_speed(self.by_id[job_id]).steps_per_second
        return (higher.steps_per_second - lower.steps_per_second) / requested

    def unit(self, job_id: str) -> NodeShare:
        """Return one GPU with the CPUs and memory requested per GPU."""
        demand = self.by_id[job_id].demand
        return NodeShare(1, demand.cpu_milli // demand.gpus, demand.memory_mib // demand.gpus)


class Sensitivity:
    """Gains and losses of jobs with what they have in a ledger."""

    def __init__(self, jobs: RubickJobs, ledger: Ledger, plans: Mapping[str, Plan | None]) -> None:
        """`plans`: the plans of jobs, which the round updates."""
        self._jobs, self._ledger, self._plans = jobs, ledger, plans

    def gain(self, job_id: str) -> float:
        """Return the normalised gain from one more GPU; infinite for aged jobs."""
        return inf if job_id in self._jobs.aged else self._jobs.curve(job_id).gain(self._ledger.gpus(job_id))

    def loss(self, job_id: str) -> float:
        """Return the normalised loss from one GPU fewer; infinite for aged jobs."""
        return inf if job_id in self._jobs.aged else self._jobs.curve(job_id).loss(self._ledger.gpus(job_id))

    def can_lose(self, job_id: str) -> bool:
        """Whether a job has more than its minimum resource demand."""
        return self._jobs.resources and self._ledger.gpus(job_id) > self._jobs.minimum(job_id)

    def is_below_minimum(self, job_id: str) -> bool:
        """Return whether a job has less than its minimum resource demand."""
        return self._ledger.gpus(job_id) < self._jobs.minimum(job_id)

    def cpu_loss(self, job_id: str) -> float:
        """Return the loss from one CPU fewer, normalised by the speed of the request."""
        layout, cpus = self._ledger.layout(job_id), self._ledger.cpus(job_id)
        now, then = (self._jobs.speed_on(job_id, layout, amount) for amount in (cpus, cpus - 1))
        return inf if now is None or then is None else self._jobs.gain_of(job_id, then, now)

    def cpu_gain(self, job_id: str) -> float:
        """Return the gain from one more CPU, normalised by the speed of the request; 0 if it is too small to count."""
        plan = self._plans.get(job_id)
        if not self._jobs.resources or (plan is not None and not plan.offload):
            return 0.0
        layout, cpus = self._ledger.layout(job_id), self._ledger.cpus(job_id)
        if not layout or not cpus:
            return 0.0
        now, then = (self._jobs.speed_on(job_id, layout, amount) for amount in (cpus, cpus + 1))
        if now is None or then is None or not then.plan.offload:
            return 0.0
        gain = self._jobs.gain_of(job_id, now, then)
        return gain if gain >= MIN_GAIN_PER_GPU / 10 else 0.0

    def spare_cpu_milli(self, job_id: str, node: int) -> Milli:
        """Return the CPUs of a job on a node beyond those requested per GPU."""
        share = self._ledger.shares[job_id][node]
        return share.cpu_milli - share.gpus * self._jobs.unit(job_id).cpu_milli
