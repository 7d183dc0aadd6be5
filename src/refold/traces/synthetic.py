"""Workloads made to measure: drawn from a Shape, learned from a trace, or a trace enlarged."""

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
from refold.traces.trace import Trace, counted, in_order

Numbers = NDArray[np.float64]
Indices = NDArray[np.int64]

PARTS = 1000
"""How finely a learned distribution is kept: this many values at most."""

_MIDPOINTS: Numbers = (np.arange(4000) + 0.5) / 4000


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Seconds whose logarithm is normal: half are under `median`, `sigma` is the spread; cut at both ends."""

    median: float
    sigma: float
    longest: float = 30 * DAY
    shortest: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.shortest <= self.median <= self.longest < math.inf or not 0 <= self.sigma < math.inf:
            raise BadValue(f"durations need 0 < shortest ≤ median ≤ longest and sigma ≥ 0, got {self}")

    def seconds(self, quantile: Numbers) -> Numbers:
        """The duration below which this part of all durations lies."""
        return np.clip(self.median * np.exp(self.sigma * _normal(quantile)), self.shortest, self.longest)


@dataclass(frozen=True, slots=True)
class Empirical:
    """Seconds as they were measured: rising values, each standing for an equal part of all durations."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        rising = all(low <= high for low, high in pairwise(self.values))
        if not self.values or not 0 <= self.values[0] <= self.values[-1] < math.inf or not rising:
            raise BadValue("empirical durations need values ≥ 0 in rising order")

    def seconds(self, quantile: Numbers) -> Numbers:
        """Straight lines between the middles of the parts, which keeps the mean as it was."""
        middles = (np.arange(len(self.values)) + 0.5) / len(self.values)
        return np.interp(quantile, middles, self.values)


Durations = Lognormal | Empirical


@dataclass(frozen=True, slots=True)
class SizeClass:
    """Jobs of one demand: how often they come and how long they last. `best_effort` is the part that is."""

    demand: Demand
    weight: float
    durations: Durations
    best_effort: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.weight < math.inf or not 0 <= self.best_effort <= 1:
            raise BadValue(f"a size class needs a weight ≥ 0 and best_effort from 0 to 1, got {self}")

    @property
    def mean_gpu_seconds(self) -> float:
        """GPU-seconds that one such job costs on average."""
        return self.demand.total_gpus * float(self.durations.seconds(_MIDPOINTS).mean())


@dataclass(frozen=True, slots=True)
class PoissonArrivals:
    """When jobs come: a Poisson process of `per_hour` jobs.

    `rhythm` weighs the hours (24 of them make a day, 168 a week; empty: all alike). `burst` is how many jobs
    come together on average, `burst_seconds` how far they spread.
    """

    per_hour: float
    rhythm: tuple[float, ...] = ()
    burst: float = 1.0
    burst_seconds: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.per_hour < math.inf or not 1 <= self.burst < math.inf or not self.burst_seconds >= 0:
            raise BadValue(f"arrivals need per_hour > 0, burst ≥ 1 and burst_seconds ≥ 0, got {self}")
        if self.rhythm and not (min(self.rhythm) >= 0 and 0 < sum(self.rhythm) < math.inf):
            raise BadValue("the hours of a rhythm weigh 0 or more, and not all 0")


OFFICE_HOURS = tuple(0.35 + 0.65 * math.exp(-(((hour - 14.5) / 4.5) ** 2)) for hour in range(24))
"""A day with its peak in the afternoon and a third of that at night."""


