"""How well durations are foreseen: a history played causally, as if each job started when it was submitted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import msgspec
import numpy as np

from refold.model import HOUR, MINUTE, Job, Seconds
from refold.predict import Floats
from refold.research.comparators import CHANCES, PredictorQuantiles, QuantilePredictor

Clock = Callable[[], Seconds]
"""Whatever tells the time that computing takes."""

LOOKED_AT, ENDS, COMES = range(3)
"""What may happen to a job."""

LATER = (10 * MINUTE, HOUR)
"""Of jobs that have run for so long it is asked again."""


class Score(msgspec.Struct, frozen=True):
    """How good quantiles were; losses are means over every twentieth quantile, coverage is of central intervals."""

    jobs: int
    pinball_log10: float
    pinball_hours: float
    coverage_50: float
    coverage_80: float
    coverage_95: float
    median_relative_error: float
    rank_correlation: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What was said of each job, in order of submission, and what became of them; how long it took to compute."""

    lasted: Floats
    said: Floats
    microseconds_per_query: float
    microseconds_per_update: float


def play(jobs: Sequence[Job], foreseer: QuantilePredictor, clock: Clock) -> Evaluation:
    """Ask about each job when it is submitted, and tell its duration when it ends."""
    said = np.empty((len(jobs), len(CHANCES)))
    asking = telling = 0.0
    for now, index, what in _moments(jobs):
        job = jobs[index]
        begun = clock()
        if what == ENDS:
            foreseer.finished(job, _work(job), now)
            telling += clock() - begun
        else:
            said[index] = foreseer.quantiles(job, now)
            asking += clock() - begun
    each = 1e6 / max(len(jobs), 1)
    return Evaluation(np.array([_work(job) for job in jobs]), said, asking * each, telling * each)


def play_running(jobs: Sequence[Job], elapsed: Seconds) -> Evaluation:
    """Ask the Predictor again about each job that has run for `elapsed`; in order of asking."""
    foreseen, chances = PredictorQuantiles(), np.array(CHANCES)
    said, lasted = [], []
    for now, index, what in _moments(jobs, elapsed):
        job = jobs[index]
        if what == LOOKED_AT:
            left = foreseen.predictor.expect_running(job, now, elapsed)
            said.append([left.quantile(chance) for chance in chances])
            lasted.append(_work(job))
        elif what == ENDS:
            foreseen.finished(job, _work(job), now)
        else:
            foreseen.predictor.submitted(job, now)
    return Evaluation(np.array(lasted), np.array(said).reshape(len(lasted), len(CHANCES)), 0.0, 0.0)


def _moments(jobs: Sequence[Job], look_after: Seconds = math.inf) -> Iterator[tuple[Seconds, int, int]]:
    """When each job comes, is looked at again, and ends; an end is known to whoever comes at the same time."""
    coming: list[tuple[Seconds, int, int]] = []
    for index, job in enumerate(jobs):
        while coming and coming[0][0] <= job.submitted:
            yield heappop(coming)
        yield job.submitted, index, COMES
        heappush(coming, (job.submitted + _work(job), index, ENDS))
        if _work(job) > look_after:
            heappush(coming, (job.submitted + look_after, index, LOOKED_AT))
    while coming:
        yield heappop(coming)


def _work(job: Job) -> Seconds:
    """What it has lasted; nobody is told before its end."""
    return job.work or 0.0


def score(lasted: Floats, said: Floats) -> Score:
    """How good the quantiles `said`, at `CHANCES`, were for what has `lasted`."""
    lasted, said = np.maximum(lasted, 1.0), np.maximum(said, 1.0)
    median = said[:, CHANCES.index(0.5)]
    return Score(
        len(lasted),
        pinball(np.log10(lasted), np.log10(said)[:, 1:-1], np.array(CHANCES[1:-1])),
        pinball(lasted, said[:, 1:-1], np.array(CHANCES[1:-1])) / HOUR,
        _covered(lasted, said, 0.25),
        _covered(lasted, said, 0.1),
        _covered(lasted, said, 0.025),
        float(np.median(np.abs(median - lasted) / lasted)),
        rank_correlation(median, lasted),
    )


def pinball(truth: Floats, said: Floats, chances: Floats) -> float:
    """The mean pinball loss of quantiles: (truth - said) × chance above, (said - truth) × (1 - chance) below."""
    above = truth[:, None] - said
    return float(np.maximum(chances * above, (chances - 1.0) * above).mean())


def _covered(lasted: Floats, said: Floats, tail: float) -> float:
    low, high = said[:, CHANCES.index(tail)], said[:, CHANCES.index(1.0 - tail)]
    return float(((low <= lasted) & (lasted <= high)).mean())


def rank_correlation(some: Floats, other: Floats) -> float:
    """Spearman's; 0 where all are equal."""
    from scipy.stats import rankdata

    first, second = rankdata(some), rankdata(other)
    if first.std() == 0.0 or second.std() == 0.0:
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])
