"""Run-time prediction from finished jobs, by context mixing that is learned online.

The contexts of a job range from all jobs to the jobs of the same owner, name and demand, and to the most recent of
those. Mixing weights are learned from the predictions made when a job was submitted, not from those that would be made
when it ends, because by then similar jobs have ended too. Based on Mahoney's context mixing for compression (PAQ), with
the duration as the coded symbol.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from refold.errors import BadValue
from refold.model import Job, Seconds
from refold.predict.contexts import JobContexts, contexts_of, count_arrival, count_departure, empty_tables
from refold.predict.distribution import DurationDistribution
from refold.predict.layout import (
    BINS,
    BINS_PER_DOUBLING,
    CALIBRATION_BINS,
    CALIBRATION_PRIOR,
    EXPERIENCE_BUCKETS,
    FIRST_EDGE,
    HEIGHTS,
    INPUTS,
    LEVELS,
    LIMITED,
    MODELLED,
    RATES,
    RATIO_ONE_BIN,
    TIME_CONTEXTS,
    VARIANTS,
    Floats,
    Halves,
    Singles,
)
from refold.predict.mixing import (
    MixingWeights,
    log_odds_tree,
    predict_inputs,
    predict_survival,
    service_of,
    update_contexts,
    update_weights,
    variant_of,
)
from refold.predict.survival import bin_of, condition_on_progress, log_normal_bins

PRIOR = (600.0, 2.5, 0.05)
"""Prior of durations: median in seconds, standard deviation in log time, and weight of a uniform part."""

RATIO_PRIORS = ((1.0, 1.5, 0.2), (0.3, 1.5, 0.05), (1.0, 0.5, 0.05))
"""The same for ratios of the duration to the hints: the last two jobs like it, its time limit, and a model."""

HISTORY_WEIGHTS = {0: 1.0, LIMITED: 0.3, MODELLED: 0.3, LIMITED + MODELLED: 0.2}
RECENT_WEIGHTS = {0: 0.2, LIMITED: 0.1, MODELLED: 0.1}
LIMIT_WEIGHTS = {LIMITED: 0.8, LIMITED + MODELLED: 0.3}
MODEL_WEIGHTS = {MODELLED: 0.8, LIMITED + MODELLED: 0.7}
"""Initial total weight of all contexts of each sort, by variant of jobs."""

MAX_CACHED_JOB_KINDS = 1 << 16


class _Submitted(NamedTuple):
    """What was known of a job when it was submitted: its contexts, their inputs, and the prediction.

    `kind`: the contexts as one value; jobs that were submitted together often have the same.
    """

    kind: bytes
    contexts: JobContexts
    inputs: Halves
    experience: int
    prediction: DurationDistribution


class Predictor:
    """Predicts run times as distributions, from the submissions and ends reported to it.

    `modelled_seconds` returns the duration of a job by its steps and modelled speed, or None if unknown. Memory: at
    most 50 MB for the context tables, which replace the least recently used contexts, and 11 kB per unfinished job.
    """

    def __init__(self, modelled_seconds: Callable[[Job], Seconds | None] | None = None) -> None:
        self._modelled_seconds = modelled_seconds
        self._tables = empty_tables()
        self._weights = initial_weights()
        self._tick = 0
        self._unfinished: dict[str, _Submitted] = {}
        self._static_hashes: dict[tuple[object, ...], array[int]] = {}
        self._expected: dict[tuple[object, ...], DurationDistribution] = {}
        """Expectations by kind of job, if recorded by its contexts then, until something is learned: equal jobs have
        equal ones. Those of jobs that are not recorded depend on the time."""
        self._expected_at: Seconds = math.nan

    def submitted(self, job: Job, now: Seconds) -> None:
        """Record the submission of a job. Further calls for the same job have no effect."""
        if job.id in self._unfinished:
            return
        record = self._record(job, now)
        self._unfinished[job.id] = record
        self._expected.clear()
        self._tick += 1
        count_arrival(record.contexts, now, self._tables, self._tick)

    def expect(self, job: Job, now: Seconds) -> DurationDistribution:
        """Return the run-time distribution of a job that has not started."""
        kind: tuple[object, ...]
        record = self._unfinished.get(job.id)
        if record is not None:
            kind = (record.kind, job.time_limit)
        else:
            if self._expected_at != now:
                self._expected.clear()
                self._expected_at = now
            kind = (*job_kind(job), job.time_limit, self._modelled_seconds(job) if self._modelled_seconds else None)
        found = self._expected.get(kind)
        if found is None:
            found = self._expected[kind] = self._expect(job, now)
        return found

    def _expect(self, job: Job, now: Seconds) -> DurationDistribution:
        survival = predict_survival(self._weights, self._tables, self._contexts(job, now))
        return DurationDistribution(survival, 0.0, math.inf if job.time_limit is None else job.time_limit)

    def expect_running(
        self, job: Job, now: Seconds, elapsed: Seconds, share_done: float | None = None
    ) -> DurationDistribution:
        """Return the distribution of the total run time, given `elapsed` and the reported share of work done."""
        _check_seconds("elapsed time", job, elapsed)
        if share_done is not None and not 0.0 <= share_done <= 1.0:
            raise BadValue(f"job {job.id!r}: share of work done is {share_done}, expected 0 to 1")
        distribution = self.expect(job, now)
        if share_done and elapsed > 0.0:
            # Extrapolated progress becomes more certain the more work is done.
            width = max(0.05, 0.3 * (1.0 - share_done))
            survival = condition_on_progress(distribution.survival, elapsed / share_done, width)
            distribution = DurationDistribution(survival, 0.0, distribution.ceiling)
        return distribution.beyond(elapsed)

    def has_recorded(self, job: Job) -> bool:
        """Return whether the submission of a job has been recorded."""
        return job.id in self._unfinished

    def service_of(self, jobs: Sequence[Job], elapsed: Floats, min_service: Seconds) -> Floats:
        """Return `service_per_completion` of recorded jobs, given their run times so far: many in one call."""
        if not jobs:
            return np.empty(0)
        contexts = [self._unfinished[job.id].contexts for job in jobs]
        limits = np.array([math.inf if job.time_limit is None else job.time_limit for job in jobs])
        return service_of(self._weights, self._tables, contexts, elapsed, limits, min_service)

    def finished(self, job: Job, seconds: Seconds, now: Seconds) -> None:
        """Learn from a job that has finished after `seconds`."""
        _check_seconds("run time", job, seconds)
        record = self._unfinished.pop(job.id, None)
        if record is None:
            record = self._record(job, now)
        else:
            count_departure(record.contexts, self._tables)
        predicted_survival = min(max(1.0 - record.prediction.probability(seconds), 0.0), 1.0)
        self._expected.clear()
        path = (BINS + bin_of(seconds)) >> HEIGHTS
        inputs, variant = record.inputs.take(path, axis=1).astype(np.float32), variant_of(record.contexts)
        update_weights(self._weights, inputs, variant, record.experience, predicted_survival, seconds)
        self._tick += 1
        update_contexts(record.contexts, seconds, now, self._tables, self._tick)

    def forget(self, job_id: str) -> None:
        """Drop a job that will not finish, without learning from it."""
        record = self._unfinished.pop(job_id, None)
        if record is not None:
            self._expected.clear()
            count_departure(record.contexts, self._tables)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy, without what can be predicted again."""
        return {**self.__dict__, "_expected": {}}

    @property
    def unfinished(self) -> int:
        """Number of submitted jobs that have not ended."""
        return len(self._unfinished)

    def _record(self, job: Job, now: Seconds) -> _Submitted:
        contexts = self._contexts(job, now)
        inputs, experience, survival = predict_inputs(self._weights, self._tables, contexts)
        kind = b"".join(part.tobytes() for part in contexts.arrays)
        return _Submitted(kind, contexts, inputs, experience, DurationDistribution(survival))

    def _contexts(self, job: Job, now: Seconds) -> JobContexts:
        """Return the contexts of a job, as of its submission."""
        if not math.isfinite(now):
            raise BadValue(f"job {job.id!r}: time of prediction is {now}, expected a finite number")
        record = self._unfinished.get(job.id)
        if record is not None:
            return record.contexts
        modelled_seconds = self._modelled_seconds(job) if self._modelled_seconds else None
        hints = np.array([0.0, hint_seconds(job.time_limit), hint_seconds(modelled_seconds)])
        return contexts_of(self._static_hashes_of(job), now, hints, self._tables)

    def _static_hashes_of(self, job: Job) -> array[int]:
        """Return the hashes of the static contexts; cached, since there are few kinds of jobs."""
        kind = job_kind(job)
        static = self._static_hashes.get(kind)
        if static is None:
            if len(self._static_hashes) >= MAX_CACHED_JOB_KINDS:
                self._static_hashes.clear()
            static = self._static_hashes[kind] = hash_fields(job)
        return static


