"""How predictions are judged: causally, with the usual measures, beside simple ways."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from refold.model import Job
from refold.predict.kernels import Floats
from refold.research.comparators import (
    CHANCES,
    COMPARATORS,
    AsPoint,
    GroupHistory,
    GroupMean,
    LastTwo,
    Limit,
    PredictorQuantiles,
    WithErrors,
)
from refold.research.evaluate import pinball, play, play_running, rank_correlation, score
from refold.testing import make_job

ALL = len(CHANCES)


def no_clock() -> float:
    return 0.0


class Diary:
    """Writes down what it is asked and told."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, float]] = []

    def quantiles(self, job: Job, now: float) -> Floats:
        self.lines.append(("asked", job.id, now))
        return np.full(ALL, 1.0)

    def finished(self, job: Job, seconds: float, now: float) -> None:
        self.lines.append((f"lasted {seconds:g}", job.id, now))


def test_a_duration_is_told_when_the_job_ends_and_not_before() -> None:
    diary = Diary()
    jobs = [make_job("long", at=0.0, work=100.0), make_job("short", at=10.0, work=5.0), make_job("late", at=15.0)]
    play(jobs, diary, no_clock)
    assert diary.lines == [
        ("asked", "long", 0.0),
        ("asked", "short", 10.0),
        ("lasted 5", "short", 15.0),
        ("asked", "late", 15.0),
        ("lasted 100", "long", 100.0),
        ("lasted 100", "late", 115.0),
    ]


@pytest.mark.parametrize("name", ["refold", *COMPARATORS])
def test_nobody_knows_what_a_job_will_last(name: str) -> None:
    """The last job, which is asked about before it ends, may last as long as it likes."""
    made = COMPARATORS.get(name, PredictorQuantiles)
    history = [make_job(f"job-{index}", at=index * 50.0, work=20.0 + index, time_limit=900.0) for index in range(30)]
    said = [
        play([*history, make_job("last", at=2000.0, work=work, time_limit=900.0)], made(), no_clock).said
        for work in (1.0, 1e6)
    ]
    assert np.array_equal(said[0], said[1])


def test_jobs_that_still_run_are_asked_about_again() -> None:
    jobs = [make_job("short", work=30.0), make_job("long", at=1.0, work=5000.0), make_job("edge", at=2.0, work=600.0)]
    played = play_running(jobs, 600.0)
    assert played.lasted.tolist() == [5000.0]
    assert played.said.min() >= 600.0


def test_one_number_is_every_quantile() -> None:
    last_two = LastTwo()
    for seconds in (10.0, 20.0, 40.0):
        last_two.learn(make_job(user="ann"), seconds)
    assert AsPoint(last_two).quantiles(make_job(user="ann", gpus=8), 0.0).tolist() == [30.0] * ALL
    assert last_two.point(make_job(user="bob")) == 600.0


def test_without_users_the_last_two_are_of_the_tenant_and_demand() -> None:
    last_two = LastTwo()
    last_two.learn(make_job(tenant="a"), 10.0)
    last_two.learn(make_job(tenant="a", gpus=8), 1000.0)
    assert last_two.point(make_job(tenant="a")) == 10.0


def test_the_mean_of_a_group_is_of_all_its_jobs() -> None:
    mean = GroupMean()
    for seconds in (10.0, 20.0, 60.0):
        mean.learn(make_job(group="g"), seconds)
    assert (mean.point(make_job(group="g")), mean.point(make_job(group="h"))) == (30.0, 600.0)


def test_a_limit_is_what_the_user_said() -> None:
    assert Limit().point(make_job(time_limit=77.0)) == 77.0


def test_past_errors_make_a_distribution_of_a_number() -> None:
    """Always half of the limit: then half of the next limit."""
    errors = WithErrors(Limit())
    for index in range(10):
        job = make_job(f"past-{index}", time_limit=200.0)
        errors.quantiles(job, 0.0)
        errors.finished(job, 100.0, 0.0)
    assert errors.quantiles(make_job("next", time_limit=50.0), 0.0) == pytest.approx(np.full(ALL, 25.0))


def test_a_history_has_the_quantiles_of_what_was_seen() -> None:
    history, seen = GroupHistory(), list(range(1, 101))
    for index, seconds in enumerate(seen):
        history.finished(make_job(f"past-{index}"), float(seconds), 0.0)
    assert history.quantiles(make_job("next"), 0.0) == pytest.approx(np.quantile(seen, CHANCES))


def test_only_the_latest_are_remembered() -> None:
    history = GroupHistory()
    for index in range(1500):
        history.finished(make_job(f"past-{index}"), 1.0 if index < 500 else 9.0, 0.0)
    assert history.quantiles(make_job("next"), 0.0).tolist() == [9.0] * ALL


def test_the_pinball_loss_of_a_worked_case() -> None:
    """10 said where 20 came true: 0.9 × 10 at 90 %; 30 said: 0.1 × 10."""
    chances = np.array([0.9])
    assert pinball(np.array([20.0]), np.array([[10.0]]), chances) == pytest.approx(9.0)
    assert pinball(np.array([20.0]), np.array([[30.0]]), chances) == pytest.approx(1.0)


def test_the_score_of_who_says_the_truth_and_of_who_says_all_quantiles_of_a_uniform() -> None:
    truth = np.array([10.0, 100.0, 1000.0])
    exact = score(truth, np.repeat(truth[:, None], ALL, axis=1))
    assert (exact.pinball_log10, exact.coverage_80, exact.median_relative_error) == (0.0, 1.0, 0.0)
    assert exact.rank_correlation == pytest.approx(1.0)
    uniform = 1.0 + 999.0 * (np.arange(1000) + 0.5) / 1000
    spread = score(uniform, np.tile(1.0 + 999.0 * np.array(CHANCES), (1000, 1)))
    covered = (spread.coverage_50, spread.coverage_80, spread.coverage_95)
    assert covered == pytest.approx((0.5, 0.8, 0.95), abs=0.002)


def test_the_rank_correlation_is_spearmans() -> None:
    draw = np.random.default_rng(2).normal(size=(2, 50)).round(1)
    assert rank_correlation(*draw) == pytest.approx(spearmanr(*draw)[0])
    assert rank_correlation(np.ones(5), np.arange(5.0)) == 0.0


def test_on_bursts_of_like_jobs_the_predictor_beats_the_simple_ways() -> None:
    chance, jobs, now = np.random.default_rng(4), [], 0.0
    for burst in range(60):
        usual, now = float(np.exp(chance.uniform(3.0, 9.0))), now + 20_000.0
        for index in range(20):
            work = usual * float(np.exp(chance.normal(0.0, 0.3)))
            jobs.append(make_job(f"{burst}-{index}", at=now + index * usual, work=work, user=f"user-{burst % 3}"))
    jobs.sort(key=lambda job: job.submitted)

    def loss(name: str) -> float:
        played = play(jobs, COMPARATORS.get(name, PredictorQuantiles)(), no_clock)
        return score(played.lasted, played.said).pinball_log10

    others = [loss(name) for name in COMPARATORS if not name.startswith("limit")]
    assert loss("refold") < min(others)
