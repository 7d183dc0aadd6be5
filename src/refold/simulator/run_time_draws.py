"""Random run times of jobs, and arrivals of further ones, for simulated futures.

What a user has estimated is taken as it is. Otherwise run times are predicted, once a job has ended or if a run reports
its progress. Before that, a job with a time limit is assumed to use all of it, and the run time of others is unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from functools import cached_property
from math import inf, sqrt

import msgspec
import numpy as np

from refold.model import Job, Seconds
from refold.placement import Floats
from refold.predict import DurationDistribution, Predictor

COMMON_FACTOR_JOBS = 10
"""After this many jobs of a kind, half of the variance of their run times is common to all of them in a future.

Before, it is more: if little is known of jobs that are alike, all of them are longer than expected, or none is."""

TABLE_SHARES = 64
"""Number of quantiles from which run times of waiting jobs of the same kind are drawn."""

MIN_OVERRUN: Seconds = 1.0
"""Runs that take longer than expected are assumed to take at least so much longer."""

_SHARES = (np.arange(TABLE_SHARES) + 0.5) / TABLE_SHARES


class StartedJob(msgspec.Struct, frozen=True):
    """A job that has run for `elapsed` seconds; `share_done`: of its steps, None if it reports none."""

    job: Job
    elapsed: Seconds
    share_done: float | None = None


class RunTimes:
    """Run times of jobs, learned from those that have ended. Nothing is computed before run times are drawn."""

    def __init__(self, *, trust_work: bool = True) -> None:
        """`trust_work`: whether the `work` of jobs is what their users estimate; else it is not looked at."""
        self._trust_work = trust_work
        self._unlearned: list[tuple[Job, Seconds, Seconds]] = []
        self._ended: Counter[Hashable] = Counter()
        self._tables: dict[Hashable, Floats] = {}

    def learn(self, job: Job, run_time: Seconds, now: Seconds) -> None:
        self._unlearned.append((job, run_time, now))
        self._ended[_series(job)] += 1

    def draws(self, futures: int, seed: int) -> RunTimeDraws:
        """Return the random run times of a number of futures. The same seed gives the same ones."""
        self.update()
        return RunTimeDraws(self, futures, seed)

    def update(self) -> None:
        """Learn what has been noted, before it is needed."""
        if self._unlearned:
            self._tables.clear()
        for job, run_time, now in self._unlearned:
            self._predictor.submitted(job, now)
            self._predictor.finished(job, run_time, now)
        self._unlearned.clear()

    def remaining_quantiles(self, started: StartedJob, shares: Sequence[float], now: Seconds) -> list[Seconds]:
        """Return quantiles of the remaining run time of a job; infinite if nothing is known."""
        self.update()
        return [float(seconds) for seconds in self.remaining(started, np.array(shares), now)]

    @cached_property
    def _predictor(self) -> Predictor:
        return Predictor()

    @property
    def _has_learned(self) -> bool:
        return bool(self._ended)

    def common_part(self, job: Job) -> float:
        """Return the part of the variance of a job's run time that it has in common with jobs like it."""
        return COMMON_FACTOR_JOBS / (COMMON_FACTOR_JOBS + self._ended[_series(job)])

    def quantiles(self, job: Job, now: Seconds) -> Floats:
        """Return the quantiles of the run time of a job that has not started: all infinite if nothing is known."""
        work = job.work if self._trust_work else None
        kind = (_series(job), job.workload, job.demand, job.job_class, job.steps, job.batch, job.time_limit, work)
        table = self._tables.get(kind)
        if table is None:
            table = self._tables[kind] = self._make_table(job, now)
        return table

    def _make_table(self, job: Job, now: Seconds) -> Floats:
        if job.work is not None and self._trust_work:
            return np.full(TABLE_SHARES, min(job.work, job.time_limit or inf))
        if not self._has_learned:
            return np.full(TABLE_SHARES, job.time_limit or inf)
        distribution = self._predictor.expect(job, now)
        return np.array([distribution.quantile(share) for share in _SHARES.tolist()])

    def until_limit(self, started: StartedJob) -> Seconds:
        """Return how long a job may still run; one that has exceeded its limit may do so by as much again."""
        left = (started.job.time_limit or inf) - started.elapsed
        return left if left > 0 else max(-left, MIN_OVERRUN)

    def remaining(self, started: StartedJob, shares: Floats, now: Seconds) -> Floats:
        """Return the remaining run time of a job for each of these shares of its distribution."""
        job, elapsed = started.job, started.elapsed
        limit = self.until_limit(started)
        if self._trust_work and job.work is not None and job.work > elapsed:
            return np.full(len(shares), min(job.work - elapsed, limit))
        if not (self._has_learned or started.share_done):
            return np.full(len(shares), limit)
        total = self._predictor.expect_running(job, now, elapsed, started.share_done)
        return np.clip(_quantiles(total, shares) - elapsed, MIN_OVERRUN, limit)


