"""The best that can be done for the jobs of this moment: the yardstick for small clusters.

Every job is worth its speed where it runs, divided by its speed as it was asked for; 0 while it waits. The decision
that makes the sum largest is found exactly, as a mixed-integer program (HiGHS): each job has at most one shape (GPUs on
each node, with a plan), the parts of the shapes are put on nodes, and no node gives more GPUs, CPUs or memory than it
has. The future and the cost of restarts are not looked at: it bounds what others reach in the same view, and is no
advice on how to run a cluster.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import comb
from typing import Any, NamedTuple

import msgspec
import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linear_sum_assignment, milp
from scipy.sparse import csr_array

from refold.core import View
from refold.errors import BadInput
from refold.model import KEEP, WHOLE, Allocation, Cluster, Decision, Demand, Job, Node, Plan, Share, Wait
from refold.packing import CPU_FREE, MEMORY_FREE, UNLIMITED, Free
from refold.plans import NOTHING_MORE, Knowledge, Layout, Speeds, asked_cpus
from refold.policies.common import Draft, Reasons, Transition, range_of, something_happened

MOST_LAYOUTS = 2000
"""Ways to lay out one job on the nodes of one GPU type: 4 nodes of 8 GPUs have 494, 5 have 1,286, 6 have 3,002."""

MOST_CHOICES = 20_000
"""Jobs × shapes × nodes, jobs of which nothing is known having one shape: larger programs are refused."""

MOST_NODES_SEARCHED = 20_000
"""The solver gives up proving that there is nothing better after so many nodes of its tree."""

RELATIVE_GAP = 1e-6
"""What is so near to the best is the best."""


class RunShape(NamedTuple):
    """One way to run a job: a part for each node (or, `stackable`, instances that may share one), and its worth."""

    parts: tuple[Demand, ...]
    plan: Plan | None
    worth: float
    stackable: bool = False


class Optimum(NamedTuple):
    """The best target, what it reaches, and what nothing can exceed: the same, if the solver has come to its end."""

    throughput: float
    at_most: float
    target: Mapping[str, Allocation]


def worth_of(speeds: Speeds, job: Job, allocation: Allocation) -> float:
    """Speed there by speed as asked for. A job that is not known counts 1 if it has as many GPUs as it asked for."""
    if not speeds.knows(job):
        return float(allocation.gpu_milli >= job.demand.total_gpu_milli)
    gpu_type = speeds.cluster.nodes[allocation.placement[0].node].gpu_type
    plan = allocation.plan or speeds.own_plan(job)
    here = speeds.with_plan(job, gpu_type, allocation.gpus_on_node, allocation.cpu_milli / WHOLE, plan)
    return here.steps_per_second / speeds.asked(job).steps_per_second


def throughput_of(view: View, speeds: Speeds, target: Mapping[str, Allocation]) -> float:
    """What the jobs of a view are worth together if exactly those of the target run, as it says."""
    jobs = {**view.waiting, **view.active}
    return sum(worth_of(speeds, jobs[job_id], allocation) for job_id, allocation in target.items() if job_id in jobs)


def best_throughput(view: View, speeds: Speeds, *, promises: bool = True) -> Optimum:
    """The best target for the jobs of a view. Without `promises`, guaranteed jobs may be slower than they asked for."""
    return OptimumSearch(speeds, promises=promises).best(view, Draft(view))


def promised(view: View) -> set[str]:
    """Guaranteed jobs within their tenant's quota: in order of submission, as long as what they asked for fits in."""
    left: dict[str, float] = {}
    found = set()
    jobs = {**view.waiting, **view.active}
    for job in sorted(jobs.values(), key=lambda job: (job.submitted, job.id)):
        quota = left.setdefault(job.tenant, view.cluster.quota_gpus(job.tenant))
        if job.job_class == "guaranteed" and job.demand.total_gpus <= quota:
            left[job.tenant] = quota - job.demand.total_gpus
            found.add(job.id)
    return found


Goal = dict[str, tuple[Allocation | None, str]]
"""What should become of each job, and why."""


