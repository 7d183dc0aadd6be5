"""Measures of a history. docs/measures.md defines each with its formula and unit.

Time averages are exact integrals over intervals; only fragmentation is sampled. Undefined values, such as the mean of
no jobs, are None.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from refold.journal import Ending, History, Outcome, sum_by_group
from refold.model import HOUR, WHOLE, Job, JobClass, Seconds
from refold.placement import Floats, Ints
from refold.planning.plans import Crossings
from refold.simulator.results.power import PowerUse, power_use
from refold.simulator.results.start_estimates import StartEstimateMeasures, count_overtaking, measure_start_estimates
from refold.simulator.results.time_series import fragmentation, jobs_in_system, overlap
from refold.simulator.results.topology import TopologyUse, topology_use

MIN_SLOWDOWN_SECONDS: Seconds = 10.0
"""Shorter durations count as this long in slowdowns, so that very short jobs do not dominate the mean."""

FRAGMENT_SAMPLES = 400
CURVE_POINTS = 100


class Spread(msgspec.Struct, frozen=True):
    """The distribution of a quantity over `count` jobs."""

    count: int = 0
    mean: float | None = None
    median: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None


class OutcomeCounts(msgspec.Struct, frozen=True):
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    running: int = 0
    waiting: int = 0
    infeasible: int = 0


class MeasureGroup(msgspec.Struct, frozen=True):
    """The main measures of a group of jobs: of one tenant, one size or one class."""

    name: str
    jobs: int
    outcomes: OutcomeCounts
    completion: Spread
    waiting: Spread
    slowdown: Spread
    gpu_hours: float
    preemptions: int


class AllocationAtStart(msgspec.Struct, frozen=True):
    """The share of all GPUs that is allocated immediately after the `started`-th start of a run."""

    started: int
    allocation: float


class Measures(msgspec.Struct, frozen=True):
    """All measures of a history. Times are in seconds; allocation and fragmentation are shares of all GPUs, 0 to 1."""

    jobs: int
    outcomes: OutcomeCounts
    completion: Spread
    waiting: Spread
    to_first_start: Spread
    slowdown: Spread
    finish_time_fairness: Spread
    makespan: Seconds | None
    submission_window: tuple[Seconds, Seconds] | None
    allocation: float | None
    allocation_overall: float | None
    allocation_at_start: tuple[AllocationAtStart, ...]
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
    topology: TopologyUse | None = None
    overtaken: Spread = Spread()
    start_estimates: StartEstimateMeasures | None = None

    @property
    def goodput(self) -> float | None:
        """The share of the GPU time of runs that became progress: it was neither overhead nor lost."""
        return _ratio(self.gpu_hours - self.overhead_gpu_hours - self.lost_gpu_hours, self.gpu_hours)


def measure(history: History, crossings: Crossings | None = None) -> Measures:
    """Compute all measures of a history. `crossings`: how much slower its runs were across domains, if known."""
    jobs, runs = history.jobs, history.runs
    per_job = _PerJob(history)
    window = submission_window(history)
    all_jobs = np.arange(len(jobs))
    sizes = jobs.by_kind(size_of)
    lost = lost_seconds(history)
    overhead, reshapes = float((overhead_seconds(history) * runs.gpus).sum()), _reshapes(history)
    return Measures(
        jobs=len(jobs),
        outcomes=_outcomes(jobs.outcome),
        completion=compute_spread(per_job.completion),
        waiting=compute_spread(per_job.waiting),
        to_first_start=compute_spread(jobs.first_start - jobs.submitted),
        slowdown=compute_spread(per_job.slowdown),
        finish_time_fairness=compute_spread(finish_time_fairness(history, per_job.completion, per_job.work)),
        makespan=_makespan(history),
        submission_window=window,
        allocation=_allocation(history, window),
        allocation_overall=_allocation(history, _makespan_window(history)),
        allocation_at_start=_allocation_at_start(history),
        utilisation=None,  # no event reports GPU utilisation yet
        fragmentation=_mean_fragmentation(history, window or _makespan_window(history)),
        gpu_hours=float(history.gpu_seconds.sum()) / HOUR,
        runs=len(runs),
        preemptions=int((runs.ending == Ending.STOPPED).sum()),
        reshapes=reshapes,
        reshapes_per_job=_ratio(reshapes, int(_is_reshapable(history)[~np.isnan(history.jobs.first_start)].sum())),
        failures=int((runs.ending == Ending.FAILED).sum()),
        lost_seconds=float(lost.sum()),
        lost_gpu_hours=float((lost * runs.gpus).sum()) / HOUR,
        overhead_gpu_hours=overhead / HOUR,
        overhead_share=_ratio(overhead, float(history.gpu_seconds.sum())),
        jain_tenants=_jain_tenants(history, per_job.work, window),
        jain_jobs=jain(per_job.slowdown[~np.isnan(per_job.slowdown)]),
        tenants=_groups(per_job, history.tenants, jobs.tenant, all_jobs),
        sizes=_groups(per_job, SIZES, sizes, all_jobs),
        classes=_groups(per_job, CLASSES, jobs.by_kind(lambda job: CLASSES.index(job.job_class)), all_jobs),
        power=power_use(history),
        topology=topology_use(history, midpoints(*(window or (0.0, history.until)), FRAGMENT_SAMPLES), crossings),
        overtaken=compute_spread(count_overtaking(history)),
        start_estimates=measure_start_estimates(history, SIZES, sizes),
    )


def _ratio(part: float, total: float) -> float | None:
    return part / total if total else None


class _PerJob:
    """Per-job values that several measures use; NaN for jobs that did not finish."""

    def __init__(self, history: History) -> None:
        jobs = history.jobs
        finished = np.where(jobs.outcome == Outcome.FINISHED, jobs.ended, np.nan)
        self.outcome = jobs.outcome
        self.work = work_or_run_time(history)
        self.completion: Floats = finished - jobs.submitted
        # Start and end times are rounded separately, so the difference may be slightly negative.
        self.waiting: Floats = np.maximum(self.completion - history.time_running, 0.0)
        self.slowdown: Floats = np.maximum(self.completion, MIN_SLOWDOWN_SECONDS) / np.maximum(
            self.work, MIN_SLOWDOWN_SECONDS
        )
        self.gpu_hours: Floats = history.gpu_seconds / HOUR
        self.preemptions: Floats = history.per_job((history.runs.ending == Ending.STOPPED).astype(np.float64))


def compute_spread(values: Floats) -> Spread:
    """Compute the distribution of the values, ignoring NaN."""
    known = values[~np.isnan(values)]
    if not len(known):
        return Spread()
    median, p90, p99 = _quantiles(known, (0.5, 0.9, 0.99))
    return Spread(len(known), float(known.mean()), median, p90, p99, float(known.max()))


def _quantiles(values: Floats, shares: Sequence[float]) -> list[float]:
    """Return quantiles as `np.quantile` does, whose preparations take longer than the measures of a few values."""
    last = len(values) - 1
    lows = [int(share * last) for share in shares]
    highs = [min(low + 1, last) for low in lows]
    ordered = np.partition(values, sorted({*lows, *highs}))
    found = []
    for share, low, high in zip(shares, lows, highs, strict=True):
        below, above, part = float(ordered[low]), float(ordered[high]), share * last - low
        found.append(below + (above - below) * part if part < 0.5 else above - (above - below) * (1.0 - part))
    return found


def jain(shares: Floats) -> float | None:
    """Jain's index: 1 if all shares are equal, 1/n if one has everything; None if there are no shares or all are 0."""
    squares = float((shares**2).sum())
    return float(shares.sum()) ** 2 / (len(shares) * squares) if squares > 0 else None


