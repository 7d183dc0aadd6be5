"""Measures of a history. What each one means, with its formula and unit, is in docs/measures.md.

Time averages are integrals over intervals, so they are exact; only fragmentation is looked at in samples.
What cannot be said (the mean of nothing) is None.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import msgspec
import numpy as np

from refold.journal import Ending, History, Outcome, sums
from refold.model import HOUR, WHOLE, Job, JobClass, Seconds
from refold.packing import Floats, Ints
from refold.results.power import PowerUse, power_use
from refold.results.start_estimates import StartEstimateMeasures, passed_over, promise_measures
from refold.results.time_series import fragmentation, in_system, overlap

SHORT: Seconds = 10.0
"""Slowdowns take no job to be shorter than this, or jobs of one second would be all that counts."""

FRAGMENT_SAMPLES = 400
CURVE_POINTS = 100


class Spread(msgspec.Struct, frozen=True):
    """How a quantity spreads over `count` jobs."""

    count: int = 0
    mean: float | None = None
    median: float | None = None
    p90: float | None = None
    p99: float | None = None
    most: float | None = None


class OutcomeCounts(msgspec.Struct, frozen=True):
    """How many jobs ended in which way, or did not."""

    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    running: int = 0
    waiting: int = 0
    infeasible: int = 0


class MeasureGroup(msgspec.Struct, frozen=True):
    """The main numbers of some of the jobs: a tenant's, those of one size, or of one class."""

    name: str
    jobs: int
    outcomes: OutcomeCounts
    completion: Spread
    waiting: Spread
    slowdown: Spread
    gpu_hours: float
    preemptions: int


class AtStart(msgspec.Struct, frozen=True):
    """The part of all GPUs that is allocated right after the `started`-th start."""

    started: int
    allocation: float


class Measures(msgspec.Struct, frozen=True):
    """All of them. Times are seconds; allocation and fragmentation are parts of all GPUs, 0 to 1."""

    jobs: int
    outcomes: OutcomeCounts
    completion: Spread
    waiting: Spread
    to_first_start: Spread
    slowdown: Spread
    finish_time_fairness: Spread
    makespan: Seconds | None
    busy_window: tuple[Seconds, Seconds] | None
    allocation: float | None
    allocation_overall: float | None
    allocation_at_start: tuple[AtStart, ...]
    utilisation: float | None
    fragmentation: float | None
    gpu_hours: float
    runs: int
    preemptions: int
    reshapes: int
    reshapes_per_job: float | None
    failures: int
    lost_seconds: Seconds
    lost_gpu_hours: float
    overhead_gpu_hours: float
    overhead_share: float | None
    jain_tenants: float | None
    jain_jobs: float | None
    tenants: tuple[MeasureGroup, ...]
    sizes: tuple[MeasureGroup, ...]
    classes: tuple[MeasureGroup, ...]
    power: PowerUse | None = None
    passed_over: Spread = Spread()
    promises: StartEstimateMeasures | None = None


