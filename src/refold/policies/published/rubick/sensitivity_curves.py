"""Resource sensitivity curves of Rubick: a job's speed by number of GPUs, with the best plan for each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

from refold.model import Job
from refold.planning.plans import Curve, CurvePoint, Speed, requested_layout
from refold.policies.common import GuaranteeRules, OptionCache, ProgressEstimator

MIN_GAIN_PER_GPU = 0.01
"""Smallest gain per additional GPU that counts, as a fraction of the requested speed: less is not worth a GPU."""


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