class Optimal:
    """The largest sum of normalised speeds now, found exactly; for small clusters."""

    name = "optimal"

    def __init__(self, knowledge: Knowledge | Mapping[str, Any] = NOTHING_MORE) -> None:
        self._knowledge = Knowledge.of(knowledge)
        self._finder: OptimumSearch | None = None
        self._steering = Transition()
        self._reasons = Reasons()
        self._goal: Goal = {}

    def decide(self, view: View) -> Decision:
        """Think again if anything has happened that was not ordered; otherwise go on towards the target."""
        if something_happened(view):
            self._goal = self._better(view)
        decision = self._steering.towards(view, self._next(view))
        waits = self._waits(view, decision)
        if not (decision.starts or decision.stops or decision.reshapes or waits):
            return KEEP
        return msgspec.structs.replace(decision, waits=waits)

    def _better(self, view: View) -> Goal:
        """The best target; but if nobody need be moved for as much, nobody is."""
        if self._finder is None:
            self._finder = OptimumSearch(Speeds(view.cluster, self._knowledge))
        draft = Draft(view)
        held = dict(draft.holders())
        best, target = self._finder.best(view, draft), self._finder.best(view, draft, all_stay=True)
        as_good = best.throughput - target.throughput <= 2 * RELATIVE_GAP * max(1.0, best.throughput)
        if not as_good or not self._finder.keeps_promises(view, held):
            target = best
        now = throughput_of(view, self._finder.speeds, held)
        why = f"optimal: throughput {now:.3f} → {best.throughput:.3f}"
        return {job_id: (target.target.get(job_id), why) for job_id in {**held, **target.target}}

    def _next(self, view: View) -> Goal:
        """The goal; but whoever is to move and cannot be reshaped is stopped first, and started when it has stopped."""
        goal = dict(self._goal)
        for job_id, (wanted, why) in self._goal.items():
            run = view.runs.get(job_id)
            if run and not view.active[job_id].reshapable and not run.stopping and run.allocation != wanted:
                goal[job_id] = (None, why)
        return goal

    def _waits(self, view: View, decision: Decision) -> tuple[Wait, ...]:
        return self._reasons.of_everybody(view, decision.starts, self._steering.awaited)


class OptimumSearch:
    """Finds the best target of views of one cluster; the shapes of jobs are kept, since jobs are of few kinds."""

    def __init__(self, speeds: Speeds, *, promises: bool = True) -> None:
        self.speeds = speeds
        self._promises = promises
        self._shapes: dict[Job, tuple[RunShape, ...]] = {}
        self._limited = {tenant.name for tenant in speeds.cluster.tenants if tenant.limit_gpus}

    def keeps_promises(self, view: View, target: Mapping[str, Allocation]) -> bool:
        """Whether nobody who was promised the speed of what was asked for is slower."""
        jobs = {**view.waiting, **view.active}
        mine = promised(view) & target.keys() if self._promises else ()
        return all(worth_of(self.speeds, jobs[job_id], target[job_id]) >= 1 - RELATIVE_GAP for job_id in mine)

    def best(self, view: View, draft: Draft, *, all_stay: bool = False) -> Optimum:
        """The best target, and what it is worth; or the best without moving anybody who holds something."""
        jobs = {**view.waiting, **view.active}
        held = dict(draft.holders())
        staying = {job_id: held[job_id] for job_id in held if all_stay or not _may_move(view, jobs[job_id])}
        free = draft.free.copy()
        for job_id in held.keys() - staying.keys():
            free.give_back(held[job_id].placement)
        promises = promised(view) if self._promises else set()
        shapes = {
            job_id: self._allowed(job, job_id in promises) for job_id, job in jobs.items() if job_id not in staying
        }
        _check_size(shapes, view.cluster)
        groups = _grouped({job_id: jobs[job_id] for job_id in shapes}, shapes)
        program = _Program(groups, _rooms(view.cluster, free))
        solved = program.solve()
        fixed = throughput_of(view, self.speeds, staying)
        moved = _GpuAssignment(program, solved.amounts, held).target() if groups else {}
        return Optimum(solved.value + fixed, solved.at_most + fixed, staying | moved)

    def _allowed(self, job: Job, is_promised: bool) -> tuple[RunShape, ...]:
        shapes = self._of(job)
        return tuple(shape for shape in shapes if shape.worth >= 1 - RELATIVE_GAP) if is_promised else shapes

    def _of(self, job: Job) -> tuple[RunShape, ...]:
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
    """Of a run on a node that is down it is reported what becomes of it: until then nobody touches it."""
    run = view.runs.get(job.id)
    if run is None:
        return True
    return job.preemptible and all(view.is_up(share.node) for share in run.allocation.placement)