def work_or_run_time(history: History) -> Floats:
    """Return the run time of each job on the requested resources; if unknown, the time it actually ran."""
    return np.where(np.isnan(history.jobs.work), history.time_running, history.jobs.work)


def submission_window(history: History) -> tuple[Seconds, Seconds] | None:
    """Return the times of the first and the last submission; None if they are equal."""
    first, last = history.first_submission, history.last_submission
    return (first, last) if first < last else None


def _makespan_window(history: History) -> tuple[Seconds, Seconds] | None:
    makespan = _makespan(history)
    return (history.first_submission, history.first_submission + makespan) if makespan else None


def _makespan(history: History) -> Seconds | None:
    return float(history.run_end.max()) - history.first_submission if len(history.runs) else None


def _allocation(history: History, window: tuple[Seconds, Seconds] | None) -> float | None:
    if window is None or not history.cluster.gpus:
        return None
    gpu_seconds = overlap(history.runs.start, history.run_end, *window) * history.runs.gpus
    return float(gpu_seconds.sum()) / (history.cluster.gpus * (window[1] - window[0]))


def _allocation_at_start(history: History) -> tuple[AllocationAtStart, ...]:
    runs, gpus = history.runs, history.cluster.gpus
    if not len(runs) or not gpus:
        return ()
    # Within one step, ends precede starts; so runs are compared by steps, not by times.
    ended = runs.end_step >= 0
    order = np.argsort(runs.end_step[ended], kind="stable")
    released = np.concatenate([[0.0], np.cumsum(runs.gpus[ended][order])])
    ends_before = np.searchsorted(runs.end_step[ended][order], runs.start_step, side="right")
    allocated = np.cumsum(runs.gpus) - released[ends_before]
    chosen = np.linspace(0, len(runs) - 1, CURVE_POINTS).round().astype(np.int64)
    chosen = chosen[np.diff(chosen, prepend=-1) > 0]  # not np.unique, which loads masked arrays
    return tuple(AllocationAtStart(index + 1, round(float(allocated[index]) / gpus, 6)) for index in chosen.tolist())


