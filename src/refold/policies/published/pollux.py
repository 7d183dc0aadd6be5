"""Pollux (OSDI'21): a genetic algorithm maximises the harmonic mean of all jobs' speedups.

In every round the algorithm searches for an allocation matrix (GPUs per job and node) better than the current one. A
job's speedup is its goodput relative to its goodput on a fair share of the cluster. Here the global batch size is
fixed, so goodput equals throughput: a job keeps its plan and gets more or fewer replicas. Jobs that cannot be scaled
are not part of the search, like pods not managed by Pollux: they run as requested, in order of arrival, and scalable
jobs share the remaining GPUs.
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
from refold.model import NO_CHANGE, WHOLE, Allocation, Cluster, Decision, Job, NodeSet, Plan, Seconds, Share, Start
from refold.placement import CPU_FREE, MEMORY_FREE, UP, WHOLE_FREE, Bools, Floats, FreeResources, Ints, Placer
from refold.planning.plans import CATALOGUE_ONLY, Knowledge, Speeds, WorkloadKind, workload_kind
from refold.policies.common import Draft, Reasons, Transition, allowed_gpu_range
from refold.policies.published.pollux_kernels import AllocationProblem, evolve

GROWTH = 2
"""Largest ratio of a job's GPUs to the most it has requested or had: beyond, scaling has not been observed."""

MIN_SPEEDUP = 0.01
"""Speedup assumed for a job without GPUs, since a harmonic mean with 0 would be 0."""

MAX_NODES_PER_JOB = 64
"""Speeds on more nodes would be extrapolations, and the tables must stay small."""


