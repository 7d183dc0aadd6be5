"""A Lasting: a distribution over seconds that can be asked, and conditioned on what has already passed."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays
from scipy.integrate import quad

from refold.errors import BadValue
from refold.predict import DurationDistribution
from refold.predict.kernels import BINS, FIRST, LAST, PER_DOUBLING, bell, survival_from

chances = st.floats(0.001, 0.999)
times = st.floats(1.0, 1e7)
masses = arrays(np.float64, BINS, elements=st.floats(1e-6, 1.0))
distributions = masses.map(lambda some: DurationDistribution(survival_from(some)))


def around(seconds: float, width: float = 0.5) -> DurationDistribution:
    """A bell around a time, in log time."""
    return DurationDistribution(survival_from(bell(seconds, width, 0.01)))


@given(distributions, chances, chances)
def test_quantiles_rise_with_their_chance(distribution: DurationDistribution, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert distribution.quantile(low) <= distribution.quantile(high)


@given(distributions, chances)
def test_the_probability_of_a_quantile_is_its_chance(distribution: DurationDistribution, chance: float) -> None:
    assert distribution.probability(distribution.quantile(chance)) == pytest.approx(chance, abs=1e-9)


@given(distributions, st.floats(0.0, 1e9), chances)
def test_what_has_run_for_an_hour_does_not_end_within_an_hour(
    distribution: DurationDistribution, elapsed: float, chance: float
) -> None:
    left = distribution.beyond(elapsed)
    assert left.probability(elapsed) == 0.0
    assert left.quantile(0.0) >= elapsed
    assert left.quantile(chance) >= elapsed
    assert left.mean >= elapsed


@given(distributions, times, times)
def test_what_has_passed_conditions_by_the_rule_of_bayes(
    distribution: DurationDistribution, one: float, other: float
) -> None:
    elapsed, later = sorted((one, other))
    gone = distribution.probability(elapsed)
    expected = (distribution.probability(later) - gone) / (1.0 - gone)
    assert distribution.beyond(elapsed).probability(later) == pytest.approx(expected, abs=1e-9)


@given(distributions, times, times)
def test_elapsed_times_add_up_to_the_longest(distribution: DurationDistribution, one: float, other: float) -> None:
    twice, once = distribution.beyond(one).beyond(other), distribution.beyond(max(one, other))
    assert (twice.floor, twice.quantile(0.5)) == (once.floor, once.quantile(0.5))


def test_a_bin_is_spread_evenly_in_log_time() -> None:
    alone = np.full(BINS, 1e-12)
    alone[50] = 1.0
    distribution = DurationDistribution(survival_from(alone))
    lower = FIRST * 2.0 ** (50 / PER_DOUBLING)
    assert distribution.quantile(0.5) == pytest.approx(lower * 2.0 ** (0.5 / PER_DOUBLING))
    assert distribution.probability(lower) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    "distribution",
    [around(1000.0), around(1000.0).beyond(1500.0), DurationDistribution(around(1000.0).survival, 0.0, 1200.0)],
    ids=str,
)
def test_the_mean_is_the_integral_of_what_is_left(distribution: DurationDistribution) -> None:
    last = min(distribution.ceiling, LAST)
    edges = [edge for edge in FIRST * 2.0 ** (np.arange(BINS + 1) / PER_DOUBLING) if FIRST < edge < last]
    cuts = [0.0, FIRST, *edges, last]
    left: Callable[[float], float] = lambda seconds: 1.0 - distribution.probability(seconds)  # noqa: E731
    total = sum(quad(left, low, high)[0] for low, high in pairwise(cuts))
    beyond = 0.0 if distribution.ceiling <= LAST else left(LAST) * LAST
    assert distribution.mean == pytest.approx(total + beyond, rel=1e-5)


def test_what_would_last_longer_than_its_ceiling_ends_there() -> None:
    bound = DurationDistribution(around(1000.0).survival, 0.0, 1000.0)
    assert bound.quantile(0.9) == bound.quantile(1.0) == 1000.0
    assert bound.probability(999.0) < 0.6
    assert bound.probability(1000.0) == 1.0
    assert bound.mean < 1000.0


def test_what_has_outlived_its_ceiling_was_not_bound_by_it() -> None:
    free = DurationDistribution(around(1000.0).survival, 0.0, 1000.0).beyond(2000.0)
    assert free.ceiling == math.inf
    assert free.quantile(0.5) > 2000.0


def test_beyond_everything_that_was_foreseen_there_is_still_an_answer() -> None:
    old = around(10.0).beyond(1e9)
    assert old.quantile(0.5) == pytest.approx(1e9 * math.sqrt(2.0))
    assert old.mean == pytest.approx(2e9)


def test_a_distribution_does_not_change() -> None:
    distribution = around(60.0)
    with pytest.raises(ValueError, match="read-only"):
        distribution.survival[3] = 0.0


@pytest.mark.parametrize("chance", [-0.1, 1.1, math.nan])
def test_no_quantile_has_such_a_chance(chance: float) -> None:
    with pytest.raises(BadValue, match="from 0 to 1"):
        around(60.0).quantile(chance)


@pytest.mark.parametrize("elapsed", [-1.0, math.nan, math.inf])
def test_nothing_has_run_for_so_long(elapsed: float) -> None:
    with pytest.raises(BadValue, match="0 or more seconds"):
        around(60.0).beyond(elapsed)


def test_garbage_is_refused() -> None:
    with pytest.raises(BadValue, match="NaN"):
        around(60.0).probability(math.nan)
    with pytest.raises(BadValue, match="129 edges"):
        DurationDistribution(np.ones(3))