def _mean_fragmentation(history: History, window: tuple[Seconds, Seconds] | None) -> float | None:
    if window is None or not history.cluster.gpus or not history.jobs.gpus.any():
        return None
    return float(fragmentation(history, midpoints(*window, FRAGMENT_SAMPLES)).mean())


def midpoints(first: Seconds, last: Seconds, count: int) -> Floats:
    """Return the midpoints of `count` equal intervals of a window."""
    edges = np.linspace(first, last, count + 1)
    centres: Floats = (edges[:-1] + edges[1:]) / 2
    return centres


def finish_time_fairness(history: History, completion: Floats, work: Floats) -> Floats:
    """Return the completion time divided by that on an equal share of the GPUs (Themis, NSDI'20).

    rho = T / (w · max(1, d · N / G)): T completion time, w work, d requested GPUs, G all GPUs, and N the mean number of
    GPU jobs in the system while the job was in it.
    """
    jobs, gpus = history.jobs, history.cluster.gpus
    finished = ~np.isnan(completion)
    competing = np.ones(len(jobs))
    present = jobs_in_system(history, np.flatnonzero((jobs.gpus > 0) & (jobs.outcome != Outcome.INFEASIBLE)))
    in_system = finished & (completion > 0)
    area = present.integral(jobs.ended[in_system]) - present.integral(jobs.submitted[in_system])
    competing[in_system] = area / completion[in_system]
    on_equal_share = work * np.maximum(1.0, jobs.gpus * competing / max(gpus, 1))
    fairness: Floats = np.maximum(completion, MIN_SLOWDOWN_SECONDS) / np.maximum(on_equal_share, MIN_SLOWDOWN_SECONDS)
    return fairness


def _jain_tenants(history: History, work: Floats, window: tuple[Seconds, Seconds] | None) -> float | None:
    """Return Jain's index over tenants of the GPU-seconds received in the submission window.

    Each is divided by what the tenant would have received if no job had waited.
    """
    if window is None:
        return None
    jobs, runs = history.jobs, history.runs
    feasible_gpus = np.where(jobs.outcome == Outcome.INFEASIBLE, 0.0, jobs.gpus)
    without_waiting = overlap(jobs.submitted, jobs.submitted + work, *window) * feasible_gpus
    requested = sum_by_group(jobs.tenant, without_waiting, len(history.tenants))
    held = overlap(runs.start, history.run_end, *window) * runs.gpus
    received = sum_by_group(jobs.tenant[runs.job], held, len(history.tenants))
    positive = requested > 0
    return jain(received[positive] / requested[positive])


def _reshapes(history: History) -> int:
    """Count the runs of reshapable jobs that started in the same step in which the previous run stopped."""
    runs = history.runs
    order = np.lexsort((runs.number, runs.job))
    before, after = order[:-1], order[1:]
    same_job = runs.job[before] == runs.job[after]
    stopped = runs.ending[before] == Ending.STOPPED
    immediately = runs.end_step[before] == runs.start_step[after]
    reshaped = np.flatnonzero(same_job & stopped & immediately)
    return int(_is_reshapable(history)[runs.job[after[reshaped]]].sum())


