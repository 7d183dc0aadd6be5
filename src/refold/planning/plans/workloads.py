"""Kinds of jobs that are equally fast, what they request, and plans that they have been found unable to use."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from refold.model import MAX_DEGREE, WHOLE, Job, LaunchEngine, MeasuredShape, Plan
from refold.planning.plans.cluster_machines import Layout
from refold.planning.plans.launch_targets import launch_problem
from refold.planning.plans.space import PlanLimits


class WorkloadKind(NamedTuple):
    """What the speed of a job depends on, besides its machines and plan.

    `requested`: the plan that a job requests, if its speed is assumed from that until it is known.
    """

    workload: str
    batch: int
    sequence: int
    engine: LaunchEngine | None = None
    requested: Plan | None = None


def workload_kind(job: Job) -> WorkloadKind:
    """Return the workload kind: jobs of one kind are equally fast on the same machines with the same plan."""
    return WorkloadKind(job.workload, job.batch, job.sequence, job.engine)


def requested_layout(job: Job) -> Layout:
    return (job.demand.gpus,) * job.demand.instances


def requested_cpus(job: Job) -> float:
    """Return the total CPUs that a job requests; 0: unspecified."""
    return job.demand.instances * job.demand.cpu_milli / WHOLE


def is_of(shape: MeasuredShape, kind: WorkloadKind, gpu_type: str) -> bool:
    """Whether a measured shape is of a kind of job on a GPU type."""
    return shape[:3] == kind[:3] and shape.gpu_type == gpu_type


def can_run(engine: LaunchEngine | None, plan: Plan) -> bool:
    """Whether the framework of a job, if it names one, can run a plan."""
    return engine is None or not launch_problem(engine, plan)


class UnusablePlans:
    """Plans that jobs of a kind could not use, as they have reported."""

    def __init__(self) -> None:
        self._shapes: set[MeasuredShape] = set()

    def __len__(self) -> int:
        return len(self._shapes)

    def __contains__(self, shape: MeasuredShape) -> bool:
        return shape in self._shapes

    def add(self, shape: MeasuredShape) -> None:
        self._shapes.add(shape)

    def limits(self, limits: PlanLimits, kind: WorkloadKind, gpu_type: str) -> PlanLimits:
        """Return the limits, without tensor and pipeline parallelism if the model could not be split."""
        limits = replace(limits, engine=kind.engine) if kind.engine else limits
        max_tensor, has_pipelines = self._splits(kind, gpu_type)
        if not has_pipelines:
            limits = replace(limits, pinned=replace(limits.pinned, pipeline=1))
        return replace(limits, max_tensor=max_tensor) if max_tensor < limits.max_tensor else limits

    def allow(self, kind: WorkloadKind, gpu_type: str, plan: Plan) -> bool:
        """Return whether jobs of a kind may be able to use a plan."""
        if not self._shapes:
            return True
        max_tensor, has_pipelines = self._splits(kind, gpu_type)
        can_split = plan.tensor <= max_tensor and (has_pipelines or plan.pipeline == 1)
        return can_split and all(shape.plan != plan for shape in self._shapes if is_of(shape, kind, gpu_type))

    def _splits(self, kind: WorkloadKind, gpu_type: str) -> tuple[int, bool]:
        """Return the largest degree of tensor parallelism, and whether pipelines are possible, as far as is known."""
        plans = [shape.plan for shape in self._shapes if is_of(shape, kind, gpu_type)]
        failed = [plan.tensor for plan in plans if plan.tensor > 1 and plan.pipeline == 1]
        return min(failed, default=MAX_DEGREE + 1) - 1, all(plan.pipeline == 1 for plan in plans)
