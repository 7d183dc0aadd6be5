"""DurationDistribution: quantiles, probabilities, and conditioning on elapsed time."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st
from hypothesis.extra.numpy import arrays
from scipy.integrate import quad

from refold.errors import BadValue
from refold.predict import DurationDistribution
from refold.predict.layout import BINS, BINS_PER_DOUBLING, FIRST_EDGE, LAST_EDGE
from refold.predict.survival import log_normal_bins, survival_from_masses

probabilities = st.floats(0.001, 0.999)
times = st.floats(1.0, 1e7)
masses = arrays(np.float64, BINS, elements=st.floats(1e-6, 1.0))
distributions = masses.map(lambda bins: DurationDistribution(survival_from_masses(bins)))


def log_normal(seconds: float, width: float = 0.5) -> DurationDistribution:
    """A log-normal distribution around a time."""
    return DurationDistribution(survival_from_masses(log_normal_bins(seconds, width, 0.01)))


@given(distributions, probabilities, probabilities)
def test_quantiles_increase_with_probability(distribution: DurationDistribution, first: float, second: float) -> None:
    low, high = sorted((first, second))
    assert distribution.quantile(low) <= distribution.quantile(high)


@given(distributions, probabilities)
def test_probability_is_the_inverse_of_quantile(distribution: DurationDistribution, probability: float) -> None:
    assert distribution.probability(distribution.quantile(probability)) == pytest.approx(probability, abs=1e-9)


@given(distributions, st.floats(0.0, 1e9), probabilities)
def test_a_job_that_has_run_for_a_time_does_not_end_before_it(
    distribution: DurationDistribution, elapsed: float, probability: float
) -> None:
    remaining = distribution.beyond(elapsed)
    assert remaining.probability(elapsed) == 0.0
    assert remaining.quantile(0.0) >= elapsed
    assert remaining.quantile(probability) >= elapsed
    assert remaining.mean >= elapsed


@given(distributions, times, times)
def test_elapsed_time_conditions_by_the_rule_of_bayes(
    distribution: DurationDistribution, first: float, second: float
) -> None:
    elapsed, later = sorted((first, second))
    elapsed_probability = distribution.probability(elapsed)
    expected = (distribution.probability(later) - elapsed_probability) / (1.0 - elapsed_probability)
    assert distribution.beyond(elapsed).probability(later) == pytest.approx(expected, abs=1e-9)


@given(distributions, times, times)
def test_only_the_longest_elapsed_time_counts(distribution: DurationDistribution, first: float, second: float) -> None:
    twice, once = distribution.beyond(first).beyond(second), distribution.beyond(max(first, second))
    assert (twice.floor, twice.quantile(0.5)) == (once.floor, once.quantile(0.5))


def test_a_bin_is_uniform_in_log_time() -> None:
    single_bin = np.full(BINS, 1e-12)
    single_bin[50] = 1.0
    distribution = DurationDistribution(survival_from_masses(single_bin))
    lower = FIRST_EDGE * 2.0 ** (50 / BINS_PER_DOUBLING)
    assert distribution.quantile(0.5) == pytest.approx(lower * 2.0 ** (0.5 / BINS_PER_DOUBLING))
    assert distribution.probability(lower) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    "distribution",
    [
        log_normal(1000.0),
        log_normal(1000.0).beyond(1500.0),
        DurationDistribution(log_normal(1000.0).survival, 0.0, 1200.0),
    ],
    ids=str,
)
def test_the_mean_is_the_integral_of_survival(distribution: DurationDistribution) -> None:
    last = min(distribution.ceiling, LAST_EDGE)
    edges = [edge for edge in FIRST_EDGE * 2.0 ** (np.arange(BINS + 1) / BINS_PER_DOUBLING) if FIRST_EDGE < edge < last]
    cuts = [0.0, FIRST_EDGE, *edges, last]
    remaining: Callable[[float], float] = lambda seconds: 1.0 - distribution.probability(seconds)  # noqa: E731
    total = sum(quad(remaining, low, high)[0] for low, high in pairwise(cuts))
    beyond = 0.0 if distribution.ceiling <= LAST_EDGE else remaining(LAST_EDGE) * LAST_EDGE
    assert distribution.mean == pytest.approx(total + beyond, rel=1e-5)


def test_durations_are_cut_off_at_the_ceiling() -> None:
    bound = DurationDistribution(log_normal(1000.0).survival, 0.0, 1000.0)
    assert bound.quantile(0.9) == bound.quantile(1.0) == 1000.0
    assert bound.probability(999.0) < 0.6
    assert bound.probability(1000.0) == 1.0
    assert bound.mean < 1000.0


def test_an_exceeded_ceiling_is_dropped() -> None:
    unbound = DurationDistribution(log_normal(1000.0).survival, 0.0, 1000.0).beyond(2000.0)
    assert unbound.ceiling == math.inf
    assert unbound.quantile(0.5) > 2000.0


def test_times_beyond_the_last_edge_have_a_heavy_tail() -> None:
    exceeded = log_normal(10.0).beyond(1e9)
    assert exceeded.quantile(0.5) == pytest.approx(1e9 * math.sqrt(2.0))
    assert exceeded.mean == pytest.approx(2e9)


def test_a_distribution_is_read_only() -> None:
    distribution = log_normal(60.0)
    with pytest.raises(ValueError, match="read-only"):
        distribution.survival[3] = 0.0


@pytest.mark.parametrize("probability", [-0.1, 1.1, math.nan])
def test_invalid_quantile_probabilities_are_rejected(probability: float) -> None:
    with pytest.raises(BadValue, match="from 0 to 1"):
        log_normal(60.0).quantile(probability)


@pytest.mark.parametrize("elapsed", [-1.0, math.nan, math.inf])
def test_invalid_elapsed_times_are_rejected(elapsed: float) -> None:
    with pytest.raises(BadValue, match="expected seconds ≥ 0"):
        log_normal(60.0).beyond(elapsed)


def test_invalid_values_are_rejected() -> None:
    with pytest.raises(BadValue, match="NaN"):
        log_normal(60.0).probability(math.nan)
    with pytest.raises(BadValue, match=r"expected \(129,\)"):
        DurationDistribution(np.ones(3))


class TestServicePerCompletion:
    def test_of_a_nearly_certain_duration_it_is_the_rest(self) -> None:
        certain = log_normal(1000.0, width=0.05)
        assert certain.service_per_completion(500.0) == pytest.approx(1000.0, rel=0.2)
        assert certain.beyond(700.0).service_per_completion(200.0) == pytest.approx(300.0, rel=0.4)

    def test_of_a_heavy_tail_it_grows_with_the_elapsed_time(self) -> None:
        spread = log_normal(600.0, width=2.5)
        after = [spread.beyond(elapsed).service_per_completion() for elapsed in (0.0, 600.0, 6e3, 6e4)]
        assert after == sorted(after)
        assert after[-1] > 20 * after[0]

    def test_it_never_exceeds_the_mean_of_the_rest(self) -> None:
        for elapsed in (0.0, 100.0, 1e4):
            rest = log_normal(1000.0, width=1.5).beyond(elapsed)
            assert rest.service_per_completion() <= rest.mean - elapsed + 1e-6

    def test_a_time_limit_completes_the_job(self) -> None:
        limited = DurationDistribution(log_normal(1e5, width=0.1).survival, 0.0, 50.0)
        assert limited.service_per_completion() == pytest.approx(50.0, rel=0.05)

    @given(distributions, st.floats(1.0, 1e6), st.floats(0.0, 1e5))
    def test_it_is_the_least_ratio_over_all_lengths_of_service(
        self, distribution: DurationDistribution, elapsed: float, min_service: float
    ) -> None:
        rest = distribution.beyond(elapsed)
        ratios, ends = [], FIRST_EDGE * 2.0 ** (np.arange(1, BINS + 1) / BINS_PER_DOUBLING)
        assume(not np.isclose(ends, elapsed + min_service, rtol=1e-9).any())  # rounding decides whether it counts
        for end in ends:
            if end > elapsed and end >= elapsed + min_service:
                cut = DurationDistribution(distribution.survival, elapsed, end)
                ratios.append((cut.mean - elapsed) / rest.probability(end))
        assert rest.service_per_completion(min_service) == pytest.approx(min(ratios), rel=1e-6)
