"""Gradient-boosted trees as one who foresees durations: a model for each quantile, trained anew at intervals.

They know what a scheduler knows when a job is submitted: its demand, owner, name and class, the time of day and of
the week, and of four groups of jobs like it (all, the same demand, owner, and all of these) the last durations, their
means, how many there were, how many have not ended, and when the last one came. Times are logarithms.
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

CHANCES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
PARTS = 20
"""Trained anew after every twentieth of the trace, on all jobs that have ended by then; the first is not foreseen."""

KEPT = REPOSITORY / "build" / "prediction"
LAST = 5


@dataclass(slots=True)
class _Group:
    """What is known of jobs that are alike."""

    lasts: deque[float] = field(default_factory=lambda: deque(maxlen=LAST))
    total: float = 0.0
    ended: int = 0
    unfinished: int = 0
    last_came: float = -1e9

    def features(self, now: float) -> list[float]:
        lasts = list(self.lasts)
        return [
            lasts[-1] if lasts else math.nan,
            float(np.mean(lasts[-2:])) if lasts else math.nan,
            float(np.mean(lasts)) if lasts else math.nan,
            self.total / self.ended if self.ended else math.nan,
            self.ended,
            math.log(now - self.last_came + 1.0),
            self.unfinished,
        ]

    def come(self, now: float) -> None:
        self.last_came = now
        self.unfinished += 1

    def end(self, log_seconds: float) -> None:
        self.lasts.append(log_seconds)
        self.total += log_seconds
        self.ended += 1
        self.unfinished -= 1


def quantiles(name: str, jobs: Sequence[Job]) -> Floats:
    """What the trees say of each job at `CHANCES`, in seconds; NaN for the first part. Kept under build/."""
    known = hashlib.sha256(Path(__file__).read_bytes() + name.encode() + str(len(jobs)).encode()).hexdigest()
    path = KEPT / f"boosted-{known[:20]}.npy"
    if not path.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        np.save(path, _foreseen(jobs))
    kept: Floats = np.load(path)
    return kept


def _foreseen(jobs: Sequence[Job]) -> Floats:
    features = _features(jobs)
    submitted = np.array([job.submitted for job in jobs])
    lasted = np.array([job.work or 0.0 for job in jobs])
    logs = np.log(np.maximum(lasted, 1.0))
    said = np.full((len(jobs), len(CHANCES)), np.nan)
    cuts = np.linspace(0, len(jobs), PARTS + 1).astype(int)
    for begin, end in pairwise(cuts[1:]):
        known = np.flatnonzero((submitted + lasted)[:begin] <= submitted[begin])
        for place, chance in enumerate(CHANCES):
            trees = HistGradientBoostingRegressor(loss="quantile", quantile=chance, random_state=0)
            said[begin:end, place] = trees.fit(features[known], logs[known]).predict(features[begin:end])
    said.sort(axis=1)  # quantiles that cross are put in order, in the trees' favour
    seconds: Floats = np.exp(said)
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
        mine = [groups.setdefault(key, _Group()) for key in _groups_of(job)]
        lately = [number for group in mine for number in group.features(job.submitted)]
        rows.append(_own_features(job, codes) + lately)
        for group in mine:
            group.come(job.submitted)
        heappush(running, (job.submitted + (job.work or 0.0), index))
    return np.array(rows)


def _groups_of(job: Job) -> tuple[Hashable, ...]:
    owner = (job.tenant, job.user)
    return "all", job.demand, ("owner", *owner), (*owner, job.group, job.workload, job.demand)


def _own_features(job: Job, codes: tuple[dict[str, int], ...]) -> list[float]:
    """What a job says of itself; names are numbered as they come."""
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
        *(known.setdefault(name, len(known)) for known, name in zip(codes, names, strict=True)),
    ]