def measure(history: History) -> Measures:
    """Everything that can be said of a history."""
    jobs, runs = history.jobs, history.runs
    per_job = _PerJob(history)
    busy = busy_window(history)
    everyone = np.arange(len(jobs))
    sizes = np.array([size_of(job) for job in jobs.jobs], dtype=np.int64)
    lost = lost_seconds(history)
    overhead, reshapes = float((overhead_seconds(history) * runs.gpus).sum()), _reshapes(history)
    return Measures(
        jobs=len(jobs),
        outcomes=_outcomes(jobs.outcome),
        completion=spread_of(per_job.completion),
        waiting=spread_of(per_job.waiting),
        to_first_start=spread_of(jobs.first_start - jobs.submitted),
        slowdown=spread_of(per_job.slowdown),
        finish_time_fairness=spread_of(_finish_time_fairness(history, per_job.completion, per_job.work)),
        makespan=_makespan(history),
        busy_window=busy,
        allocation=_allocation(history, busy),
        allocation_overall=_allocation(history, _whole_window(history)),
        allocation_at_start=_allocation_at_start(history),
        utilisation=None,  # no event says yet how busy a held GPU was
        fragmentation=_mean_fragmentation(history, busy or _whole_window(history)),
        gpu_hours=float(history.gpu_seconds.sum()) / HOUR,
        runs=len(runs),
        preemptions=int((runs.ending == Ending.STOPPED).sum()),
        reshapes=reshapes,
        reshapes_per_job=_part(reshapes, _reshapable_jobs(history)),
        failures=int((runs.ending == Ending.FAILED).sum()),
        lost_seconds=float(lost.sum()),
        lost_gpu_hours=float((lost * runs.gpus).sum()) / HOUR,
        overhead_gpu_hours=overhead / HOUR,
        overhead_share=_part(overhead, float(history.gpu_seconds.sum())),
        jain_tenants=_jain_tenants(history, per_job.work, busy),
        jain_jobs=jain(per_job.slowdown[~np.isnan(per_job.slowdown)]),
        tenants=_groups(per_job, history.tenants, jobs.tenant, everyone),
        sizes=_groups(per_job, SIZES, sizes, everyone),
        classes=_groups(per_job, CLASSES, _class_numbers(jobs.jobs), everyone),
        power=power_use(history),
        passed_over=spread_of(passed_over(history)),
        promises=promise_measures(history, SIZES, sizes),
    )


def _part(part: float, whole: float) -> float | None:
    return part / whole if whole else None


class _PerJob:
    """Columns that several measures share; nan for jobs that did not finish."""

    def __init__(self, history: History) -> None:
        jobs = history.jobs
        finished = np.where(jobs.outcome == Outcome.FINISHED, jobs.ended, np.nan)
        self.outcome = jobs.outcome
        self.work = work_of(history)
        self.completion: Floats = finished - jobs.submitted
        # Ends and starts are rounded each on its own, so that a job that never waited may be dust below 0.
        self.waiting: Floats = np.maximum(self.completion - history.time_running, 0.0)
        self.slowdown: Floats = np.maximum(self.completion, SHORT) / np.maximum(self.work, SHORT)
        self.gpu_hours: Floats = history.gpu_seconds / HOUR
        self.preemptions: Floats = history.per_job((history.runs.ending == Ending.STOPPED).astype(np.float64))


def spread_of(values: Floats) -> Spread:
    """How these values spread; those that are nan are not there."""
    there = values[~np.isnan(values)]
    if not len(there):
        return Spread()
    median, p90, p99 = np.percentile(there, (50, 90, 99)).tolist()
    return Spread(len(there), float(there.mean()), median, p90, p99, float(there.max()))


def jain(shares: Floats) -> float | None:
    """Jain's index: 1 if all are equal, 1/n if one has all; None of nothing, or if nobody has anything."""
    squares = float((shares**2).sum())
    return float(shares.sum()) ** 2 / (len(shares) * squares) if squares > 0 else None


def work_of(history: History) -> Floats:
    """Seconds each job runs on what it asked for; where nobody said, as long as it did run."""
    return np.where(np.isnan(history.jobs.work), history.time_running, history.jobs.work)


def busy_window(history: History) -> tuple[Seconds, Seconds] | None:
    """While work still arrives: from the first submission to the last; None if all came at once."""
    first, last = history.first_submission, history.last_submission
    return (first, last) if first < last else None


def _whole_window(history: History) -> tuple[Seconds, Seconds] | None:
    makespan = _makespan(history)
    return (history.first_submission, history.first_submission + makespan) if makespan else None


def _makespan(history: History) -> Seconds | None:
    return float(history.run_end.max()) - history.first_submission if len(history.runs) else None


def _allocation(history: History, window: tuple[Seconds, Seconds] | None) -> float | None:
    if window is None or not history.cluster.gpus:
        return None
    held = overlap(history.runs.start, history.run_end, *window) * history.runs.gpus
    return float(held.sum()) / (history.cluster.gpus * (window[1] - window[0]))