def _is_reshapable(history: History) -> Ints:
    return history.jobs.by_kind(lambda job: job.reshapable)


def lost_seconds(history: History) -> Floats:
    """Return the seconds that each run lost; 0 for all other runs than these.

    A failed run lost the computing time that it did not save. A run that was stopped or failed while it was starting
    lost all of its time.
    """
    runs = history.runs
    lost: Floats = np.where(_lost_while_starting(history), runs.end - runs.start, 0.0)
    for run in np.flatnonzero((runs.ending == Ending.FAILED) & ~np.isnan(runs.computing_since)).tolist():
        computed = runs.end[run] - runs.computing_since[run]
        saved = max(0.0, runs.saved[run] - runs.saved_before[run]) / _speed(history, run)
        lost[run] = max(0.0, computed - saved)
    return lost


def _lost_while_starting(history: History) -> NDArray[np.bool_]:
    runs = history.runs
    return np.isnan(runs.computing_since) & np.isin(runs.ending, (Ending.STOPPED, Ending.FAILED))


def _speed(history: History, run: int) -> float:
    """Return work seconds per second: the speed of the GPU type and, for reshapable jobs, the share of GPUs held."""
    cluster, allocation = history.cluster, history.runs.allocations[run]
    job: Job = history.jobs.jobs[history.runs.job[run]]
    nodes = [cluster.nodes[node] for node in allocation.nodes]
    slowest = min((cluster.gpu_type(node.gpu_type).speed for node in nodes if node.gpus), default=1.0)
    requested = job.demand.total_gpus
    return slowest * (allocation.gpu_milli / WHOLE / requested if job.reshapable and requested else 1.0)


def overhead_seconds(history: History) -> Floats:
    """Return the seconds for which each run held its GPUs without computing: while starting and while stopping.

    Runs that were stopped or failed while starting are not included, but in `lost_seconds`.
    """
    runs, end = history.runs, history.run_end
    computing_since = np.fmin(runs.computing_since, end)
    stop_ordered = np.where(np.isnan(runs.stop_ordered), end, runs.stop_ordered)
    stopping = end - np.minimum(np.maximum(stop_ordered, computing_since), end)
    overhead: Floats = computing_since - runs.start + stopping
    return np.where(_lost_while_starting(history), 0.0, overhead)


SIZES = ("CPU only", "fraction", "1 GPU", "2–4 GPUs", "5–8 GPUs", "9–32 GPUs", "> 32 GPUs")
"""Size classes of jobs, by their request."""

_SIZE_LIMITS = (1, 4, 8, 32)


def size_of(job: Job) -> int:
    demand = job.demand
    if not demand.gpus:
        return 0
    if demand.gpu_milli < WHOLE:
        return 1
    return 2 + bisect_left(_SIZE_LIMITS, demand.instances * demand.gpus)


CLASSES: tuple[JobClass, ...] = ("guaranteed", "best-effort")


def _groups(per_job: _PerJob, names: tuple[str, ...], group: Ints, all_jobs: Ints) -> tuple[MeasureGroup, ...]:
    order = np.argsort(group, kind="stable")
    edges = np.searchsorted(group[order], np.arange(len(names) + 1))
    members = (all_jobs[order[edges[index] : edges[index + 1]]] for index in range(len(names)))
    return tuple(_group(per_job, name, jobs) for name, jobs in zip(names, members, strict=True) if len(jobs))


def _group(per_job: _PerJob, name: str, jobs: Ints) -> MeasureGroup:
    return MeasureGroup(
        name,
        len(jobs),
        _outcomes(per_job.outcome[jobs]),
        compute_spread(per_job.completion[jobs]),
        compute_spread(per_job.waiting[jobs]),
        compute_spread(per_job.slowdown[jobs]),
        float(per_job.gpu_hours[jobs].sum()),
        int(per_job.preemptions[jobs].sum()),
    )


def _outcomes(outcome: Ints) -> OutcomeCounts:
    counts = np.bincount(outcome, minlength=len(Outcome)).tolist()
    return OutcomeCounts(**{each.name.lower(): counts[each] for each in Outcome})
