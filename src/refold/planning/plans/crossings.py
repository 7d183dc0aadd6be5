"""How much slower gangs are on the domains that they have than on as few as possible.

A job may declare which part of its step time is communication; that part grows with the bandwidth that is lost. For
other jobs, the performance model decides if it knows the model that the job trains: it knows which groups of GPUs cross
which level. All others are equally fast on all domains.
"""

from __future__ import annotations

from msgspec.structs import replace

from refold.model import WHOLE, Allocation, Job, Plan, spread_of
from refold.planning.perf import FormulaLine, Section, TrainingSetup, estimate
from refold.planning.plans.cluster_machines import ClusterMachines, Layout, Spread
from refold.planning.plans.selection import TIE_FACTOR
from refold.planning.plans.speeds import Speeds
from refold.planning.plans.workloads import workload_kind


class Crossings:
    """Slowdowns of gangs on one cluster, cached."""

    def __init__(self, speeds: Speeds, modelled: bool = True) -> None:
        """`modelled`: whether to use the performance model; else only what jobs declare counts."""
        self._speeds, self._modelled = speeds, modelled
        self._machines = ClusterMachines(speeds.cluster)
        self._cache: dict[tuple[object, ...], float] = {}

    def slowdown(self, job: Job, allocation: Allocation) -> float:
        """Return the step time on an allocation, divided by that on as few domains as possible."""
        cluster = self._speeds.cluster
        if not cluster.levels or len(allocation.placement) == 1 or not self._is_sensitive(job):
            return 1.0
        return self.of_spread(job, allocation, spread_of(cluster, allocation.placement))

    def packed(self, allocation: Allocation) -> Spread:
        """Return the spread of an allocation if it were on as few domains as possible."""
        return self._machines.packed(self._gpu_type(allocation), allocation.gpus_on_node)

    def of_spread(self, job: Job, allocation: Allocation, spread: Spread) -> float:
        """Return the slowdown of an allocation if it were spread like this."""
        declared, plan = _declared(job), allocation.plan or self._speeds.own_plan(job)
        gpu_type, layout, cpus = self._gpu_type(allocation), allocation.gpus_on_node, allocation.cpu_milli / WHOLE
        key = (workload_kind(job), declared, plan, gpu_type, layout, cpus, spread)
        if key not in self._cache:
            if declared:
                slowdown = 1 - declared + declared * self._lost_bandwidth(gpu_type, layout, spread)
            else:
                extra = () if spread == self._machines.packed(gpu_type, layout) else spread
                best, here = (self._speeds.with_plan(job, gpu_type, layout, cpus, plan, where) for where in ((), extra))
                slowdown = best.steps_per_second / here.steps_per_second
            self._cache[key] = max(1.0, slowdown)
        return self._cache[key]

    def _lost_bandwidth(self, gpu_type: str, layout: Layout, spread: Spread) -> float:
        best = self._machines.packed(gpu_type, layout)
        bandwidths = [self._machines.ring_bandwidth(gpu_type, layout, where) for where in (best, spread)]
        return bandwidths[0] / bandwidths[1]

    def _is_sensitive(self, job: Job) -> bool:
        """Whether it is known how much slower a job is across domains."""
        if _declared(job) or not self._modelled:
            return _declared(job) > 0
        return job.demand.gpus > 0 and job.demand.gpu_milli == WHOLE and bool(self._speeds.types_for(job))

    def _gpu_type(self, allocation: Allocation) -> str:
        return self._speeds.cluster.nodes[allocation.placement[0].node].gpu_type


def _declared(job: Job) -> float:
    """Return the part of the step time that a job declares as communication between nodes; 0: none."""
    topology = job.demand.topology
    return topology.communication if topology is not None else 0.0


def segment_times(setup: TrainingSetup, plan: Plan) -> dict[int, float]:
    """Return the step time by segment, in nodes, if each segment is in a domain of its own; {}: domains are nodes."""
    machines = setup.machines
    each = machines.gpus_on_node[0]
    if machines.gpu.link_domain < 2 * each or machines.nodes == 1 or set(machines.gpus_on_node) != {each}:
        return {}
    most = machines.gpu.link_domain // each
    sizes = [nodes for nodes in range(1, most + 1) if machines.nodes % nodes == 0]
    domains = {nodes: (nodes * each,) * (machines.nodes // nodes) for nodes in sizes}
    setups = {nodes: replace(setup, machines=replace(machines, link_domains=gpus)) for nodes, gpus in domains.items()}
    return {nodes: estimate(one, plan).step_seconds for nodes, one in setups.items()}


def explain_segments(setup: TrainingSetup, plan: Plan) -> tuple[Section, ...]:
    """Explain which segment to request, and what it costs if fewer nodes are together."""
    times = segment_times(setup, plan)
    if len(times) < 2:
        return ()
    fastest = min(times.values())
    best = next(nodes for nodes, seconds in times.items() if seconds <= fastest * TIE_FACTOR)
    lines = [_line("segment", best, "nodes", "the smallest segment with which a step takes at most 1 % longer")]
    for nodes, seconds in times.items():
        more = f", {seconds / fastest - 1:.0%} longer".replace("%", " %") if seconds > fastest * TIE_FACTOR else ""
        together = f"{nodes} nodes" if nodes > 1 else "no nodes"
        lines.append(_line(f"step_{nodes}", seconds, "s", f"{together} together in an NVLink domain{more}"))
    return (Section("Segments: step time by the nodes that are in one NVLink domain", tuple(lines)),)


def _line(name: str, value: float, unit: str, meaning: str) -> FormulaLine:
    return FormulaLine(name, "", "", value, unit, meaning)