def _check_size(shapes: Mapping[str, Sequence[RunShape]], cluster: Cluster) -> None:
    choices = sum(map(len, shapes.values())) * len(cluster.nodes)
    if choices > MOST_CHOICES:
        raise BadInput(
            f"the optimum is for small clusters: {len(shapes)} jobs on {len(cluster.nodes)} nodes have {choices:,} "
            f"choices, at most {MOST_CHOICES:,} are looked at"
        )


# The shapes of a job.


def shapes_of(speeds: Speeds, job: Job) -> tuple[RunShape, ...]:
    """Every shape that could be the best for somebody: none that needs as much as another and is no faster."""
    if not speeds.knows(job):
        one = msgspec.structs.replace(job.demand, instances=1)
        return (RunShape((one,) * job.demand.instances, job.plan, 1.0, stackable=True),)
    least, most = range_of(job, speeds.cluster)
    found = [
        shape
        for gpu_type in speeds.types_for(job)
        for layout in _layouts(speeds.cluster, gpu_type)
        if least <= sum(layout) <= most
        for shape in _shapes_there(speeds, job, gpu_type, layout)
    ]
    return _undominated(found)


def _layouts(cluster: Cluster, gpu_type: str) -> Iterator[Layout]:
    """Every way to take GPUs of some nodes of a type, the most first."""
    sizes = sorted((node.gpus for node in cluster.nodes if node.gpus and node.gpu_type == gpu_type), reverse=True)
    ways = comb(len(sizes) + sizes[0], len(sizes)) - 1
    if ways > MOST_LAYOUTS:
        raise BadInput(
            f"the optimum is for small clusters: {len(sizes)} nodes of up to {sizes[0]} {gpu_type} have {ways:,} "
            f"layouts for a job, at most {MOST_LAYOUTS:,} are looked at"
        )
    return _descending(sizes, sizes[0])


def _descending(sizes: Sequence[int], most: int) -> Iterator[Layout]:
    for first in range(1, min(sizes[0], most) + 1 if sizes else 1):
        yield (first,)
        for rest in _descending(sizes[1:], first):
            yield (first, *rest)


def _shapes_there(speeds: Speeds, job: Job, gpu_type: str, layout: Layout) -> Iterator[RunShape]:
    """With the fastest plan there, and with the job's own, which is believed to fit where it was asked for."""
    each_cpus = round(asked_cpus(job) * WHOLE / (job.demand.instances * job.demand.gpus))
    total, cpus = sum(layout), sum(layout) * each_cpus / WHOLE
    asked = speeds.asked(job).steps_per_second
    own = speeds.own_plan(job)

    def shape(plan: Plan, steps_per_second: float, host_mib: int) -> RunShape:
        parts = [
            Demand(1, gpus, WHOLE, gpus * each_cpus, _memory(job, gpus, total, host_mib), (gpu_type,))
            for gpus in layout
        ]
        return RunShape(tuple(parts), plan, steps_per_second / asked)

    fastest = speeds.fastest(job, gpu_type, layout, cpus)
    if fastest is not None:
        yield shape(fastest.plan, fastest.steps_per_second, fastest.host_mib)
    if total == own.gpus == job.demand.instances * job.demand.gpus:
        yield shape(own, speeds.with_plan(job, gpu_type, layout, cpus, own).steps_per_second, 0)


