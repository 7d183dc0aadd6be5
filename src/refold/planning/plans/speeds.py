"""Modelled speeds of the jobs of a cluster: steps per second by plan and machines.

A job can be modelled if its workload names a model of the catalogue and the catalogue has its GPU type; fits to
measurements of that model on that type correct the estimate. For other workloads and devices, such as CPU slots,
measured step times may be known; until they are, a job that requests a range of GPUs is assumed to become faster with
more. Jobs that cannot be modelled or reshaped only run as requested. A `menu` lists the plans that the training code of
a workload supports, if they are few.

Results are cached by layout (GPUs on each node, in descending order), since there are few kinds of jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np

from refold.model import WHOLE, Cluster, Demand, Job, MeasuredShape, Plan
from refold.planning.catalogue import GENERAL_ENGINE, find_engine, known_model
from refold.planning.perf import (
    CorrectedForm,
    Fitted,
    Measurement,
    ModelShape,
    TrainingSetup,
    apply_corrections,
    estimate_all,
    plans_to_columns,
    refit_if_needed,
)
from refold.planning.plans.cluster_machines import MIB_PER_GIB, ClusterMachines, Layout, Spread
from refold.planning.plans.launch_targets import LAUNCH_TARGETS
from refold.planning.plans.measured_steps import MeasuredSteps, StepTable, assumed_steps
from refold.planning.plans.search import best_of_families, best_plan, best_plans, simple_plans
from refold.planning.plans.selection import fastest
from refold.planning.plans.space import DEFAULT_LIMITS, PlanLimits
from refold.planning.plans.workloads import (
    UnusablePlans,
    WorkloadKind,
    can_run,
    is_of,
    requested_cpus,
    requested_layout,
    workload_kind,
)


class Knowledge(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What is known besides the catalogue: fits to measurements, and which plans may be chosen.

    `menu` lists, by workload, the only plans that its training code supports. `measured` are step times of workloads
    or on devices that the catalogue does not have.
    """

    fits: tuple[Fitted, ...] = ()
    menu: dict[str, tuple[Plan, ...]] = {}
    limits: PlanLimits = DEFAULT_LIMITS
    measured: tuple[Measurement, ...] = ()

    @staticmethod
    def from_settings(settings: Knowledge | Mapping[str, Any]) -> Knowledge:
        """Return `settings` if it is a `Knowledge`; otherwise decode it from plain values, as in a journal."""
        return settings if isinstance(settings, Knowledge) else msgspec.convert(settings, Knowledge)


CATALOGUE_ONLY = Knowledge()


MIN_CORRECTION = 0.05
"""A measured speed that differs by less from the last one changes nothing: estimates are not recomputed for noise."""


class Speed(NamedTuple):
    """Modelled speed of a job: steps per second, the plan, and the host memory that the plan needs.

    `fits`: whether the plan is estimated to fit into memory.
    """

    steps_per_second: float
    plan: Plan
    host_mib: int = 0
    fits: bool = True


