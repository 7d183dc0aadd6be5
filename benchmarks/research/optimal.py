"""The optimal allocation of the present jobs: a yardstick for policies on small clusters.

The normalised throughput of a job is its speed divided by the speed of its request; 0 while it waits. The allocation
with the largest sum is found exactly by an integer linear program (HiGHS): each job has at most one shape (GPUs per
node, with a plan), the parts of the shapes are assigned to nodes, and no node exceeds its GPUs, CPUs or memory. The
program ignores the future and restart costs: it bounds what other policies can reach in the same view, and is not
meant for production.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import comb
from typing import Any, NamedTuple

import msgspec
import numpy as np

from refold.core import View
from refold.errors import BadInput
from refold.model import NO_CHANGE, WHOLE, Allocation, Cluster, Decision, Demand, Job, Node, Plan, Share, Wait
from refold.placement import CPU_FREE, MEMORY_FREE, UNLIMITED, FreeResources
from refold.planning.plans import CATALOGUE_ONLY, Knowledge, Layout, Speeds, requested_cpus
from refold.policies.common import Draft, QuotaAdmission, Reasons, Transition, allowed_gpu_range, has_external_changes

MAX_LAYOUTS = 2000
"""Layouts of one job on the nodes of one GPU type: 4 nodes with 8 GPUs have 494, 5 have 1,286, 6 have 3,002."""

MAX_CHOICES = 20_000
"""Shapes of all jobs × nodes; jobs without a speed model have one shape. Larger programs are rejected."""

MAX_SOLVER_NODES = 20_000
"""Branch-and-bound nodes after which the solver stops proving optimality."""

RELATIVE_GAP = 1e-6
"""Relative gap at which a solution counts as optimal."""


class RunShape(NamedTuple):
    """One way to run a job: a part per node (if `stackable`, instances that may share a node), plan and throughput."""

    parts: tuple[Demand, ...]
    plan: Plan | None
    throughput: float
    stackable: bool = False


class Optimum(NamedTuple):
    """The best allocations found, their throughput, and an upper bound, equal to it if optimality was proved."""

    throughput: float
    upper_bound: float
    target: Mapping[str, Allocation]


def normalised_throughput(speeds: Speeds, job: Job, allocation: Allocation) -> float:
    """Return speed / requested speed; for a job without a speed model, 1 if it has all requested GPUs, else 0."""
    if not speeds.can_model(job):
        return float(allocation.gpu_milli >= job.demand.total_gpu_milli)
    gpu_type = speeds.cluster.nodes[allocation.placement[0].node].gpu_type
    plan = allocation.plan or speeds.own_plan(job)
    here = speeds.with_plan(job, gpu_type, allocation.gpus_on_node, allocation.cpu_milli / WHOLE, plan)
    return here.steps_per_second / speeds.requested_speed(job).steps_per_second


def throughput_of(view: View, speeds: Speeds, target: Mapping[str, Allocation]) -> float:
    """Return the total normalised throughput of the jobs of a view if exactly those in `target` run."""
    jobs = {**view.waiting, **view.active}
    return sum(
        normalised_throughput(speeds, jobs[job_id], allocation)
        for job_id, allocation in target.items()
        if job_id in jobs
    )


Target = dict[str, tuple[Allocation | None, str]]
"""Target allocation of each job, None to stop it, and the reason."""


class Optimal:
    """Maximises the present total normalised throughput exactly; for small clusters."""

    name = "optimal"

    def __init__(self, knowledge: Knowledge | Mapping[str, Any] = CATALOGUE_ONLY) -> None:
        self._knowledge = Knowledge.from_settings(knowledge)
        self._search: OptimumSearch | None = None
        self._transition = Transition()
        self._reasons = Reasons()
        self._target: Target = {}

    def decide(self, view: View) -> Decision:
        """Compute a new target if anything but the policy's own orders has changed; otherwise continue towards it."""
        if has_external_changes(view):
            self._target = self._find_target(view)
        decision = self._transition.step_towards(view, self._next_target(view))
        waits = self._waits(view, decision)
        if not (decision.starts or decision.stops or decision.reshapes or waits):
            return NO_CHANGE
        return msgspec.structs.replace(decision, waits=waits)

    def _find_target(self, view: View) -> Target:
        """Return the optimum; if the same throughput is possible without moving a job, the optimum without moves."""
        if self._search is None:
            self._search = OptimumSearch(Speeds(view.cluster, self._knowledge))
        draft = Draft(view)
        held = dict(draft.allocations())
        best, target = self._search.best(view, draft), self._search.best(view, draft, all_stay=True)
        equally_good = best.throughput - target.throughput <= 2 * RELATIVE_GAP * max(1.0, best.throughput)
        if not equally_good or not self._search.meets_guarantees(view, held):
            target = best
        now = throughput_of(view, self._search.speeds, held)
        why = f"optimal: throughput {now:.3f} → {best.throughput:.3f}"
        return {job_id: (target.target.get(job_id), why) for job_id in {**held, **target.target}}

    def _next_target(self, view: View) -> Target:
        """Return the target, with moves of jobs that are not reshapable replaced by stops."""
        target = dict(self._target)
        for job_id, (wanted, why) in self._target.items():
            run = view.runs.get(job_id)
            if run and not view.active[job_id].reshapable and not run.stopping and run.allocation != wanted:
                target[job_id] = (None, why)
        return target

    def _waits(self, view: View, decision: Decision) -> tuple[Wait, ...]:
        return self._reasons.collect_all(view, decision.starts, self._transition.pending)


