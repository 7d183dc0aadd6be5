"""Confidence intervals by resampling weeks: a block bootstrap, since jobs of the same days delay each other."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, stdtrit

from refold.model import DAY, HOUR, Seconds
from refold.placement import Floats, Ints

BLOCKS: tuple[Seconds, ...] = (7 * DAY, 3 * DAY, DAY, 12 * HOUR, 6 * HOUR, 3 * HOUR, HOUR)
"""Lengths of blocks: the longest of which there are at least MIN_BLOCKS, else the shortest."""

MIN_BLOCKS = 6
RESAMPLES = 2000
CONFIDENCE = 0.95


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
