"""What tuning gains on the part of the history that it has not seen, and whether that is worth a recommendation.

A policy is better than another if the confidence interval of its score, relative to the other, is below 1. Settings
are chosen on the tuning part; they are recommended if they are better on the report part than the default settings,
and than every baseline that could be used instead.

Confidence intervals are made by resampling weeks: a block bootstrap, since jobs of the same days delay each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from scipy.special import ndtr, stdtrit

from refold.model import DAY, HOUR, Seconds
from refold.placement import Floats, Ints
from refold.simulator.results import JobMeasures
from refold.simulator.tuning.trade_off import MEASURES, CountedJobs, Objective, ratios_of

BLOCKS: tuple[Seconds, ...] = (7 * DAY, 3 * DAY, DAY, 12 * HOUR, 6 * HOUR, 3 * HOUR, HOUR)
"""Lengths of blocks: the longest of which there are at least MIN_BLOCKS, else the shortest."""

MIN_BLOCKS = 6
RESAMPLES = 2000
CONFIDENCE = 0.95

RowKind = Literal["default", "point", "baseline", "oracle"]
"""Default settings of the policy, a point of the front, another policy, or one that knows run times in advance."""

Relation = Literal["better", "worse", "no clear difference"]


class Interval(NamedTuple):
    """A value with its confidence interval."""

    value: float
    low: float
    high: float


class Blocks(NamedTuple):
    """Jobs by block of time: the length of a block, the number of blocks with jobs, and the block of each job."""

    seconds: Seconds
    number: int
    of_job: Ints

    def resample(self, seed: int) -> Floats:
        """Draw blocks with replacement; return how often each job is drawn, one row per resample."""
        random = np.random.default_rng(seed)
        drawn = random.multinomial(self.number, np.full(self.number, 1 / self.number), RESAMPLES)
        weights: Floats = drawn[:, self.of_job].astype(np.float64)
        return weights


def make_blocks(submitted: Floats) -> Blocks:
    """Divide jobs by their time of submission; the blocks begin with the first job."""
    since = submitted - submitted.min()
    for seconds in BLOCKS:
        used, of_job = np.unique((since // seconds).astype(np.int64), return_inverse=True)
        if len(used) >= MIN_BLOCKS:
            break
    return Blocks(seconds, len(used), of_job.astype(np.int64))


def interval(value: float, resampled: Floats, blocks: int) -> Interval:
    """Return a value with the percentile interval of its resamples, expanded for the small number of blocks.

    The percentiles are those of a normal distribution at sqrt(n / (n - 1)) times Student's t with n - 1 degrees of
    freedom, n blocks (Hesterberg, What teachers should know about the bootstrap, 2015).
    """
    known = resampled[~np.isnan(resampled)]
    if not len(known) or blocks < 2:
        return Interval(value, 0.0, np.inf)
    quantile = stdtrit(blocks - 1, (1 - CONFIDENCE) / 2)
    tail = float(ndtr(np.sqrt(blocks / (blocks - 1)) * quantile))
    low, high = np.quantile(known, (tail, 1 - tail), method="inverted_cdf").tolist()
    return Interval(value, low, high)


class ReportPolicy(msgspec.Struct, frozen=True):
    """A policy with its settings. `number`: of a point of the front. `tuning_score`: of the settings, when tuned."""

    kind: RowKind
    name: str
    policy: str
    settings: Mapping[str, Any]
    number: int | None = None
    tuning_score: float | None = None


class ReportRow(msgspec.Struct, frozen=True):
    """The values of a policy's measures, their ratios to those of the default settings, and its score."""

    policy: ReportPolicy
    values: dict[str, float]
    ratios: dict[str, Interval]
    score: Interval


class Gain(msgspec.Struct, frozen=True):
    """The score of the chosen settings relative to another policy."""

    over: str
    score: Interval
    relation: Relation
    required: bool
    """Whether settings are recommended only if they are better than this policy."""