def _allocation_at_start(history: History) -> tuple[AtStart, ...]:
    runs, gpus = history.runs, history.cluster.gpus
    if not len(runs) or not gpus:
        return ()
    # Within one step ends come before starts, so steps and not times say what a start found in place.
    ended = runs.end_step >= 0
    order = np.argsort(runs.end_step[ended], kind="stable")
    given_back = np.concatenate([[0.0], np.cumsum(runs.gpus[ended][order])])
    ends_before = np.searchsorted(runs.end_step[ended][order], runs.start_step, side="right")
    held = np.cumsum(runs.gpus) - given_back[ends_before]
    chosen = np.unique(np.linspace(0, len(runs) - 1, CURVE_POINTS).round().astype(np.int64))
    return tuple(AtStart(index + 1, round(float(held[index]) / gpus, 6)) for index in chosen.tolist())


def _mean_fragmentation(history: History, window: tuple[Seconds, Seconds] | None) -> float | None:
    if window is None or not history.cluster.gpus or not history.jobs.gpus.any():
        return None
    return float(fragmentation(history, middles(*window, FRAGMENT_SAMPLES)).mean())


def middles(first: Seconds, last: Seconds, count: int) -> Floats:
    """The middles of `count` equal slots of a window."""
    edges = np.linspace(first, last, count + 1)
    halves: Floats = (edges[:-1] + edges[1:]) / 2
    return halves


def _finish_time_fairness(history: History, completion: Floats, work: Floats) -> Floats:
    """Completion over what it would be on an equal share of the GPUs (Themis, NSDI'20).

    rho = T / (w · max(1, d · N / G)): T completion, w work, d GPUs asked for, G GPUs in all, and N the mean
    number of GPU jobs in the system while this one was.
    """
    jobs, gpus = history.jobs, history.cluster.gpus
    finished = ~np.isnan(completion)
    rivals = np.ones(len(jobs))
    present = in_system(history, np.flatnonzero((jobs.gpus > 0) & (jobs.outcome != Outcome.INFEASIBLE)))
    stays = finished & (completion > 0)
    area = present.integral(jobs.ended[stays]) - present.integral(jobs.submitted[stays])
    rivals[stays] = area / completion[stays]
    on_equal_share = work * np.maximum(1.0, jobs.gpus * rivals / max(gpus, 1))
    fairness: Floats = np.maximum(completion, SHORT) / np.maximum(on_equal_share, SHORT)
    return fairness


def _jain_tenants(history: History, work: Floats, busy: tuple[Seconds, Seconds] | None) -> float | None:
    """Over tenants: GPU-seconds received in the busy window, per those received if nobody had ever waited."""
    if busy is None:
        return None
    jobs, runs = history.jobs, history.runs
    chance = np.where(jobs.outcome == Outcome.INFEASIBLE, 0.0, jobs.gpus)
    asked = sums(jobs.tenant, overlap(jobs.submitted, jobs.submitted + work, *busy) * chance, len(history.tenants))
    held = overlap(runs.start, history.run_end, *busy) * runs.gpus
    received = sums(jobs.tenant[runs.job], held, len(history.tenants))
    wanting = asked > 0
    return jain(received[wanting] / asked[wanting])


def _reshapes(history: History) -> int:
    """Runs of reshapable jobs that began in the very step in which their job's last run had stopped."""
    runs = history.runs
    order = np.lexsort((runs.number, runs.job))
    before, after = order[:-1], order[1:]
    same_job = runs.job[before] == runs.job[after]
    stopped = runs.ending[before] == Ending.STOPPED
    at_once = runs.end_step[before] == runs.start_step[after]
    found = np.flatnonzero(same_job & stopped & at_once)
    return sum(history.jobs.jobs[job].reshapable for job in runs.job[after[found]].tolist())


