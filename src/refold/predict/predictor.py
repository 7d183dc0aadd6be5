"""Foreseeing how long jobs last from those that have ended: a mixture, learned online, of what many contexts saw.

The contexts of a job run from everything that ever ran to the jobs of the same owner, name and demand, and to what
has happened lately to those. How a context is trusted is learned from what it said when a job was submitted, not
from what it would say when the job ends, by which time its like have ended too. After Mahoney's context mixing for
compression (PAQ), with time as the symbol that is coded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from refold.errors import BadValue
from refold.model import Job, Seconds
from refold.predict import kernels
from refold.predict.distribution import DurationDistribution
from refold.predict.kernels import (
    BINS,
    BUCKETS,
    INPUTS,
    LEVELS,
    LIMIT,
    LIMITED,
    MODEL,
    MODELLED,
    RATIOS,
    ROWS,
    SHARES,
    SHARES_SEEN,
    SPEEDS,
    VARIANTS,
    ContextTables,
    Floats,
    Names,
    Singles,
    Trust,
)

PRIOR = (600.0, 2.5, 0.05)
"""Believed before anything was seen: ten minutes, but a factor of e^2.5 either way would be no surprise."""

FIRST_RATIOS = ((1.0, 1.5, 0.2), (0.3, 1.5, 0.05), (1.0, 0.5, 0.05))
"""The same of how long jobs last beside the last two like them, beside their limits, and beside models of them."""

HISTORY_TRUST = {0: 1.0, LIMITED: 0.3, MODELLED: 0.3, LIMITED + MODELLED: 0.2}
LATELY_TRUST = {0: 0.2, LIMITED: 0.1, MODELLED: 0.1}
LIMIT_TRUST = {LIMITED: 0.8, LIMITED + MODELLED: 0.3}
MODEL_TRUST = {MODELLED: 0.8, LIMITED + MODELLED: 0.7}
"""What all contexts of a sort weigh together before anything was seen, for each variant of jobs."""

MOST_KINDS = 1 << 16


class _Submitted(NamedTuple):
    """What was known of a job when it was submitted: its contexts, what they said, and what was made of it."""

    keys: Names
    hints: Floats
    inputs: npt.NDArray[np.float16]
    known: int
    said: DurationDistribution


class Predictor:
    """Foresees how long jobs last from those that have ended; it knows only what it was told.

    `modelled` says how long a job takes by its own steps and speed, if that can be known. Memory: at most 50 MB for
    what was seen, where contexts not used for longest make room, and 11 kB for each job that has not ended.
    """

    def __init__(self, modelled: Callable[[Job], Seconds | None] | None = None) -> None:
        self._modelled = modelled
        self._memory = _empty_memory()
        self._trust = _first_trust()
        self._prior = kernels.leans_of(kernels.bell(*PRIOR))
        self._ratios = _first_ratios()
        self._tick = 0
        self._unfinished: dict[str, _Submitted] = {}
        self._static: dict[tuple[object, ...], Names] = {}

    def submitted(self, job: Job, now: Seconds) -> None:
        """A job is there; it may wait or run. Said twice, the first counts."""
        if job.id in self._unfinished:
            return
        seen = self._seen(job, now)
        self._unfinished[job.id] = seen
        self._tick += 1
        kernels.arrive(seen.keys, now, self._memory, self._tick)

    def expect(self, job: Job, now: Seconds) -> DurationDistribution:
        """How long a job will last that has not run yet."""
        keys, hints = self._contexts(job, now)
        survival = kernels.foreseen(keys, hints, _variant(hints), self._memory, self._prior, self._ratios, self._trust)
        return DurationDistribution(survival, 0.0, math.inf if job.time_limit is None else job.time_limit)

    def expect_running(
        self, job: Job, now: Seconds, elapsed: Seconds, share_done: float | None = None
    ) -> DurationDistribution:
        """How long a job lasts in all that has run for `elapsed` and reports to have done such a share of its work."""
        _check_time("elapsed", job, elapsed)
        if share_done is not None and not 0.0 <= share_done <= 1.0:
            raise BadValue(f"job {job.id!r}: has done {share_done} of its work, expected 0 to 1")
        distribution = self.expect(job, now)
        if share_done and elapsed > 0.0:
            # What is reported becomes the surer, the more of it is behind.
            width = max(0.05, 0.3 * (1.0 - share_done))
            survival = kernels.with_progress(distribution.survival, elapsed / share_done, width)
            distribution = DurationDistribution(survival, 0.0, distribution.ceiling)
        return distribution.beyond(elapsed)

    def finished(self, job: Job, seconds: Seconds, now: Seconds) -> None:
        """A job has lasted so long: one more example."""
        _check_time("lasted", job, seconds)
        seen = self._unfinished.pop(job.id, None)
        if seen is None:
            seen = self._seen(job, now)
        else:
            kernels.leave(seen.keys, self._memory)
        left = min(max(1.0 - seen.said.probability(seconds), 0.0), 1.0)
        variant = _variant(seen.hints)
        kernels.learn_trust(seen.inputs.astype(np.float32), variant, seen.known, left, seconds, self._trust)
        self._tick += 1
        kernels.learn(seen.keys, seconds, seen.hints, now, self._memory, self._tick)

    def forget(self, job_id: str) -> None:
        """A job is gone without an end."""
        seen = self._unfinished.pop(job_id, None)
        if seen is not None:
            kernels.leave(seen.keys, self._memory)

    @property
    def unfinished(self) -> int:
        """How many jobs it was told of that have not ended."""
        return len(self._unfinished)

    def _seen(self, job: Job, now: Seconds) -> _Submitted:
        keys, hints = self._contexts(job, now)
        inputs, known = kernels.inputs_of(keys, hints, self._memory, self._prior, self._ratios)
        said = DurationDistribution(kernels.survival_of(inputs, _variant(hints), known, self._trust))
        return _Submitted(keys, hints, inputs.astype(np.float16), known, said)

    def _contexts(self, job: Job, now: Seconds) -> tuple[Names, Floats]:
        """The names of a job's contexts, as they were when it was submitted, and how long it was hints to last."""
        if not math.isfinite(now):
            raise BadValue(f"job {job.id!r}: asked about at {now}, expected a finite time")
        seen = self._unfinished.get(job.id)
        if seen is not None:
            return seen.keys, seen.hints
        modelled = self._modelled(job) if self._modelled else None
        hints = np.array([0.0, _bounded(job.time_limit), _bounded(modelled)])
        return kernels.contexts_of(self._static_of(job), now, hints, self._memory), hints

    def _static_of(self, job: Job) -> Names:
        """What a job says of itself; kept, since jobs are of few kinds."""
        kind = (job.tenant, job.user, job.group, job.workload, job.demand, job.job_class, job.steps, job.batch)
        static = self._static.get(kind)
        if static is None:
            if len(self._static) >= MOST_KINDS:
                self._static.clear()
            static = self._static[kind] = _names_of(job)
        return static