class FrozenPredictor(Predictor):
    """The predictions of another predictor, which must not learn meanwhile; it learns nothing itself."""

    def __init__(self, predictor: Predictor) -> None:
        self.__dict__.update(predictor.__dict__)
        self._expected = {}

    def submitted(self, job: Job, now: Seconds) -> None:
        """Record nothing."""

    def finished(self, job: Job, seconds: Seconds, now: Seconds) -> None:
        """Learn nothing."""

    def forget(self, job_id: str) -> None:
        """Keep what is known."""


def job_kind(job: Job) -> tuple[object, ...]:
    """Return the fields of a job on which its contexts depend."""
    return job.tenant, job.user, job.group, job.workload, job.demand, job.job_class, job.steps, job.batch


def hash_fields(job: Job) -> array[int]:
    """Hash the fields of a job from coarse to fine, in the order of `layout`; equal on all machines and processes."""
    demand, owner = repr(job.demand), f"{job.tenant}\0{job.user}"
    kind = f"{owner}\0{job.group}\0{job.workload}"
    full = f"{kind}\0{demand}\0{job.job_class}\0{job.steps}\0{job.batch}"
    texts = ("", str(job.demand.total_gpu_milli), demand, owner, f"{owner}\0{demand}", kind, full)
    return array("Q", [crc32(text.encode()) for text in texts] + _hash_borrowed(job))