class OptimumSearch:
    """Finds the optimum for views of one cluster, caching the shapes of each kind of job."""

    def __init__(self, speeds: Speeds, *, guarantees: bool = True) -> None:
        self.speeds = speeds
        self._quotas = QuotaAdmission(speeds) if guarantees else None
        self._shapes: dict[Job, tuple[RunShape, ...]] = {}
        self._limited = {tenant.name for tenant in speeds.cluster.tenants if tenant.limit_gpus}

    def meets_guarantees(self, view: View, target: Mapping[str, Allocation]) -> bool:
        """Whether every guaranteed job of the target reaches its requested speed."""
        jobs = {**view.waiting, **view.active}
        guaranteed = self._guaranteed_jobs(view) & target.keys()
        return all(
            normalised_throughput(self.speeds, jobs[job_id], target[job_id]) >= 1 - RELATIVE_GAP
            for job_id in guaranteed
        )

    def _guaranteed_jobs(self, view: View) -> set[str]:
        return self._quotas.guaranteed_jobs(view) if self._quotas is not None else set()

    def best(self, view: View, draft: Draft, *, all_stay: bool = False) -> Optimum:
        """Return the optimum; with `all_stay`, the optimum that does not move any job with an allocation."""
        jobs = {**view.waiting, **view.active}
        held = dict(draft.allocations())
        staying = {job_id: held[job_id] for job_id in held if all_stay or not _may_move(view, jobs[job_id])}
        free = draft.free.copy()
        for job_id in held.keys() - staying.keys():
            free.release(held[job_id].placement)
        guaranteed = self._guaranteed_jobs(view)
        shapes = {
            job_id: self._allowed_shapes(job, job_id in guaranteed)
            for job_id, job in jobs.items()
            if job_id not in staying
        }
        _check_size(shapes, view.cluster)
        groups = _group_jobs({job_id: jobs[job_id] for job_id in shapes}, shapes)
        program = _Program(groups, _capacities(view.cluster, free))
        solved = program.solve()
        fixed = throughput_of(view, self.speeds, staying)
        moved = _GpuAssignment(program, solved.amounts, held).target() if groups else {}
        return Optimum(solved.value + fixed, solved.upper_bound + fixed, staying | moved)

    def _allowed_shapes(self, job: Job, is_guaranteed: bool) -> tuple[RunShape, ...]:
        shapes = self._shapes_of_kind(job)
        return tuple(shape for shape in shapes if shape.throughput >= 1 - RELATIVE_GAP) if is_guaranteed else shapes

    def _shapes_of_kind(self, job: Job) -> tuple[RunShape, ...]:
        kind = msgspec.structs.replace(
            job,
            id="any",
            submitted=0.0,
            work=None,
            tenant=job.tenant if job.tenant in self._limited else "",
            user="",
            group="",
            priority=0,
            time_limit=None,
            steps=None,
        )
        if kind not in self._shapes:
            self._shapes[kind] = shapes_of(self.speeds, kind)
        return self._shapes[kind]


