"""Calibration of predictions: intervals contain as many durations as they say; limits and progress are consistent."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from refold.model import Job
from refold.predict import DurationDistribution, Predictor
from refold.predict.layout import BINS, BINS_PER_DOUBLING, CALIBRATION_BINS, FIRST_EDGE, LAST_EDGE, Floats
from refold.predict.mixing import MixingWeights, calibrate, log_odds_tree
from refold.predict.predictor import initial_weights
from refold.predict.survival import (
    bin_of,
    condition_on_progress,
    log_normal_bins,
    quantiles,
    survival_at,
    survival_from_masses,
    time_exceeded_with,
)
from refold.testing import make_job

MASSES = log_normal_bins(600.0, 1.0, 0.05)
SURVIVAL = survival_from_masses(MASSES)


def predictions(durations: list[float], job_of: Callable[[int], Job], warm_up: int) -> list[DurationDistribution]:
    """Predict jobs when they are submitted, one after the other, and return the predictions after the warm-up."""
    predictor, now, found = Predictor(), 0.0, []
    for index, seconds in enumerate(durations):
        job = job_of(index)
        predictor.submitted(job, now)
        if index >= warm_up:
            found.append(predictor.expect(job, now))
        now += seconds
        predictor.finished(job, seconds, now)
    return found


def draw_log_normal(rng: np.random.Generator, count: int) -> list[float]:
    return [float(seconds) for seconds in np.exp(rng.normal(7.0, 1.2, count))]


def draw_bimodal(rng: np.random.Generator, count: int) -> list[float]:
    short = rng.random(count) < 0.5
    return [float(seconds) for seconds in np.where(short, rng.uniform(20, 40, count), rng.uniform(5e3, 1e4, count))]


def draw_exponential(rng: np.random.Generator, count: int) -> list[float]:
    return [float(seconds) for seconds in rng.exponential(1800.0, count) + 1.0]


@pytest.mark.parametrize("draw", [draw_log_normal, draw_bimodal, draw_exponential])
def test_intervals_contain_as_many_durations_as_they_say(
    draw: Callable[[np.random.Generator, int], list[float]],
) -> None:
    durations = draw(np.random.default_rng(11), 2500)
    found = predictions(durations, lambda index: make_job(f"j{index}"), 500)
    actual = durations[500:]
    for low, high in ((0.1, 0.9), (0.25, 0.75)):
        inside = [
            prediction.quantile(low) <= seconds <= prediction.quantile(high)
            for prediction, seconds in zip(found, actual, strict=True)
        ]
        assert np.mean(inside) == pytest.approx(high - low, abs=0.06)
    below = [seconds <= prediction.quantile(0.5) for prediction, seconds in zip(found, actual, strict=True)]
    assert np.mean(below) == pytest.approx(0.5, abs=0.06)


def test_users_with_different_durations_are_calibrated_separately() -> None:
    rng = np.random.default_rng(2)
    durations = [float(rng.lognormal(4.0 if index % 2 else 9.0, 0.5)) for index in range(2000)]
    found = predictions(durations, lambda index: make_job(f"j{index}", user=f"user-{index % 2}"), 600)
    for parity in (0, 1):
        inside = [
            prediction.quantile(0.1) <= seconds <= prediction.quantile(0.9)
            for prediction, seconds in list(zip(found, durations[600:], strict=True))[parity::2]
        ]
        assert 0.72 < np.mean(inside) < 0.92


def test_both_peaks_of_a_bimodal_distribution_are_predicted() -> None:
    durations = draw_bimodal(np.random.default_rng(4), 600)
    prediction = predictions(durations, lambda index: make_job(f"j{index}"), 599)[0]
    assert prediction.probability(60.0) == pytest.approx(0.5, abs=0.15)
    assert prediction.probability(4000.0) - prediction.probability(60.0) < 0.1
    assert prediction.beyond(60.0).quantile(0.1) > 3000.0  # it is one of the long ones


@settings(max_examples=25)
@given(st.floats(1.0, 1e6), st.floats(0.01, 0.99))
def test_a_time_limit_bounds_every_quantile(limit: float, share: float) -> None:
    prediction = Predictor().expect(make_job(time_limit=limit), 0.0)
    assert 0.0 <= prediction.quantile(share) <= limit
    assert prediction.quantile(1.0) == limit
    assert prediction.mean <= limit
    assert prediction.probability(limit) == 1.0


@settings(max_examples=25)
@given(st.floats(1.0, 1e5), st.floats(1.0, 1e5), st.floats(0.05, 0.95))
def test_a_running_job_is_bounded_by_what_has_passed_and_by_its_limit(
    elapsed: float, limit: float, share: float
) -> None:
    prediction = Predictor().expect_running(make_job(time_limit=limit), elapsed, elapsed, share)
    low, middle, high = (prediction.quantile(q) for q in (0.05, 0.5, 0.95))
    assert elapsed <= low <= middle <= high
    assert high <= limit or elapsed >= limit


@settings(max_examples=25)
@given(st.floats(60.0, 1e5), st.floats(0.1, 0.9), st.floats(0.01, 0.09))
def test_less_progress_in_the_same_time_means_a_longer_run(elapsed: float, share: float, less: float) -> None:
    fast, slow = (
        Predictor().expect_running(make_job(), elapsed, elapsed, done).quantile(0.5) for done in (share, share - less)
    )
    assert fast <= slow * (1 + 1e-9)


def test_a_job_that_is_done_ends_about_now() -> None:
    prediction = Predictor().expect_running(make_job(), 5000.0, 5000.0, 1.0)
    assert prediction.quantile(0.9) < 1.25 * 5000.0


def test_a_run_that_has_not_begun_is_predicted_like_a_waiting_job() -> None:
    predictor = Predictor()
    waiting, begun = predictor.expect(make_job(), 5.0), predictor.expect_running(make_job(), 5.0, 0.0, 0.5)
    assert [waiting.quantile(q) for q in (0.1, 0.5, 0.9)] == [begun.quantile(q) for q in (0.1, 0.5, 0.9)]


def test_jobs_that_run_longer_than_expected_are_expected_to_run_even_longer() -> None:
    medians = [Predictor().expect_running(make_job(), at, at).quantile(0.5) for at in (0.0, 1e3, 1e4, 1e5, 1e7)]
    assert medians == sorted(medians)
    assert all(median > at for median, at in zip(medians, (0.0, 1e3, 1e4, 1e5, 1e7), strict=True))


class TestBins:
    @pytest.mark.parametrize(
        ("seconds", "bin_index"),
        [(0.0, 0), (0.5, 0), (0.57, 0), (0.58, 1), (1.01, 5), (2.01, 10), (LAST_EDGE, BINS - 1), (1e12, BINS - 1)],
    )
    def test_there_are_five_bins_per_doubling_from_half_a_second_on(self, seconds: float, bin_index: int) -> None:
        assert bin_of(seconds) == bin_index

    def test_the_last_edge_is_after_294_days(self) -> None:
        days = LAST_EDGE / 86_400
        assert days == pytest.approx(294, abs=0.5)

    @given(st.floats(0.6, 1e9))
    def test_the_time_exceeded_with_a_probability_is_the_inverse_of_survival(self, seconds: float) -> None:
        assert time_exceeded_with(SURVIVAL, survival_at(SURVIVAL, seconds)) == pytest.approx(seconds, rel=1e-6)

    def test_survival_sums_the_masses_of_later_bins(self) -> None:
        total = MASSES.sum()
        assert SURVIVAL[0] == pytest.approx(1.0)
        assert SURVIVAL[40] == pytest.approx(MASSES[40:].sum() / total)
        assert SURVIVAL[BINS] == pytest.approx(MASSES[-1] / 2 / total)  # half of the last bin lies beyond its edge

    def test_beyond_the_last_edge_survival_falls_with_the_square_of_time(self) -> None:
        assert survival_at(SURVIVAL, 10 * LAST_EDGE) == pytest.approx(SURVIVAL[BINS] / 100)

    def test_a_tree_of_log_odds_has_the_odds_of_the_longer_half(self) -> None:
        tree = log_odds_tree(MASSES)
        assert tree[1] == pytest.approx(math.log(MASSES[64:].sum() / MASSES[:64].sum()), rel=1e-5)
        assert tree[2] == pytest.approx(math.log(MASSES[32:64].sum() / MASSES[:32].sum()), rel=1e-5)
        assert tree[3] == pytest.approx(math.log(MASSES[96:].sum() / MASSES[64:96].sum()), rel=1e-5)
        assert tree[BINS - 1] == pytest.approx(math.log(MASSES[127] / MASSES[126]), abs=1e-5)

    def test_the_median_of_a_log_normal_is_its_time(self) -> None:
        narrow = survival_from_masses(log_normal_bins(600.0, 0.5, 0.0))
        low, middle, high = quantiles(narrow, np.array([0.1587, 0.5, 0.8413]))  # one standard deviation either side
        assert middle == pytest.approx(600.0, rel=0.01)
        assert (low, high) == (
            pytest.approx(600 * math.exp(-0.5), rel=0.02),
            pytest.approx(600 * math.exp(0.5), rel=0.02),
        )

    def test_progress_moves_a_distribution_to_the_implied_total(self) -> None:
        for total, width in ((1000.0, 0.05), (50_000.0, 0.3)):
            moved = condition_on_progress(SURVIVAL, total, width)
            assert time_exceeded_with(moved, 0.5) == pytest.approx(total, rel=2 ** (1 / BINS_PER_DOUBLING) - 1)
        assert time_exceeded_with(condition_on_progress(SURVIVAL, 0.0, 0.1), 0.5) < 2 * FIRST_EDGE


def calibrated(histogram: Floats) -> Floats:
    """Return `SURVIVAL`, calibrated by a histogram of predicted survival at the actual ends."""
    by_node, by_level, _, priors = initial_weights().arrays
    survival = SURVIVAL.copy()
    calibrate(MixingWeights(by_node, by_level, histogram, priors), survival)
    return survival


class TestCalibrate:
    def test_a_uniform_histogram_changes_nothing(self) -> None:
        assert calibrated(np.full(CALIBRATION_BINS, 7.0)) == pytest.approx(SURVIVAL)

    def test_ends_that_come_early_shift_the_distribution_to_shorter_times(self) -> None:
        """All jobs have ended while their predicted survival was above one half, so none gets further."""
        early = np.concatenate([np.full(CALIBRATION_BINS // 2, 1e-9), np.ones(CALIBRATION_BINS // 2)])
        shifted = calibrated(early)
        assert time_exceeded_with(shifted, 0.5) == pytest.approx(time_exceeded_with(SURVIVAL, 0.75), rel=1e-3)
        one_bin = 2 ** (1 / BINS_PER_DOUBLING)
        assert time_exceeded_with(shifted, 0.01) <= time_exceeded_with(SURVIVAL, 0.5) * one_bin

    @settings(max_examples=25)
    @given(st.lists(st.floats(0.1, 10.0), min_size=CALIBRATION_BINS, max_size=CALIBRATION_BINS))
    def test_calibrated_survival_still_falls_from_one(self, histogram: list[float]) -> None:
        shifted = calibrated(np.array(histogram))
        assert shifted[0] == pytest.approx(1.0)
        assert (np.diff(shifted) <= 1e-12).all()
        assert shifted[BINS] > 0