@dataclass(frozen=True, slots=True)
class WorkloadShape:
    """What a workload looks like, apart from chance.

    Tenants have `users_per_tenant` users each; `habit` (0 to 1) is how much alike the jobs are that one user
    submits in one size class, which is what makes durations predictable. `time_limits`: users state one.
    """

    jobs: int
    arrivals: PoissonArrivals
    classes: tuple[SizeClass, ...]
    tenants: tuple[tuple[str, float], ...] = (("default", 1.0),)
    users_per_tenant: int = 0
    habit: float = 0.0
    time_limits: bool = False
    name: str = "synthetic"

    def __post_init__(self) -> None:
        if self.jobs < 1 or not self.classes or not self.tenants:
            raise BadValue("a workload needs at least one job, one size class and one tenant")
        if not sum(one.weight for one in self.classes) > 0:
            raise BadValue("the weights of the size classes are all 0")
        if not (all(0 <= weight < math.inf for _, weight in self.tenants) and sum(w for _, w in self.tenants) > 0):
            raise BadValue("tenants weigh 0 or more, and not all 0")
        if not 0 <= self.habit <= 1 or self.users_per_tenant < 0:
            raise BadValue(f"habit is 0 to 1 and users_per_tenant ≥ 0, not {self.habit}, {self.users_per_tenant}")

    @property
    def mean_gpu_seconds(self) -> float:
        """GPU-seconds that one job costs on average."""
        total = sum(one.weight for one in self.classes)
        return sum(one.weight * one.mean_gpu_seconds for one in self.classes) / total

    def load(self, cluster: Cluster) -> float:
        """GPU time asked for over GPU time there is; slow GPUs count as the part of a GPU that they are."""
        return self.arrivals.per_hour * self.mean_gpu_seconds / (HOUR * _capacity(cluster))

    def for_load(self, cluster: Cluster, load: float) -> WorkloadShape:
        """The same jobs, arriving at the rate that asks for `load` of the cluster's GPUs."""
        if not 0 < load < math.inf:
            raise BadValue(f"a load is a number > 0 such as 0.9, not {load}")
        now = self.load(cluster)
        if not now > 0:
            raise BadValue(f"workload {self.name!r} asks for no GPUs: no rate of arrival gives it a load")
        rate = self.arrivals.per_hour * load / now
        return replace(self, arrivals=replace(self.arrivals, per_hour=rate))


def _capacity(cluster: Cluster) -> float:
    capacity = sum(node.gpus * cluster.gpu_type(node.gpu_type).speed for node in cluster.nodes if node.gpus)
    if not capacity:
        raise BadValue(f"cluster {cluster.name!r} has no GPUs to load")
    return capacity


def generate(shape: WorkloadShape, seed: int) -> Trace:
    """Jobs of this shape. Sizes and durations are drawn in proportion (each part of a distribution gets its
    share), so that even a short workload has the mix that was asked for; and they arrive over as long as it takes
    for what was drawn to be the load that was asked for."""
    chance = np.random.default_rng(seed)
    sizes = _shares([one.weight for one in shape.classes], shape.jobs, chance)
    tenants = _shares([weight for _, weight in shape.tenants], shape.jobs, chance)
    users = chance.integers(0, max(shape.users_per_tenant, 1), shape.jobs)
    work = _durations(shape, sizes, tenants * max(shape.users_per_tenant, 1) + users, chance)
    gpu_seconds = float(work @ np.array([one.demand.total_gpus for one in shape.classes])[sizes])
    submitted = _submissions(shape, gpu_seconds, chance)
    limits = _time_limits(work, chance) if shape.time_limits else None
    best_effort = chance.random(shape.jobs)
    width = len(str(shape.jobs))
    jobs = []
    for index in range(shape.jobs):
        one = shape.classes[sizes[index]]
        tenant = shape.tenants[tenants[index]][0]
        jobs.append(
            Job(
                f"job-{index + 1:0{width}}",
                float(submitted[index]),
                one.demand,
                float(work[index]),
                tenant,
                f"{tenant}-{users[index] + 1}" if shape.users_per_tenant else "",
                job_class="best-effort" if best_effort[index] < one.best_effort else "guaranteed",
                time_limit=float(limits[index]) if limits is not None else None,
            )
        )
    notes = [f"made by chance from seed {seed}"]
    if shape.mean_gpu_seconds and (not gpu_seconds or submitted[0] == submitted[-1]):
        why = "ask for no GPU time" if not gpu_seconds else "came at one moment"
        notes.append(f"the {counted(shape.jobs, 'job')} drawn {why}: no load can be said of them")
    return in_order(shape.name, jobs, notes=notes)


def _shares(weights: list[float], count: int, chance: np.random.Generator) -> Indices:
    """`count` indices, each as often as it weighs (give or take one), in an order of chance."""
    edges = np.cumsum(weights) / np.sum(weights)
    points = (np.arange(count) + chance.random()) / count
    indices = np.minimum(np.searchsorted(edges, points, side="right"), len(weights) - 1)
    chance.shuffle(indices)
    return indices.astype(np.int64)