def _memory(job: Job, gpus: int, total: int, host_mib: int) -> int:
    """As much for each GPU as was asked for, or a GPU's part of what the plan keeps on the hosts."""
    return max(job.demand.memory_mib * gpus // job.demand.gpus, -(-host_mib * gpus // total))


def _undominated(shapes: Sequence[RunShape]) -> tuple[RunShape, ...]:
    kept: list[RunShape] = []
    for shape in sorted(shapes, key=lambda one: (sum(part.gpus for part in one.parts), len(one.parts), -one.worth)):
        if not any(_needs_no_more(other, shape) and other.worth >= shape.worth for other in kept):
            kept.append(shape)
    return tuple(kept)


def _needs_no_more(one: RunShape, other: RunShape) -> bool:
    """Wherever the other fits, this one does: part by part, the largest first."""
    return len(one.parts) <= len(other.parts) and all(
        mine.gpu_types == theirs.gpu_types
        and mine.gpus <= theirs.gpus
        and mine.cpu_milli <= theirs.cpu_milli
        and mine.memory_mib <= theirs.memory_mib
        for mine, theirs in zip(one.parts, other.parts, strict=False)
    )


# The program.


class JobGroup(NamedTuple):
    """Jobs that have the same shapes: one that is known, or all that ask for the same and of which nothing is known."""

    jobs: tuple[str, ...]
    shapes: tuple[RunShape, ...]

    @property
    def stackable(self) -> bool:
        return self.shapes[0].stackable

    @property
    def parts(self) -> list[Demand]:
        """Every part that one of the shapes has."""
        return list(dict.fromkeys(part for shape in self.shapes for part in shape.parts))


class NodeCapacity(NamedTuple):
    """What of a node can be given to whoever is moved; the node's number tells it from others alike."""

    number: int
    node: Node
    gpus: tuple[int, ...]
    cpu_milli: int
    memory_mib: int

    @property
    def whole_gpus(self) -> int:
        return self.gpus.count(WHOLE)

    @property
    def likeness(self) -> tuple[object, ...]:
        """Rooms of which this is the same can be exchanged."""
        return (self.node.gpu_type, *self[2:])

    def fits(self, part: Demand) -> bool:
        """Whether one such part has room here, as far as types go and amounts."""
        if part.gpus and part.gpu_types and self.node.gpu_type not in part.gpu_types:
            return False
        enough = sum(milli >= part.gpu_milli for milli in self.gpus) >= part.gpus
        return enough and self.cpu_milli >= part.cpu_milli and self.memory_mib >= part.memory_mib


def _grouped(jobs: Mapping[str, Job], shapes: Mapping[str, tuple[RunShape, ...]]) -> list[JobGroup]:
    alike: dict[tuple[RunShape, ...], list[str]] = defaultdict(list)
    alone: list[JobGroup] = []
    for job_id in jobs:
        mine = shapes[job_id]
        if mine and mine[0].stackable:
            alike[mine].append(job_id)
        elif mine:
            alone.append(JobGroup((job_id,), mine))
    return alone + [JobGroup(tuple(members), mine) for mine, members in alike.items()]


def _rooms(cluster: Cluster, free: Free) -> list[NodeCapacity]:
    return [
        NodeCapacity(
            index, node, free.gpu_milli_of(index), int(free.nodes[index, CPU_FREE]), int(free.nodes[index, MEMORY_FREE])
        )
        for index, node in enumerate(cluster.nodes)
        if free.is_up(index)
    ]


Name = tuple[Any, ...]
"""What a variable is called."""

Terms = dict[Name, float]
"""A sum of variables, each so many times."""


class Solved(NamedTuple):
    """What the program came to: the sum, its bound, and the amount of each variable by its name."""

    value: float
    at_most: float
    amounts: Mapping[Name, int]


class _Program:
    """Variables by name, constraints as rows.

    ("shape", g, s): so many jobs of group g have shape s. ("part", g, r, p): so many parts p of theirs are in room r.
    ("shared", g, r, p, i): so many of these use a fraction of GPU i. ("whole", r, i): GPU i is given to one job.
    """

    def __init__(self, groups: Sequence[JobGroup], rooms: Sequence[NodeCapacity]) -> None:
        self.groups, self.rooms = groups, rooms
        self._most: dict[Name, int] = {}
        self._worth: Terms = {}
        self._rows: list[tuple[Terms, float, float]] = []
        self._in_room: dict[int, dict[Name, Demand]] = {place: {} for place in range(len(rooms))}
        for number, group in enumerate(groups):
            self._add_group(number, group)
        for place, room in enumerate(rooms):
            self._add_room(place, room)
        self._order_rooms_that_are_alike()

    def _variable(self, name: Name, most: int, worth: float = 0.0) -> Name:
        self._most[name] = most
        self._worth[name] = worth
        return name

    def _row(self, terms: Terms, least: float, most: float) -> None:
        if terms:
            self._rows.append((terms, least, most))

    def _add_group(self, number: int, group: JobGroup) -> None:
        """At most one shape a job; as many parts in rooms as the shapes have; apart, unless they may be stacked."""
        count = len(group.jobs)
        chosen = [
            self._variable(("shape", number, place), count, shape.worth) for place, shape in enumerate(group.shapes)
        ]
        self._row(dict.fromkeys(chosen, 1.0), 0, count)
        of_part = [Counter(shape.parts) for shape in group.shapes]
        for part_number, part in enumerate(group.parts):
            terms: Terms = {
                name: -float(counted[part]) for name, counted in zip(chosen, of_part, strict=True) if counted[part]
            }
            for place, room in enumerate(self.rooms):
                if room.fits(part):
                    most = count * group.shapes[0].parts.count(part) if group.stackable else 1
                    name = self._variable(("part", number, place, part_number), most)
                    self._in_room[place][name] = part
                    terms[name] = 1.0
            self._row(terms, 0, 0)
        if not group.stackable:
            for there in self._in_room.values():
                self._row({name: 1.0 for name in there if name[1] == number}, 0, 1)

    def _add_room(self, place: int, room: NodeCapacity) -> None:
        there = self._in_room[place]
        for has, amount in ((room.cpu_milli, "cpu_milli"), (room.memory_mib, "memory_mib")):
            terms = {name: float(getattr(part, amount)) for name, part in there.items() if getattr(part, amount)}
            if has < UNLIMITED // 2 and sum(terms[name] * self._most[name] for name in terms) > has:
                self._row(terms, 0, has)
        whole = {name: float(part.gpus) for name, part in there.items() if part.gpus and part.gpu_milli == WHOLE}
        shared = {name: part for name, part in there.items() if part.gpus and part.gpu_milli < WHOLE}
        if shared:
            self._share_gpus(place, room, whole, shared)
        else:
            self._row(whole, 0, room.whole_gpus)

    def _share_gpus(self, place: int, room: NodeCapacity, whole: Terms, shared: dict[Name, Demand]) -> None:
        """Each GPU by itself, since 0.5 and 0.5 free are not 0.8 free."""
        on_gpu: dict[int, Terms] = {gpu: {} for gpu in range(len(room.gpus))}
        for name, part in shared.items():
            uses: Terms = {name: -float(part.gpus)}
            for gpu, milli in enumerate(room.gpus):
                if milli >= part.gpu_milli:
                    most = min(self._most[name], milli // part.gpu_milli)
                    use = self._variable(("shared", *name[1:], gpu), most)
                    uses[use] = 1.0
                    on_gpu[gpu][use] = float(part.gpu_milli)
                    if part.gpus > 1:
                        self._row({use: 1.0, name: -1.0}, -np.inf, 0)  # an instance takes different GPUs
            self._row(uses, 0, 0)
        for gpu, milli in enumerate(room.gpus):
            if milli == WHOLE and whole:
                taken = self._variable(("whole", place, gpu), 1)
                on_gpu[gpu][taken] = float(WHOLE)
            self._row(on_gpu[gpu], 0, milli)
        if whole:
            given = {("whole", place, gpu): -1.0 for gpu, milli in enumerate(room.gpus) if milli == WHOLE}
            self._row({**whole, **given}, -np.inf, 0)

    def _order_rooms_that_are_alike(self) -> None:
        """Of rooms that are alike the earlier has the more GPUs in use: one of many equal answers is enough."""
        last: dict[tuple[object, ...], int] = {}
        for place, room in enumerate(self.rooms):
            before = last.get(room.likeness)
            last[room.likeness] = place
            if before is not None:
                used = {name: float(part.gpus * part.gpu_milli) for name, part in self._in_room[before].items()}
                mine = {name: -float(part.gpus * part.gpu_milli) for name, part in self._in_room[place].items()}
                self._row({**used, **mine}, 0, np.inf)

    def solve(self) -> Solved:
        """The largest worth."""
        if not self._most:
            return Solved(0.0, 0.0, {})
        index = {name: column for column, name in enumerate(self._most)}
        entries = [
            (row, index[name], value) for row, (terms, _, _) in enumerate(self._rows) for name, value in terms.items()
        ]
        rows, columns, values = zip(*entries, strict=True)
        matrix = csr_array((values, (rows, columns)), shape=(len(self._rows), len(index)))
        found = milp(
            -np.array(list(self._worth.values())),
            integrality=np.ones(len(index)),
            bounds=Bounds(0, np.array(list(self._most.values()), dtype=float)),
            constraints=LinearConstraint(matrix, [row[1] for row in self._rows], [row[2] for row in self._rows]),
            options={"mip_rel_gap": RELATIVE_GAP, "node_limit": MOST_NODES_SEARCHED},
        )
        if found.x is None:
            raise BadInput(f"no optimum was found within {MOST_NODES_SEARCHED:,} nodes: {found.message}")
        amounts = {name: round(amount) for name, amount in zip(index, found.x, strict=True) if round(amount)}
        value = sum(self._worth[name] * amount for name, amount in amounts.items())
        return Solved(value, max(value, -float(found.mip_dual_bound)), amounts)


# From amounts to GPUs.


class AssignedShare(NamedTuple):
    """A part on a node; `gpus` are said by the program where GPUs are shared, and found later where they are not."""

    node: int
    part: Demand
    gpus: tuple[int, ...] = ()


class _GpuAssignment:
    """Who gets which GPUs: what the program says, as near to what is held as equal nodes and GPUs allow."""

    def __init__(self, program: _Program, amounts: Mapping[Name, int], held: Mapping[str, Allocation]) -> None:
        self._program, self._amounts, self._held = program, amounts, held
        self._node_of_room = self._as_held()
        self._free = self._whole_gpus()

    def target(self) -> dict[str, Allocation]:
        """Every job that should run, and where. First everybody keeps GPUs, then whoever lacks some gets others."""
        seated: dict[str, tuple[Plan | None, list[AssignedShare]]] = {}
        for number, group in enumerate(self._program.groups):
            seated |= self._stacked(group, number) if group.stackable else self._alone(group, number)
        kept = {job_id: [self._keep(job_id, seat) for seat in seats] for job_id, (_, seats) in seated.items()}
        return {
            job_id: Allocation(
                tuple(self._share(seat, gpus) for seat, gpus in zip(seats, kept[job_id], strict=True)), plan
            )
            for job_id, (plan, seats) in seated.items()
        }

    def _as_held(self) -> list[int]:
        """The node of each room: rooms that are alike are exchanged so that most parts stay where they are."""
        rooms = self._program.rooms
        alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for place, room in enumerate(rooms):
            alike[room.likeness].append(place)
        node_of_room = [room.number for room in rooms]
        for places in alike.values():
            stays = np.array([[self._staying(place, rooms[other].number) for other in places] for place in places])
            for place, other in zip(*linear_sum_assignment(stays, maximize=True), strict=True):
                node_of_room[places[place]] = rooms[places[other]].number
        return node_of_room

    def _staying(self, place: int, node: int) -> int:
        """How many GPUs would stay with their jobs if this room were that node."""
        staying = 0
        for name, amount in self._amounts.items():
            if name[0] == "part" and name[2] == place:
                group = self._program.groups[name[1]]
                there = sum(len(self._gpus_held(job_id, node)) for job_id in group.jobs)
                staying += min(there, amount * group.parts[name[3]].gpus)
        return staying

    def _gpus_held(self, job_id: str, node: int) -> list[int]:
        held = self._held.get(job_id)
        return [gpu for share in held.placement if share.node == node for gpu in share.gpus] if held else []

    def _whole_gpus(self) -> dict[int, set[int]]:
        """GPUs of each node that nobody who stays has, and nobody shares."""
        free = {
            self._node_of_room[place]: {gpu for gpu, milli in enumerate(room.gpus) if milli == WHOLE}
            for place, room in enumerate(self._program.rooms)
        }
        for name in self._amounts:
            if name[0] == "shared":
                free[self._node_of_room[name[2]]].discard(name[4])
        return free

    def _alone(self, group: JobGroup, number: int) -> dict[str, tuple[Plan | None, list[AssignedShare]]]:
        chosen = [shape for place, shape in enumerate(group.shapes) if ("shape", number, place) in self._amounts]
        return {group.jobs[0]: (chosen[0].plan, self._seats(group, number))} if chosen else {}

    def _stacked(self, group: JobGroup, number: int) -> dict[str, tuple[Plan | None, list[AssignedShare]]]:
        """Of jobs that are alike, first those that can stay where they are, then others that run, then the rest."""
        plan, each = group.shapes[0].plan, len(group.shapes[0].parts)
        seats = self._seats(group, number)
        found: dict[str, list[AssignedShare]] = {}
        for job_id in group.jobs:
            mine = _same_seats(self._held.get(job_id), seats)
            if mine:
                found[job_id] = mine
                for seat in mine:
                    seats.remove(seat)
        for job_id in sorted(group.jobs, key=lambda one: one not in self._held):
            if job_id not in found and seats:
                found[job_id], seats = seats[:each], seats[each:]
        return {job_id: (plan, mine) for job_id, mine in found.items()}

    def _seats(self, group: JobGroup, number: int) -> list[AssignedShare]:
        """Every seat of a group, by node."""
        seats: list[AssignedShare] = []
        for name, amount in self._amounts.items():
            if name[0] == "part" and name[1] == number:
                part, node = group.parts[name[3]], self._node_of_room[name[2]]
                seats += [AssignedShare(node, part, gpus) for gpus in self._shared_gpus(name, part, amount)]
        return sorted(seats, key=lambda seat: (seat.node, seat.gpus))

    def _shared_gpus(self, name: Name, part: Demand, amount: int) -> list[tuple[int, ...]]:
        """Different GPUs for each instance: those first that are to be used most often, or they would be left over."""
        if not part.gpus or part.gpu_milli == WHOLE:
            return [()] * amount
        uses = {key[4]: count for key, count in self._amounts.items() if key[0] == "shared" and key[1:4] == name[1:]}
        found = []
        for _ in range(amount):
            gpus = sorted(uses, key=lambda gpu: (-uses[gpu], gpu))[: part.gpus]
            uses.update({gpu: uses[gpu] - 1 for gpu in gpus})
            found.append(tuple(sorted(gpus)))
        return found

    def _keep(self, job_id: str, seat: AssignedShare) -> list[int]:
        if seat.gpus:
            return list(seat.gpus)
        kept = [gpu for gpu in self._gpus_held(job_id, seat.node) if gpu in self._free[seat.node]][: seat.part.gpus]
        self._free[seat.node].difference_update(kept)
        return kept

    def _share(self, seat: AssignedShare, gpus: list[int]) -> Share:
        """With the lowest of the GPUs that nobody kept, where some are lacking."""
        more = sorted(self._free[seat.node])[: seat.part.gpus - len(gpus)]
        self._free[seat.node].difference_update(more)
        part = seat.part
        return Share(seat.node, tuple(sorted([*gpus, *more])), part.gpu_milli, part.cpu_milli, part.memory_mib)


def _same_seats(held: Allocation | None, seats: Sequence[AssignedShare]) -> list[AssignedShare]:
    """The seats that are where a job is now; none, if not all of them are."""
    left, found = list(seats), []
    for share in held.placement if held else ():
        shared = share.gpus if share.gpu_milli < WHOLE else ()
        mine = next((seat for seat in left if seat.node == share.node and seat.gpus == shared), None)
        if mine is None:
            return []
        left.remove(mine)
        found.append(mine)
    return found