class Doubt(msgspec.Struct, frozen=True):
    """Why no settings were chosen although some are better: on too few parts of the tuning jobs, so by luck."""

    wins: int
    needed: int
    parts: int


class TuningReport(msgspec.Struct, frozen=True):
    """All policies on the report part. `chosen`: number of the chosen point; None: no settings were found."""

    objective: Objective
    jobs: int
    block_seconds: Seconds
    blocks: int
    rows: tuple[ReportRow, ...]
    chosen: int | None
    gains: tuple[Gain, ...]
    doubt: Doubt | None = None
    """Why nothing was chosen, and the search stopped early."""

    @property
    def is_recommended(self) -> bool:
        """Whether the chosen settings are better than the default ones and all baselines."""
        return bool(self.gains) and all(gain.relation == "better" for gain in self.gains if gain.required)

    def row(self, number: int) -> ReportRow:
        return next(row for row in self.rows if row.policy.number == number)


class ReportPart(msgspec.Struct, frozen=True):
    """The measured jobs of the report part: times of submission, and GPUs."""

    submitted: Floats
    gpus: Floats


def make_report(
    part: ReportPart,
    results: Sequence[tuple[ReportPolicy, JobMeasures]],
    objective: Objective,
    chosen: int | None,
    seed: int = 0,
) -> TuningReport:
    """Compare policies on the report part; the first has the default settings."""
    reference = results[0][1]
    counted = CountedJobs.finished_under(reference, part.gpus)
    blocks = make_blocks(part.submitted[counted.counted])
    weights = blocks.resample(seed)
    values = [counted.trade_off(measured) for _, measured in results]
    resampled = [counted.resampled(measured, weights) for _, measured in results]
    rows = tuple(
        _row(policy, objective, blocks.number, (values[number], values[0]), (resampled[number], resampled[0]))
        for number, (policy, _) in enumerate(results)
    )
    gains = [] if chosen is None else _gains(rows, values, resampled, objective, chosen, blocks.number)
    jobs = int(counted.counted.sum())
    return TuningReport(objective, jobs, blocks.seconds, blocks.number, rows, chosen, tuple(gains))


def _row(
    policy: ReportPolicy,
    objective: Objective,
    blocks: int,
    values: tuple[Floats, Floats],
    resampled: tuple[Floats, Floats],
) -> ReportRow:
    ratios, resampled_ratios = ratios_of(*values), ratios_of(*resampled)
    return ReportRow(
        policy,
        {name: value for name, value in zip(MEASURES, values[0].tolist(), strict=True) if not np.isnan(value)},
        {
            name: interval(ratio, resampled_ratios[:, column], blocks)
            for column, (name, ratio) in enumerate(zip(MEASURES, ratios.tolist(), strict=True))
            if not np.isnan(ratio)
        },
        interval(float(objective.scores(*values)), objective.scores(*resampled), blocks),
    )


def _gains(
    rows: Sequence[ReportRow],
    values: Sequence[Floats],
    resampled: Sequence[Floats],
    objective: Objective,
    chosen: int,
    blocks: int,
) -> list[Gain]:
    """Return the gains of the chosen point over the default settings and all baselines."""
    own = next(number for number, row in enumerate(rows) if row.policy.number == chosen)
    gains = []
    for number, row in enumerate(rows):
        if row.policy.kind != "point":
            value = float(objective.scores(values[own], values[number]))
            score = interval(value, objective.scores(resampled[own], resampled[number]), blocks)
            gains.append(Gain(row.policy.name, score, _relation(score), row.policy.kind != "oracle"))
    return gains


def _relation(score: Interval) -> Relation:
    return "better" if score.high < 1 else "worse" if score.low > 1 else "no clear difference"


def format_setting(value: Any) -> str:
    """Format the value of a setting; numbers with six digits."""
    return f"{value:,.6g}" if isinstance(value, float) else str(value)
