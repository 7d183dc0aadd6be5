"""Run-time prediction from finished jobs, by context mixing that is learned online.

The contexts of a job range from all jobs to the jobs of the same owner, name and demand, and to the most recent of
those. Mixing weights are learned from the predictions made when a job was submitted, not from those that would be made
when it ends, because by then similar jobs have ended too. Based on Mahoney's context mixing for compression (PAQ), with
the duration as the coded symbol.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from refold.errors import BadValue
from refold.model import Job, Seconds
from refold.predict import kernels
from refold.predict.distribution import DurationDistribution
from refold.predict.kernels import (
    BINS,
    CALIBRATION_BINS,
    CALIBRATION_PRIOR,
    EXPERIENCE_BUCKETS,
    INPUTS,
    LEVELS,
    LIMIT_HINT,
    LIMITED,
    MODEL_HINT,
    MODELLED,
    RATES,
    TABLE_ROWS,
    TIME_CONTEXTS,
    VARIANTS,
    ContextTables,
    Floats,
    Hashes,
    MixingWeights,
    Singles,
)

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
    """What was known of a job when it was submitted: its context keys, their inputs, and the prediction.

    `contexts`: the keys and hints as one value; jobs that were submitted together often have the same.
    """

    contexts: bytes
    keys: Hashes
    hints: Floats
    inputs: npt.NDArray[np.float16]
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
        self._static_hashes: dict[tuple[object, ...], Hashes] = {}
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
        kernels.count_arrival(record.keys, now, self._tables, self._tick)

    def expect(self, job: Job, now: Seconds) -> DurationDistribution:
        """Return the run-time distribution of a job that has not started."""
        kind: tuple[object, ...]
        record = self._unfinished.get(job.id)
        if record is not None:
            kind = (record.contexts, job.time_limit)
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
        keys, hints = self._context_keys(job, now)
        survival = kernels.predict_survival(
            keys, hints, _variant(hints), self._tables, prior(), ratio_priors(), self._weights
        )
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
            survival = kernels.condition_on_progress(distribution.survival, elapsed / share_done, width)
            distribution = DurationDistribution(survival, 0.0, distribution.ceiling)
        return distribution.beyond(elapsed)

    def has_recorded(self, job: Job) -> bool:
        """Return whether the submission of a job has been recorded."""
        return job.id in self._unfinished

    def service_of(self, jobs: Sequence[Job], elapsed: Floats, min_service: Seconds) -> Floats:
        """Return `service_per_completion` of recorded jobs, given their run times so far: many in one call."""
        if not jobs:
            return np.empty(0)
        records = [self._unfinished[job.id] for job in jobs]
        recorded = kernels.RecordedJobs(
            np.array([record.keys for record in records]),
            np.array([record.hints for record in records]),
            elapsed,
            np.array([math.inf if job.time_limit is None else job.time_limit for job in jobs]),
        )
        return kernels.service_of(recorded, min_service, self._tables, prior(), ratio_priors(), self._weights)

    def finished(self, job: Job, seconds: Seconds, now: Seconds) -> None:
        """Learn from a job that has finished after `seconds`."""
        _check_seconds("run time", job, seconds)
        record = self._unfinished.pop(job.id, None)
        if record is None:
            record = self._record(job, now)
        else:
            kernels.count_departure(record.keys, self._tables)
        predicted_survival = min(max(1.0 - record.prediction.probability(seconds), 0.0), 1.0)
        self._expected.clear()
        variant = _variant(record.hints)
        kernels.update_weights(
            record.inputs.astype(np.float32), variant, record.experience, predicted_survival, seconds, self._weights
        )
        self._tick += 1
        kernels.update_contexts(record.keys, seconds, record.hints, now, self._tables, self._tick)

    def forget(self, job_id: str) -> None:
        """Drop a job that will not finish, without learning from it."""
        record = self._unfinished.pop(job_id, None)
        if record is not None:
            self._expected.clear()
            kernels.count_departure(record.keys, self._tables)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy, without the unused rows of the context tables: mostly nearly all of them."""
        tables = self._tables
        used = np.flatnonzero(tables.hashes)
        rows = np.append(used, TABLE_ROWS)
        used_rows = ContextTables(
            tables.hashes[used],
            tables.last_used[used],
            tables.log_odds[rows],
            tables.examples[rows],
            tables.recent[rows],
        )
        return {**self.__dict__, "_tables": (used, used_rows), "_expected": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        used, stored = state["_tables"]
        rows = np.append(used, TABLE_ROWS)
        tables = empty_tables()
        tables.hashes[used], tables.last_used[used] = stored.hashes, stored.last_used
        tables.log_odds[rows], tables.examples[rows], tables.recent[rows] = (
            stored.log_odds,
            stored.examples,
            stored.recent,
        )
        self.__dict__.update(state, _tables=tables)

    @property
    def unfinished(self) -> int:
        """Number of submitted jobs that have not ended."""
        return len(self._unfinished)

    def _record(self, job: Job, now: Seconds) -> _Submitted:
        keys, hints = self._context_keys(job, now)
        inputs, experience = kernels.collect_inputs(keys, hints, self._tables, prior(), ratio_priors())
        prediction = DurationDistribution(kernels.mix_survival(inputs, _variant(hints), experience, self._weights))
        contexts = keys.tobytes() + hints.tobytes()
        return _Submitted(contexts, keys, hints, inputs.astype(np.float16), experience, prediction)

    def _context_keys(self, job: Job, now: Seconds) -> tuple[Hashes, Floats]:
        """Return the context keys and duration hints of a job, as of its submission."""
        if not math.isfinite(now):
            raise BadValue(f"job {job.id!r}: time of prediction is {now}, expected a finite number")
        record = self._unfinished.get(job.id)
        if record is not None:
            return record.keys, record.hints
        modelled_seconds = self._modelled_seconds(job) if self._modelled_seconds else None
        hints = np.array([0.0, hint_seconds(job.time_limit), hint_seconds(modelled_seconds)])
        return kernels.context_keys(self._static_hashes_of(job), now, hints, self._tables), hints

    def _static_hashes_of(self, job: Job) -> Hashes:
        """Return the hashes of the static contexts; cached, since there are few kinds of jobs."""
        kind = job_kind(job)
        static = self._static_hashes.get(kind)
        if static is None:
            if len(self._static_hashes) >= MAX_CACHED_JOB_KINDS:
                self._static_hashes.clear()
            static = self._static_hashes[kind] = hash_fields(job)
        return static


def job_kind(job: Job) -> tuple[object, ...]:
    """Return the fields of a job on which its contexts depend."""
    return job.tenant, job.user, job.group, job.workload, job.demand, job.job_class, job.steps, job.batch


def hash_fields(job: Job) -> Hashes:
    """Hash the fields of a job from coarse to fine, in the order of `kernels`; equal on all machines and processes."""
    demand, owner = repr(job.demand), f"{job.tenant}\0{job.user}"
    kind = f"{owner}\0{job.group}\0{job.workload}"
    full = f"{kind}\0{demand}\0{job.job_class}\0{job.steps}\0{job.batch}"
    texts = ("", str(job.demand.total_gpu_milli), demand, owner, f"{owner}\0{demand}", kind, full)
    return np.array([crc32(text.encode()) for text in texts] + _hash_borrowed(job), np.uint64)


def _hash_borrowed(job: Job) -> list[int]:
    """Hash what a job has in common with those of other users: tenant, and name and workload; 0: nothing."""
    name = f"{job.group}\0{job.workload}" if job.group or job.workload else ""
    return [crc32(text.encode()) if text and job.user else 0 for text in (job.tenant, name)]


def empty_tables() -> ContextTables:
    """Return tables without contexts."""
    recent = np.empty((TABLE_ROWS + 1, kernels.RECENT_COLUMNS))
    recent[TABLE_ROWS] = (-1.0, -1.0, -1.0, -math.inf, -math.inf, 0.0)
    return ContextTables(
        np.zeros(TABLE_ROWS, np.uint64),
        np.zeros(TABLE_ROWS, np.int64),
        np.zeros((TABLE_ROWS + 1, RATES, BINS), np.float32),
        np.zeros((TABLE_ROWS + 1, BINS), np.float32),
        recent,
    )


# The priors are computed at first use: creating a policy must not compile anything.


@cache
def prior() -> Singles:
    """Return the prior of a job about which nothing is known."""
    return kernels.log_odds_tree(kernels.log_normal_bins(*PRIOR))


@cache
def ratio_priors() -> Singles:
    """Return the prior of each hint: a log-normal curve around a fraction of the hint."""
    ratio_one = kernels.FIRST_EDGE * 2.0 ** (kernels.RATIO_ONE_BIN / kernels.BINS_PER_DOUBLING)
    priors = [kernels.log_normal_bins(share * ratio_one, width, uniform) for share, width, uniform in RATIO_PRIORS]
    return np.array([kernels.log_odds_tree(masses) for masses in priors])


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
    )


def _variant(hints: Floats) -> int:
    """Return the variant of mixing weights for a job."""
    return LIMITED * bool(hints[LIMIT_HINT]) + MODELLED * bool(hints[MODEL_HINT])


def hint_seconds(seconds: Seconds | None) -> Seconds:
    """Return the hint; 0 for none, or for one without information."""
    return seconds if seconds is not None and 0.0 < seconds < math.inf else 0.0


def _check_seconds(what: str, job: Job, seconds: Seconds) -> None:
    if not 0.0 <= seconds < math.inf:
        raise BadValue(f"job {job.id!r}: {what} is {seconds}, expected seconds ≥ 0")