def _submissions(shape: WorkloadShape, gpu_seconds: float, chance: np.random.Generator) -> Numbers:
    """Seconds, rising. Given how many arrivals a Poisson process had, they are uniform in time.

    The span from the first to the last is such that `gpu_seconds`, which is what was drawn and not what was to be
    expected, come at the rate of the shape.
    """
    arrivals = shape.arrivals
    expected = shape.jobs * shape.mean_gpu_seconds
    span = shape.jobs / arrivals.per_hour * HOUR * (gpu_seconds / expected if gpu_seconds else 1.0)
    moments = max(1, round(shape.jobs / arrivals.burst))
    at = np.concatenate([np.arange(moments), chance.integers(0, moments, shape.jobs - moments)])
    when = _in_rhythm(np.sort(chance.random(moments)), arrivals.rhythm, span)
    spread = np.where(np.arange(shape.jobs) < moments, 0.0, chance.random(shape.jobs) * arrivals.burst_seconds)
    times = np.sort(when[at] + spread)
    drawn = times[-1] - times[0]
    stretched: Numbers = times[0] + (times - times[0]) * (span / drawn if drawn else 1.0)
    return np.round(stretched, 3)


def _in_rhythm(points: Numbers, rhythm: tuple[float, ...], span: float) -> Numbers:
    """Points of 0..1 as times of 0..span, denser in the hours that weigh more."""
    if not rhythm:
        return points * span
    hours = math.ceil(span / HOUR)
    edges = np.minimum(np.arange(hours + 1) * HOUR, span)
    weights = np.resize(np.asarray(rhythm), hours) * np.diff(edges)
    if not weights.sum() > 0:  # a span of night hours only
        return points * span
    reached = np.concatenate([[0.0], np.cumsum(weights)]) / weights.sum()
    times: Numbers = np.interp(points, reached, edges)
    return times


def _durations(shape: WorkloadShape, sizes: Indices, users: Indices, chance: np.random.Generator) -> Numbers:
    """Seconds of work. The jobs of a class are ranked by chance and their user's habit; ranks are read off
    the class's distribution: habit decides who gets which duration, never which durations there are."""
    own = chance.standard_normal(shape.jobs)
    habits = chance.standard_normal((int(users.max()) + 1, len(shape.classes)))
    scores = math.sqrt(shape.habit) * habits[users, sizes] + math.sqrt(1 - shape.habit) * own
    work = np.empty(shape.jobs)
    for index, one in enumerate(shape.classes):
        members = np.flatnonzero(sizes == index)
        ranks = np.argsort(np.argsort(scores[members], kind="stable"), kind="stable")
        quantiles = (ranks + chance.random(len(members))) / max(len(members), 1)
        work[members] = one.durations.seconds(quantiles)
    return np.round(work, 3)


_LIMITS = np.array([15 * MINUTE, 30 * MINUTE, *(hours * HOUR for hours in (1, 2, 4, 8, 12, 24, 48, 96, 168))])


def _time_limits(work: Numbers, chance: np.random.Generator) -> Numbers:
    """What users say: one and a half to eight times too long, rounded up to what people write."""
    wanted = work * np.exp(chance.uniform(math.log(1.5), math.log(8.0), len(work)))
    rounded = _LIMITS[np.minimum(np.searchsorted(_LIMITS, wanted), len(_LIMITS) - 1)]
    limits: Numbers = np.maximum(rounded, np.ceil(work))
    return limits


def _normal(quantile: Numbers) -> Numbers:
    """The standard normal's quantile: its distribution, tabled out to eight sigmas, read backwards."""
    return np.interp(quantile, _NORMAL_REACHED, _NORMAL_GRID)


_NORMAL_GRID: Numbers = np.linspace(-8.0, 8.0, 6401)
_NORMAL_REACHED: Numbers = np.array([0.5 * math.erfc(-z / math.sqrt(2)) for z in _NORMAL_GRID])


