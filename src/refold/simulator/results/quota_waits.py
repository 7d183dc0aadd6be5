"""Times in which jobs within their quota wait: for what, and whether GPUs could have been freed for them.

Only GPUs are considered, not CPUs and memory. Runs that are not preemptible keep all their GPUs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import groupby
from typing import NamedTuple

import numpy as np

from refold.journal import History
from refold.model import WHOLE, Allocation, Milli, Seconds
from refold.placement import Bools, Floats, Ints
from refold.simulator.results.quota_admission import JobKinds, rows

_UNSUITABLE = 1 << 60


class WaitingTime(NamedTuple):
    """An interval in which something is true of a waiting job, and a text about its beginning."""

    job: int
    since: Seconds
    until: Seconds
    text: str


class _Intervals:
    """Intervals, longer than `grace`, in which something is true of a job."""

    def __init__(self, grace: Seconds) -> None:
        self._grace = grace
        self._open: dict[int, tuple[Seconds, str]] = {}
        self._texts: dict[str, str] = {}
        """Texts that are equal are kept once."""
        self.closed: list[WaitingTime] = []

    def update(self, now: Seconds, jobs: Collection[int], text: Callable[[int], str]) -> None:
        """Begin and end intervals: from now on it is true of these jobs."""
        current = set(jobs)
        for job in [job for job in self._open if job not in current]:
            self._close(job, now)
        for job in jobs:
            if job not in self._open:
                found = text(job)
                self._open[job] = now, self._texts.setdefault(found, found)

    def close_all(self, now: Seconds) -> None:
        for job in list(self._open):
            self._close(job, now)

    def _close(self, job: int, now: Seconds) -> None:
        begin, text = self._open.pop(job)
        if now > begin + self._grace:
            self.closed.append(WaitingTime(job, begin, now, text))


def waiting_times(
    history: History, kinds: JobKinds, admitted: Floats, grace: Seconds
) -> tuple[list[WaitingTime], list[WaitingTime]]:
    """Return the times in which jobs wait although GPUs could be freed for them, and all times of waiting.

    Those that are not longer than `grace` are left out.
    """
    available = _AvailableGpus(history, kinds)
    waiting = _WaitingJobs(history, kinds, admitted)
    avoidable, all_waits = _Intervals(grace), _Intervals(grace)
    for now, changes in groupby(_changes(history, admitted), key=lambda change: change.at):
        for change in changes:
            available.apply(change)
            waiting.apply(change)
        nodes = available.assign(waiting.jobs)

        def explain(job: int, nodes: Mapping[int, list[int]] = nodes) -> str:
            return available.explain(job, nodes[job]) if job in nodes else available.obstacle(job)

        avoidable.update(now, nodes, explain)
        all_waits.update(now, waiting.jobs, explain)
    for intervals in (avoidable, all_waits):
        intervals.close_all(history.until)
    return avoidable.closed, all_waits.closed


class _Kind(IntEnum):
    """Kinds of changes, in the order in which those of the same time are applied."""

    RUN_ENDED = 0
    CAME_UP = 1
    WENT_DOWN = 2
    HOLD_CHANGED = 3
    JOB_ADMITTED = 4
    RUN_STARTED = 5
    JOB_ENDED = 6


class _Change(NamedTuple):
    """A change of a run, a job, a node or a GPU. `target`: number of the run, job, node change or hold."""

    at: Seconds
    kind: int
    target: int


def _changes(history: History, admitted: Floats) -> Iterator[_Change]:
    """Yield all changes in order of time."""
    runs, nodes, holds = history.runs, history.node_changes, history.holds
    started = np.flatnonzero(~(runs.end == runs.start))  # a run of zero length never holds GPUs
    ended = started[~np.isnan(runs.end[started])]
    jobs = np.flatnonzero(~np.isnan(admitted))
    ended_jobs = jobs[~np.isnan(history.jobs.ended[jobs])]
    changes = (
        (runs.end[ended], _Kind.RUN_ENDED, ended),
        (np.array([one.at for one in nodes]), [_Kind.CAME_UP if one.up else _Kind.WENT_DOWN for one in nodes], None),
        (holds.at, _Kind.HOLD_CHANGED, np.arange(len(holds))),
        (admitted[jobs], _Kind.JOB_ADMITTED, jobs),
        (runs.start[started], _Kind.RUN_STARTED, started),
        (history.jobs.ended[ended_jobs], _Kind.JOB_ENDED, ended_jobs),
    )
    at = np.concatenate([times for times, _, _ in changes])
    kind = np.concatenate([np.full(len(times), kinds, dtype=np.int8) for times, kinds, _ in changes])
    target = np.concatenate([np.arange(len(nodes)) if one is None else one for _, _, one in changes])
    order = np.lexsort((target, kind, at))
    for row in rows(order, at, kind, target):
        yield _Change(*row)


class _WaitingJobs:
    """Admitted jobs that request GPUs, are not held and have no run, in order of submission."""

    def __init__(self, history: History, kinds: JobKinds, admitted: Floats) -> None:
        self.jobs: list[int] = []
        self._job_of_run, self._holds, self._admitted = history.runs.job, history.holds, admitted
        self._requests_gpus = np.array([demand.gpus > 0 for demand in kinds.demands], dtype=bool)[kinds.demand]
        self._running: set[int] = set()
        self._held: set[int] = set()

    def apply(self, change: _Change) -> None:
        match change.kind:
            case _Kind.RUN_STARTED:
                job = int(self._job_of_run[change.target])
                self._running.add(job)
                self._remove(job)
            case _Kind.RUN_ENDED:
                job = int(self._job_of_run[change.target])
                self._running.discard(job)
                if self._admitted[job] <= change.at:
                    self._add(job)
            case _Kind.HOLD_CHANGED:
                job = int(self._holds.job[change.target])
                if self._holds.held[change.target]:
                    self._held.add(job)
                    self._remove(job)
                else:
                    self._held.discard(job)
                    if self._admitted[job] <= change.at and job not in self._running:
                        self._add(job)
            case _Kind.JOB_ADMITTED:
                if change.target not in self._running:
                    self._add(change.target)
            case _Kind.JOB_ENDED:
                self._remove(change.target)

    def _add(self, job: int) -> None:
        index = bisect_left(self.jobs, job)
        if self._requests_gpus[job] and job not in self._held and self.jobs[index : index + 1] != [job]:
            self.jobs.insert(index, job)

    def _remove(self, job: int) -> None:
        index = bisect_left(self.jobs, job)
        if self.jobs[index : index + 1] == [job]:
            del self.jobs[index]


class _AvailableGpus:
    """GPUs that could be given to waiting jobs: all that are up, except those that runs are entitled to."""

    def __init__(self, history: History, kinds: JobKinds) -> None:
        self._history, self._kinds = history, kinds
        cluster = history.cluster
        max_gpus = max(node.gpus for node in cluster.nodes)
        self._entitled = np.zeros((len(cluster.nodes), max_gpus), dtype=np.int64)
        """Thousandths of each GPU that runs are entitled to."""
        self._pinned = np.zeros_like(self._entitled)
        """Those of runs without a guarantee, which are not preemptible."""
        self._gpus_up = np.arange(max_gpus) < np.array([node.gpus for node in cluster.nodes])[:, None]
        """Whether each node has each GPU and it is up."""
        self._up = np.ones(len(cluster.nodes), dtype=bool)
        self._node_milli: dict[str, Ints] = {
            name: np.zeros(len(cluster.nodes), dtype=np.int64) for name in ("held", "entitled", "unguaranteed")
        }
        self._runs: dict[int, int] = {}
        self._guaranteed: Bools = np.zeros(len(history.jobs), dtype=bool)
        self._request_kinds = list(dict.fromkeys((demand.gpu_milli, demand.gpu_types) for demand in kinds.demands))
        """Distinct requests: thousandths of each GPU, and GPU types."""
        row_of = {kind: row for row, kind in enumerate(self._request_kinds)}
        self._requests = np.array(
            [(demand.instances, demand.gpus, row_of[demand.gpu_milli, demand.gpu_types]) for demand in kinds.demands],
            dtype=np.int64,
        )
        """Of each demand: instances, GPUs of each, and number of the distinct request."""
        self._type_matches = [
            np.array([not types or node.gpu_type in types for node in cluster.nodes]) for _, types in row_of
        ]

    def apply(self, change: _Change) -> None:
        match change.kind:
            case _Kind.RUN_STARTED:
                self._runs[int(self._history.runs.job[change.target])] = change.target
                self._hold(change.target, 1)
            case _Kind.RUN_ENDED:
                self._hold(change.target, -1)
                del self._runs[int(self._history.runs.job[change.target])]
            case _Kind.JOB_ADMITTED:
                run = self._runs.get(change.target)
                if run is not None:
                    self._hold(run, -1)
                self._guaranteed[change.target] = True
                if run is not None:
                    self._hold(run, 1)
            case _Kind.WENT_DOWN | _Kind.CAME_UP:
                node_change = self._history.node_changes[change.target]
                if node_change.gpu is None:
                    self._up[node_change.node] = node_change.up
                else:
                    self._gpus_up[node_change.node, node_change.gpu] = node_change.up

    def _hold(self, run: int, sign: int) -> None:
        job = int(self._history.runs.job[run])
        allocation, is_guaranteed = self._history.runs.allocations[run], self._guaranteed[job]
        entitled = self._entitled_gpus(job, allocation)
        for node, gpu, milli in entitled:
            self._entitled[node, gpu] += sign * milli
            self._pinned[node, gpu] += 0 if is_guaranteed else sign * milli
            self._node_milli["entitled"][node] += sign * milli
        for share in allocation.placement:
            milli = len(share.gpus) * share.gpu_milli
            self._node_milli["held"][share.node] += sign * milli
            if not entitled:
                self._node_milli["unguaranteed"][share.node] += sign * milli

    def _entitled_gpus(self, job: int, allocation: Allocation) -> list[tuple[int, int, Milli]]:
        """Return the GPUs that a run is entitled to: all, none, or its minimum on the nodes where it holds most."""
        is_guaranteed = self._guaranteed[job]
        if self._kinds.preemptible[job] and not is_guaranteed:
            return []
        gpus = [(share.node, gpu, share.gpu_milli) for share in allocation.placement for gpu in share.gpus]
        if not self._kinds.preemptible[job] or not self._kinds.reshapable[job]:
            return gpus
        on_node: dict[int, int] = defaultdict(int)
        for node, _, _ in gpus:
            on_node[node] += 1
        gpus.sort(key=lambda gpu: (-on_node[gpu[0]], gpu))
        minimum = self._kinds.minimum(job)
        return gpus[: minimum.instances * minimum.gpus]

    def assign(self, waiting: Sequence[int]) -> dict[int, list[int]]:
        """Assign the available GPUs to waiting jobs in order of submission; return the nodes of each job that fits."""
        if not waiting:
            return {}
        free = np.array([self._free_gpus(kind, self._entitled) for kind in range(len(self._request_kinds))])
        requests, do_not_fit, nodes_by_job = self._requests.tolist(), set[int](), dict[int, list[int]]()
        for job, demand in zip(waiting, self._kinds.demand[waiting].tolist(), strict=True):
            if demand in do_not_fit:
                continue
            instances, gpus, kind = requests[demand]
            taken = _best_fit(free[kind], instances, gpus)
            if not taken:
                do_not_fit.add(demand)
                continue
            nodes_by_job[job] = list(taken)
            for node, gpus_taken in taken.items():
                free[:, node] -= gpus_taken
        return nodes_by_job

    def _free_gpus(self, kind: int, held: Ints) -> Ints:
        """Return the number of GPUs of each node that a kind of request can use, if these thousandths are held."""
        gpus = self._gpus_up & (held <= WHOLE - self._request_kinds[kind][0])
        free: Ints = np.where(self._up & self._type_matches[kind], gpus.sum(axis=1), 0)
        return free

    def obstacle(self, job: int) -> str:
        """Return why a job waits that cannot be given GPUs now."""
        instances, gpus, kind = self._requests[self._kinds.demand[job]].tolist()
        free = self._free_gpus(kind, self._entitled)
        needs = f"needs {format_gpus(self._kinds.minimum(job).total_gpus)}"
        if (free // gpus).sum() >= instances:
            return f"{needs}: guaranteed jobs that were submitted earlier wait for the same GPUs"
        if (self._free_gpus(kind, self._entitled - self._pinned) // gpus).sum() >= instances:
            return f"{needs}: held by runs that are not preemptible"
        if free.sum() >= instances * gpus:
            return f"{needs}: fits only if guaranteed runs are moved to other nodes"
        return f"{needs}: {free.sum()} are up and not guaranteed to other jobs"

    def explain(self, job: int, nodes: list[int]) -> str:
        held, entitled, unguaranteed = (float(milli[nodes].sum()) / WHOLE for milli in self._node_milli.values())
        free = float(self._gpus_up[nodes].sum()) - held
        counts = {
            "free": free,
            "held without a guarantee": unguaranteed,
            "held above a minimum": held - entitled - unguaranteed,
        }
        available = ", ".join(f"{count:g} {name}" for name, count in counts.items() if round(count, 3) > 0)
        names = ", ".join(self._history.cluster.nodes[node].name for node in nodes)
        return f"needs {format_gpus(self._kinds.minimum(job).total_gpus)}; on {names}: {available}"


def _best_fit(free: Ints, instances: int, gpus: int) -> dict[int, int]:
    """Place instances with so many GPUs each on the nodes with the fewest free GPUs that suffice.

    Return the nodes, with the GPUs taken of each; none if not all instances fit.
    """
    taken: dict[int, int] = {}
    unused = np.where(free >= gpus, free, _UNSUITABLE)
    while instances:
        node = int(unused.argmin())
        if unused[node] == _UNSUITABLE:
            return {}
        placed = min(instances, int(free[node]) // gpus)
        taken[node], unused[node] = placed * gpus, _UNSUITABLE
        instances -= placed
    return taken


def format_gpus(count: float) -> str:
    """Format '0.5 GPU', '1 GPU' or '8 GPUs'."""
    return f"{count:g} GPU{'' if 0 < count <= 1 else 's'}"
