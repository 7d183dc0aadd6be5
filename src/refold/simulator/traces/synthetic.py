"""Synthetic workloads: generated from a `WorkloadShape`, fitted to a trace, or a trace with repeated jobs."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import pairwise

import msgspec
import numpy as np
from numpy.typing import NDArray

from refold.errors import BadValue
from refold.model import DAY, HOUR, MINUTE, Cluster, Demand, Job
from refold.simulator.traces.trace import Trace, make_trace

Numbers = NDArray[np.float64]
Indices = NDArray[np.int64]

MAX_EMPIRICAL_VALUES = 1000
"""Maximum number of values that represent a fitted distribution."""

_MIDPOINTS: Numbers = (np.arange(4000) + 0.5) / 4000


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Log-normal durations in seconds; `sigma` is the standard deviation of the logarithm, the range is clipped."""

    median: float
    sigma: float
    maximum: float = 30 * DAY
    minimum: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.minimum <= self.median <= self.maximum < math.inf or not 0 <= self.sigma < math.inf:
            raise BadValue(f"durations need 0 < minimum ≤ median ≤ maximum and sigma ≥ 0, got {self}")

    def seconds(self, quantile: Numbers) -> Numbers:
        """Return the durations at these quantiles (0 to 1)."""
        return np.clip(self.median * np.exp(self.sigma * _normal_quantile(quantile)), self.minimum, self.maximum)