def _hash_borrowed(job: Job) -> list[int]:
    """Hash what a job has in common with those of other users: tenant, and name and workload; 0: nothing."""
    name = f"{job.group}\0{job.workload}" if job.group or job.workload else ""
    return [crc32(text.encode()) if text and job.user else 0 for text in (job.tenant, name)]


@cache
def priors() -> Singles:
    """Return the priors: of a job about which nothing is known, and of each hint, around a fraction of the hint."""
    ratio_one = FIRST_EDGE * 2.0 ** (RATIO_ONE_BIN / BINS_PER_DOUBLING)
    curves = [PRIOR, *((share * ratio_one, width, uniform) for share, width, uniform in RATIO_PRIORS)]
    return np.array([log_odds_tree(log_normal_bins(*curve)) for curve in curves])


def initial_weights() -> MixingWeights:
    """Return weights that are equal for all contexts of the same sort."""
    weights = np.zeros((VARIANTS, INPUTS), np.float32)
    history = 1 + TIME_CONTEXTS * RATES
    for variant in range(VARIANTS):
        weights[variant, :history] = HISTORY_WEIGHTS[variant] / history
        for hint, by_variant in enumerate((RECENT_WEIGHTS, LIMIT_WEIGHTS, MODEL_WEIGHTS)):
            first = history + hint * RATES
            weights[variant, first : first + RATES] = by_variant.get(variant, 0.0) / RATES
    return MixingWeights(
        np.repeat(weights[:, :, None], BINS, axis=2),
        np.tile(weights[:, None, None, :], (1, EXPERIENCE_BUCKETS, LEVELS, 1)),
        np.full(CALIBRATION_BINS, CALIBRATION_PRIOR / CALIBRATION_BINS),
        priors(),
    )


def hint_seconds(seconds: Seconds | None) -> Seconds:
    """Return the hint; 0 for none, or for one without information."""
    return seconds if seconds is not None and 0.0 < seconds < math.inf else 0.0


def _check_seconds(what: str, job: Job, seconds: Seconds) -> None:
    if not 0.0 <= seconds < math.inf:
        raise BadValue(f"job {job.id!r}: {what} is {seconds}, expected seconds ≥ 0")
