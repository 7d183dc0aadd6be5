"""What a scheduler knows of jobs: how fast each would run, with which plan, on which machines of a cluster.

A job is known if its workload names a model of the catalogue and its GPUs' type is there too; what was measured of
the model on that type (`fits`) corrects the estimate. A job that is not known, or may not be reshaped, can only be
run as it was asked for. A `menu` lists the plans that a workload's training code can run, where those are few.

Everything is asked for by layout (GPUs on each node, the most first) and kept, since jobs are of few kinds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import numpy as np

from refold.catalogue import USUAL as USUAL_ENGINE, find_engine, find_gpu, known_model
from refold.errors import UnknownName
from refold.model import ETHERNET, PCIE, WHOLE, Cluster, Demand, Job, Link, Plan
from refold.perf import Fitted, GpuSpec, Machines, ModelShape, Setting, columns_of, corrected, estimate_all
from refold.plans.ranking import fastest
from refold.plans.search import best_plan
from refold.plans.space import USUAL, PlanLimits

Layout = tuple[int, ...]
"""GPUs on each node, the most first."""

MIB_PER_GIB = 1024


class Knowledge(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What is known beside the catalogue: what was measured, and which plans may be chosen.

    `menu` lists the plans of a workload whose training code can run only these.
    """

    fits: tuple[Fitted, ...] = ()
    menu: dict[str, tuple[Plan, ...]] = {}
    limits: PlanLimits = USUAL

    @staticmethod
    def of(settings: Knowledge | Mapping[str, Any]) -> Knowledge:
        """As it stands in a journal, or as it is."""
        return settings if isinstance(settings, Knowledge) else msgspec.convert(settings, Knowledge)


NOTHING_MORE = Knowledge()


class Speed(NamedTuple):
    """How a job runs somewhere: steps per second, with this plan, which needs so much memory on the hosts.

    `fits`: whether it is thought to fit into the memory of the GPUs.
    """

    steps_per_second: float
    plan: Plan
    host_mib: int = 0
    fits: bool = True


class Kind(NamedTuple):
    """What the speed of a job depends on, but for where it runs."""

    workload: str
    batch: int
    sequence: int


