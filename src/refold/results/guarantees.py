"""Broken promises: guaranteed jobs that were slower than what they asked for, or waited for what others could spare.

A guaranteed job is promised the speed of what it asked for, with its own plan, as long as it is within its tenant's
quota. Its use of the quota is its minimum (`plans.pace`): in the order of submission every job is admitted that fits
into what is left, and stays so until it ends. Who does not fit keeps nobody else out.

A promise is broken in two ways, each only after a time of grace, which is what it takes to get GPUs back:

- *slow*: it runs below the promised speed;
- *kept waiting*: it waits, though its minimum would find room if those without a promise gave back all they hold and
  those with one gave back what they hold above their minimum. Several jobs that wait are given that room, on paper, in
  the order of submission, so that room for one is no broken promise to two.

Only GPUs are counted, not CPUs and memory. A run that may not be stopped keeps what it has.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import inf, isnan
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from refold.journal import History, Outcome
from refold.model import WHOLE, Allocation, Cluster, Demand, Job, Milli, Seconds
from refold.packing import Ints, compiled
from refold.plans import Minimums, ModelledSpeedSource, Speeds, SpeedSource

TOLERANCE = 0.01
"""Nobody notices to be slower by so much."""

DUST = 1e-6
"""GPUs, as sums of fractions leave it."""

Kind = Literal["slow", "kept waiting"]


class Violation(msgspec.Struct, frozen=True):
    """For how long a promise was broken, the time of grace not counted; how, and what was there at its beginning."""

    job: str
    since: Seconds
    until: Seconds
    kind: Kind
    why: str


class Guarantees(msgspec.Struct, frozen=True):
    """What became of promises: how many jobs were given one, how many saw it broken, and for how long in all."""

    promised: int
    jobs: int
    seconds: Seconds
    broken: tuple[Violation, ...]


def broken_guarantees(
    history: History,
    speeds: Speeds,
    pace: SpeedSource | None = None,
    *,
    measured: SpeedSource | None = None,
    grace: Seconds,
    tolerance: float = TOLERANCE,
) -> Guarantees:
    """Count broken promises, as the performance model believes, or another `pace`.

    Minima, and so quotas, are always what is believed, since that is what a scheduler promises by; who is slow can be
    told by what was `measured`.
    """
    pace = pace or ModelledSpeedSource(speeds)
    minimums = Minimums(speeds, pace)
    wanted = [minimums.of(job) for job in history.jobs.jobs]
    admitted = admissions(history, wanted)
    broken = [
        *_slow(history, measured or pace, admitted, grace, tolerance),
        *_kept_waiting(history, wanted, admitted, grace),
    ]
    broken.sort(key=lambda one: (one.since, one.job))
    return Guarantees(
        promised=len(admitted),
        jobs=len({one.job for one in broken}),
        seconds=sum(one.until - one.since for one in broken),
        broken=tuple(broken),
    )


def admissions(history: History, minimums: Sequence[Demand]) -> dict[int, Seconds]:
    """From when on each guaranteed job is within its tenant's quota. Who is stays so until it ends.

    Where there are no quotas nothing is promised: everybody cannot be guaranteed everything.
    """
    admitted: dict[int, Seconds] = {}
    if not history.cluster.tenants:
        return admitted
    queues: dict[str, list[int]] = defaultdict(list)
    used: dict[str, float] = defaultdict(float)
    for now, job, arrives in _comings_and_goings(history):
        tenant, size = history.jobs.jobs[job].tenant, minimums[job].total_gpus
        queue = queues[tenant]
        if arrives:
            queue.append(job)
        elif job in admitted:
            used[tenant] -= size
        else:
            queue.remove(job)
        for waits in [job] if arrives else list(queue):
            need = minimums[waits].total_gpus
            if used[tenant] + need <= history.cluster.quota_gpus(tenant) + DUST:
                used[tenant] += need
                admitted[waits] = now
                queue.remove(waits)
    return admitted


def _comings_and_goings(history: History) -> Iterator[tuple[Seconds, int, bool]]:
    """Guaranteed jobs that have a chance, when they come and go, in order; at one moment they go first."""
    jobs = history.jobs
    moments: list[tuple[Seconds, bool, int]] = []
    for index, job in enumerate(jobs.jobs):
        if job.job_class == "guaranteed" and jobs.outcome[index] != Outcome.INFEASIBLE:
            moments.append((float(jobs.submitted[index]), True, index))
            if not isnan(jobs.ended[index]):
                moments.append((float(jobs.ended[index]), bool(jobs.ended[index] <= jobs.submitted[index]), index))
    moments.sort()
    seen: set[int] = set()
    for now, _, index in moments:
        yield now, index, index not in seen
        seen.add(index)


# --- slow ---------------------------------------------------------------------------------------------------


def _slow(
    history: History, pace: SpeedSource, admitted: dict[int, Seconds], grace: Seconds, tolerance: float
) -> Iterator[Violation]:
    """Runs below the promised speed; of a job that goes from one slow shape to the next, as if it were one run."""
    runs, ends = history.runs, history.run_end
    since: dict[int, Seconds] = {}
    told: dict[int, str] = {}
    until: dict[int, Seconds] = {}

    def ended(job: int) -> Iterator[Violation]:
        begun = since.pop(job, None)
        if begun is not None and until[job] > begun + grace:
            yield Violation(history.jobs.jobs[job].id, begun + grace, until[job], "slow", told[job])

    for run in range(len(runs)):
        job = int(runs.job[run])
        if job not in admitted:
            continue
        speed = pace.speed(history.jobs.jobs[job], runs.allocations[run])
        slow = speed < 1 - tolerance
        if not slow or runs.start[run] > until.get(job, -inf):
            yield from ended(job)
        if slow:
            if job not in since:
                since[job] = max(float(runs.computing[run]), admitted[job])
                told[job] = f"{speed:.2f} × the speed of what it asked for, on {_gpus(float(runs.gpus[run]))}"
            until[job] = float(ends[run])
    for job in list(since):
        yield from ended(job)


def _gpus(count: float) -> str:
    return f"{count:g} GPU{'s' * (count != 1)}"


# --- kept waiting -------------------------------------------------------------------------------------------


def _kept_waiting(
    history: History, minimums: Sequence[Demand], admitted: dict[int, Seconds], grace: Seconds
) -> Iterator[Violation]:
    """From each moment at which something changed to the next: who waits, and would find room."""
    room = _SpareGpus(history, minimums)
    waiting = _Waiting(minimums)
    since: dict[int, tuple[Seconds, str]] = {}

    def ended(job: int, now: Seconds) -> Iterator[Violation]:
        begun, why = since.pop(job)
        if now > begun + grace:
            yield Violation(history.jobs.jobs[job].id, begun + grace, now, "kept waiting", why)

    for now, changes in _moments(history, admitted):
        for change in changes:
            room.note(change)
            waiting.note(change, admitted, now)
        found = room.found_for(waiting.jobs)
        for job in [job for job in since if job not in found]:
            yield from ended(job, now)
        for job, nodes in found.items():
            if job not in since:
                since[job] = (now, room.why(job, nodes))
    for job in list(since):
        yield from ended(job, history.until)


class _Change(NamedTuple):
    """Something that happened to a run, a job or a node. At one moment what ends comes before what begins."""

    order: int
    what: Literal["ends", "gone", "lost", "returned", "admitted", "starts"]
    of: int
    """Number of the run, the job or the node."""
    job: int = -1


def _moments(history: History, admitted: dict[int, Seconds]) -> Iterator[tuple[Seconds, list[_Change]]]:
    at: dict[Seconds, list[_Change]] = defaultdict(list)
    for run, (job, start, end) in enumerate(
        zip(history.runs.job.tolist(), history.runs.start.tolist(), history.runs.end.tolist(), strict=True)
    ):
        if end == start:
            continue  # it is never seen to hold anything
        at[start].append(_Change(3, "starts", run, job))
        if not isnan(end):
            at[end].append(_Change(0, "ends", run, job))
    for job, since in admitted.items():
        at[since].append(_Change(2, "admitted", job, job))
        ended = float(history.jobs.ended[job])
        if not isnan(ended):
            at[ended].append(_Change(4, "gone", job, job))
    for node_change in history.node_changes:
        at[node_change.at].append(_Change(1, "returned" if node_change.up else "lost", node_change.node))
    for now in sorted(at):
        yield now, sorted(at[now])


class _Waiting:
    """Admitted jobs that need GPUs and have no run, in the order of submission."""

    def __init__(self, minimums: Sequence[Demand]) -> None:
        self.jobs: list[int] = []
        self._minimums = minimums
        self._running: set[int] = set()

    def note(self, change: _Change, admitted: dict[int, Seconds], now: Seconds) -> None:
        """Whether a job waits now."""
        job = change.job
        match change.what:
            case "starts":
                self._running.add(job)
                self._remove(job)
            case "ends":
                self._running.discard(job)
                if job in admitted and admitted[job] <= now:
                    self._add(job)
            case "admitted":
                if job not in self._running:
                    self._add(job)
            case "gone":
                self._remove(job)
            case "lost" | "returned":
                pass

    def _add(self, job: int) -> None:
        place = bisect_left(self.jobs, job)
        if self._minimums[job].gpus and self.jobs[place : place + 1] != [job]:
            self.jobs.insert(place, job)

    def _remove(self, job: int) -> None:
        place = bisect_left(self.jobs, job)
        if self.jobs[place : place + 1] == [job]:
            del self.jobs[place]


class _SpareGpus:
    """What is kept by those who may keep it, GPU by GPU; all else on nodes that are up is room."""

    def __init__(self, history: History, minimums: Sequence[Demand]) -> None:
        self._history, self._minimums = history, minimums
        cluster = history.cluster
        widest = max(node.gpus for node in cluster.nodes)
        self._kept = np.zeros((len(cluster.nodes), widest), dtype=np.int64)
        self._exists = np.arange(widest) < np.array([node.gpus for node in cluster.nodes])[:, None]
        self._up = np.ones(len(cluster.nodes), dtype=bool)
        self._on_node: dict[str, Ints] = {
            what: np.zeros(len(cluster.nodes), dtype=np.int64) for what in ("held", "kept", "unpromised")
        }
        self._runs: dict[int, int] = {}
        self._promised: set[int] = set()
        self._ways = list(dict.fromkeys((demand.gpu_milli, demand.gpu_types) for demand in minimums))
        """How GPUs are asked for: thousandths of each, and of which types."""
        way = {way: row for row, way in enumerate(self._ways)}
        self._wanted = np.array(
            [(one.instances, one.gpus, way[one.gpu_milli, one.gpu_types]) for one in minimums], dtype=np.int64
        )
        self._accepting = [
            np.array([not types or node.gpu_type in types for node in cluster.nodes]) for _, types in way
        ]
        self._given = np.empty((cluster.gpus, 2), dtype=np.int64)

    def note(self, change: _Change) -> None:
        """What of a change touches room."""
        match change.what:
            case "starts":
                self._runs[change.job] = change.of
                self._hold(change.of, 1)
            case "ends":
                self._hold(change.of, -1)
                del self._runs[change.job]
            case "admitted":
                run = self._runs.get(change.job)
                if run is not None:
                    self._hold(run, -1)
                self._promised.add(change.job)
                if run is not None:
                    self._hold(run, 1)
            case "lost":
                self._up[change.of] = False
            case "returned":
                self._up[change.of] = True
            case "gone":
                pass

    def _hold(self, run: int, sign: int) -> None:
        job = int(self._history.runs.job[run])
        allocation = self._history.runs.allocations[run]
        kept = _kept_gpus(self._history.jobs.jobs[job], allocation, self._minimums[job], job in self._promised)
        for node, gpu, milli in kept:
            self._kept[node, gpu] += sign * milli
            self._on_node["kept"][node] += sign * milli
        for share in allocation.placement:
            milli = len(share.gpus) * share.gpu_milli
            self._on_node["held"][share.node] += sign * milli
            if not kept:
                self._on_node["unpromised"][share.node] += sign * milli

    def found_for(self, waiting: Sequence[int]) -> dict[int, list[int]]:
        """Those who would find room, and on which nodes; it is given away in the order of submission."""
        if not waiting:
            return {}
        usable = (self._exists & (self._kept <= WHOLE - milli) for milli, _ in self._ways)
        free = [
            np.where(self._up & accepting, gpus.sum(axis=1), 0)
            for gpus, accepting in zip(usable, self._accepting, strict=True)
        ]
        count = _give_away(np.array(waiting), self._wanted, np.array(free), self._given)
        found: dict[int, list[int]] = defaultdict(list)
        for job, node in self._given[:count].tolist():
            found[job].append(node)
        return found

    def why(self, job: int, nodes: list[int]) -> str:
        """What a job needs, and what there is on these nodes that it could have."""
        cluster: Cluster = self._history.cluster
        nodes = list(dict.fromkeys(nodes))
        held, kept, unpromised = (float(self._on_node[what][nodes].sum()) / WHOLE for what in self._on_node)
        free = sum(cluster.nodes[node].gpus for node in nodes) - held
        parts = {"free": free, "held without a promise": unpromised, "held above a minimum": held - kept - unpromised}
        there = ", ".join(f"{count:g} {what}" for what, count in parts.items() if round(count, 3) > 0)
        names = ", ".join(cluster.nodes[node].name for node in nodes)
        return f"needs {_gpus(self._minimums[job].total_gpus)}; on {names}: {there}"


@compiled
def _give_away(waiting: Ints, wanted: Ints, free: Ints, given: Ints) -> int:
    """Give room to each who waits, whole or not at all; pairs of job and node go to `given`, and their count is said.

    `wanted`: instances, GPUs of each, and which row of `free`, which has the GPUs of each node. An instance goes where
    room is scarcest.
    """
    count = 0
    taken = np.zeros(free.shape[1], dtype=np.int64)
    for job in waiting:
        instances, gpus, row = wanted[job]
        missing, begin = instances, count
        while missing > 0:
            scarcest = -1
            for node in range(free.shape[1]):
                left = free[row, node] - taken[node]
                if left >= gpus and (scarcest < 0 or left < free[row, scarcest] - taken[scarcest]):
                    scarcest = node
            if scarcest < 0:
                break
            taken[scarcest] += gpus
            given[count, 0], given[count, 1] = job, scarcest
            count += 1
            missing -= 1
        if missing > 0:
            for place in range(begin, count):
                taken[given[place, 1]] -= gpus
            count = begin
    return count


def _kept_gpus(job: Job, allocation: Allocation, minimum: Demand, promised: bool) -> list[tuple[int, int, Milli]]:
    """The GPUs that a run may keep: all, none, or its minimum, where it has most of them."""
    gpus = [(share.node, gpu, share.gpu_milli) for share in allocation.placement for gpu in share.gpus]
    if not job.preemptible:
        return gpus
    if not promised:
        return []
    if not job.reshapable:
        return gpus
    on_node: dict[int, int] = defaultdict(int)
    for node, _, _ in gpus:
        on_node[node] += 1
    gpus.sort(key=lambda one: (-on_node[one[0]], one))
    return gpus[: minimum.instances * minimum.gpus]
