"""Guarantee violations: guaranteed jobs that were slower than guaranteed, or waited although resources could be freed.

A guaranteed job within its tenant's quota is guaranteed the speed that it would have with its own plan on the resources
it requested. It uses as much of the quota as its minimum demand (`plans.Minimums`). Jobs are admitted in order of
submission, then of their ids, if they fit the remaining quota, and stay admitted until they end; a job that does not
fit does not block later jobs.

There are two kinds of violations. Each counts only after a grace period, the longest time that a stop has taken:

- *slow*: the job runs below the guaranteed speed;
- *waiting*: the job waits although its minimum demand would fit if all jobs without a guarantee released their GPUs and
  all jobs with one released the GPUs they hold above their minimum. These GPUs are assigned to the waiting jobs in
  order of submission, so that GPUs for one job do not count as a violation for two.

Only GPUs are considered, not CPUs and memory. Runs that are not preemptible keep all their GPUs.

Every other time in which a job within its quota waits is listed as well, with what it waits for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import inf, isnan
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from refold.jit import compiled
from refold.journal import History, Outcome
from refold.model import WHOLE, Allocation, Cluster, Demand, Job, Milli, Seconds
from refold.packing import Ints
from refold.plans import GUARANTEE_TOLERANCE, Minimums, ModelledSpeedSource, Speeds, SpeedSource

GPU_TOLERANCE = 1e-6
"""Rounding error, in GPUs, of sums of GPU fractions."""

ViolationKind = Literal["slow", "waiting"]


class Violation(msgspec.Struct, frozen=True):
    """An interval, after the grace period, in which the guarantee of a job was violated, and the reason."""

    job: str
    since: Seconds
    until: Seconds
    kind: ViolationKind
    why: str


class QuotaWait(msgspec.Struct, frozen=True):
    """An interval, longer than the grace period, in which a job within its quota had no run, and what it waited for."""

    job: str
    since: Seconds
    until: Seconds
    cause: str


class GuaranteeReport(msgspec.Struct, frozen=True):
    """The number of jobs with a guarantee, the number of them with violations, and the total time of violations.

    `waits`: all times in which jobs within their quota waited, whether they could have been avoided or not.
    """

    guaranteed_jobs: int
    violated_jobs: int
    seconds: Seconds
    violations: tuple[Violation, ...]
    waits: tuple[QuotaWait, ...] = ()


def find_violations(
    history: History,
    speeds: Speeds,
    speed_source: SpeedSource | None = None,
    *,
    measured: SpeedSource | None = None,
    grace: Seconds | None = None,
    tolerance: float = GUARANTEE_TOLERANCE,
) -> GuaranteeReport:
    """Find the guarantee violations of a history, with speeds from the performance model or from `speed_source`.

    `grace`: the time that it may take to free GPUs; None: the longest time that a stop has taken in the history.

    Minimum demands, and with them the use of quotas, always come from `speed_source`, because a scheduler gives
    guarantees by what it predicts. With `measured`, slow runs are determined by those speeds instead.
    """
    speed_source = speed_source or ModelledSpeedSource(speeds)
    minimums = Minimums(speeds, speed_source)
    demands = [minimums.for_job(job) for job in history.jobs.jobs]
    admitted = admission_times(history, demands)
    grace = longest_stop(history) if grace is None else grace
    avoidable, waits = _waits(history, demands, admitted, grace)
    violations = [*_slow_runs(history, measured or speed_source, admitted, grace, tolerance), *avoidable]
    violations.sort(key=lambda violation: (violation.since, violation.job))
    return GuaranteeReport(
        guaranteed_jobs=len(admitted),
        violated_jobs=len({violation.job for violation in violations}),
        seconds=sum(violation.until - violation.since for violation in violations),
        violations=tuple(violations),
        waits=tuple(sorted(waits, key=lambda wait: (wait.since, wait.job))),
    )


def check_guarantees(history: History) -> GuaranteeReport | None:
    """Return the guarantees of a history by the performance model; None if no tenant has a quota."""
    if not any(tenant.quota_gpus for tenant in history.cluster.tenants):
        return None
    return find_violations(history, Speeds(history.cluster))


def longest_stop(history: History) -> Seconds:
    """Return the longest time from an order to stop a run to its end; 0 if no run was stopped."""
    stops = history.runs.end - history.runs.stop_ordered
    return float(np.nanmax(stops)) if np.isfinite(stops).any() else 0.0


def admission_times(history: History, minimums: Sequence[Demand]) -> dict[int, Seconds]:
    """Return the time from which each guaranteed job is within its tenant's quota; it stays so until it ends.

    Without quotas there are no guarantees: the cluster cannot guarantee resources to all jobs.
    """
    admitted: dict[int, Seconds] = {}
    if not history.cluster.tenants:
        return admitted
    queues: dict[str, list[int]] = defaultdict(list)
    used: dict[str, float] = defaultdict(float)
    for now, job, is_submission in _submissions_and_ends(history):
        tenant, size = history.jobs.jobs[job].tenant, minimums[job].total_gpus
        queue = queues[tenant]
        if is_submission:
            queue.append(job)
        elif job in admitted:
            used[tenant] -= size
        else:
            queue.remove(job)
        for queued in [job] if is_submission else list(queue):
            need = minimums[queued].total_gpus
            if used[tenant] + need <= history.cluster.quota_gpus(tenant) + GPU_TOLERANCE:
                used[tenant] += need
                admitted[queued] = now
                queue.remove(queued)
    return admitted


def _submissions_and_ends(history: History) -> Iterator[tuple[Seconds, int, bool]]:
    """Yield time, job and whether it is a submission, for all feasible guaranteed jobs, in order of time.

    At the same time, ends come before submissions, and these are in the order of job ids.
    """
    jobs = history.jobs
    times: list[tuple[Seconds, bool, str, int]] = []
    for index, job in enumerate(jobs.jobs):
        if job.job_class == "guaranteed" and jobs.outcome[index] != Outcome.INFEASIBLE:
            times.append((float(jobs.submitted[index]), True, job.id, index))
            if not isnan(jobs.ended[index]):
                at_once = bool(jobs.ended[index] <= jobs.submitted[index])
                times.append((float(jobs.ended[index]), at_once, job.id, index))
    times.sort()
    seen: set[int] = set()
    for now, _, _, index in times:
        yield now, index, index not in seen
        seen.add(index)


# --- slow runs ----------------------------------------------------------------------------------------------


def _slow_runs(
    history: History, speed_source: SpeedSource, admitted: dict[int, Seconds], grace: Seconds, tolerance: float
) -> Iterator[Violation]:
    """Yield the violations of runs below the guaranteed speed; consecutive slow runs of a job count as one."""
    runs, ends = history.runs, history.run_end
    since: dict[int, Seconds] = {}
    reason: dict[int, str] = {}
    until: dict[int, Seconds] = {}

    def close(job: int) -> Iterator[Violation]:
        begin = since.pop(job, None)
        if begin is not None and until[job] > begin + grace:
            yield Violation(history.jobs.jobs[job].id, begin + grace, until[job], "slow", reason[job])

    for run in range(len(runs)):
        job = int(runs.job[run])
        if job not in admitted:
            continue
        speed = speed_source.speed(history.jobs.jobs[job], runs.allocations[run])
        slow = speed < 1 - tolerance
        if not slow or runs.start[run] > until.get(job, -inf):
            yield from close(job)
        if slow:
            if job not in since:
                since[job] = max(float(np.fmax(runs.start[run], runs.computing_since[run])), admitted[job])
                reason[job] = f"{speed:.2f} × the guaranteed speed, on {_format_gpus(float(runs.gpus[run]))}"
            until[job] = float(ends[run])
    for job in list(since):
        yield from close(job)


def _format_gpus(count: float) -> str:
    return f"{count:g} GPU{'' if 0 < count <= 1 else 's'}"


# --- waits --------------------------------------------------------------------------------------------------


class _Intervals:
    """Intervals in which something is true of a job, each with a text."""

    def __init__(self) -> None:
        self.open: dict[int, tuple[Seconds, str]] = {}
        self.closed: list[tuple[int, Seconds, Seconds, str]] = []

    def update(self, now: Seconds, jobs: Collection[int], text: Callable[[int], str]) -> None:
        """Begin and end intervals: from now on it is true of these jobs."""
        for job in [job for job in self.open if job not in jobs]:
            self.close(job, now)
        for job in jobs:
            if job not in self.open:
                self.open[job] = now, text(job)

    def close(self, job: int, now: Seconds) -> None:
        """End the interval of a job."""
        begin, text = self.open.pop(job)
        self.closed.append((job, begin, now, text))


def _waits(
    history: History, minimums: Sequence[Demand], admitted: dict[int, Seconds], grace: Seconds
) -> tuple[list[Violation], list[QuotaWait]]:
    """Return the violations of jobs that wait although GPUs could be freed for them, and all times of waiting."""
    available = _AvailableGpus(history, minimums)
    waiting = _WaitingJobs(minimums)
    avoidable, all_waits = _Intervals(), _Intervals()
    for now, changes in _changes_by_time(history, admitted):
        for change in changes:
            available.apply(change)
            waiting.apply(change, admitted, now)
        nodes = available.assign(waiting.jobs)

        def explain(job: int, nodes: Mapping[int, list[int]] = nodes) -> str:
            return available.explain(job, nodes[job]) if job in nodes else available.obstacle(job)

        avoidable.update(now, nodes, explain)
        all_waits.update(now, waiting.jobs, explain)
    for intervals in (avoidable, all_waits):
        for job in list(intervals.open):
            intervals.close(job, history.until)
    ids = [job.id for job in history.jobs.jobs]
    return (
        [
            Violation(ids[job], since + grace, until, "waiting", why)
            for job, since, until, why in avoidable.closed
            if until > since + grace
        ],
        [
            QuotaWait(ids[job], since, until, why)
            for job, since, until, why in all_waits.closed
            if until > since + grace
        ],
    )


ALL_GPUS = -1
"""Instead of a GPU: the node as a whole."""

_ChangeKind = Literal["run ended", "job ended", "came up", "went down", "job admitted", "run started"]


class _Change(NamedTuple):
    """A change of a run, a job, a node or a GPU. At the same time, ended runs are applied before started ones."""

    order: int
    kind: _ChangeKind
    target: int
    """Index of the run, the job or the node."""
    job: int = -1
    gpu: int = ALL_GPUS


def _changes_by_time(history: History, admitted: dict[int, Seconds]) -> Iterator[tuple[Seconds, list[_Change]]]:
    changes_at: dict[Seconds, list[_Change]] = defaultdict(list)
    for run, (job, start, end) in enumerate(
        zip(history.runs.job.tolist(), history.runs.start.tolist(), history.runs.end.tolist(), strict=True)
    ):
        if end == start:
            continue  # a run of zero length never holds GPUs
        changes_at[start].append(_Change(3, "run started", run, job))
        if not isnan(end):
            changes_at[end].append(_Change(0, "run ended", run, job))
    for job, since in admitted.items():
        changes_at[since].append(_Change(2, "job admitted", job, job))
        ended = float(history.jobs.ended[job])
        if not isnan(ended):
            changes_at[ended].append(_Change(4, "job ended", job, job))
    for node_change in history.node_changes:
        gpu = ALL_GPUS if node_change.gpu is None else node_change.gpu
        kind: _ChangeKind = "came up" if node_change.up else "went down"
        changes_at[node_change.at].append(_Change(1, kind, node_change.node, gpu=gpu))
    for now in sorted(changes_at):
        yield now, sorted(changes_at[now])


class _WaitingJobs:
    """Admitted jobs that request GPUs and have no run, in order of submission."""

    def __init__(self, minimums: Sequence[Demand]) -> None:
        self.jobs: list[int] = []
        self._minimums = minimums
        self._running: set[int] = set()

    def apply(self, change: _Change, admitted: dict[int, Seconds], now: Seconds) -> None:
        """Update the waiting jobs."""
        job = change.job
        match change.kind:
            case "run started":
                self._running.add(job)
                self._remove(job)
            case "run ended":
                self._running.discard(job)
                if job in admitted and admitted[job] <= now:
                    self._add(job)
            case "job admitted":
                if job not in self._running:
                    self._add(job)
            case "job ended":
                self._remove(job)
            case "went down" | "came up":
                pass

    def _add(self, job: int) -> None:
        index = bisect_left(self.jobs, job)
        if self._minimums[job].gpus and self.jobs[index : index + 1] != [job]:
            self.jobs.insert(index, job)

    def _remove(self, job: int) -> None:
        index = bisect_left(self.jobs, job)
        if self.jobs[index : index + 1] == [job]:
            del self.jobs[index]


class _AvailableGpus:
    """GPUs that could be given to waiting jobs: all that are up, except those that runs are entitled to."""

    def __init__(self, history: History, minimums: Sequence[Demand]) -> None:
        self._history, self._minimums = history, minimums
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
        self._guaranteed: set[int] = set()
        self._request_kinds = list(dict.fromkeys((demand.gpu_milli, demand.gpu_types) for demand in minimums))
        """Distinct requests: thousandths of each GPU, and GPU types."""
        row_of = {kind: row for row, kind in enumerate(self._request_kinds)}
        self._requests = np.array(
            [(demand.instances, demand.gpus, row_of[demand.gpu_milli, demand.gpu_types]) for demand in minimums],
            dtype=np.int64,
        )
        self._type_matches = [
            np.array([not types or node.gpu_type in types for node in cluster.nodes]) for _, types in row_of
        ]
        self._assigned = np.empty((cluster.gpus, 2), dtype=np.int64)

    def apply(self, change: _Change) -> None:
        """Update the available GPUs."""
        match change.kind:
            case "run started":
                self._runs[change.job] = change.target
                self._hold(change.target, 1)
            case "run ended":
                self._hold(change.target, -1)
                del self._runs[change.job]
            case "job admitted":
                run = self._runs.get(change.job)
                if run is not None:
                    self._hold(run, -1)
                self._guaranteed.add(change.job)
                if run is not None:
                    self._hold(run, 1)
            case "went down" | "came up":
                if change.gpu == ALL_GPUS:
                    self._up[change.target] = change.kind == "came up"
                else:
                    self._gpus_up[change.target, change.gpu] = change.kind == "came up"
            case "job ended":
                pass

    def _hold(self, run: int, sign: int) -> None:
        job = int(self._history.runs.job[run])
        allocation = self._history.runs.allocations[run]
        entitled = _entitled_gpus(
            self._history.jobs.jobs[job], allocation, self._minimums[job], job in self._guaranteed
        )
        for node, gpu, milli in entitled:
            self._entitled[node, gpu] += sign * milli
            self._pinned[node, gpu] += sign * milli if job not in self._guaranteed else 0
            self._node_milli["entitled"][node] += sign * milli
        for share in allocation.placement:
            milli = len(share.gpus) * share.gpu_milli
            self._node_milli["held"][share.node] += sign * milli
            if not entitled:
                self._node_milli["unguaranteed"][share.node] += sign * milli

    def assign(self, waiting: Sequence[int]) -> dict[int, list[int]]:
        """Assign the available GPUs to waiting jobs in order of submission; return the nodes of each job that fits."""
        if not waiting:
            return {}
        free = [self._free_gpus(kind, self._entitled) for kind in range(len(self._request_kinds))]
        count = _assign(np.array(waiting), self._requests, np.array(free), self._assigned)
        nodes_by_job: dict[int, list[int]] = defaultdict(list)
        for job, node in self._assigned[:count].tolist():
            nodes_by_job[job].append(node)
        return nodes_by_job

    def _free_gpus(self, kind: int, held: Ints) -> Ints:
        """Return the number of GPUs of each node that a kind of request can use, if these thousandths are held."""
        gpus = self._gpus_up & (held <= WHOLE - self._request_kinds[kind][0])
        free: Ints = np.where(self._up & self._type_matches[kind], gpus.sum(axis=1), 0)
        return free

    def obstacle(self, job: int) -> str:
        """Return why a job waits that cannot be given GPUs now."""
        instances, gpus, kind = self._requests[job].tolist()
        free = self._free_gpus(kind, self._entitled)
        needs = f"needs {_format_gpus(self._minimums[job].total_gpus)}"
        if (free // gpus).sum() >= instances:
            return f"{needs}: guaranteed jobs that were submitted earlier wait for the same GPUs"
        if (self._free_gpus(kind, self._entitled - self._pinned) // gpus).sum() >= instances:
            return f"{needs}: held by runs that are not preemptible"
        if free.sum() >= instances * gpus:
            return f"{needs}: fits only if guaranteed runs are moved to other nodes"
        return f"{needs}: {free.sum()} are up and not guaranteed to other jobs"

    def explain(self, job: int, nodes: list[int]) -> str:
        """Return what a job needs and which GPUs of these nodes it could get."""
        cluster: Cluster = self._history.cluster
        nodes = list(dict.fromkeys(nodes))
        held, entitled, unguaranteed = (float(milli[nodes].sum()) / WHOLE for milli in self._node_milli.values())
        free = float(self._gpus_up[nodes].sum()) - held
        counts = {
            "free": free,
            "held without a guarantee": unguaranteed,
            "held above a minimum": held - entitled - unguaranteed,
        }
        available = ", ".join(f"{count:g} {name}" for name, count in counts.items() if round(count, 3) > 0)
        names = ", ".join(cluster.nodes[node].name for node in nodes)
        return f"needs {_format_gpus(self._minimums[job].total_gpus)}; on {names}: {available}"


@compiled
def _assign(waiting: Ints, requests: Ints, free: Ints, assigned: Ints) -> int:
    """Assign GPUs to waiting jobs, all or nothing; write pairs of job and node to `assigned`, return their number.

    `requests` has the instances of each job, the GPUs per instance, and the row of `free`, which has the available GPUs
    of each node for this kind of request. An instance is placed on the node with the fewest GPUs left (best fit).
    """
    count = 0
    taken = np.zeros(free.shape[1], dtype=np.int64)
    for job in waiting:
        instances, gpus, row = requests[job]
        missing, begin = instances, count
        while missing > 0:
            fullest = -1
            for node in range(free.shape[1]):
                remaining = free[row, node] - taken[node]
                if remaining >= gpus and (fullest < 0 or remaining < free[row, fullest] - taken[fullest]):
                    fullest = node
            if fullest < 0:
                break
            taken[fullest] += gpus
            assigned[count, 0], assigned[count, 1] = job, fullest
            count += 1
            missing -= 1
        if missing > 0:
            for index in range(begin, count):
                taken[assigned[index, 1]] -= gpus
            count = begin
    return count


def _entitled_gpus(job: Job, allocation: Allocation, minimum: Demand, guaranteed: bool) -> list[tuple[int, int, Milli]]:
    """Return the GPUs that a run is entitled to: all, none, or its minimum on the nodes where it holds most."""
    gpus = [(share.node, gpu, share.gpu_milli) for share in allocation.placement for gpu in share.gpus]
    if not job.preemptible:
        return gpus
    if not guaranteed:
        return []
    if not job.reshapable:
        return gpus
    on_node: dict[int, int] = defaultdict(int)
    for node, _, _ in gpus:
        on_node[node] += 1
    gpus.sort(key=lambda gpu: (-on_node[gpu[0]], gpu))
    return gpus[: minimum.instances * minimum.gpus]