def _names_of(job: Job) -> Names:
    """From coarse to fine, in the order of `kernels`. The same on every machine and in every process."""
    demand, owner = repr(job.demand), f"{job.tenant}\0{job.user}"
    kind = f"{owner}\0{job.group}\0{job.workload}"
    full = f"{kind}\0{demand}\0{job.job_class}\0{job.steps}\0{job.batch}"
    texts = ("", str(job.demand.total_gpu_milli), demand, owner, f"{owner}\0{demand}", kind, full)
    return np.array([crc32(text.encode()) for text in texts], np.uint64)


def _empty_memory() -> ContextTables:
    recent = np.empty((ROWS + 1, kernels.RECENT))
    recent[ROWS] = (-1.0, -1.0, -1.0, -math.inf, -math.inf, 0.0)
    return ContextTables(
        np.zeros(ROWS, np.uint64),
        np.zeros(ROWS, np.int64),
        np.zeros((ROWS + 1, SPEEDS, BINS), np.float32),
        np.zeros((ROWS + 1, BINS), np.float32),
        recent,
    )


def _first_ratios() -> Singles:
    """For each way of foretelling: a bell around a share of what was hints."""
    whole = kernels.FIRST * 2.0 ** (kernels.AS_FORETOLD / kernels.PER_DOUBLING)
    bells = [kernels.bell(share * whole, width, even) for share, width, even in FIRST_RATIOS]
    return np.array([kernels.leans_of(masses) for masses in bells])


def _first_trust() -> Trust:
    """Every context of a sort weighs the same."""
    weights = np.zeros((VARIANTS, INPUTS), np.float32)
    history = 1 + RATIOS * SPEEDS
    for variant in range(VARIANTS):
        weights[variant, :history] = HISTORY_TRUST[variant] / history
        for way, trust in enumerate((LATELY_TRUST, LIMIT_TRUST, MODEL_TRUST)):
            first = history + way * SPEEDS
            weights[variant, first : first + SPEEDS] = trust.get(variant, 0.0) / SPEEDS
    return Trust(
        np.repeat(weights[:, :, None], BINS, axis=2),
        np.tile(weights[:, None, None, :], (1, BUCKETS, LEVELS, 1)),
        np.full(SHARES, SHARES_SEEN / SHARES),
    )


def _variant(hints: Floats) -> int:
    """Which of the mixtures serves a job."""
    return LIMITED * bool(hints[LIMIT]) + MODELLED * bool(hints[MODEL])


def _bounded(seconds: Seconds | None) -> Seconds:
    """What was hints; 0 if nothing was, or nothing that says anything."""
    return seconds if seconds is not None and 0.0 < seconds < math.inf else 0.0


def _check_time(what: str, job: Job, seconds: Seconds) -> None:
    if not 0.0 <= seconds < math.inf:
        raise BadValue(f"job {job.id!r}: {what} {seconds}, expected seconds ≥ 0")
