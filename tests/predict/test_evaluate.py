"""Evaluation of run-time predictions: causality, measures, and baseline predictors."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from refold.model import Job
from refold.predict import Floats
from refold.predict.evaluate import (
    COMPARATORS,
    QUANTILE_LEVELS,
    GroupHistory,
    GroupMean,
    LastTwo,
    PointMass,
    PointWithErrors,
    PredictorQuantiles,
    TimeLimit,
    evaluate_at_submission,
    evaluate_while_running,
    pinball_loss,
    rank_correlation,
    score,
)
from refold.testing import make_job

LEVEL_COUNT = len(QUANTILE_LEVELS)


def no_clock() -> float:
    return 0.0


class RecordingPredictor:
    """A predictor that records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, float]] = []

    def quantiles(self, job: Job, now: float) -> Floats:
        self.calls.append(("predict", job.id, now))
        return np.full(LEVEL_COUNT, 1.0)

    def finished(self, job: Job, seconds: float, now: float) -> None:
        self.calls.append((f"finished {seconds:g}", job.id, now))


def test_a_predictor_learns_a_duration_when_the_job_ends_and_not_before() -> None:
    recorder = RecordingPredictor()
    jobs = [make_job("long", at=0.0, work=100.0), make_job("short", at=10.0, work=5.0), make_job("late", at=15.0)]
    evaluate_at_submission(jobs, recorder, no_clock)
    assert recorder.calls == [
        ("predict", "long", 0.0),
        ("predict", "short", 10.0),
        ("finished 5", "short", 15.0),
        ("predict", "late", 15.0),
        ("finished 100", "long", 100.0),
        ("finished 100", "late", 115.0),
    ]


@pytest.mark.parametrize("name", ["refold", *COMPARATORS])
def test_a_prediction_does_not_depend_on_the_actual_duration(name: str) -> None:
    make_predictor = COMPARATORS.get(name, PredictorQuantiles)
    history = [make_job(f"job-{index}", at=index * 50.0, work=20.0 + index, time_limit=900.0) for index in range(30)]
    predictions = [
        evaluate_at_submission(
            [*history, make_job("last", at=2000.0, work=work, time_limit=900.0)], make_predictor(), no_clock
        ).quantiles
        for work in (1.0, 1e6)
    ]
    assert np.array_equal(predictions[0], predictions[1])


def test_running_jobs_are_predicted_again() -> None:
    jobs = [make_job("short", work=30.0), make_job("long", at=1.0, work=5000.0), make_job("edge", at=2.0, work=600.0)]
    evaluation = evaluate_while_running(jobs, 600.0)
    assert evaluation.durations.tolist() == [5000.0]
    assert evaluation.quantiles.min() >= 600.0


def test_all_quantiles_of_a_point_mass_are_equal() -> None:
    last_two = LastTwo()
    for seconds in (10.0, 20.0, 40.0):
        last_two.learn(make_job(user="ann"), seconds)
    assert PointMass(last_two).quantiles(make_job(user="ann", gpus=8), 0.0).tolist() == [30.0] * LEVEL_COUNT
    assert last_two.point(make_job(user="bob")) == 600.0


def test_without_a_user_the_last_two_jobs_are_of_the_same_tenant_and_demand() -> None:
    last_two = LastTwo()
    last_two.learn(make_job(tenant="a"), 10.0)
    last_two.learn(make_job(tenant="a", gpus=8), 1000.0)
    assert last_two.point(make_job(tenant="a")) == 10.0


def test_the_group_mean_is_over_all_jobs_of_the_group() -> None:
    mean = GroupMean()
    for seconds in (10.0, 20.0, 60.0):
        mean.learn(make_job(group="g"), seconds)
    assert (mean.point(make_job(group="g")), mean.point(make_job(group="h"))) == (30.0, 600.0)


def test_the_time_limit_predicts_itself() -> None:
    assert TimeLimit().point(make_job(time_limit=77.0)) == 77.0


def test_a_point_with_errors_is_scaled_by_past_relative_errors() -> None:
    """All past jobs took half of their limit, so half of the next limit is predicted."""
    errors = PointWithErrors(TimeLimit())
    for index in range(10):
        job = make_job(f"past-{index}", time_limit=200.0)
        errors.quantiles(job, 0.0)
        errors.finished(job, 100.0, 0.0)
    assert errors.quantiles(make_job("next", time_limit=50.0), 0.0) == pytest.approx(np.full(LEVEL_COUNT, 25.0))


def test_a_group_history_has_empirical_quantiles() -> None:
    history, seen = GroupHistory(), list(range(1, 101))
    for index, seconds in enumerate(seen):
        history.finished(make_job(f"past-{index}"), float(seconds), 0.0)
    assert history.quantiles(make_job("next"), 0.0) == pytest.approx(np.quantile(seen, QUANTILE_LEVELS))


def test_a_group_history_uses_the_latest_jobs_only() -> None:
    history = GroupHistory()
    for index in range(1500):
        history.finished(make_job(f"past-{index}"), 1.0 if index < 500 else 9.0, 0.0)
    assert history.quantiles(make_job("next"), 0.0).tolist() == [9.0] * LEVEL_COUNT


def test_the_pinball_loss_of_a_worked_case() -> None:
    """For an actual 20 at the 90 % level, a prediction of 10 costs 0.9 × 10, one of 30 costs 0.1 × 10."""
    levels = np.array([0.9])
    assert pinball_loss(np.array([20.0]), np.array([[10.0]]), levels) == pytest.approx(9.0)
    assert pinball_loss(np.array([20.0]), np.array([[30.0]]), levels) == pytest.approx(1.0)