def _may_move(view: View, job: Job) -> bool:
    """Whether a job may be moved; a run on a node or GPU that is down is left until its end is reported."""
    run = view.runs.get(job.id)
    if run is None:
        return True
    return view.is_preemptible(job.id) and view.is_placement_up(run.allocation.placement)


def _check_size(shapes: Mapping[str, Sequence[RunShape]], cluster: Cluster) -> None:
    choices = sum(map(len, shapes.values())) * len(cluster.nodes)
    if choices > MAX_CHOICES:
        raise BadInput(
            f"cluster too large for the optimum: {len(shapes)} jobs on {len(cluster.nodes)} nodes have {choices:,} "
            f"choices, expected at most {MAX_CHOICES:,}"
        )


# Shapes of a job.


def shapes_of(speeds: Speeds, job: Job) -> tuple[RunShape, ...]:
    """Return all shapes of a job that are not dominated by a smaller one that is at least as fast."""
    if not speeds.can_model(job):
        instance = msgspec.structs.replace(job.demand, instances=1, topology=None)
        return (RunShape((instance,) * job.demand.instances, job.plan, 1.0, stackable=True),)
    least, most = allowed_gpu_range(job, speeds.cluster)
    shapes = [
        shape
        for gpu_type in speeds.types_for(job)
        for layout in _layouts(speeds.cluster, gpu_type)
        if least <= sum(layout) <= most
        for shape in _shapes_on(speeds, job, gpu_type, layout)
    ]
    return _undominated(shapes)


def _layouts(cluster: Cluster, gpu_type: str) -> Iterator[Layout]:
    """Yield every layout on the nodes of a GPU type, as descending numbers of GPUs per node."""
    sizes = sorted((node.gpus for node in cluster.nodes if node.gpus and node.gpu_type == gpu_type), reverse=True)
    layouts = comb(len(sizes) + sizes[0], len(sizes)) - 1
    if layouts > MAX_LAYOUTS:
        raise BadInput(
            f"cluster too large for the optimum: {len(sizes)} nodes of up to {sizes[0]} {gpu_type} have {layouts:,} "
            f"layouts for a job, expected at most {MAX_LAYOUTS:,}"
        )
    return _descending(sizes, sizes[0])


def _descending(sizes: Sequence[int], most: int) -> Iterator[Layout]:
    for first in range(1, min(sizes[0], most) + 1 if sizes else 1):
        yield (first,)
        for rest in _descending(sizes[1:], first):
            yield (first, *rest)


def _shapes_on(speeds: Speeds, job: Job, gpu_type: str, layout: Layout) -> Iterator[RunShape]:
    """Yield the shape with the fastest plan, and with the job's own plan, which is assumed to fit as requested."""
    cpus_per_gpu = round(requested_cpus(job) * WHOLE / (job.demand.instances * job.demand.gpus))
    total, cpus = sum(layout), sum(layout) * cpus_per_gpu / WHOLE
    requested_speed = speeds.requested_speed(job).steps_per_second
    own = speeds.own_plan(job)

    def shape(plan: Plan, steps_per_second: float, host_mib: int) -> RunShape:
        parts = [
            Demand(1, gpus, WHOLE, gpus * cpus_per_gpu, _memory(job, gpus, total, host_mib), (gpu_type,))
            for gpus in layout
        ]
        return RunShape(tuple(parts), plan, steps_per_second / requested_speed)

    fastest = speeds.fastest(job, gpu_type, layout, cpus)
    if fastest is not None:
        yield shape(fastest.plan, fastest.steps_per_second, fastest.host_mib)
    if total == own.gpus == job.demand.instances * job.demand.gpus:
        yield shape(own, speeds.with_plan(job, gpu_type, layout, cpus, own).steps_per_second, 0)