def _reshapable_jobs(history: History) -> int:
    """How many jobs that may be reshaped were started."""
    started = np.flatnonzero(~np.isnan(history.jobs.first_start)).tolist()
    return sum(history.jobs.jobs[job].reshapable for job in started)


def lost_seconds(history: History) -> Floats:
    """Seconds that each run computed for nothing: only failed runs did, and what they kept is not lost."""
    runs = history.runs
    lost = np.zeros(len(runs))
    for run in np.flatnonzero(runs.ending == Ending.FAILED).tolist():
        computed = runs.end[run] - runs.computing[run]
        kept = max(0.0, runs.kept[run] - runs.kept_before[run]) / _speed(history, run)
        lost[run] = max(0.0, computed - kept)
    return lost


def _speed(history: History, run: int) -> float:
    """Seconds of work per second, by the GPU types' speeds and, for jobs of changing shape, the GPUs held."""
    cluster, allocation = history.cluster, history.runs.allocations[run]
    job: Job = history.jobs.jobs[history.runs.job[run]]
    nodes = [cluster.nodes[node] for node in allocation.nodes]
    slowest = min((cluster.gpu_type(node.gpu_type).speed for node in nodes if node.gpus), default=1.0)
    asked = job.demand.total_gpus
    return slowest * (allocation.gpu_milli / WHOLE / asked if job.reshapable and asked else 1.0)


def overhead_seconds(history: History) -> Floats:
    """Seconds that each run held its GPUs without computing: until it had started up, and while it stopped."""
    runs, end = history.runs, history.run_end
    starting = np.minimum(runs.computing, end) - runs.start
    stopping = end - np.where(np.isnan(runs.told_to_stop), end, np.maximum(runs.told_to_stop, runs.computing))
    overhead: Floats = starting + np.maximum(stopping, 0.0)
    return overhead


SIZES = ("CPU only", "fraction", "1 GPU", "2–4 GPUs", "5–8 GPUs", "9–32 GPUs", "> 32 GPUs")
"""The classes that jobs are put into by what they ask for."""

_SIZE_LIMITS = (1, 4, 8, 32)


def size_of(job: Job) -> int:
    """Which of SIZES a job has."""
    demand = job.demand
    if not demand.gpus:
        return 0
    if demand.gpu_milli < WHOLE:
        return 1
    return 2 + bisect_left(_SIZE_LIMITS, demand.instances * demand.gpus)


CLASSES: tuple[JobClass, ...] = ("guaranteed", "best-effort")


def _class_numbers(jobs: Sequence[Job]) -> Ints:
    return np.array([CLASSES.index(job.job_class) for job in jobs], dtype=np.int64)


def _groups(per_job: _PerJob, names: tuple[str, ...], group: Ints, everyone: Ints) -> tuple[MeasureGroup, ...]:
    order = np.argsort(group, kind="stable")
    edges = np.searchsorted(group[order], np.arange(len(names) + 1))
    members = (everyone[order[edges[index] : edges[index + 1]]] for index in range(len(names)))
    return tuple(_group(per_job, name, of) for name, of in zip(names, members, strict=True) if len(of))


def _group(per_job: _PerJob, name: str, of: Ints) -> MeasureGroup:
    return MeasureGroup(
        name,
        len(of),
        _outcomes(per_job.outcome[of]),
        spread_of(per_job.completion[of]),
        spread_of(per_job.waiting[of]),
        spread_of(per_job.slowdown[of]),
        float(per_job.gpu_hours[of].sum()),
        int(per_job.preemptions[of].sum()),
    )


def _outcomes(outcome: Ints) -> OutcomeCounts:
    counts = np.bincount(outcome, minlength=len(Outcome)).tolist() if len(outcome) else [0] * len(Outcome)
    return OutcomeCounts(
        finished=counts[Outcome.FINISHED],
        failed=counts[Outcome.FAILED],
        cancelled=counts[Outcome.CANCELLED],
        running=counts[Outcome.RUNNING],
        waiting=counts[Outcome.WAITING],
        infeasible=counts[Outcome.INFEASIBLE],
    )