@dataclass(frozen=True, slots=True)
class Empirical:
    """Measured durations in seconds: ascending values, each representing an equal share of all durations."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        ascending = all(low <= high for low, high in pairwise(self.values))
        if not self.values or not 0 <= self.values[0] <= self.values[-1] < math.inf or not ascending:
            raise BadValue("empirical durations need values ≥ 0 in ascending order")

    def seconds(self, quantile: Numbers) -> Numbers:
        """Return the durations at these quantiles (0 to 1), interpolated between the midpoints of the shares.

        Interpolating between midpoints preserves the mean.
        """
        midpoints = (np.arange(len(self.values)) + 0.5) / len(self.values)
        return np.interp(quantile, midpoints, self.values)


Durations = Lognormal | Empirical


@dataclass(frozen=True, slots=True)
class SizeClass:
    """Jobs with the same demand: relative frequency, run times, and the share of best-effort jobs (0 to 1)."""

    demand: Demand
    weight: float
    durations: Durations
    best_effort: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.weight < math.inf or not 0 <= self.best_effort <= 1:
            raise BadValue(f"a size class needs a weight ≥ 0 and best_effort from 0 to 1, got {self}")

    @property
    def mean_gpu_seconds(self) -> float:
        """Mean work of one job of this class in GPU-seconds."""
        return self.demand.total_gpus * float(self.durations.seconds(_MIDPOINTS).mean())


@dataclass(frozen=True, slots=True)
class PoissonArrivals:
    """A Poisson process with a mean of `per_hour` arrivals.

    `hour_weights` are relative rates per hour, repeated periodically (24 values for a day, 168 for a week; empty:
    constant rate). `burst` is the mean number of jobs that arrive together, within `burst_seconds`.
    """

    per_hour: float
    hour_weights: tuple[float, ...] = ()
    burst: float = 1.0
    burst_seconds: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.per_hour < math.inf or not 1 <= self.burst < math.inf or not self.burst_seconds >= 0:
            raise BadValue(f"arrivals need per_hour > 0, burst ≥ 1 and burst_seconds ≥ 0, got {self}")
        if self.hour_weights and not (min(self.hour_weights) >= 0 and 0 < sum(self.hour_weights) < math.inf):
            raise BadValue("hour_weights must be ≥ 0, and not all 0")


OFFICE_HOURS = tuple(0.35 + 0.65 * math.exp(-(((hour - 14.5) / 4.5) ** 2)) for hour in range(24))
"""Hourly weights of a day with the peak in the afternoon and about a third of it at night."""


@dataclass(frozen=True, slots=True)
class WorkloadShape:
    """The parameters of a random workload.

    Each tenant has `users_per_tenant` users. `user_correlation` (0 to 1) is the correlation between the run times of
    jobs of the same user and size class, which makes run times predictable. With `time_limits`, jobs have time limits.
    """

    jobs: int
    arrivals: PoissonArrivals
    classes: tuple[SizeClass, ...]
    tenants: tuple[tuple[str, float], ...] = (("default", 1.0),)
    users_per_tenant: int = 0
    user_correlation: float = 0.0
    time_limits: bool = False
    name: str = "synthetic"

    def __post_init__(self) -> None:
        if self.jobs < 1 or not self.classes or not self.tenants:
            raise BadValue("a workload needs at least one job, one size class and one tenant")
        if not sum(size_class.weight for size_class in self.classes) > 0:
            raise BadValue("the weights of the size classes are all 0")
        if not (all(0 <= weight < math.inf for _, weight in self.tenants) and sum(w for _, w in self.tenants) > 0):
            raise BadValue("the weights of the tenants must be ≥ 0, and not all 0")
        if not 0 <= self.user_correlation <= 1:
            raise BadValue(f"user_correlation is {self.user_correlation}, expected 0 to 1")
        if self.users_per_tenant < 0:
            raise BadValue(f"users_per_tenant is {self.users_per_tenant}, expected a number ≥ 0")

    @property
    def mean_gpu_seconds(self) -> float:
        """Mean work of one job in GPU-seconds."""
        total = sum(size_class.weight for size_class in self.classes)
        return sum(size_class.weight * size_class.mean_gpu_seconds for size_class in self.classes) / total

    def load(self, cluster: Cluster) -> float:
        """Return the offered load: requested GPU time per available GPU time, with GPUs weighted by their speed."""
        return self.arrivals.per_hour * self.mean_gpu_seconds / (HOUR * _capacity(cluster))

    def for_load(self, cluster: Cluster, load: float) -> WorkloadShape:
        """Return the shape with the arrival rate that gives this offered load on the cluster."""
        if not 0 < load < math.inf:
            raise BadValue(f"load is {load}, expected a number > 0 such as 0.9")
        current = self.load(cluster)
        if not current > 0:
            raise BadValue(f"workload {self.name!r} requests no GPUs: its load is 0 at any arrival rate")
        rate = self.arrivals.per_hour * load / current
        return replace(self, arrivals=replace(self.arrivals, per_hour=rate))


def _capacity(cluster: Cluster) -> float:
    capacity = sum(node.gpus * cluster.gpu_type(node.gpu_type).speed for node in cluster.nodes if node.gpus)
    if not capacity:
        raise BadValue(f"cluster {cluster.name!r} has no GPUs")
    return capacity


def generate(shape: WorkloadShape, seed: int) -> Trace:
    """Generate jobs of this shape.

    Sizes and durations are drawn by stratified sampling, so that even a short workload has the specified mix. The time
    from the first to the last submission is chosen so that the jobs drawn, not only their expectation, have the load
    of the shape.
    """
    rng = np.random.default_rng(seed)
    sizes = _stratified_indices([size_class.weight for size_class in shape.classes], shape.jobs, rng)
    tenants = _stratified_indices([weight for _, weight in shape.tenants], shape.jobs, rng)
    users = rng.integers(0, max(shape.users_per_tenant, 1), shape.jobs)
    work = _durations(shape, sizes, tenants * max(shape.users_per_tenant, 1) + users, rng)
    gpu_seconds = float(work @ np.array([size_class.demand.total_gpus for size_class in shape.classes])[sizes])
    submitted = _submissions(shape, gpu_seconds, rng)
    limits = _time_limits(work, rng) if shape.time_limits else None
    best_effort = rng.random(shape.jobs)
    width = len(str(shape.jobs))
    jobs = []
    for index in range(shape.jobs):
        size_class = shape.classes[sizes[index]]
        tenant = shape.tenants[tenants[index]][0]
        jobs.append(
            Job(
                f"job-{index + 1:0{width}}",
                float(submitted[index]),
                size_class.demand,
                float(work[index]),
                tenant,
                f"{tenant}-{users[index] + 1}" if shape.users_per_tenant else "",
                job_class="best-effort" if best_effort[index] < size_class.best_effort else "guaranteed",
                time_limit=float(limits[index]) if limits is not None else None,
            )
        )
    notes = [f"generated with random seed {seed}"]
    if shape.mean_gpu_seconds and (not gpu_seconds or submitted[0] == submitted[-1]):
        why = "no job requests GPU time" if not gpu_seconds else "all jobs are submitted at the same time"
        notes.append(f"the offered load is undefined: {why}")
    return make_trace(shape.name, jobs, notes=notes)


def _stratified_indices(weights: list[float], count: int, rng: np.random.Generator) -> Indices:
    """Return `count` indices in random order, each as often as its weight demands (plus or minus one)."""
    edges = np.cumsum(weights) / np.sum(weights)
    points = (np.arange(count) + rng.random()) / count
    indices = np.minimum(np.searchsorted(edges, points, side="right"), len(weights) - 1)
    rng.shuffle(indices)
    return indices.astype(np.int64)


def _submissions(shape: WorkloadShape, gpu_seconds: float, rng: np.random.Generator) -> Numbers:
    """Return ascending submission times. Given their number, the arrivals of a Poisson process are uniform in time.

    The span from the first to the last is proportional to `gpu_seconds`, the work that was actually drawn, so that it
    is offered at the rate of the shape.
    """
    arrivals = shape.arrivals
    expected = shape.jobs * shape.mean_gpu_seconds
    span = shape.jobs / arrivals.per_hour * HOUR * (gpu_seconds / expected if gpu_seconds else 1.0)
    bursts = max(1, round(shape.jobs / arrivals.burst))
    burst_of_job = np.concatenate([np.arange(bursts), rng.integers(0, bursts, shape.jobs - bursts)])
    burst_times = _apply_hour_weights(np.sort(rng.random(bursts)), arrivals.hour_weights, span)
    spread = np.where(np.arange(shape.jobs) < bursts, 0.0, rng.random(shape.jobs) * arrivals.burst_seconds)
    times = np.sort(burst_times[burst_of_job] + spread)
    drawn_span = times[-1] - times[0]
    stretched: Numbers = times[0] + (times - times[0]) * (span / drawn_span if drawn_span else 1.0)
    return np.round(stretched, 3)


def _apply_hour_weights(points: Numbers, hour_weights: tuple[float, ...], span: float) -> Numbers:
    """Map points in 0..1 to times in 0..span, with a density proportional to the weight of each hour."""
    if not hour_weights:
        return points * span
    hours = math.ceil(span / HOUR)
    edges = np.minimum(np.arange(hours + 1) * HOUR, span)
    weights = np.resize(np.asarray(hour_weights), hours) * np.diff(edges)
    if not weights.sum() > 0:  # the span covers only hours of weight 0
        return points * span
    cumulative = np.concatenate([[0.0], np.cumsum(weights)]) / weights.sum()
    times: Numbers = np.interp(points, cumulative, edges)
    return times


def _durations(shape: WorkloadShape, sizes: Indices, users: Indices, rng: np.random.Generator) -> Numbers:
    """Return the run times in seconds.

    Jobs of a class are ranked by a score with a random part and a part common to the jobs of a user, and the ranks are
    mapped to quantiles of the class's distribution. The correlation thus changes which job gets which duration, but
    not the distribution of durations.
    """
    job_effects = rng.standard_normal(shape.jobs)
    user_effects = rng.standard_normal((int(users.max()) + 1, len(shape.classes)))
    correlation = shape.user_correlation
    scores = math.sqrt(correlation) * user_effects[users, sizes] + math.sqrt(1 - correlation) * job_effects
    work = np.empty(shape.jobs)
    for index, size_class in enumerate(shape.classes):
        members = np.flatnonzero(sizes == index)
        ranks = np.argsort(np.argsort(scores[members], kind="stable"), kind="stable")
        quantiles = (ranks + rng.random(len(members))) / max(len(members), 1)
        work[members] = size_class.durations.seconds(quantiles)
    return np.round(work, 3)


_ROUND_LIMITS = np.array([15 * MINUTE, 30 * MINUTE, *(hours * HOUR for hours in (1, 2, 4, 8, 12, 24, 48, 96, 168))])


def _time_limits(work: Numbers, rng: np.random.Generator) -> Numbers:
    """Return time limits of 1.5 to 8 times the run time, rounded up to values that users commonly choose."""
    unrounded = work * np.exp(rng.uniform(math.log(1.5), math.log(8.0), len(work)))
    rounded = _ROUND_LIMITS[np.minimum(np.searchsorted(_ROUND_LIMITS, unrounded), len(_ROUND_LIMITS) - 1)]
    limits: Numbers = np.maximum(rounded, np.ceil(work))
    return limits


def _normal_quantile(quantile: Numbers) -> Numbers:
    """Return quantiles of the standard normal distribution, by inverting a table of it up to eight sigma."""
    return np.interp(quantile, _NORMAL_CDF, _NORMAL_GRID)


_NORMAL_GRID: Numbers = np.linspace(-8.0, 8.0, 6401)
_NORMAL_CDF: Numbers = np.array([0.5 * math.erfc(-z / math.sqrt(2)) for z in _NORMAL_GRID])


def fit_shape(trace: Trace) -> WorkloadShape:
    """Fit a shape to a trace: its demands with their durations, tenants, hourly arrival rates and bursts."""
    jobs = [job for job in trace.jobs if job.work is not None]
    if not jobs:
        raise BadValue(f"trace {trace.name!r} has no jobs with a duration to fit")
    by_demand: defaultdict[Demand, list[Job]] = defaultdict(list)
    by_tenant: defaultdict[str, int] = defaultdict(int)
    for job in jobs:
        by_demand[job.demand].append(job)
        by_tenant[job.tenant] += 1
    return WorkloadShape(
        jobs=len(jobs),
        arrivals=_fit_arrivals(jobs),
        classes=tuple(_fit_class(demand, members) for demand, members in by_demand.items()),
        tenants=tuple((tenant, float(count)) for tenant, count in by_tenant.items()),
        name=f"{trace.name}-like",
    )


def _fit_class(demand: Demand, jobs: list[Job]) -> SizeClass:
    durations = Empirical(_equal_parts(np.array([job.work for job in jobs], dtype=np.float64)))
    best_effort = sum(job.job_class == "best-effort" for job in jobs) / len(jobs)
    return SizeClass(demand, float(len(jobs)), durations, best_effort)


def _equal_parts(seconds: Numbers) -> tuple[float, ...]:
    """Return the mean of each of at most MAX_EMPIRICAL_VALUES equal parts of the sorted durations.

    A duration may be split between two parts.
    """
    count = len(seconds)
    parts = min(MAX_EMPIRICAL_VALUES, count)
    summed = np.concatenate([[0.0], np.cumsum(np.sort(seconds))])
    at_edges = np.interp(np.linspace(0, count, parts + 1), np.arange(count + 1), summed)
    means = np.diff(at_edges) * parts / count
    # Rounding may make the means of equal durations differ in the last digit; keep the values ascending.
    return tuple(np.maximum.accumulate(np.maximum(np.round(means, 6), 0.0)).tolist())


def _fit_arrivals(jobs: list[Job]) -> PoissonArrivals:
    submitted = np.array([job.submitted for job in jobs])
    submitted -= submitted[0]
    span = max(float(submitted[-1]), 1.0)
    burst_seconds = 1.0
    bursts = 1 + int(np.count_nonzero(np.diff(submitted) > burst_seconds))
    period = 168 if span >= 14 * DAY else 24
    hour_weights: tuple[float, ...] = ()
    if span >= 2 * DAY:
        by_hour = np.bincount((submitted // HOUR).astype(np.int64) % period, minlength=period)
        hour_weights = tuple(by_hour.astype(float).tolist())
    return PoissonArrivals(len(jobs) / span * HOUR, hour_weights, len(jobs) / bursts, burst_seconds)


def enlarge(trace: Trace, factor: float, seed: int, *, jitter: float = 30 * MINUTE) -> Trace:
    """Repeat every job `factor` times, with copies shifted by up to `jitter` seconds.

    The fractional part of `factor` is the probability of one more copy. A sample of 8.2 % of the jobs of a cluster,
    enlarged by 1/0.082, requests about as much as all its jobs.
    """
    if not 0 < factor < math.inf:
        raise BadValue(f"factor is {factor}, expected a number > 0")
    rng = np.random.default_rng(seed)
    repeats = math.floor(factor) + (rng.random(len(trace.jobs)) < factor % 1)
    jobs: list[Job] = []
    last = trace.jobs[-1].submitted if trace.jobs else 0.0
    for job, copies in zip(trace.jobs, repeats.tolist(), strict=True):
        shifts = rng.uniform(-jitter, jitter, max(copies - 1, 0)).tolist()
        jobs += [job] if copies else []
        jobs += [
            msgspec.structs.replace(
                job, id=f"{job.id}.{copy}", submitted=min(max(round(job.submitted + shift, 3), 0.0), last)
            )
            for copy, shift in enumerate(shifts, start=2)
        ]
    notes = (
        *trace.notes,
        f"enlarged {factor:g} times with random seed {seed}: copies are shifted by up to {jitter:g} s",
    )
    return make_trace(f"{trace.name}-x{factor:g}", jobs, skipped_rows=trace.skipped_rows, notes=notes)


def everyday_workload(jobs: int) -> WorkloadShape:
    """Return a workload shape similar to the public traces, for any cluster of nodes with 8 GPUs.

    Most jobs are small and short; most GPU time goes to the few jobs that are large and long.
    """
    return WorkloadShape(
        jobs=jobs,
        arrivals=PoissonArrivals(12.0, OFFICE_HOURS, burst=1.3, burst_seconds=30.0),
        classes=(
            SizeClass(Demand(gpus=1, gpu_milli=250), 0.10, Lognormal(600, 1.6, DAY), 0.5),
            SizeClass(Demand(gpus=1, gpu_milli=500), 0.12, Lognormal(900, 1.6, DAY), 0.4),
            SizeClass(Demand(gpus=1), 0.38, Lognormal(1200, 1.9, DAY), 0.3),
            SizeClass(Demand(gpus=2), 0.12, Lognormal(2400, 1.7, DAY), 0.3),
            SizeClass(Demand(gpus=4), 0.12, Lognormal(3600, 1.6, DAY), 0.2),
            SizeClass(Demand(gpus=8), 0.10, Lognormal(5400, 1.5, DAY), 0.2),
            SizeClass(Demand(instances=2, gpus=8), 0.04, Lognormal(7200, 1.3, DAY), 0.1),
            SizeClass(Demand(instances=4, gpus=8), 0.02, Lognormal(9000, 1.2, DAY), 0.0),
        ),
        tenants=(("vision", 0.4), ("language", 0.3), ("speech", 0.2), ("robotics", 0.1)),
        users_per_tenant=6,
        user_correlation=0.6,
        time_limits=True,
        name="everyday",
    )