class RunTimeDraws:
    """Random run times, with one row per future. Run times of jobs of the same kind are correlated."""

    def __init__(self, run_times: RunTimes, futures: int, seed: int) -> None:
        self._run_times, self._futures = run_times, futures
        self._random = np.random.default_rng([seed, futures])
        self._common: dict[Hashable, Floats] = {}

    def waiting(self, jobs: Sequence[Job], now: Seconds) -> Floats:
        """Return run times of jobs that have not started (columns); infinite if unknown."""
        drawn = np.empty((self._futures, len(jobs)))
        columns: dict[int, list[int]] = {}
        tables: dict[int, tuple[Job, Floats]] = {}
        for column, job in enumerate(jobs):
            table = self._run_times.quantiles(job, now)
            columns.setdefault(id(table), []).append(column)
            tables[id(table)] = job, table
        for key, (job, table) in tables.items():
            shares = self._shares(job, len(columns[key]))
            drawn[:, columns[key]] = np.interp(shares, _SHARES, table) if table[0] < inf else inf
        return drawn

    def remaining(self, jobs: Sequence[StartedJob], now: Seconds) -> Floats:
        """Return remaining run times of jobs that have started (columns); infinite if unknown."""
        rows = [self._run_times.remaining(job, self._shares(job.job, 1)[:, 0], now) for job in jobs]
        return np.array(rows).reshape(-1, self._futures).T

    def _shares(self, job: Job, count: int) -> Floats:
        """Return random numbers from 0 to 1 for jobs that are alike: each the sum of a common and an own part."""
        from scipy.special import ndtr  # imported late: it takes a quarter of a second to load

        series = _series(job)
        if series not in self._common:
            self._common[series] = self._stratified_normal()
        common = self._run_times.common_part(job)
        own = self._random.standard_normal((self._futures, count))
        shares: Floats = ndtr(sqrt(common) * self._common[series][:, None] + sqrt(1.0 - common) * own)
        return shares

    def _stratified_normal(self) -> Floats:
        """Return normal random numbers, one from each of as many equally likely ranges as there are futures."""
        from scipy.special import ndtri

        random = self._random
        drawn: Floats = ndtri((random.permutation(self._futures) + random.random(self._futures)) / self._futures)
        return drawn


def _series(job: Job) -> Hashable:
    return job.tenant, job.user, job.group


def _quantiles(distribution: DurationDistribution, shares: Floats) -> Floats:
    return np.array([distribution.quantile(share) for share in shares.tolist()])


MAX_ARRIVALS = 1_000
"""The number of arrivals per future."""


class PastArrivals:
    """The jobs submitted so far, in order, each with its actual or predicted run time."""

    def __init__(self, jobs: Sequence[Job], durations: Sequence[Seconds], now: Seconds) -> None:
        self._jobs, self._durations = jobs, durations
        self._submit_times = np.array([job.submitted for job in jobs], dtype=np.float64)
        self._now = now

    def resample(self, random: np.random.Generator, used_ids: set[str]) -> list[Job]:
        """Return the arrivals from now on: those after a random past time, shifted to now, and repeated cyclically.

        The jobs get unused ids, and their run time as `work`.
        """
        if not len(self._jobs) or not self._now > self._submit_times[0]:
            return []
        first, span = float(self._submit_times[0]), self._now - float(self._submit_times[0])
        begin = first + span * random.random()
        index = int(np.searchsorted(self._submit_times, begin))
        arrivals: list[Job] = []
        shift = self._now - begin
        for number in range(MAX_ARRIVALS):
            if index == len(self._jobs):
                index, shift = 0, shift + span
            job_id = _unused_id(f"coming-{number}", used_ids)
            at = float(self._submit_times[index]) + shift
            arrivals.append(
                msgspec.structs.replace(self._jobs[index], id=job_id, submitted=at, work=self._durations[index])
            )
            index += 1
        return arrivals


def _unused_id(job_id: str, used_ids: set[str]) -> str:
    while job_id in used_ids:
        job_id += "'"
    return job_id