def _memory(job: Job, gpus: int, total: int, host_mib: int) -> int:
    """Return the host memory for `gpus` of `total` GPUs: as requested per GPU, or the plan's own need if larger."""
    return max(job.demand.memory_mib * gpus // job.demand.gpus, -(-host_mib * gpus // total))


def _undominated(shapes: Sequence[RunShape]) -> tuple[RunShape, ...]:
    undominated: list[RunShape] = []
    by_size = sorted(
        shapes, key=lambda item: (sum(part.gpus for part in item.parts), len(item.parts), -item.throughput)
    )
    for shape in by_size:
        if not any(_needs_no_more(other, shape) and other.throughput >= shape.throughput for other in undominated):
            undominated.append(shape)
    return tuple(undominated)


def _needs_no_more(first: RunShape, second: RunShape) -> bool:
    """Whether `first` fits wherever `second` does, comparing parts in descending order."""
    return len(first.parts) <= len(second.parts) and all(
        first_part.gpu_types == second_part.gpu_types
        and first_part.gpus <= second_part.gpus
        and first_part.cpu_milli <= second_part.cpu_milli
        and first_part.memory_mib <= second_part.memory_mib
        for first_part, second_part in zip(first.parts, second.parts, strict=False)
    )


# The integer linear program.


class JobGroup(NamedTuple):
    """Jobs with the same shapes: one job with a speed model, or all equal requests without one."""

    jobs: tuple[str, ...]
    shapes: tuple[RunShape, ...]

    @property
    def stackable(self) -> bool:
        return self.shapes[0].stackable

    @property
    def parts(self) -> list[Demand]:
        """All distinct parts of the shapes."""
        return list(dict.fromkeys(part for shape in self.shapes for part in shape.parts))


class NodeCapacity(NamedTuple):
    """Capacity of a node for jobs that may be moved."""

    number: int
    node: Node
    gpus: tuple[int, ...]
    cpu_milli: int
    memory_mib: int

    @property
    def whole_gpus(self) -> int:
        return self.gpus.count(WHOLE)

    @property
    def exchange_key(self) -> tuple[object, ...]:
        """Key of interchangeable nodes: same GPU type and capacities."""
        return (self.node.gpu_type, *self[2:])

    def fits(self, part: Demand) -> bool:
        """Whether one such part fits, by GPU type and amounts."""
        if part.gpus and part.gpu_types and self.node.gpu_type not in part.gpu_types:
            return False
        enough = sum(milli >= part.gpu_milli for milli in self.gpus) >= part.gpus
        return enough and self.cpu_milli >= part.cpu_milli and self.memory_mib >= part.memory_mib


def _group_jobs(jobs: Mapping[str, Job], shapes: Mapping[str, tuple[RunShape, ...]]) -> list[JobGroup]:
    stackable: dict[tuple[RunShape, ...], list[str]] = defaultdict(list)
    single: list[JobGroup] = []
    for job_id in jobs:
        own = shapes[job_id]
        if own and own[0].stackable:
            stackable[own].append(job_id)
        elif own:
            single.append(JobGroup((job_id,), own))
    return single + [JobGroup(tuple(members), own) for own, members in stackable.items()]


def _capacities(cluster: Cluster, free: FreeResources) -> list[NodeCapacity]:
    return [
        NodeCapacity(
            index, node, free.gpu_milli_of(index), int(free.nodes[index, CPU_FREE]), int(free.nodes[index, MEMORY_FREE])
        )
        for index, node in enumerate(cluster.nodes)
        if free.is_up(index)
    ]


Name = tuple[Any, ...]
"""Name of a variable."""

Terms = dict[Name, float]
"""A linear expression: coefficients by variable."""


class Solved(NamedTuple):
    """Objective value, upper bound, and the non-zero variables."""

    value: float
    upper_bound: float
    amounts: Mapping[Name, int]


class _Program:
    """The integer linear program: variables by name, constraints as rows.

    ("shape", g, s): number of jobs of group g with shape s. ("part", g, n, p): number of their parts p on node n.
    ("shared", g, n, p, i): number of these parts that use a fraction of GPU i. ("whole", n, i): 1 if GPU i of node n is
    used as a whole.
    """

    def __init__(self, groups: Sequence[JobGroup], capacities: Sequence[NodeCapacity]) -> None:
        self.groups, self.capacities = groups, capacities
        self._upper_bounds: dict[Name, int] = {}
        self._objective: Terms = {}
        self._rows: list[tuple[Terms, float, float]] = []
        self._parts_on_node: dict[int, dict[Name, Demand]] = {position: {} for position in range(len(capacities))}
        for number, group in enumerate(groups):
            self._add_group(number, group)
        for position, capacity in enumerate(capacities):
            self._add_node(position, capacity)
        self._break_symmetry()

    def _variable(self, name: Name, upper: int, throughput: float = 0.0) -> Name:
        self._upper_bounds[name] = upper
        self._objective[name] = throughput
        return name

    def _row(self, terms: Terms, lower: float, upper: float) -> None:
        if terms:
            self._rows.append((terms, lower, upper))

    def _add_group(self, number: int, group: JobGroup) -> None:
        """At most one shape per job; all parts of chosen shapes on nodes; one part per node unless stackable."""
        count = len(group.jobs)
        chosen = [
            self._variable(("shape", number, position), count, shape.throughput)
            for position, shape in enumerate(group.shapes)
        ]
        self._row(dict.fromkeys(chosen, 1.0), 0, count)
        of_part = [Counter(shape.parts) for shape in group.shapes]
        for part_number, part in enumerate(group.parts):
            terms: Terms = {
                name: -float(counted[part]) for name, counted in zip(chosen, of_part, strict=True) if counted[part]
            }
            for position, capacity in enumerate(self.capacities):
                if capacity.fits(part):
                    upper = count * group.shapes[0].parts.count(part) if group.stackable else 1
                    name = self._variable(("part", number, position, part_number), upper)
                    self._parts_on_node[position][name] = part
                    terms[name] = 1.0
            self._row(terms, 0, 0)
        if not group.stackable:
            for parts in self._parts_on_node.values():
                self._row({name: 1.0 for name in parts if name[1] == number}, 0, 1)

    def _add_node(self, position: int, capacity: NodeCapacity) -> None:
        parts = self._parts_on_node[position]
        for available, amount in ((capacity.cpu_milli, "cpu_milli"), (capacity.memory_mib, "memory_mib")):
            terms = {name: float(getattr(part, amount)) for name, part in parts.items() if getattr(part, amount)}
            if available < UNLIMITED // 2 and sum(terms[name] * self._upper_bounds[name] for name in terms) > available:
                self._row(terms, 0, available)
        whole = {name: float(part.gpus) for name, part in parts.items() if part.gpus and part.gpu_milli == WHOLE}
        shared = {name: part for name, part in parts.items() if part.gpus and part.gpu_milli < WHOLE}
        if shared:
            self._share_gpus(position, capacity, whole, shared)
        else:
            self._row(whole, 0, capacity.whole_gpus)

    def _share_gpus(self, position: int, capacity: NodeCapacity, whole: Terms, shared: dict[Name, Demand]) -> None:
        """Constrain each GPU separately, since 0.5 + 0.5 free is not 0.8 free."""
        on_gpu: dict[int, Terms] = {gpu: {} for gpu in range(len(capacity.gpus))}
        for name, part in shared.items():
            uses: Terms = {name: -float(part.gpus)}
            for gpu, milli in enumerate(capacity.gpus):
                if milli >= part.gpu_milli:
                    upper = min(self._upper_bounds[name], milli // part.gpu_milli)
                    use = self._variable(("shared", *name[1:], gpu), upper)
                    uses[use] = 1.0
                    on_gpu[gpu][use] = float(part.gpu_milli)
                    if part.gpus > 1:
                        self._row({use: 1.0, name: -1.0}, -np.inf, 0)  # an instance uses distinct GPUs
            self._row(uses, 0, 0)
        for gpu, milli in enumerate(capacity.gpus):
            if milli == WHOLE and whole:
                whole_use = self._variable(("whole", position, gpu), 1)
                on_gpu[gpu][whole_use] = float(WHOLE)
            self._row(on_gpu[gpu], 0, milli)
        if whole:
            used = {("whole", position, gpu): -1.0 for gpu, milli in enumerate(capacity.gpus) if milli == WHOLE}
            self._row({**whole, **used}, -np.inf, 0)

    def _break_symmetry(self) -> None:
        """Break symmetry: of interchangeable nodes, the earlier has at least as many GPUs in use."""
        last: dict[tuple[object, ...], int] = {}
        for position, capacity in enumerate(self.capacities):
            before = last.get(capacity.exchange_key)
            last[capacity.exchange_key] = position
            if before is not None:
                used = {name: float(part.gpus * part.gpu_milli) for name, part in self._parts_on_node[before].items()}
                own = {name: -float(part.gpus * part.gpu_milli) for name, part in self._parts_on_node[position].items()}
                self._row({**used, **own}, 0, np.inf)

    def solve(self) -> Solved:
        """Maximise the total normalised throughput."""
        from scipy.optimize import Bounds, LinearConstraint, milp  # imported late: it takes long to load
        from scipy.sparse import csr_array

        if not self._upper_bounds:
            return Solved(0.0, 0.0, {})
        index = {name: column for column, name in enumerate(self._upper_bounds)}
        entries = [
            (row, index[name], value) for row, (terms, _, _) in enumerate(self._rows) for name, value in terms.items()
        ]
        rows, columns, values = zip(*entries, strict=True)
        matrix = csr_array((values, (rows, columns)), shape=(len(self._rows), len(index)))
        solution = milp(
            -np.array(list(self._objective.values())),
            integrality=np.ones(len(index)),
            bounds=Bounds(0, np.array(list(self._upper_bounds.values()), dtype=float)),
            constraints=LinearConstraint(matrix, [row[1] for row in self._rows], [row[2] for row in self._rows]),
            options={"mip_rel_gap": RELATIVE_GAP, "node_limit": MAX_SOLVER_NODES},
        )
        if solution.x is None:
            raise BadInput(f"no solution found within {MAX_SOLVER_NODES:,} solver nodes: {solution.message}")
        amounts = {name: round(amount) for name, amount in zip(index, solution.x, strict=True) if round(amount)}
        value = sum(self._objective[name] * amount for name, amount in amounts.items())
        return Solved(value, max(value, -float(solution.mip_dual_bound)), amounts)


# From variables to GPUs.


class AssignedShare(NamedTuple):
    """A part on a node; `gpus` is set by the program for fractional GPUs, and empty for whole GPUs, chosen later."""

    node: int
    part: Demand
    gpus: tuple[int, ...] = ()


class _GpuAssignment:
    """Assigns GPUs to the jobs of a solution, as close to the present allocations as interchangeable nodes allow."""

    def __init__(self, program: _Program, amounts: Mapping[Name, int], held: Mapping[str, Allocation]) -> None:
        self._program, self._amounts, self._held = program, amounts, held
        self._nodes = self._assign_nodes()
        self._free = self._whole_gpus()

    def target(self) -> dict[str, Allocation]:
        """Return the allocations of all running jobs: jobs first keep their own GPUs, then get free ones."""
        assigned: dict[str, tuple[Plan | None, list[AssignedShare]]] = {}
        for number, group in enumerate(self._program.groups):
            assigned |= self._assign_stackable(group, number) if group.stackable else self._assign_single(group, number)
        kept_gpus = {
            job_id: [self._keep_gpus(job_id, share) for share in shares] for job_id, (_, shares) in assigned.items()
        }
        return {
            job_id: Allocation(
                tuple(self._fill_share(share, gpus) for share, gpus in zip(shares, kept_gpus[job_id], strict=True)),
                plan,
            )
            for job_id, (plan, shares) in assigned.items()
        }

    def _assign_nodes(self) -> list[int]:
        """Return the node of each capacity, permuting interchangeable nodes so that most GPUs stay with their jobs."""
        from scipy.optimize import linear_sum_assignment  # imported late: it takes long to load

        capacities = self._program.capacities
        by_key: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for position, capacity in enumerate(capacities):
            by_key[capacity.exchange_key].append(position)
        nodes = [capacity.number for capacity in capacities]
        for positions in by_key.values():
            gpus_staying = np.array(
                [
                    [self._count_staying(position, capacities[other].number) for other in positions]
                    for position in positions
                ]
            )
            for position, other in zip(*linear_sum_assignment(gpus_staying, maximize=True), strict=True):
                nodes[positions[position]] = capacities[positions[other]].number
        return nodes

    def _count_staying(self, position: int, node: int) -> int:
        """Return the number of GPUs that stay with their jobs if this capacity is assigned to that node."""
        staying = 0
        for name, amount in self._amounts.items():
            if name[0] == "part" and name[2] == position:
                group = self._program.groups[name[1]]
                held = sum(len(self._gpus_held(job_id, node)) for job_id in group.jobs)
                staying += min(held, amount * group.parts[name[3]].gpus)
        return staying

    def _gpus_held(self, job_id: str, node: int) -> list[int]:
        held = self._held.get(job_id)
        return [gpu for share in held.placement if share.node == node for gpu in share.gpus] if held else []

    def _whole_gpus(self) -> dict[int, set[int]]:
        """Return the GPUs of each node that are neither fixed nor shared."""
        free = {
            self._nodes[position]: {gpu for gpu, milli in enumerate(capacity.gpus) if milli == WHOLE}
            for position, capacity in enumerate(self._program.capacities)
        }
        for name in self._amounts:
            if name[0] == "shared":
                free[self._nodes[name[2]]].discard(name[4])
        return free

    def _assign_single(self, group: JobGroup, number: int) -> dict[str, tuple[Plan | None, list[AssignedShare]]]:
        chosen = [shape for position, shape in enumerate(group.shapes) if ("shape", number, position) in self._amounts]
        return {group.jobs[0]: (chosen[0].plan, self._shares(group, number))} if chosen else {}

    def _assign_stackable(self, group: JobGroup, number: int) -> dict[str, tuple[Plan | None, list[AssignedShare]]]:
        """Assign shares to equal jobs: first to those that can stay, then to other running ones, then to the rest."""
        plan, each = group.shapes[0].plan, len(group.shapes[0].parts)
        shares = self._shares(group, number)
        assigned: dict[str, list[AssignedShare]] = {}
        for job_id in group.jobs:
            own = _matching_shares(self._held.get(job_id), shares)
            if own:
                assigned[job_id] = own
                for share in own:
                    shares.remove(share)
        for job_id in sorted(group.jobs, key=lambda member: member not in self._held):
            if job_id not in assigned and shares:
                assigned[job_id], shares = shares[:each], shares[each:]
        return {job_id: (plan, own) for job_id, own in assigned.items()}

    def _shares(self, group: JobGroup, number: int) -> list[AssignedShare]:
        """Return all shares of a group, sorted by node."""
        shares: list[AssignedShare] = []
        for name, amount in self._amounts.items():
            if name[0] == "part" and name[1] == number:
                part, node = group.parts[name[3]], self._nodes[name[2]]
                shares += [AssignedShare(node, part, gpus) for gpus in self._shared_gpus(name, part, amount)]
        return sorted(shares, key=lambda share: (share.node, share.gpus))

    def _shared_gpus(self, name: Name, part: Demand, amount: int) -> list[tuple[int, ...]]:
        """Return distinct GPUs for each instance, GPUs with the most uses left first, so that all uses are assigned."""
        if not part.gpus or part.gpu_milli == WHOLE:
            return [()] * amount
        uses = {key[4]: count for key, count in self._amounts.items() if key[0] == "shared" and key[1:4] == name[1:]}
        per_instance = []
        for _ in range(amount):
            gpus = sorted(uses, key=lambda gpu: (-uses[gpu], gpu))[: part.gpus]
            uses.update({gpu: uses[gpu] - 1 for gpu in gpus})
            per_instance.append(tuple(sorted(gpus)))
        return per_instance

    def _keep_gpus(self, job_id: str, share: AssignedShare) -> list[int]:
        if share.gpus:
            return list(share.gpus)
        free = self._free[share.node]
        kept_gpus = [gpu for gpu in self._gpus_held(job_id, share.node) if gpu in free][: share.part.gpus]
        free.difference_update(kept_gpus)
        return kept_gpus

    def _fill_share(self, share: AssignedShare, gpus: list[int]) -> Share:
        """Return the share, filled up with the lowest-numbered free GPUs."""
        more = sorted(self._free[share.node])[: share.part.gpus - len(gpus)]
        self._free[share.node].difference_update(more)
        part = share.part
        return Share(share.node, tuple(sorted([*gpus, *more])), part.gpu_milli, part.cpu_milli, part.memory_mib)


def _matching_shares(held: Allocation | None, shares: Sequence[AssignedShare]) -> list[AssignedShare]:
    """Return the shares that equal a job's present placement; empty unless all are available."""
    unmatched, matching = list(shares), []
    for share in held.placement if held else ():
        shared = share.gpus if share.gpu_milli < WHOLE else ()
        match = next((other for other in unmatched if other.node == share.node and other.gpus == shared), None)
        if match is None:
            return []
        unmatched.remove(match)
        matching.append(match)
    return matching
