"""The compiled replay: a whole trace in one compiled loop, a million tasks in seconds.

It does what the general simulator does for jobs that run as asked, once and to their end, in the order of
arrival: the same kernels place them, the same moments are batched, and the outcome is the same to the last bit
(a property test says so). No journal is written, nothing is stopped, no node is lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

import numpy as np

from refold.errors import BadInput, BadValue, UnknownName
from refold.model import WHOLE, Cluster, Demand, Job, Placement, Share
from refold.packing import (
    DEMAND_ENTRIES,
    FGD,
    GENETIC,
    GPU_MASK,
    LOOK_AHEAD,
    MEMORY_ENTRIES,
    NODE,
    RULES,
    SEED,
    Bools,
    DemandHistory,
    Floats,
    Free,
    Ints,
    Need,
    RackPowerNow,
    ScoreCache,
    Words,
    compiled,
    indices_of,
    inlined,
    move,
    need_of,
    no_racks,
    nothing_expected,
    nothing_known,
    place,
    renew,
    time_to_renew,
)
from refold.simulator.costs import RecordedSpeeds

Order = Literal["fifo", "fifo-skip"]


class TaskColumns(NamedTuple):
    """Jobs as columns, sorted by submission: when, how long, and which of `demands`."""

    submitted: Floats
    work: Floats
    demand_of: Ints
    demands: tuple[Demand, ...]


class Replayed(NamedTuple):
    """What happened to each task: when it started (never: NaN), when it ended, and where it ran."""

    tasks: TaskColumns
    started: Floats
    ended: Floats
    first_place: Ints
    places: Ints

    def placement(self, task: int) -> Placement:
        """Where a task ran; nowhere, if it never did."""
        if np.isnan(self.started[task]):
            return ()
        demand = self.tasks.demands[self.tasks.demand_of[task]]
        first = int(self.first_place[task])
        return tuple(
            Share(node, indices_of(mask), demand.gpu_milli, demand.cpu_milli, demand.memory_mib)
            for node, mask in self.places[first : first + demand.instances].tolist()
        )


def tasks_of(jobs: Iterable[Job]) -> TaskColumns:
    """Jobs as columns. Demands are numbered in the order in which they first appear."""
    ordered = sorted(jobs, key=lambda job: job.submitted)
    numbers: dict[Demand, int] = {}
    without = next((job for job in ordered if job.work is None), None)
    if without is not None:
        raise BadInput(f"job {without.id!r} has no duration, so it cannot be replayed")
    return TaskColumns(
        np.array([job.submitted for job in ordered], dtype=np.float64),
        np.array([job.work for job in ordered], dtype=np.float64),
        np.array([numbers.setdefault(job.demand, len(numbers)) for job in ordered], dtype=np.int64),
        tuple(numbers),
    )


class ReplayArrays(NamedTuple):
    """What a replay reads of tasks and cluster, and where it writes what became of each."""

    free: Free
    shapes: Ints
    fits: Ints
    first_place: Ints
    places: Ints
    started: Floats
    ended: Floats

    @staticmethod
    def of(tasks: TaskColumns, cluster: Cluster) -> ReplayArrays:
        """An empty cluster, and nothing written yet."""
        free = Free(cluster)
        shapes = np.zeros((len(tasks.demands), DEMAND_ENTRIES), dtype=np.int64)
        for number, demand in enumerate(tasks.demands):
            shapes[number] = free.vector(demand)[0]
        fits = np.array([free.fits_when_empty(demand) for demand in tasks.demands], dtype=np.int64)
        instances = shapes[tasks.demand_of, 0] * fits[tasks.demand_of] if len(tasks.demand_of) else tasks.demand_of
        first_place = np.zeros(len(instances) + 1, dtype=np.int64)
        np.cumsum(instances, out=first_place[1:])
        places = np.zeros((int(first_place[-1]), 2), dtype=np.int64)
        started, ended = (np.full(len(instances), np.nan) for _ in range(2))
        return ReplayArrays(free, shapes, fits, first_place, places, started, ended)


def replay_compiled(
    tasks: TaskColumns, cluster: Cluster, placement: str = "best-fit", order: Order = "fifo", seed: int = 0
) -> Replayed:
    """Run all tasks to their end."""
    if placement not in RULES:
        raise UnknownName("placement", placement, RULES)
    if placement in GENETIC:
        raise BadInput(f"the compiled replay places one by one, and {placement} looks at windows: simulate it instead")
    if order not in ("fifo", "fifo-skip"):
        raise UnknownName("order of the compiled replay", order, ("fifo", "fifo-skip"))
    if np.any(np.diff(tasks.submitted) < 0):
        raise BadValue("the tasks of a replay are sorted by submission")
    room = ReplayArrays.of(tasks, cluster)
    free = room.free
    memory = np.zeros(MEMORY_ENTRIES, dtype=np.int64)
    memory[SEED] = seed
    looks_ahead = RULES[placement][0] in LOOK_AHEAD
    known = nothing_known(len(tasks.demands) if looks_ahead else 0, len(cluster.nodes))
    _replay(
        RULES[placement][0],
        order == "fifo",
        free.nodes,
        free.gpus,
        free.bits,
        RecordedSpeeds(cluster).speed_of_node,
        room.shapes,
        room.fits,
        tasks.submitted,
        tasks.work,
        tasks.demand_of,
        memory,
        looks_ahead,
        nothing_expected(),
        known,
        no_racks(),
        room.first_place,
        room.places,
        room.started,
        room.ended,
    )
    return Replayed(tasks, room.started, room.ended, room.first_place, room.places)


@compiled
def push(times: Floats, tasks: Ints, size: int, at: float, task: int) -> None:
    """Put a task into the heap of those that run, which holds `size` before."""
    position = size
    while position > 0:
        parent = (position - 1) >> 1
        if times[parent] <= at:
            break
        times[position], tasks[position] = times[parent], tasks[parent]
        position = parent
    times[position], tasks[position] = at, task


@compiled
def pop(times: Floats, tasks: Ints, size: int) -> int:
    """Take the task that ends first out of the heap, which holds `size` before."""
    first = tasks[0]
    last = size - 1
    at, task = times[last], tasks[last]
    position = 0
    while True:
        child = 2 * position + 1
        if child >= last:
            break
        if child + 1 < last and times[child + 1] < times[child]:
            child += 1
        if times[child] >= at:
            break
        times[position], tasks[position] = times[child], tasks[child]
        position = child
    times[position], tasks[position] = at, task
    return int(first)


@compiled
def _following(demand_of: Ints, first_of: Ints) -> Ints:
    """For each task the next one with the same demand; `first_of` gets the first of each demand."""
    count = demand_of.shape[0]
    following = np.empty(count, dtype=np.int64)
    first_of[:] = count
    for task in range(count - 1, -1, -1):
        following[task] = first_of[demand_of[task]]
        first_of[demand_of[task]] = task
    return following


@inlined
def _give_back(nodes: Ints, gpus: Ints, bits: Words, need: Need, places: Ints, row: int, end: int) -> None:
    """Return the places of a task that has ended; those on one node together, if they are of whole GPUs."""
    while row < end:
        node, mask, together = places[row, NODE], places[row, GPU_MASK], 1
        row += 1
        while need.milli == WHOLE and row < end and places[row, NODE] == node:
            mask |= places[row, GPU_MASK]
            together += 1
            row += 1
        move(nodes, gpus, bits, node, mask, need.milli, together * need.cpu, together * need.memory)


@inlined
def _first_that_may_fit(head_of: Ints, fits: Ints, closed: Bools, none: int) -> int:
    """Of the first tasks of each demand that has not been found without a place, the one that arrived first."""
    first = none
    for kind in range(head_of.shape[0]):
        if fits[kind] and not closed[kind] and head_of[kind] < first:
            first = head_of[kind]
    return first


@inlined
def _speed(need: Need, speed_of_node: Floats, places: Ints, first: int) -> float:
    """A gang is as fast as its slowest part; what needs no GPU is as fast anywhere."""
    slowest = np.inf if need.gpus > 0 else 1.0
    if need.gpus > 0:
        for row in range(first, first + need.instances):
            slowest = min(slowest, speed_of_node[places[row, NODE]])
    return slowest


@compiled
def _replay(
    rule: int,
    strict: bool,
    nodes: Ints,
    gpus: Ints,
    bits: Words,
    speed_of_node: Floats,
    shapes: Ints,
    fits: Ints,
    submitted: Floats,
    work: Floats,
    demand_of: Ints,
    memory: Ints,
    looks_ahead: bool,
    expected: DemandHistory,
    known: ScoreCache,
    racks: RackPowerNow,
    first_place: Ints,
    places: Ints,
    started: Floats,
    ended: Floats,
) -> None:
    count, kinds = submitted.shape[0], shapes.shape[0]
    times, running = np.empty(count), np.empty(count, dtype=np.int64)
    head_of = np.empty(kinds, dtype=np.int64)
    following = _following(demand_of, head_of)
    closed = np.zeros(kinds, dtype=np.bool_)
    seen = np.zeros(kinds, dtype=np.int64)
    arrived = size = waiting = seen_in_all = kinds_seen = 0
    head, stuck = 0, False
    while arrived < count or size > 0:
        now = np.inf
        if arrived < count:
            now = submitted[arrived]
        if size > 0 and times[0] < now:
            now = times[0]

        # 1. What has happened: tasks that end, tasks that arrive.
        while size > 0 and times[0] == now:
            task = pop(times, running, size)
            size -= 1
            need = need_of(shapes, demand_of[task])
            _give_back(nodes, gpus, bits, need, places, first_place[task], first_place[task + 1])
            closed[:] = False
            stuck = False
        while arrived < count and submitted[arrived] == now:
            kind = demand_of[arrived]
            if fits[kind]:
                waiting += 1
                seen[kind] += 1
                kinds_seen = max(kinds_seen, kind + 1)
                seen_in_all += 1
                if looks_ahead and time_to_renew(seen_in_all):
                    renew(rule == FGD, shapes, seen, kinds_seen, nodes, expected, known)
            arrived += 1

        # 2. Who starts, in the order of arrival.
        while waiting > 0 and not stuck:
            if strict:
                while not fits[demand_of[head]]:
                    head += 1
                task = head
            else:
                task = _first_that_may_fit(head_of, fits, closed, count)
                if task >= arrived:
                    break
            kind = demand_of[task]
            first = first_place[task]
            if not place(rule, nodes, gpus, bits, shapes, kind, kind, memory, expected, known, racks, places, first):
                closed[kind] = True
                stuck = strict
                continue
            need = need_of(shapes, kind)
            started[task] = now
            ended[task] = now + work[task] / _speed(need, speed_of_node, places, first)
            push(times, running, size, ended[task], task)
            size += 1
            waiting -= 1
            head += 1
            head_of[kind] = following[task]
