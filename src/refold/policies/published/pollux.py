"""Pollux (OSDI'21): GPUs are divided so that the harmonic mean of all jobs' speedups is as large as can be.

Every round a genetic search looks for a better division than the present one. A job's speedup is its goodput against
that on a fair share. The global batch is kept here, so a step is worth the same everywhere and goodput is throughput:
a job keeps its plan and gets more or fewer replicas. What cannot be scaled so is outside the search, as other pods are
for Pollux: it is run as it asked, in order of arrival, and scaled jobs share what it leaves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import ceil, inf
from typing import Any, NamedTuple

import msgspec
import numpy as np

from refold.core import View
from refold.errors import BadValue
from refold.model import KEEP, WHOLE, Allocation, Cluster, Decision, Job, Plan, Seconds, Share, Start
from refold.packing import CPU_FREE, MEMORY_FREE, UP, WHOLE_FREE, Bools, Floats, Free, Ints, Placer
from refold.plans import NOTHING_MORE, Kind, Knowledge, Speeds, kind_of
from refold.policies.common import Draft, Reasons, Transition, range_of
from refold.policies.published.pollux_kernels import DivisionProblem, evolve

MOST_NODES = 64
"""No job is spread over more nodes than this: what would be known of it is a guess, and the tables stay small."""


class Pollux:
    """Scaled jobs share the cluster by goodput, divided anew every round."""

    name = "pollux"

    def __init__(
        self,
        population: int = 100,
        generations: int = 100,
        round_seconds: Seconds = 60.0,
        restart_seconds: Seconds = 30.0,
        power: float = -1.0,
        growth: float = 2.0,
        least_speedup: float = 0.01,
        placement: str = "best-fit",
        seed: int = 0,
        knowledge: Knowledge | Mapping[str, Any] = NOTHING_MORE,
    ) -> None:
        if population < 2 or generations < 0:
            raise BadValue(f"a search has a population ≥ 2 and generations ≥ 0, not {population} and {generations}")
        if not (0 < round_seconds < inf and 0 <= restart_seconds < inf):
            raise BadValue(f"a round lasts seconds > 0 and a restart ≥ 0, not {round_seconds} and {restart_seconds}")
        if power == 0 or growth < 1 or not least_speedup > 0:
            raise BadValue(f"power ≠ 0, growth ≥ 1, least_speedup > 0, not {power}, {growth}, {least_speedup}")
        self._population, self._generations, self._seed = population, generations, seed
        self._round, self._restart = round_seconds, restart_seconds
        self._power, self._growth, self._least = power, growth, least_speedup
        self._knowledge = Knowledge.of(knowledge)
        self._placer = Placer(placement, seed)
        self._steering, self._reasons = Transition(), Reasons()
        self._profiles: Profiles | None = None
        self._largest: dict[str, int] = {}
        self._next_round: Seconds = -inf
        self._settled = False

    def decide(self, view: View) -> Decision:
        """Divide anew if a round is due; in between, carry on, and start what is not scaled and fits."""
        if self._profiles is None:
            self._profiles = Profiles(Speeds(view.cluster, self._knowledge))
        self._placer.observe(view)
        self._note(view)
        scaled = self._scaled(view, self._profiles)
        if scaled and view.now >= self._next_round:
            self._next_round = view.now + self._round
            decision = self._divide(view, scaled, self._profiles)
        else:
            decision = self._carry_on(view, self._profiles)
        wake_at = self._next_round if scaled and not self._settled else None
        waits = self._reasons.collect(view, decision.starts)
        if decision == KEEP and not waits and wake_at is None:
            return KEEP
        return msgspec.structs.replace(decision, waits=waits, wake_at=wake_at)

    def _note(self, view: View) -> None:
        """How many GPUs each job has had at most; and whether there is anything new to think about."""
        changes = view.changes
        if changes.submitted or changes.returned or changes.ended or changes.nodes or changes.gone:
            self._settled = False
        for run in changes.started:
            had = self._largest.get(run.job, 0)
            self._largest[run.job] = max(had, run.allocation.gpu_milli // WHOLE)
        for job_id in [run.job for run in changes.ended] + changes.gone:
            if job_id not in view.active and job_id not in view.waiting:
                self._largest.pop(job_id, None)

    def _scaled(self, view: View, profiles: Profiles) -> list[Job]:
        """Jobs that the search may give other numbers of GPUs, in order of arrival."""
        found = [job for job in view.waiting.values() if profiles.of(job) is not None]
        for run in view.runs.values():
            job = view.active[run.job]
            on_its_way = run.stopping and view.next_allocation(run.job) is not None
            if job.preemptible and not on_its_way and profiles.of(job) is not None:
                found.append(job)
        return sorted(found, key=_arrival)

    # Between rounds.

    def _carry_on(self, view: View, profiles: Profiles) -> Decision:
        decision = self._steering.go_on(view)
        if self._steering.awaited:
            return decision
        starting = {start.job for start in decision.starts}
        starts = list(decision.starts)
        for job in sorted(view.waiting.values(), key=_arrival):
            if job.id in starting or profiles.of(job) is not None:
                continue
            placement = view.trial().place(self._placer, job.demand)
            if placement is None:
                self._reasons.no_place(view, job)
            else:
                starts.append(Start(job.id, Allocation(placement)))
        return msgspec.structs.replace(decision, starts=tuple(starts))

    # A round.

    def _divide(self, view: View, scaled: Sequence[Job], profiles: Profiles) -> Decision:
        draft = Draft(view)
        unplaced = self._place_others(draft, [job for job in view.waiting.values() if profiles.of(job) is None])
        held = {job.id: allocation for job in scaled if (allocation := draft.holds(job.id)) is not None}
        for job_id in held:
            draft.release(job_id, "gives way")
        self._place_others(draft, unplaced)
        puzzle = self._puzzle(view, draft, scaled, held, profiles)
        chance = np.random.default_rng((self._seed, abs(round(view.now * WHOLE))))
        division = evolve(puzzle, self._population, self._generations, chance)
        self._carry_over(view, draft, scaled, held, division, profiles)
        decision = self._steering.towards(view, draft.target())
        self._reasons.note_everybody(view, decision.starts, self._steering.awaited)
        self._settled = not self._steering.awaited and _nothing_to_gain(view, decision, puzzle, division)
        return decision

    def _place_others(self, draft: Draft, jobs: Sequence[Job]) -> list[Job]:
        """Give jobs that are not scaled a place, in order of arrival; returns those that found none."""
        return [
            job
            for job in sorted(jobs, key=_arrival)
            if draft.holds(job.id) is None and not draft.place(job.id, self._placer, job.demand, None)
        ]

    def _puzzle(
        self, view: View, draft: Draft, jobs: Sequence[Job], held: Mapping[str, Allocation], profiles: Profiles
    ) -> DivisionProblem:
        rows = [profiles.row(job) for job in jobs]
        profile_of = [profiles.of_row(row) for row in rows]
        kinds = sorted(set(rows))
        limit = _limits(draft.free)
        need = np.array([profile.need for profile in profile_of], dtype=np.int64)
        most = np.array([self._most(view.cluster, job, profile) for job, profile in zip(jobs, profile_of, strict=True)])
        present = np.zeros((len(jobs), len(limit)), dtype=np.int64)
        for index, job in enumerate(jobs):
            present[index] = _on_nodes(held.get(job.id), len(limit))
        sizes, size_below = _size_tables([profiles.of_row(row).sizes for row in kinds], profiles.most_gpus)
        kind = np.array([kinds.index(row) for row in rows], dtype=np.int64)
        choices = [sum(0 < size <= cap for size in sizes[row]) for row, cap in zip(kind, most, strict=True)]
        fair = limit[:, 0].sum() / len(jobs)
        return DivisionProblem(
            kind=kind,
            most=most,
            choices=np.array(choices, dtype=np.int64),
            room=_room(limit, need, profiles.type_of_node, profile_of),
            need=need,
            limit=limit,
            type_of=profiles.type_of_node,
            crowded=_crowded(draft, len(limit)),
            sizes=sizes,
            size_below=size_below,
            speed=np.stack([profiles.of_row(row).speed for row in kinds]),
            fair=np.array([profile.on_share(fair) for profile in profile_of]),
            present=present,
            runs=present.sum(axis=1) > 0,
            restart=np.array(
                [restart_factor(view.now - job.submitted, view.runs_so_far(job.id) - 1, self._restart) for job in jobs]
            ),
            least=float(self._least),
            power=float(self._power),
        )

    def _most(self, cluster: Cluster, job: Job, profile: Profile) -> int:
        """So many times what it asked for, or has had: farther out nothing is known of how it scales."""
        known = max(job.demand.instances * job.demand.gpus, self._largest.get(job.id, 0), profile.sizes[0])
        return min(int(known * self._growth), int(profile.speed.shape[-1]) - 1, range_of(job, cluster)[1])

    def _carry_over(
        self,
        view: View,
        draft: Draft,
        jobs: Sequence[Job],
        held: Mapping[str, Allocation],
        division: Ints,
        profiles: Profiles,
    ) -> None:
        """Give jobs what the division says: first who keeps all, then who keeps some, then who starts."""
        changed: list[tuple[Job, list[int]]] = []
        for job, row in zip(jobs, division.tolist(), strict=True):
            old = held.get(job.id)
            if old is not None and row == _on_nodes(old, len(row)) and draft.put(job.id, old):
                continue
            if any(row):
                changed.append((job, row))
        for job, row in sorted(changed, key=lambda change: change[0].id not in held):
            old = held.get(job.id)
            wanted = _allocation(view, draft.free, job, row, old, profiles)
            before = old.gpu_milli // WHOLE if old else 0
            if wanted is None or not draft.put(job.id, wanted, f"from {before} to {sum(row)} GPUs"):
                _ = old is not None and draft.put(job.id, old)


def restart_factor(age: Seconds, restarts: int, restart_seconds: Seconds) -> float:
    """(T - N·S) / (T + S), with age T, N restarts, and S for a restart: who is young or was restarted often stays."""
    if age + restart_seconds <= 0:
        return 1.0
    return max(age - max(restarts, 0) * restart_seconds, 0.0) / (age + restart_seconds)


def _arrival(job: Job) -> tuple[Seconds, str]:
    return job.submitted, job.id


class Profile(NamedTuple):
    """How jobs of one kind scale."""

    need: tuple[int, int, int]
    """GPUs, CPUs and memory for each GPU."""
    types: tuple[bool, ...]
    """Which GPU types it may have."""
    weights: tuple[float, ...]
    """Their parts of a fair share."""
    sizes: tuple[int, ...]
    """Numbers of GPUs that it can have, ascending."""
    speed: Floats
    """Steps per second by type, nodes and GPUs; 0: cannot be."""

    def on_share(self, gpus: float) -> float:
        """Steps per second on a fair share; on less than it can run on, it is taken to run part of the time."""
        fitting = [size for size in self.sizes if size <= gpus]
        size = fitting[-1] if fitting else self.sizes[0]
        by_type = [max(speeds[:, size]) * weight for speeds, weight in zip(self.speed, self.weights, strict=True)]
        return float(sum(by_type)) * min(1.0, max(gpus, 1e-9) / size)


class Profiles:
    """The profiles of jobs on one cluster, found once for each kind."""

    def __init__(self, speeds: Speeds) -> None:
        cluster = speeds.cluster
        self.speeds = speeds
        self.type_of_node = _types_of_nodes(cluster)
        self._largest_node = [max(_gpus_of_type(cluster, name)) for name in cluster.type_names]
        self._nodes = [min(MOST_NODES, len(_gpus_of_type(cluster, name))) for name in cluster.type_names]
        reach = zip(self._nodes, self._largest_node, strict=True)
        self.most_gpus = max((nodes * gpus for nodes, gpus in reach), default=0)
        self._profiles: list[Profile] = []
        self._rows: dict[tuple[Kind, Plan, tuple[int, int, int], tuple[str, ...]], int | None] = {}

    def of(self, job: Job) -> Profile | None:
        """None: the job is not to be scaled."""
        row = self._row(job)
        return None if row is None else self._profiles[row]

    def row(self, job: Job) -> int:
        """The number of a scaled job's profile."""
        row = self._row(job)
        assert row is not None
        return row

    def of_row(self, row: int) -> Profile:
        """A profile by its number."""
        return self._profiles[row]

    def _row(self, job: Job) -> int | None:
        if not self.speeds.knows(job):
            return None
        key = (kind_of(job), self.speeds.own_plan(job), _need(job), job.demand.gpu_types)
        if key not in self._rows:
            profile = self._found(job)
            self._rows[key] = None if profile is None else len(self._profiles)
            self._profiles += [] if profile is None else [profile]
        return self._rows[key]

    def _found(self, job: Job) -> Profile | None:
        cluster, accepted = self.speeds.cluster, self.speeds.types_for(job)
        speed = np.zeros((len(cluster.type_names), max(self._nodes) + 1, self.most_gpus + 1))
        plan, batch = self.speeds.own_plan(job), self.speeds.batch(job)
        replica = plan.tensor * plan.pipeline
        sizes = [replica * many for many in range(1, self.most_gpus // replica + 1) if batch % many == 0]
        for index, name in enumerate(cluster.type_names):
            if name in accepted:
                for size, nodes in product(sizes, range(1, self._nodes[index] + 1)):
                    if nodes <= size <= nodes * self._largest_node[index]:
                        speed[index, nodes, size] = self._speed(job, name, nodes, size)
        sizes = [size for size in sizes if speed[:, :, size].any()]
        if not sizes:
            return None
        types = tuple(name in accepted for name in cluster.type_names)
        gpus = [sum(_gpus_of_type(cluster, name)) if name in accepted else 0 for name in cluster.type_names]
        weights = tuple(count / sum(gpus) for count in gpus)
        return Profile(_need(job), types, weights, tuple(sizes), speed)

    def _speed(self, job: Job, gpu_type: str, nodes: int, size: int) -> float:
        """On GPUs that are spread evenly: Pollux, too, knows a layout by its GPUs and nodes alone."""
        each, more = divmod(size, nodes)
        layout = (each + 1,) * more + (each,) * (nodes - more)
        found = self.speeds.scaled(job, gpu_type, layout, _need(job)[1] * size / WHOLE)
        asked = size == job.demand.instances * job.demand.gpus  # whoever asked for it knows that it fits
        return found.steps_per_second if found and (found.fits or asked) else 0.0


def _need(job: Job) -> tuple[int, int, int]:
    demand = job.demand
    return 1, demand.cpu_milli // demand.gpus, demand.memory_mib // demand.gpus


def _gpus_of_type(cluster: Cluster, name: str) -> list[int]:
    return [node.gpus for node in cluster.nodes if node.gpus and node.gpu_type == name]


def _types_of_nodes(cluster: Cluster) -> Ints:
    names = cluster.type_names
    return np.array([names.index(node.gpu_type) if node.gpus else -1 for node in cluster.nodes], dtype=np.int64)


def _limits(free: Free) -> Ints:
    """Whole GPUs, CPUs and memory that are free on each node; none on nodes that are down."""
    nodes = free.nodes[:-1]
    return np.ascontiguousarray(nodes[:, [WHOLE_FREE, CPU_FREE, MEMORY_FREE]] * nodes[:, [UP]])


def _room(limit: Ints, need: Ints, type_of_node: Ints, profiles: Sequence[Profile]) -> Ints:
    """GPUs that each job, alone, could have on each node."""
    for_cpus = limit[None, :, 1] // np.maximum(need[:, None, 1], 1)
    for_memory = limit[None, :, 2] // np.maximum(need[:, None, 2], 1)
    room = np.broadcast_to(limit[None, :, 0], for_cpus.shape).copy()
    room = np.where(need[:, None, 1] > 0, np.minimum(room, for_cpus), room)
    room = np.where(need[:, None, 2] > 0, np.minimum(room, for_memory), room)
    accepted = np.array([(*profile.types, False) for profile in profiles])  # -1, for nodes without GPUs, is last
    return np.ascontiguousarray(np.where(accepted[:, type_of_node], room, 0))


def _crowded(draft: Draft, nodes: int) -> Bools:
    """Nodes where a distributed job runs that is not part of the search."""
    crowded = np.zeros(nodes, dtype=np.bool_)
    for _, allocation in draft.holders():
        if len(allocation.gpus_on_node) > 1:
            crowded[list(allocation.nodes)] = True
    return crowded


def _size_tables(sizes: Sequence[Sequence[int]], most: int) -> tuple[Ints, Ints]:
    """Sizes of each kind, padded with 0; and for each number of GPUs the largest size that is not more."""
    padded = np.zeros((len(sizes), max(map(len, sizes))), dtype=np.int64)
    below = np.zeros((len(sizes), most + 1), dtype=np.int64)
    for kind, of_kind in enumerate(sizes):
        padded[kind, : len(of_kind)] = of_kind
        for size in of_kind:
            below[kind, size:] = size
    return padded, below


def _on_nodes(allocation: Allocation | None, nodes: int) -> list[int]:
    counts = [0] * nodes
    for share in allocation.placement if allocation is not None else ():
        counts[share.node] += len(share.gpus)
    return counts


def _allocation(
    view: View, free: Free, job: Job, row: Sequence[int], old: Allocation | None, profiles: Profiles
) -> Allocation | None:
    """So many GPUs on each node: its own before free ones, and these before those that others give back."""
    total = sum(row)
    layout = tuple(sorted((count for count in row if count), reverse=True))
    cluster, now_free = view.cluster, view.trial().free
    gpu_type = cluster.nodes[max(range(len(row)), key=lambda node: row[node])].gpu_type
    _, cpus, memory = _need(job)
    speed = profiles.speeds.scaled(job, gpu_type, layout, cpus * total / WHOLE)
    if speed is None:
        return None
    own = {(share.node, gpu) for share in (old.placement if old else ()) for gpu in share.gpus}
    shares = []
    for node, count in enumerate(row):
        if not count:
            continue
        idle = now_free.gpu_milli_of(node)
        whole = [gpu for gpu, milli in enumerate(free.gpu_milli_of(node)) if milli == WHOLE]
        whole.sort(key=lambda gpu: ((node, gpu) not in own, idle[gpu] < WHOLE, gpu))
        hosts = max(memory * count, ceil(speed.host_mib * count / total))
        shares.append(Share(node, tuple(sorted(whole[:count])), WHOLE, cpus * count, hosts))
    return Allocation(tuple(shares), speed.plan)


def _nothing_to_gain(view: View, decision: Decision, puzzle: DivisionProblem, division: Ints) -> bool:
    """Nobody waits, and every job has the fastest shape that it could have at all."""
    if len(view.waiting) > len(decision.starts):
        return False
    for job, row in enumerate(division):
        speeds = puzzle.speed[puzzle.kind[job]]
        gpu_type = puzzle.type_of[int(np.argmax(row))]
        if speeds[gpu_type, np.count_nonzero(row), row.sum()] < speeds.max():
            return False
    return True
