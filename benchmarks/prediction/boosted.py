"""Gradient-boosted trees that predict durations: one model per quantile, retrained at intervals.

Features are what a scheduler knows when a job is submitted: its demand, owner, name and class, the time of day and the
day of the week; and, for four groups of similar jobs (all; the same demand; owner; owner, name and demand), the last
durations, their means, the numbers of ended and unfinished jobs, and the time since the last submission. Times are
logarithms.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import pairwise
from pathlib import Path

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from benchmarks.measure import REPOSITORY
from refold.model import DAY, HOUR, Job
from refold.predict import Floats

LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
PARTS = 20
"""The trees are retrained after each part of the trace on all jobs ended by then; the first part is not predicted."""

CACHE = REPOSITORY / "build" / "prediction"
RECENT_JOBS = 5


@dataclass(slots=True)
class _Group:
    """Statistics of a group of similar jobs."""

    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_JOBS))
    total: float = 0.0
    ended: int = 0
    unfinished: int = 0
    last_submitted: float = -1e9

    def features(self, now: float) -> list[float]:
        recent = list(self.recent)
        return [
            recent[-1] if recent else math.nan,
            float(np.mean(recent[-2:])) if recent else math.nan,
            float(np.mean(recent)) if recent else math.nan,
            self.total / self.ended if self.ended else math.nan,
            self.ended,
            math.log(now - self.last_submitted + 1.0),
            self.unfinished,
        ]

    def submit(self, now: float) -> None:
        self.last_submitted = now
        self.unfinished += 1

    def end(self, log_seconds: float) -> None:
        self.recent.append(log_seconds)
        self.total += log_seconds
        self.ended += 1
        self.unfinished -= 1


def quantiles(name: str, jobs: Sequence[Job]) -> Floats:
    """Return the predicted quantiles of each job at LEVELS, in seconds; NaN for the first part. Cached under build/."""
    key = hashlib.sha256(Path(__file__).read_bytes() + name.encode() + str(len(jobs)).encode()).hexdigest()
    path = CACHE / f"boosted-{key[:20]}.npy"
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        np.save(path, _predict(jobs))
    cached: Floats = np.load(path)
    return cached


def _predict(jobs: Sequence[Job]) -> Floats:
    features = _features(jobs)
    submitted = np.array([job.submitted for job in jobs])
    durations = np.array([job.work or 0.0 for job in jobs])
    logs = np.log(np.maximum(durations, 1.0))
    predicted = np.full((len(jobs), len(LEVELS)), np.nan)
    cuts = np.linspace(0, len(jobs), PARTS + 1).astype(int)
    for begin, end in pairwise(cuts[1:]):
        ended = np.flatnonzero((submitted + durations)[:begin] <= submitted[begin])
        for column, level in enumerate(LEVELS):
            trees = HistGradientBoostingRegressor(loss="quantile", quantile=level, random_state=0)
            predicted[begin:end, column] = trees.fit(features[ended], logs[ended]).predict(features[begin:end])
    predicted.sort(axis=1)  # crossing quantiles are sorted, in favour of the trees
    seconds: Floats = np.exp(predicted)
    return seconds


def _features(jobs: Sequence[Job]) -> Floats:
    groups: dict[Hashable, _Group] = {}
    codes: tuple[dict[str, int], ...] = ({}, {}, {}, {})
    running: list[tuple[float, int]] = []
    rows = []
    for index, job in enumerate(jobs):
        while running and running[0][0] <= job.submitted:
            ended = jobs[heappop(running)[1]]
            for key in _groups_of(ended):
                groups[key].end(math.log(max(ended.work or 0.0, 1.0)))
        job_groups = [groups.setdefault(key, _Group()) for key in _groups_of(job)]
        group_features = [number for group in job_groups for number in group.features(job.submitted)]
        rows.append(_job_features(job, codes) + group_features)
        for group in job_groups:
            group.submit(job.submitted)
        heappush(running, (job.submitted + (job.work or 0.0), index))
    return np.array(rows)


def _groups_of(job: Job) -> tuple[Hashable, ...]:
    owner = (job.tenant, job.user)
    return "all", job.demand, ("owner", *owner), (*owner, job.group, job.workload, job.demand)


def _job_features(job: Job, codes: tuple[dict[str, int], ...]) -> list[float]:
    """Return the features of the job itself; names are numbered in order of appearance."""
    demand = job.demand
    names = (job.tenant, job.user, job.group, job.workload)
    return [
        demand.total_gpus,
        demand.instances,
        demand.gpu_milli,
        demand.cpu_milli,
        demand.memory_mib,
        job.submitted / HOUR % 24,
        job.submitted // DAY % 7,
        job.job_class == "guaranteed",
        *(numbers.setdefault(name, len(numbers)) for numbers, name in zip(codes, names, strict=True)),
    ]