class Pollux:
    """In rounds, a genetic algorithm divides the cluster among scalable jobs by goodput."""

    name = "pollux"

    def __init__(
        self,
        population: int = 100,
        generations: int = 100,
        round_seconds: Seconds = 60.0,
        restart_seconds: Seconds = 30.0,
        power: float = -1.0,
        placement: str = "best-fit",
        seed: int = 0,
        knowledge: Knowledge | Mapping[str, Any] = CATALOGUE_ONLY,
    ) -> None:
        """Create the policy; `power`: exponent of the power mean over speedups; -1 is the harmonic mean."""
        if population < 2 or generations < 0:
            raise BadValue(f"population is {population}, generations is {generations}, expected ≥ 2 and ≥ 0")
        if not (0 < round_seconds < inf and 0 <= restart_seconds < inf):
            raise BadValue(
                f"round_seconds is {round_seconds}, restart_seconds is {restart_seconds}, expected > 0 and ≥ 0"
            )
        if power == 0:
            raise BadValue("power is 0, expected a number ≠ 0")
        self._population, self._generations, self._seed = population, generations, seed
        self._round_seconds, self._restart_seconds = round_seconds, restart_seconds
        self._power = power
        self._knowledge = Knowledge.from_settings(knowledge)
        self._placer = Placer(placement, seed)
        self._transition, self._reasons = Transition(), Reasons()
        self._profiles: Profiles | None = None
        self._max_gpus_held: dict[str, int] = {}
        self._next_round: Seconds = -inf
        self._is_settled = False

    def decide(self, view: View) -> Decision:
        """Run a round if one is due; between rounds, start waiting jobs that fit and are not scalable."""
        if self._profiles is None:
            self._profiles = Profiles(Speeds(view.cluster, self._knowledge))
        if self._profiles.learn(view):
            self._is_settled = False
        self._placer.observe(view)
        self._record(view)
        scalable = self._scalable_jobs(view, self._profiles)
        if scalable and view.now >= self._next_round:
            self._next_round = view.now + self._round_seconds
            decision = self._run_round(view, scalable, self._profiles)
        else:
            decision = self._between_rounds(view, self._profiles)
        wake_at = self._next_round if scalable and not self._is_settled else None
        waits = self._reasons.collect(view, decision.starts)
        if decision == NO_CHANGE and not waits and wake_at is None:
            return NO_CHANGE
        return msgspec.structs.replace(decision, waits=waits, wake_at=wake_at)

    def _record(self, view: View) -> None:
        """Record the most GPUs each job has had, and whether anything has changed since the last round."""
        changes = view.changes
        if changes.submitted or changes.requeued or changes.ended or changes.nodes or changes.removed:
            self._is_settled = False
        for run in changes.started:
            before = self._max_gpus_held.get(run.job, 0)
            self._max_gpus_held[run.job] = max(before, run.allocation.gpu_milli // WHOLE)
        for job_id in [run.job for run in changes.ended] + changes.removed:
            if job_id not in view.active and job_id not in view.waiting:
                self._max_gpus_held.pop(job_id, None)

    def _scalable_jobs(self, view: View, profiles: Profiles) -> list[Job]:
        """Return the jobs that the search may scale, in order of arrival."""
        scalable = [job for job in view.waiting.values() if profiles.for_job(job) is not None]
        for run in view.runs.values():
            job = view.active[run.job]
            is_moving = run.stopping and view.next_allocation(run.job) is not None
            if view.is_preemptible(job.id) and not is_moving and profiles.for_job(job) is not None:
                scalable.append(job)
        return sorted(scalable, key=_arrival)

    # Between rounds.

    def _between_rounds(self, view: View, profiles: Profiles) -> Decision:
        decision = self._transition.next_step(view)
        if self._transition.pending:
            return decision
        starting = {start.job for start in decision.starts}
        starts = list(decision.starts)
        for job in sorted(view.waiting.values(), key=_arrival):
            if job.id in starting or profiles.for_job(job) is not None:
                continue
            placement = view.trial().place(self._placer, job.demand)
            if placement is None:
                self._reasons.note_resources(view, job)
            else:
                starts.append(Start(job.id, Allocation(placement)))
        return msgspec.structs.replace(decision, starts=tuple(starts))

    # A round.

    def _run_round(self, view: View, scalable: Sequence[Job], profiles: Profiles) -> Decision:
        draft = Draft(view)
        unplaced = self._place_others(draft, [job for job in view.waiting.values() if profiles.for_job(job) is None])
        held = {job.id: allocation for job in scalable if (allocation := draft.allocation_of(job.id)) is not None}
        for job_id in held:
            draft.release(job_id, "has no GPUs in the new allocation")
        self._place_others(draft, unplaced)
        problem = self._make_problem(view, draft, scalable, held, profiles)
        rng = np.random.default_rng((self._seed, abs(round(view.now * WHOLE))))
        matrix = evolve(problem, self._population, self._generations, rng)
        self._apply(view, draft, scalable, held, matrix, profiles)
        decision = self._transition.step_towards(view, draft.target())
        self._reasons.note_all(view, decision.starts, self._transition.pending)
        self._is_settled = not self._transition.pending and _is_optimal(view, decision, problem, matrix)
        return decision

    def _place_others(self, draft: Draft, jobs: Sequence[Job]) -> list[Job]:
        """Place jobs that are not scalable in order of arrival; return those that do not fit."""
        return [
            job
            for job in sorted(jobs, key=_arrival)
            if draft.allocation_of(job.id) is None and not draft.place(job.id, self._placer, job.demand, None)
        ]

    def _make_problem(
        self, view: View, draft: Draft, jobs: Sequence[Job], held: Mapping[str, Allocation], profiles: Profiles
    ) -> AllocationProblem:
        indices = [profiles.index_of(job) for job in jobs]
        job_profiles = [profiles.by_index(index) for index in indices]
        kinds = sorted(set(indices))
        free = _free_resources(draft.free)
        need = np.array([profile.need for profile in job_profiles], dtype=np.int64)
        max_gpus = np.array(
            [self._max_gpus(view.cluster, job, profile) for job, profile in zip(jobs, job_profiles, strict=True)]
        )
        current = np.zeros((len(jobs), len(free)), dtype=np.int64)
        for index, job in enumerate(jobs):
            current[index] = _gpus_per_node(held.get(job.id), len(free))
        sizes, size_below = _size_tables([profiles.by_index(index).sizes for index in kinds], profiles.max_gpus)
        kind = np.array([kinds.index(index) for index in indices], dtype=np.int64)
        choices = [sum(0 < size <= cap for size in sizes[row]) for row, cap in zip(kind, max_gpus, strict=True)]
        fair_share = free[:, 0].sum() / len(jobs)
        return AllocationProblem(
            kind=kind,
            max_gpus=max_gpus,
            choices=np.array(choices, dtype=np.int64),
            capacity=_max_gpus_per_node(free, need, profiles.type_of_node, job_profiles),
            need=need,
            free=free,
            type_of=profiles.type_of_node,
            distributed=_nodes_with_distributed_jobs(draft, len(free)),
            sizes=sizes,
            size_below=size_below,
            speed=np.stack([profiles.by_index(index).speed for index in kinds]),
            fair_speed=np.array([profile.speed_on_fair_share(fair_share) for profile in job_profiles]),
            current=current,
            is_running=current.sum(axis=1) > 0,
            restart_factor=np.array(
                [
                    restart_factor(view.now - job.submitted, view.run_count(job.id) - 1, self._restart_seconds)
                    for job in jobs
                ]
            ),
            min_speedup=MIN_SPEEDUP,
            power=float(self._power),
        )

    def _max_gpus(self, cluster: Cluster, job: Job, profile: Profile) -> int:
        """Return `GROWTH` times the GPUs requested or held so far: beyond that, scaling has not been observed."""
        known = max(job.demand.instances * job.demand.gpus, self._max_gpus_held.get(job.id, 0), profile.sizes[0])
        return min(known * GROWTH, int(profile.speed.shape[-1]) - 1, allowed_gpu_range(job, cluster)[1])

    def _apply(
        self,
        view: View,
        draft: Draft,
        jobs: Sequence[Job],
        held: Mapping[str, Allocation],
        matrix: Ints,
        profiles: Profiles,
    ) -> None:
        """Apply the allocation matrix to the draft: unchanged jobs first, then changed runs, then starts."""
        changed: list[tuple[Job, list[int]]] = []
        for job, row in zip(jobs, matrix.tolist(), strict=True):
            old = held.get(job.id)
            if old is not None and row == _gpus_per_node(old, len(row)) and draft.assign(job.id, old):
                continue
            if any(row):
                changed.append((job, row))
        for job, row in sorted(changed, key=lambda change: change[0].id not in held):
            old = held.get(job.id)
            wanted = _allocation(view, draft.free, job, row, old, profiles)
            before = old.gpu_milli // WHOLE if old else 0
            if wanted is not None and draft.assign(job.id, wanted, f"from {before} to {sum(row)} GPUs"):
                continue
            if old is not None:
                draft.assign(job.id, old)


def restart_factor(age: Seconds, restarts: int, restart_seconds: Seconds) -> float:
    """Return (T - N·S) / (T + S) for age T, N restarts of S seconds: young or often restarted jobs stay unchanged."""
    if age + restart_seconds <= 0:
        return 1.0
    return max(age - max(restarts, 0) * restart_seconds, 0.0) / (age + restart_seconds)


def _arrival(job: Job) -> tuple[Seconds, str]:
    return job.submitted, job.id


class Profile(NamedTuple):
    """Scaling of one kind of job."""

    need: tuple[int, int, int]
    """GPUs, CPUs and memory per GPU."""
    types: tuple[bool, ...]
    """Whether each GPU type is accepted."""
    weights: tuple[float, ...]
    """Fraction of a fair share on each GPU type."""
    sizes: tuple[int, ...]
    """Possible numbers of GPUs, ascending."""
    speed: Floats
    """Steps per second by type, nodes and GPUs; 0 where impossible."""
    allowed_nodes: NodeSet | None

    def speed_on_fair_share(self, gpus: float) -> float:
        """Return steps per second on a fair share; below the smallest size, the job is assumed to be time-shared."""
        fitting = [size for size in self.sizes if size <= gpus]
        size = fitting[-1] if fitting else self.sizes[0]
        by_type = [max(speeds[:, size]) * weight for speeds, weight in zip(self.speed, self.weights, strict=True)]
        return float(sum(by_type)) * min(1.0, max(gpus, 1e-9) / size)


class Profiles:
    """Profiles of jobs on one cluster, computed once per kind of job."""

    def __init__(self, speeds: Speeds) -> None:
        cluster = speeds.cluster
        self.speeds = speeds
        self.type_of_node = _types_of_nodes(cluster)
        self._largest_node = [max(_gpus_of_type(cluster, name)) for name in cluster.type_names]
        self._nodes = [min(MAX_NODES_PER_JOB, len(_gpus_of_type(cluster, name))) for name in cluster.type_names]
        extents = zip(self._nodes, self._largest_node, strict=True)
        self.max_gpus = max((nodes * gpus for nodes, gpus in extents), default=0)
        self._profiles: list[Profile] = []
        self._indices: dict[
            tuple[WorkloadKind, Plan, tuple[int, int, int], tuple[str, ...], NodeSet | None], int | None
        ] = {}

    def learn(self, view: View) -> bool:
        """Correct the speeds by those measured so far; return whether any has changed."""
        if not view.measured_speeds or not self.speeds.learn(view.measured_speeds):
            return False
        self._profiles.clear()
        self._indices.clear()
        return True

    def for_job(self, job: Job) -> Profile | None:
        """Return a job's profile; None if it cannot be scaled."""
        index = self._find_index(job)
        return None if index is None else self._profiles[index]

    def index_of(self, job: Job) -> int:
        """Return the index of a scalable job's profile."""
        index = self._find_index(job)
        assert index is not None
        return index

    def by_index(self, index: int) -> Profile:
        """Return the profile with an index."""
        return self._profiles[index]

    def _find_index(self, job: Job) -> int | None:
        if not self.speeds.can_model(job):
            return None
        demand = job.demand
        key = (workload_kind(job), self.speeds.own_plan(job), _need(job), demand.gpu_types, demand.allowed_nodes)
        if key not in self._indices:
            profile = self._find_profile(job)
            self._indices[key] = None if profile is None else len(self._profiles)
            self._profiles += [] if profile is None else [profile]
        return self._indices[key]

    def _find_profile(self, job: Job) -> Profile | None:
        cluster, accepted = self.speeds.cluster, self.speeds.types_for(job)
        speed = np.zeros((len(cluster.type_names), max(self._nodes) + 1, self.max_gpus + 1))
        plan, batch = self.speeds.own_plan(job), self.speeds.batch(job)
        replica = plan.tensor * plan.pipeline
        sizes = [replica * replicas for replicas in range(1, self.max_gpus // replica + 1) if batch % replicas == 0]
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
        return Profile(_need(job), types, weights, tuple(sizes), speed, job.demand.allowed_nodes)

    def _speed(self, job: Job, gpu_type: str, nodes: int, size: int) -> float:
        """Return the speed on GPUs spread evenly over nodes: Pollux models a layout by GPUs and nodes alone."""
        each, more = divmod(size, nodes)
        layout = (each + 1,) * more + (each,) * (nodes - more)
        scaled = self.speeds.scaled(job, gpu_type, layout, _need(job)[1] * size / WHOLE)
        is_requested = size == job.demand.instances * job.demand.gpus  # the request is assumed to fit in memory
        return scaled.steps_per_second if scaled and (scaled.fits or is_requested) else 0.0


def _need(job: Job) -> tuple[int, int, int]:
    demand = job.demand
    return 1, demand.cpu_milli // demand.gpus, demand.memory_mib // demand.gpus


def _gpus_of_type(cluster: Cluster, name: str) -> list[int]:
    return [node.gpus for node in cluster.nodes if node.gpus and node.gpu_type == name]


def _types_of_nodes(cluster: Cluster) -> Ints:
    names = cluster.type_names
    return np.array([names.index(node.gpu_type) if node.gpus else -1 for node in cluster.nodes], dtype=np.int64)


def _free_resources(free: FreeResources) -> Ints:
    """Return the free whole GPUs, CPUs and memory of each node; 0 on nodes that are down."""
    nodes = free.nodes[:-1]
    return np.ascontiguousarray(nodes[:, [WHOLE_FREE, CPU_FREE, MEMORY_FREE]] * nodes[:, [UP]])


def _max_gpus_per_node(free: Ints, need: Ints, type_of_node: Ints, profiles: Sequence[Profile]) -> Ints:
    """Return the number of GPUs that each job could have on each node if it were alone."""
    for_cpus = free[None, :, 1] // np.maximum(need[:, None, 1], 1)
    for_memory = free[None, :, 2] // np.maximum(need[:, None, 2], 1)
    capacity = np.broadcast_to(free[None, :, 0], for_cpus.shape).copy()
    capacity = np.where(need[:, None, 1] > 0, np.minimum(capacity, for_cpus), capacity)
    capacity = np.where(need[:, None, 2] > 0, np.minimum(capacity, for_memory), capacity)
    accepted = np.array(
        [(*profile.types, False) for profile in profiles]
    )  # the last column is for nodes without GPUs, type -1
    capacity = np.where(accepted[:, type_of_node], capacity, 0)
    for row, profile in enumerate(profiles):
        if profile.allowed_nodes is not None:
            is_allowed = np.zeros(len(type_of_node), dtype=np.bool_)
            is_allowed[list(profile.allowed_nodes)] = True
            capacity[row, ~is_allowed] = 0
    return np.ascontiguousarray(capacity)


def _nodes_with_distributed_jobs(draft: Draft, nodes: int) -> Bools:
    """Return the nodes with a distributed job that is not part of the search."""
    distributed = np.zeros(nodes, dtype=np.bool_)
    for _, allocation in draft.allocations():
        if len(allocation.gpus_on_node) > 1:
            distributed[list(allocation.nodes)] = True
    return distributed


def _size_tables(sizes: Sequence[Sequence[int]], max_gpus: int) -> tuple[Ints, Ints]:
    """Return the sizes of each kind, padded with 0, and for each number of GPUs the largest size not above it."""
    padded = np.zeros((len(sizes), max(map(len, sizes))), dtype=np.int64)
    below = np.zeros((len(sizes), max_gpus + 1), dtype=np.int64)
    for kind, of_kind in enumerate(sizes):
        padded[kind, : len(of_kind)] = of_kind
        for size in of_kind:
            below[kind, size:] = size
    return padded, below


def _gpus_per_node(allocation: Allocation | None, nodes: int) -> list[int]:
    counts = [0] * nodes
    for share in allocation.placement if allocation is not None else ():
        counts[share.node] += len(share.gpus)
    return counts


def _allocation(
    view: View, free: FreeResources, job: Job, row: Sequence[int], old: Allocation | None, profiles: Profiles
) -> Allocation | None:
    """Return an allocation with these GPUs per node: the job's own first, then free ones, then those still in use."""
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
        host_memory = max(memory * count, ceil(speed.host_mib * count / total))
        shares.append(Share(node, tuple(sorted(whole[:count])), WHOLE, cpus * count, host_memory))
    return Allocation(tuple(shares), speed.plan)


def _is_optimal(view: View, decision: Decision, problem: AllocationProblem, matrix: Ints) -> bool:
    """Whether no job waits and every job has its fastest possible shape."""
    if len(view.waiting) > len(decision.starts):
        return False
    for job, row in enumerate(matrix):
        speeds = problem.speed[problem.kind[job]]
        gpu_type = problem.type_of[int(np.argmax(row))]
        if speeds[gpu_type, np.count_nonzero(row), row.sum()] < speeds.max():
            return False
    return True