def test_the_scores_of_exact_predictions_and_of_uniform_quantiles() -> None:
    truth = np.array([10.0, 100.0, 1000.0])
    exact = score(truth, np.repeat(truth[:, None], LEVEL_COUNT, axis=1))
    assert (exact.pinball_log10, exact.coverage_80, exact.median_relative_error) == (0.0, 1.0, 0.0)
    assert exact.rank_correlation == pytest.approx(1.0)
    uniform = 1.0 + 999.0 * (np.arange(1000) + 0.5) / 1000
    spread = score(uniform, np.tile(1.0 + 999.0 * np.array(QUANTILE_LEVELS), (1000, 1)))
    covered = (spread.coverage_50, spread.coverage_80, spread.coverage_95)
    assert covered == pytest.approx((0.5, 0.8, 0.95), abs=0.002)


def test_the_rank_correlation_is_spearmans() -> None:
    draw = np.random.default_rng(2).normal(size=(2, 50)).round(1)
    assert rank_correlation(*draw) == pytest.approx(spearmanr(*draw)[0])
    assert rank_correlation(np.ones(5), np.arange(5.0)) == 0.0


def test_the_predictor_beats_all_baselines_on_bursts_of_similar_jobs() -> None:
    rng, jobs, now = np.random.default_rng(4), [], 0.0
    for burst in range(60):
        mean, now = float(np.exp(rng.uniform(3.0, 9.0))), now + 20_000.0
        for index in range(20):
            work = mean * float(np.exp(rng.normal(0.0, 0.3)))
            jobs.append(make_job(f"{burst}-{index}", at=now + index * mean, work=work, user=f"user-{burst % 3}"))
    jobs.sort(key=lambda job: job.submitted)

    def loss(name: str) -> float:
        evaluation = evaluate_at_submission(jobs, COMPARATORS.get(name, PredictorQuantiles)(), no_clock)
        return score(evaluation.durations, evaluation.quantiles).pinball_log10

    others = [loss(name) for name in COMPARATORS if not name.startswith("limit")]
    assert loss("refold") < min(others)


def test_predicted_quantiles_do_not_exceed_the_time_limit() -> None:
    predictor = PredictorQuantiles()
    found = predictor.quantiles(make_job("a", time_limit=120.0), 0.0)
    assert found.max() == 120.0
    assert found.tolist() == sorted(found.tolist())


def test_predictors_without_history_expect_ten_minutes() -> None:
    for name, make_predictor in COMPARATORS.items():
        assert make_predictor().quantiles(make_job("a"), 0.0).tolist() == [600.0] * LEVEL_COUNT, name


def test_a_group_without_history_is_predicted_from_all_jobs() -> None:
    history = GroupHistory()
    history.finished(make_job("past", group="g"), 42.0, 0.0)
    assert history.quantiles(make_job("next", group="other"), 0.0).tolist() == [42.0] * LEVEL_COUNT


def test_the_errors_of_a_point_are_quantiles_of_ratios() -> None:
    """Limits of 100 s for runs of 50, 100 and 200 s: the median is the limit, the ends are half and twice that."""
    errors = PointWithErrors(TimeLimit())
    for seconds in (50.0, 100.0, 200.0):
        job = make_job(f"past-{seconds}", time_limit=100.0)
        errors.quantiles(job, 0.0)
        errors.finished(job, seconds, 0.0)
    found = dict(zip(QUANTILE_LEVELS, errors.quantiles(make_job("next", time_limit=10.0), 0.0), strict=True))
    assert found[0.5] == pytest.approx(10.0)
    assert (found[0.25], found[0.75]) == (pytest.approx(10 / 2**0.5), pytest.approx(10 * 2**0.5))


def test_scores_of_a_worked_case() -> None:
    """Two jobs of 100 s and 10,000 s, both predicted with quantiles of 1,000 s."""
    found = score(np.array([100.0, 10_000.0]), np.full((2, LEVEL_COUNT), 1000.0))
    assert (found.jobs, found.coverage_50, found.coverage_95) == (2, 0.0, 0.0)
    assert found.median_relative_error == pytest.approx((9.0 + 0.9) / 2)
    assert found.rank_correlation == 0.0
    assert found.pinball_log10 == pytest.approx(0.5)  # one decade, half of the time on either side
    assert found.pinball_hours == pytest.approx((0.5 * 900 + 0.5 * 9000) / 2 / 3600)


def test_durations_below_a_second_count_as_a_second() -> None:
    found = score(np.array([0.0, 0.5]), np.full((2, LEVEL_COUNT), 0.1))
    assert (found.pinball_log10, found.median_relative_error, found.coverage_80) == (0.0, 0.0, 1.0)


def test_the_cost_of_predictions_is_measured_per_job() -> None:
    ticks = iter(range(1000))
    evaluation = evaluate_at_submission(
        [make_job("a"), make_job("b", at=5.0)], RecordingPredictor(), lambda: float(next(ticks))
    )
    assert (evaluation.microseconds_per_query, evaluation.microseconds_per_update) == (1e6, 1e6)


def test_an_empty_history_is_evaluated() -> None:
    assert evaluate_at_submission([], RecordingPredictor(), no_clock).quantiles.shape == (0, LEVEL_COUNT)
    assert evaluate_while_running([make_job("short", work=5.0)], 600.0).quantiles.shape == (0, LEVEL_COUNT)