class Speeds:
    """Modelled speeds of the jobs of a cluster, cached."""

    def __init__(
        self, cluster: Cluster, knowledge: Knowledge = CATALOGUE_ONLY, *, assumes_scaling: bool = False
    ) -> None:
        """`assumes_scaling`: jobs with a range of GPUs and an unknown speed are assumed to become faster with more."""
        self.cluster = cluster
        self._assumes_scaling = assumes_scaling
        self._knowledge = knowledge
        self._machines = ClusterMachines(cluster)
        self._fits = {(fit.model, fit.gpu): fit for fit in knowledge.fits}
        self._menu = knowledge.menu
        self._limits = knowledge.limits
        self._rows = knowledge.measured
        self._measured = MeasuredSteps(knowledge.measured)
        self._learned: dict[MeasuredShape, float] = {}
        self._unusable = UnusablePlans()
        self._corrections: dict[tuple[WorkloadKind, str], float] = {}
        self._online_fits: dict[tuple[WorkloadKind, str], Fitted] = {}
        self._checked_fits: dict[tuple[WorkloadKind, str], Fitted | None] = {}
        """The fits to speeds that jobs have reached; those that were compared with the latest speeds."""
        self._models: dict[WorkloadKind, ModelShape | None] = {}
        self._cache: dict[tuple[object, ...], Speed | None] = {}
        self._types: dict[tuple[WorkloadKind, tuple[str, ...]], list[str]] = {}
        self._modelled: dict[tuple[str, int, bool, Demand, bool], bool] = {}
        self._requested: dict[tuple[object, ...], Speed] = {}

    def learn(self, measured: Mapping[MeasuredShape, float]) -> bool:
        """Correct estimates by speeds that jobs have reached, in steps per second; return whether any has changed.

        A measured plan has its measured speed. Other plans of the same kind of job on the same GPU type are corrected
        by the mean ratio of measured to modelled speeds; once three plans are measured, also by fitting the parameters
        of the model to them. A speed of 0 means that jobs of that kind cannot use the plan. Speeds of gangs that were
        in more domains than needed correct the model only.
        """
        known = {shape._replace(spread=self._extra(shape)): speed for shape, speed in measured.items()}
        new = {shape: speed for shape, speed in known.items() if self._is_news(shape, speed)}
        if not new:
            return False
        self._learned.update((shape, speed) for shape, speed in new.items() if speed)
        for shape in (shape for shape, speed in new.items() if not speed):
            self._unusable.add(shape)
        self._measured = MeasuredSteps(self._rows, _as_measurements(self._learned))
        for cache in (self._cache, self._types, self._modelled, self._requested, self._corrections, self._checked_fits):
            cache.clear()
        return True

    def _extra(self, shape: MeasuredShape) -> Spread:
        """Return how the GPUs of a shape are spread; () if they are in as few domains as possible."""
        if len(shape.spread) != len(self.cluster.levels) or shape.gpu_type not in self.cluster.type_names:
            return ()  # of another cluster
        is_packed = shape.spread == self._machines.packed(shape.gpu_type, shape.layout)
        return () if is_packed else shape.spread

    def uncorrected(self) -> Speeds:
        """Return the speeds as they are before any job has reported."""
        return Speeds(self.cluster, self._knowledge, assumes_scaling=self._assumes_scaling)

    def _is_news(self, shape: MeasuredShape, speed: float) -> bool:
        if not speed:
            return shape not in self._unusable
        known = self._learned.get(shape)
        return known is None or abs(speed - known) > MIN_CORRECTION * known

    def can_model(self, job: Job) -> bool:
        """Whether a job may be reshaped and its speed can be modelled."""
        key = (job.workload, job.batch, job.reshapable, job.demand, job.gpu_range is None)
        cached = self._modelled.get(key)
        if cached is None:
            whole_gpus = job.demand.gpu_milli == WHOLE and job.demand.gpus > 0
            cached = self._modelled[key] = job.reshapable and whole_gpus and bool(self.types_for(job))
        return cached

    def types_for(self, job: Job) -> list[str]:
        """Return the GPU types of the cluster that a job accepts and on which its speed is known."""
        kind, accepted = self._kind(job), job.demand.usable_types(self.cluster)
        if (kind, accepted) not in self._types:
            types = [name for name in self.cluster.type_names if not accepted or name in accepted]
            self._types[kind, accepted] = [
                name for name in types if self._can_estimate(kind, name) or self._table(kind, name)
            ]
        return self._types[kind, accepted]

    def fastest(self, job: Job, gpu_type: str, layout: Layout, cpus: float) -> Speed | None:
        """Return the speed with the best plan on a layout with `cpus` in total; None if no plan fits."""
        key = (self._kind(job), gpu_type, layout, cpus)
        if key not in self._cache:
            self._cache[key] = self._with_measured_plans(*key, self._search(*key))
        return self._cache[key]

    def scaled(self, job: Job, gpu_type: str, layout: Layout, cpus: float) -> Speed | None:
        """Return the speed with the job's own plan scaled to the layout by its replicas; None if that is impossible."""
        plan = self.own_plan(job)
        replicas, rest = divmod(sum(layout), plan.tensor * plan.pipeline)
        batch = self.batch(job)
        if rest or not replicas or batch % replicas:
            return None
        accumulation = plan.accumulation if batch % (replicas * plan.accumulation) == 0 else 1
        scaled = msgspec.structs.replace(plan, data=replicas, accumulation=accumulation)
        return self.with_plan(job, gpu_type, layout, cpus, scaled)

    def with_plan(self, job: Job, gpu_type: str, layout: Layout, cpus: float, plan: Plan, spread: Spread = ()) -> Speed:
        """Return the speed with a given plan, even if it is estimated not to fit: the user has chosen it.

        `spread`: how the layout is spread over the domains of the cluster; (): over as few as possible. A GPU
        type on which the speed is unknown is modelled as the first one on which it is known.
        """
        kind = self._kind(job)
        key = (kind, gpu_type, layout, cpus, plan, spread)
        cached = self._cache.get(key)
        if cached is None:
            types = self.types_for(job)
            known_type = gpu_type if gpu_type in types else types[0]
            if table := self._table(kind, known_type):
                cached = Speed(1 / table.step_seconds(plan), plan)
            else:
                cached = self._corrected(kind, known_type, layout, cpus, plan, spread)
            self._cache[key] = cached
        return cached

    def plans_to_profile(self, job: Job, gpu_type: str, layout: Layout, cpus: float) -> list[Plan]:
        """Return the plans to measure on a layout if the model type is new; none if it was measured beforehand."""
        kind, gpus = self._kind(job), sum(layout)
        if self._is_measured_beforehand(kind, gpu_type):
            return []
        if kind.workload in self._menu:
            plans = [plan for plan in self._menu[kind.workload] if plan.gpus == gpus]
        elif self._can_estimate(kind, gpu_type):
            plans = best_of_families(
                self._setup(kind, gpu_type, layout, cpus), self._unusable.limits(self._limits, kind, gpu_type)
            )
        else:
            plans = simple_plans(self.own_plan(job), gpus, kind.batch)
        return [plan for plan in plans if can_run(kind.engine, plan) and self._unusable.allow(kind, gpu_type, plan)]

    def is_worth_measuring(self, job: Job, gpu_type: str, layout: Layout, plan: Plan) -> bool:
        """Return whether a kind of job may be able to use a plan, and its speed with it has not been reported."""
        kind = self._kind(job)
        is_measured = MeasuredShape(*kind[:3], gpu_type, layout, plan) in self._learned
        return not is_measured and self._unusable.allow(kind, gpu_type, plan)

    def requested_speed(self, job: Job) -> Speed:
        """Return the speed as requested: with its GPUs, CPUs and plan, on the slowest GPU type that it accepts."""
        key = (job.workload, job.batch, job.sequence, job.engine, job.demand, job.plan)
        slowest = self._requested.get(key)
        if slowest is None:
            plan, layout, cpus = self.own_plan(job), requested_layout(job), requested_cpus(job)
            speeds = [self.with_plan(job, gpu_type, layout, cpus, plan) for gpu_type in self.types_for(job)]
            slowest = self._requested[key] = min(speeds, key=lambda speed: speed.steps_per_second)
        return slowest

    def own_plan(self, job: Job) -> Plan:
        """Return the plan of the job; by default, data parallelism over the requested GPUs."""
        return job.plan or Plan(data=job.demand.instances * job.demand.gpus)

    def batch(self, job: Job) -> int:
        model = self._model(self._kind(job))
        return job.batch or (model.batch if model else 0) or 1

    def _kind(self, job: Job) -> WorkloadKind:
        kind = workload_kind(job)
        assumes = self._assumes_scaling and job.gpu_range is not None
        return kind._replace(requested=self.own_plan(job)) if assumes else kind

    def _model(self, kind: WorkloadKind) -> ModelShape | None:
        if kind not in self._models:
            self._models[kind] = known_model(kind.workload) if kind.workload else None
        return self._models[kind]

    def _can_estimate(self, kind: WorkloadKind, gpu_type: str) -> bool:
        return self._model(kind) is not None and gpu_type in self._machines.gpus

    def _is_measured_beforehand(self, kind: WorkloadKind, gpu_type: str) -> bool:
        model = self._model(kind)
        if model is not None and gpu_type in self._machines.gpus:
            return (model.name, self._machines.gpus[gpu_type].name) in self._fits
        return any((row.model, row.gpu) == (kind.workload, gpu_type) for row in self._rows)

    def _table(self, kind: WorkloadKind, gpu_type: str) -> StepTable | None:
        """Return the measured or assumed step times of a workload that cannot be modelled; None otherwise."""
        if self._can_estimate(kind, gpu_type):
            return None
        measured = self._measured.find(kind.workload, gpu_type, kind.batch)
        return measured or (assumed_steps(kind.requested, kind.batch) if kind.requested else None)

    def _setup(
        self, kind: WorkloadKind, gpu_type: str, layout: Layout, cpus: float, spread: Spread = ()
    ) -> TrainingSetup:
        setup = self._setup_beforehand(kind, gpu_type, layout, cpus, spread)
        fitted = self._online_fit(kind, gpu_type) if self._learned else None
        return apply_corrections(setup, _rounded(fitted.values)) if fitted else setup

    def _online_fit(self, kind: WorkloadKind, gpu_type: str) -> Fitted | None:
        """Return a fit of the model to the speeds that jobs of a kind have reached; None: too few."""
        key = (kind, gpu_type)
        if key not in self._checked_fits:
            speeds = {shape: speed for shape, speed in self._learned.items() if is_of(shape, kind, gpu_type)}
            form = CorrectedForm(lambda row: self._setup_beforehand(kind, gpu_type, row.gpus_on_node, row.cpus))
            fitted = refit_if_needed(form, self._online_fits.get(key), _as_measurements(speeds))
            if fitted is not None:
                self._online_fits[key] = fitted
            self._checked_fits[key] = fitted
        return self._checked_fits[key]

    def _setup_beforehand(
        self, kind: WorkloadKind, gpu_type: str, layout: Layout, cpus: float, spread: Spread = ()
    ) -> TrainingSetup:
        """Return a setup without what was measured meanwhile."""
        model, machines = self._model(kind), self._machines.get(gpu_type, layout, cpus, spread)
        assert model is not None
        fit = self._fits.get((model.name, machines.gpu.name))
        assumed = LAUNCH_TARGETS[kind.engine].estimated_as if kind.engine else GENERAL_ENGINE
        engine = find_engine(fit.engine if fit and fit.engine else assumed)
        setup = TrainingSetup(
            model, machines, engine, kind.batch or model.batch or 1, kind.sequence or model.sequence or 1
        )
        return apply_corrections(setup, fit.values) if fit else setup

    def _search(self, kind: WorkloadKind, gpu_type: str, layout: Layout, cpus: float) -> Speed | None:
        if table := self._table(kind, gpu_type):
            plan = table.best_plan(sum(layout))
            return Speed(1 / table.step_seconds(plan), plan) if plan and can_run(kind.engine, plan) else None
        setup = self._setup(kind, gpu_type, layout, cpus)
        if kind.workload in self._menu:
            menu = [plan for plan in self._menu[kind.workload] if plan.gpus == sum(layout)]
            return self._best_of_menu(setup, [plan for plan in menu if can_run(kind.engine, plan)])
        best = _best_plan(setup, self._unusable.limits(self._limits, kind, gpu_type))
        if best and not self._unusable.allow(kind, gpu_type, best.plan):
            estimates = best_plans(
                setup, self._unusable.limits(self._limits, kind, gpu_type), 1 + len(self._unusable)
            ).best
            best = next((other for other in estimates if self._unusable.allow(kind, gpu_type, other.plan)), None)
        return Speed(1 / best.step_seconds, best.plan, round(best.host_gib * MIB_PER_GIB)) if best else None

    def _with_measured_plans(
        self, kind: WorkloadKind, gpu_type: str, layout: Layout, cpus: float, modelled: Speed | None
    ) -> Speed | None:
        """Return the fastest of the modelled best plan, as corrected, and the plans measured on the same layout."""
        if not self._learned or self._table(kind, gpu_type):
            return modelled
        measured = [
            shape.plan
            for shape in self._learned
            if is_of(shape, kind, gpu_type) and shape.layout == layout and not shape.spread
        ]
        plans = [*([modelled.plan] if modelled else []), *(plan for plan in measured if can_run(kind.engine, plan))]
        speeds = [self._corrected(kind, gpu_type, layout, cpus, plan) for plan in dict.fromkeys(plans)]
        return max(speeds, key=lambda speed: speed.steps_per_second, default=None)

    def _corrected(
        self, kind: WorkloadKind, gpu_type: str, layout: Layout, cpus: float, plan: Plan, spread: Spread = ()
    ) -> Speed:
        """Return the speed with a plan as measured, else as modelled and corrected."""
        modelled = self._estimate(self._setup(kind, gpu_type, layout, cpus, spread), plan)
        if not self._learned:
            return modelled
        measured = self._learned.get(MeasuredShape(*kind[:3], gpu_type, layout, plan, spread))
        speed = measured or modelled.steps_per_second * self._correction(kind, gpu_type)
        return modelled._replace(steps_per_second=speed)

    def _correction(self, kind: WorkloadKind, gpu_type: str) -> float:
        """Return the geometric mean of measured over modelled speeds of a kind of job on a GPU type; 1: no speeds."""
        if (kind, gpu_type) not in self._corrections:
            ratios = [
                speed
                / self._estimate(
                    self._setup(kind, gpu_type, shape.layout, 0.0, shape.spread), shape.plan
                ).steps_per_second
                for shape, speed in self._learned.items()
                if is_of(shape, kind, gpu_type)
            ]
            self._corrections[kind, gpu_type] = float(np.exp(np.mean(np.log(ratios)))) if ratios else 1.0
        return self._corrections[kind, gpu_type]

    def _best_of_menu(self, setup: TrainingSetup, plans: Sequence[Plan]) -> Speed | None:
        """Return the best plan of a menu. Its plans are known to run, so memory is not checked."""
        if not plans:
            return None
        columns = plans_to_columns(plans)
        estimates = estimate_all(setup, columns)
        best = int(fastest(columns, estimates.step_seconds, 1)[0])
        return Speed(1 / float(estimates.step_seconds[best]), plans[best], _host_mib(estimates.memory.host, best))

    def _estimate(self, setup: TrainingSetup, plan: Plan) -> Speed:
        estimates = estimate_all(setup, plans_to_columns([plan]))
        return Speed(
            1 / float(estimates.step_seconds[0]), plan, _host_mib(estimates.memory.host, 0), bool(estimates.fits[0])
        )


_best_plan = lru_cache(maxsize=4096)(best_plan)
"""Policies that are compared in one process, and simulations of the same jobs, search for the same plans."""


def _as_measurements(speeds: Mapping[MeasuredShape, float]) -> list[Measurement]:
    """Return the speeds of jobs whose batch size is known, in as few domains as possible."""
    return [
        Measurement(workload, gpu_type, layout, plan, batch, max(sequence, 1), step_seconds=1 / speed)
        for (workload, batch, sequence, gpu_type, layout, plan, spread), speed in speeds.items()
        if batch and not spread and plan.gpus == sum(layout) and batch % (plan.data * plan.accumulation) == 0
    ]


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    """Return values with three digits, so that a journal replays on machines that compute slightly differently."""
    return {name: float(f"{value:.3g}") for name, value in values.items()}


def _host_mib(host_gib: np.ndarray, row: int) -> int:
    return round(float(host_gib[row]) * MIB_PER_GIB)