def calibrated(trace: Trace) -> WorkloadShape:
    """The shape of a trace: its demands with the durations each had, its tenants, hours and bursts."""
    jobs = [job for job in trace.jobs if job.work is not None]
    if not jobs:
        raise BadValue(f"trace {trace.name!r} has no job with a duration to learn from")
    by_demand: defaultdict[Demand, list[Job]] = defaultdict(list)
    by_tenant: defaultdict[str, int] = defaultdict(int)
    for job in jobs:
        by_demand[job.demand].append(job)
        by_tenant[job.tenant] += 1
    return WorkloadShape(
        jobs=len(jobs),
        arrivals=_learned_arrivals(jobs),
        classes=tuple(_learned_class(demand, members) for demand, members in by_demand.items()),
        tenants=tuple((tenant, float(count)) for tenant, count in by_tenant.items()),
        name=f"{trace.name}-like",
    )


def _learned_class(demand: Demand, jobs: list[Job]) -> SizeClass:
    durations = Empirical(_equal_parts(np.array([job.work for job in jobs], dtype=np.float64)))
    best_effort = sum(job.job_class == "best-effort" for job in jobs) / len(jobs)
    return SizeClass(demand, float(len(jobs)), durations, best_effort)


def _equal_parts(seconds: Numbers) -> tuple[float, ...]:
    """The mean of each of at most PARTS equal parts of the sorted durations; a part may end within one."""
    count = len(seconds)
    parts = min(PARTS, count)
    summed = np.concatenate([[0.0], np.cumsum(np.sort(seconds))])
    at_edges = np.interp(np.linspace(0, count, parts + 1), np.arange(count + 1), summed)
    means = np.diff(at_edges) * parts / count
    # Equal durations may get means that differ in the last digit, and must not fall for that.
    return tuple(np.maximum.accumulate(np.maximum(np.round(means, 6), 0.0)).tolist())


def _learned_arrivals(jobs: list[Job]) -> PoissonArrivals:
    submitted = np.array([job.submitted for job in jobs])
    submitted -= submitted[0]
    span = max(float(submitted[-1]), 1.0)
    together = 1.0
    moments = 1 + int(np.count_nonzero(np.diff(submitted) > together))
    hours_in_rhythm = 168 if span >= 14 * DAY else 24
    rhythm: tuple[float, ...] = ()
    if span >= 2 * DAY:
        by_hour = np.bincount((submitted // HOUR).astype(np.int64) % hours_in_rhythm, minlength=hours_in_rhythm)
        rhythm = tuple(by_hour.astype(float).tolist())
    return PoissonArrivals(len(jobs) / span * HOUR, rhythm, len(jobs) / moments, together)


def enlarge(trace: Trace, factor: float, seed: int, *, jitter: float = 30 * MINUTE) -> Trace:
    """The trace with every job `factor` times (a fraction by chance), copies moved by up to `jitter` seconds.

    A sample of 8.2 % of a cluster's jobs, enlarged by 1/0.082, asks for about what the whole did.
    """
    if not 0 < factor < math.inf:
        raise BadValue(f"a trace is enlarged by a factor > 0, not {factor}")
    chance = np.random.default_rng(seed)
    times = math.floor(factor) + (chance.random(len(trace.jobs)) < factor % 1)
    jobs: list[Job] = []
    last = trace.jobs[-1].submitted if trace.jobs else 0.0
    for job, copies in zip(trace.jobs, times.tolist(), strict=True):
        moves = chance.uniform(-jitter, jitter, max(copies - 1, 0)).tolist()
        jobs += [job] if copies else []
        jobs += [
            msgspec.structs.replace(
                job, id=f"{job.id}.{turn}", submitted=min(max(round(job.submitted + move, 3), 0.0), last)
            )
            for turn, move in enumerate(moves, start=2)
        ]
    notes = (
        *trace.notes,
        f"enlarged {factor:g} times from seed {seed}: copies are moved by up to {jitter:g} s",
    )
    return in_order(f"{trace.name}-x{factor:g}", jobs, left_out=trace.left_out, notes=notes)


def everyday(jobs: int) -> WorkloadShape:
    """A workload of the usual kind, as the public traces have it: most jobs are small and short, most GPU
    time goes to the few that are large and long. Any cluster of 8-GPU nodes can run it."""
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
        habit=0.6,
        time_limits=True,
        name="everyday",
    )