class Speeds:
    """How fast the jobs of a cluster run."""

    def __init__(self, cluster: Cluster, knowledge: Knowledge = NOTHING_MORE) -> None:
        self.cluster = cluster
        self._fits = {(fit.model, fit.gpu): fit for fit in knowledge.fits}
        self._menu = knowledge.menu
        self._limits = knowledge.limits
        self._models: dict[Kind, ModelShape | None] = {}
        self._known: dict[tuple[object, ...], Speed | None] = {}
        self._knows: dict[tuple[str, bool, Demand], bool] = {}

    def knows(self, job: Job) -> bool:
        """Whether anything but what was asked for can be said of a job."""
        asked = (job.workload, job.reshapable, job.demand)
        known = self._knows.get(asked)
        if known is None:
            whole = job.demand.gpu_milli == WHOLE and job.demand.gpus > 0
            known = self._knows[asked] = job.reshapable and whole and bool(self.types_for(job))
        return known

    def types_for(self, job: Job) -> list[str]:
        """The GPU types of the cluster that a job accepts and of which something is known."""
        if self._model(kind_of(job)) is None:
            return []
        accepted = job.demand.gpu_types
        return [name for name in self._gpus if not accepted or name in accepted]

    def fastest(self, job: Job, gpu_type: str, layout: Layout, cpus: float) -> Speed | None:
        """With the best plan for so many GPUs on each node and so many CPUs in all; None: nothing fits there."""
        asked = (kind_of(job), gpu_type, layout, cpus)
        if asked not in self._known:
            self._known[asked] = self._search(*asked)
        return self._known[asked]

    def scaled(self, job: Job, gpu_type: str, layout: Layout, cpus: float) -> Speed | None:
        """With the job's own plan, but more or fewer replicas; None: they cannot be so many."""
        plan = self.own_plan(job)
        replicas, rest = divmod(sum(layout), plan.tensor * plan.pipeline)
        setting = self._setting(kind_of(job), gpu_type, layout, cpus)
        if rest or not replicas or setting.batch % replicas:
            return None
        accumulation = plan.accumulation if setting.batch % (replicas * plan.accumulation) == 0 else 1
        scaled = msgspec.structs.replace(plan, data=replicas, accumulation=accumulation)
        return self.with_plan(job, gpu_type, layout, cpus, scaled)

    def with_plan(self, job: Job, gpu_type: str, layout: Layout, cpus: float, plan: Plan) -> Speed:
        """With this plan, whether or not it is thought to fit into memory: whoever asked for it will know.

        A type of GPU of which nothing is known counts as the first that is.
        """
        if gpu_type not in self._gpus:
            gpu_type = self.types_for(job)[0]
        asked = (kind_of(job), gpu_type, layout, cpus, plan)
        known = self._known.get(asked)
        if known is None:
            known = self._known[asked] = self._estimate(self._setting(*asked[:4]), plan)
        return known

    def asked(self, job: Job) -> Speed:
        """As the job was asked for: its GPUs, its CPUs and its plan, on the slowest type that it accepts."""
        plan = self.own_plan(job)
        layout, cpus = asked_layout(job), asked_cpus(job)
        speeds = [self.with_plan(job, gpu_type, layout, cpus, plan) for gpu_type in self.types_for(job)]
        return min(speeds, key=lambda speed: speed.steps_per_second)

    def own_plan(self, job: Job) -> Plan:
        """The plan that a job brings along; where it brings none, plain data parallelism on what it asked for."""
        return job.plan or Plan(data=job.demand.instances * job.demand.gpus)

    def batch(self, job: Job) -> int:
        """Samples of a step."""
        model = self._model(kind_of(job))
        return job.batch or (model.batch if model else 0) or 1

    @cached_property
    def _gpus(self) -> dict[str, GpuSpec]:
        found = {}
        for name in self.cluster.type_names:
            try:
                found[name] = find_gpu(name)
            except UnknownName:
                continue
        return found

    @cached_property
    def _links(self) -> dict[str, Link]:
        """What joins the GPUs of a node, by type; where nobody said, what is usual for the type."""
        said = {node.gpu_type: node.inside for node in self.cluster.nodes if node.gpus and node.inside != PCIE}
        return {name: said.get(name, gpu.link) for name, gpu in self._gpus.items()}

    @cached_property
    def _node_memory_gib(self) -> dict[str, float]:
        """What the largest node of each type has; 0, which is no limit, where that is not known."""
        if not self.cluster.memory_known:
            return dict.fromkeys(self._gpus, 0.0)
        most: dict[str, float] = dict.fromkeys(self._gpus, 0.0)
        for node in self.cluster.nodes:
            if node.gpus and node.gpu_type in most:
                most[node.gpu_type] = max(most[node.gpu_type], node.memory_mib / MIB_PER_GIB)
        return most

    def _network(self, gpu: GpuSpec) -> Link:
        said = self.cluster.network
        return said if said != ETHERNET else Link("network", gpu.node_network_gigabytes_per_second)

    def _model(self, kind: Kind) -> ModelShape | None:
        if kind not in self._models:
            self._models[kind] = known_model(kind.workload) if kind.workload else None
        return self._models[kind]

    def _setting(self, kind: Kind, gpu_type: str, layout: Layout, cpus: float) -> Setting:
        model, gpu = self._model(kind), self._gpus[gpu_type]
        assert model is not None
        fit = self._fits.get((model.name, gpu.name))
        engine = find_engine(fit.engine if fit and fit.engine else USUAL_ENGINE)
        memory = len(layout) * self._node_memory_gib[gpu_type]
        machines = Machines(gpu, layout, self._links[gpu_type], self._network(gpu), cpus, memory)
        setting = Setting(model, machines, engine, kind.batch or model.batch or 1, kind.sequence or model.sequence or 1)
        return corrected(setting, fit.values) if fit else setting

    def _search(self, kind: Kind, gpu_type: str, layout: Layout, cpus: float) -> Speed | None:
        setting = self._setting(kind, gpu_type, layout, cpus)
        if kind.workload in self._menu:
            return self._best_of(setting, [plan for plan in self._menu[kind.workload] if plan.gpus == sum(layout)])
        best = best_plan(setting, self._limits)
        return Speed(1 / best.step_seconds, best.plan, round(best.host_gib * MIB_PER_GIB)) if best else None

    def _best_of(self, setting: Setting, plans: Sequence[Plan]) -> Speed | None:
        """The best of a menu; its plans are there because they run, so memory is not asked."""
        if not plans:
            return None
        columns = columns_of(plans)
        found = estimate_all(setting, columns)
        best = int(fastest(columns, found.step_seconds, 1)[0])
        return Speed(1 / float(found.step_seconds[best]), plans[best], _host_mib(found.memory.host, best))

    def _estimate(self, setting: Setting, plan: Plan) -> Speed:
        found = estimate_all(setting, columns_of([plan]))
        return Speed(1 / float(found.step_seconds[0]), plan, _host_mib(found.memory.host, 0), bool(found.fits[0]))


def _host_mib(host_gib: np.ndarray, row: int) -> int:
    return round(float(host_gib[row]) * MIB_PER_GIB)


def kind_of(job: Job) -> Kind:
    """Jobs of one kind are equally fast in the same place."""
    return Kind(job.workload, job.batch, job.sequence)


def asked_layout(job: Job) -> Layout:
    """GPUs on each node, as the job asked for them."""
    return (job.demand.gpus,) * job.demand.instances


def asked_cpus(job: Job) -> float:
    """CPUs in all, as the job asked for them; 0: it did not say."""
    return job.demand.instances * job.demand.cpu_milli / WHOLE
