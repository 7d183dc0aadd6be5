"""The Predictor: run times learned from finished jobs only."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from refold.errors import BadValue
from refold.model import Job
from refold.predict import DurationDistribution, Predictor
from refold.testing import make_job

HOUR = 3600.0
QUARTILES = (0.25, 0.5, 0.75)


def predictor_after(durations: Iterable[float], **fields: Any) -> Predictor:
    """A predictor that has seen equal jobs, one after the other."""
    predictor, now = Predictor(), 0.0
    for index, seconds in enumerate(durations):
        job = make_job(f"past-{index}", at=now, **fields)
        predictor.submitted(job, now)
        now += seconds
        predictor.finished(job, seconds, now)
    return predictor


def quartiles(distribution: DurationDistribution) -> list[float]:
    return [distribution.quantile(probability) for probability in QUARTILES]


@st.composite
def histories(draw: st.DrawFn) -> list[Job]:
    """Jobs of a few kinds, in order of submission."""
    made = st.tuples(st.floats(0.0, 500.0), st.floats(1.0, 2000.0), st.integers(1, 3), st.sampled_from(["ann", "bob"]))
    jobs, now = [], 0.0
    for index, (gap, work, gpus, user) in enumerate(draw(st.lists(made, min_size=2, max_size=25))):
        now += gap
        jobs.append(make_job(f"job-{index}", at=now, work=work, gpus=gpus, user=user))
    return jobs


def predictor_at(jobs: Sequence[Job], time: float) -> Predictor:
    """A predictor with all events up to a time."""
    predictor = Predictor()
    events = [(job.submitted, 1, index) for index, job in enumerate(jobs)]
    events += [(job.submitted + (job.work or 0.0), 0, index) for index, job in enumerate(jobs)]
    for now, is_submission, index in sorted(events):
        if now > time:
            break
        job = jobs[index]
        if is_submission:
            predictor.submitted(job, now)
        else:
            predictor.finished(job, job.work or 0.0, now)
    return predictor


@settings(max_examples=25, deadline=None)
@given(histories(), st.data())
def test_predictions_do_not_depend_on_the_future(jobs: list[Job], data: st.DataObject) -> None:
    """The durations of jobs that end later have no effect on predictions made now."""
    time = data.draw(st.floats(0.0, jobs[-1].submitted), label="moment")

    def other_future(job: Job) -> Job:
        if job.submitted + (job.work or 0.0) <= time:
            return job
        extra = data.draw(st.floats(0.0, 1e6), label=f"more of {job.id}")
        return msgspec.structs.replace(job, work=(job.work or 0.0) + extra)

    others = [other_future(job) for job in jobs]
    queried, queried_without_work = (
        make_job("queried", work=7.0, user="ann"),
        make_job("queried", work=None, user="ann"),
    )
    first, second = predictor_at(jobs, time), predictor_at(others, time)
    assert quartiles(first.expect(queried, time)) == quartiles(second.expect(queried_without_work, time))
    running = next(
        (index for index, job in enumerate(jobs) if job.submitted <= time < job.submitted + (job.work or 0.0)), None
    )
    if running is not None:
        elapsed = time - jobs[running].submitted
        conditioned = first.expect_running(jobs[running], time, elapsed)
        assert quartiles(conditioned) == quartiles(second.expect_running(others[running], time, elapsed))
        assert conditioned.quantile(0.01) >= elapsed


@settings(max_examples=10, deadline=None)
@given(histories())
def test_the_same_history_gives_the_same_prediction(jobs: list[Job]) -> None:
    queried, time = make_job("queried", user="bob"), jobs[-1].submitted
    assert quartiles(predictor_at(jobs, time).expect(queried, time)) == quartiles(
        predictor_at(jobs, time).expect(queried, time)
    )


def test_predictions_do_not_change_the_state() -> None:
    predictor, job = predictor_after([60.0] * 5), make_job("next")
    first = quartiles(predictor.expect(job, 400.0))
    predictor.expect_running(job, 400.0, 1000.0, 0.3)
    assert quartiles(predictor.expect(job, 400.0)) == first


def test_a_copy_predicts_and_learns_the_same() -> None:
    first = predictor_after([100.0, 200.0, 5.0, 3000.0])
    second, job, now = copy.deepcopy(first), make_job("next"), 10_000.0
    for predictor in (first, second):
        predictor.submitted(job, now)
        predictor.finished(job, 700.0, now + 700.0)
    predictions = [predictor.expect(make_job("last"), 2 * now).survival for predictor in (first, second)]
    assert predictions[0].tolist() == predictions[1].tolist()


def test_a_copy_is_independent() -> None:
    predictor, job = predictor_after([60.0] * 5), make_job("next")
    second = copy.deepcopy(predictor)
    second.finished(make_job("long"), 1e5, 1e5)
    assert quartiles(predictor.expect(job, 1e5)) != quartiles(second.expect(job, 1e5))


def test_the_prior_is_wide_around_ten_minutes() -> None:
    distribution = Predictor().expect(make_job(), 0.0)
    assert 300.0 < distribution.quantile(0.5) < 1200.0
    assert distribution.quantile(0.1) < 60.0
    assert distribution.quantile(0.9) > 2 * HOUR


def test_constant_durations_give_a_narrow_distribution() -> None:
    distribution = predictor_after([1000.0] * 200).expect(make_job("next"), 3e5)
    assert distribution.quantile(0.1) > 800.0
    assert distribution.quantile(0.9) < 1250.0


def test_stationary_durations_give_the_empirical_quantiles() -> None:
    """Mean predicted quantiles against empirical ones, for identical jobs that do not change over time."""
    durations = np.exp(np.random.default_rng(5).normal(6.0, 1.0, 3000)).tolist()
    predictor, now, log_quantiles = predictor_after(durations[:1000]), sum(durations[:1000]), []
    for index, seconds in enumerate(durations[1000:]):
        job = make_job(f"more-{index}", at=now)
        predictor.submitted(job, now)
        distribution = predictor.expect(job, now)
        log_quantiles.append(
            [math.log(distribution.quantile(probability)) for probability in (0.1, 0.25, 0.5, 0.75, 0.9)]
        )
        now += seconds
        predictor.finished(job, seconds, now)
    expected = np.log(np.quantile(durations, (0.1, 0.25, 0.5, 0.75, 0.9)))
    assert np.mean(log_quantiles, axis=0) == pytest.approx(expected, abs=0.15)


def test_users_and_sizes_are_distinguished() -> None:
    predictor = Predictor()
    for index in range(100):
        for job, seconds in (
            (make_job(f"a{index}", user="ann"), 30.0),
            (make_job(f"b{index}", user="bob"), 3000.0),
            (make_job(f"c{index}", user="bob", gpus=8), 90_000.0),
        ):
            predictor.submitted(job, index * 1e5)
            predictor.finished(job, seconds, index * 1e5 + seconds)
    ann, bob, large = (
        predictor.expect(make_job("next", **fields), 1e7).quantile(0.5)
        for fields in ({"user": "ann"}, {"user": "bob"}, {"user": "bob", "gpus": 8})
    )
    assert ann < 60.0
    assert 1500.0 < bob < 6000.0
    assert large > 45_000.0


def test_predictions_follow_a_change() -> None:
    distribution = predictor_after([100.0] * 200 + [10_000.0] * 60).expect(make_job("next"), 1e6)
    assert distribution.quantile(0.5) > 5000.0


def test_a_new_user_is_predicted_from_all_jobs() -> None:
    predictor = predictor_after([50.0] * 100, user="ann")
    assert predictor.expect(make_job("next", user="new"), 1e4).quantile(0.5) < 150.0


def test_elapsed_time_is_a_lower_bound() -> None:
    distribution = predictor_after([600.0] * 50).expect_running(make_job("next"), 1e5, HOUR)
    assert distribution.probability(HOUR) == 0.0
    assert distribution.quantile(0.01) >= HOUR


def test_a_time_limit_is_an_upper_bound() -> None:
    distribution = predictor_after([1000.0] * 50).expect(make_job("next", time_limit=300.0), 1e5)
    assert distribution.quantile(0.999) <= 300.0
    assert distribution.probability(300.0) == 1.0


def test_systematically_long_time_limits_are_learned() -> None:
    predictor, rng = Predictor(), np.random.default_rng(3)
    for index, seconds in enumerate(np.exp(rng.uniform(3.0, 11.0, 400)).tolist()):
        job = make_job(f"past-{index}", time_limit=5.0 * seconds)
        predictor.submitted(job, index * 1e5)
        predictor.finished(job, seconds, index * 1e5 + seconds)
    for seconds in (100.0, 10_000.0):
        distribution = predictor.expect(make_job("next", time_limit=5.0 * seconds), 1e8)
        assert 0.7 * seconds < distribution.quantile(0.5) < 1.4 * seconds


def test_without_history_the_model_of_a_job_dominates() -> None:
    predictor = Predictor(lambda job: 20_000.0 if job.steps else None)
    assert 10_000.0 < predictor.expect(make_job(steps=100), 0.0).quantile(0.5) < 30_000.0
    assert predictor.expect(make_job(), 0.0).quantile(0.5) < 1200.0


def test_half_done_after_an_hour_means_two_hours_in_total() -> None:
    distribution = Predictor().expect_running(make_job(), HOUR, HOUR, 0.5)
    assert distribution.quantile(0.5) == pytest.approx(2 * HOUR, rel=0.1)


@pytest.mark.parametrize("share_done", [0.1, 0.5, 0.9])
def test_more_progress_gives_a_narrower_distribution(share_done: float) -> None:
    def spread(done: float) -> float:
        distribution = Predictor().expect_running(make_job(), HOUR, HOUR, done)
        return math.log(distribution.quantile(0.9) / distribution.quantile(0.1))

    assert spread(share_done) < spread(share_done / 2)


def test_zero_progress_has_no_effect() -> None:
    predictor, job = Predictor(), make_job()
    assert quartiles(predictor.expect_running(job, 60.0, 60.0, 0.0)) == quartiles(
        predictor.expect_running(job, 60.0, 60.0)
    )


def test_a_forgotten_job_is_no_longer_unfinished() -> None:
    predictor, job = predictor_after([60.0] * 5), make_job("gone")
    predictor.submitted(job, 300.0)
    predictor.forget("gone")
    predictor.forget("never there")
    assert predictor.unfinished == 0


def test_forgotten_jobs_do_not_count_among_the_unfinished_jobs_of_their_kind() -> None:
    """The number of unfinished jobs like it is part of what a prediction is made of: here it is always one."""
    jobs = [make_job(f"past-{index}", at=100.0 * index) for index in range(20)]

    def predict(forgotten: int) -> list[float]:
        predictor = Predictor()
        for earlier, job in pairwise(jobs):
            predictor.submitted(earlier, earlier.submitted)
            predictor.submitted(job, job.submitted)
            predictor.finished(earlier, 100.0, job.submitted)
        for index in range(forgotten):
            predictor.submitted(make_job(f"gone-{index}", at=jobs[-1].submitted), jobs[-1].submitted)
            predictor.forget(f"gone-{index}")
        return quartiles(predictor.expect(make_job("next", at=2000.0), 2000.0))

    assert predict(forgotten=5) == predict(forgotten=0)


def test_a_forgotten_job_changes_what_is_expected_of_others_at_once() -> None:
    predictor, job = predictor_after([60.0] * 5), make_job("next", at=300.0)
    predictor.submitted(make_job("gone", at=300.0), 300.0)
    predictor.expect(job, 300.0)
    predictor.forget("gone")
    fresh = copy.deepcopy(predictor)
    assert quartiles(predictor.expect(job, 300.0)) == quartiles(fresh.expect(job, 300.0))


def test_a_second_submission_has_no_effect() -> None:
    predictor, job = Predictor(), make_job("once")
    predictor.submitted(job, 0.0)
    predictor.submitted(job, 5.0)
    predictor.finished(job, 10.0, 10.0)
    assert predictor.unfinished == 0


def test_an_end_without_a_submission_is_learned() -> None:
    predictor = Predictor()
    for index in range(100):
        predictor.finished(make_job(f"past-{index}"), 40.0, index * 100.0)
    assert 30.0 < predictor.expect(make_job("next"), 1e5).quantile(0.5) < 55.0


def test_more_kinds_of_jobs_than_table_rows_still_give_good_predictions() -> None:
    predictor = Predictor()
    for index in range(4000):
        predictor.finished(make_job(f"past-{index}", user=f"user-{index}", group=f"group-{index}"), 500.0, index * 1e3)
    assert 300.0 < predictor.expect(make_job("next", user="new"), 1e7).quantile(0.5) < 800.0


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
def test_invalid_durations_are_rejected(seconds: float) -> None:
    with pytest.raises(BadValue, match="expected seconds ≥ 0"):
        Predictor().finished(make_job(), seconds, 0.0)
    with pytest.raises(BadValue, match="expected seconds ≥ 0"):
        Predictor().expect_running(make_job(), 0.0, seconds)


@pytest.mark.parametrize("share_done", [-0.1, 1.5, math.nan])
def test_invalid_progress_is_rejected(share_done: float) -> None:
    with pytest.raises(BadValue, match="expected 0 to 1"):
        Predictor().expect_running(make_job(), 0.0, 60.0, share_done)


def test_an_invalid_time_is_rejected() -> None:
    with pytest.raises(BadValue, match="expected a finite number"):
        Predictor().expect(make_job(), math.nan)


@pytest.mark.parametrize("limit", [None, math.inf])
@pytest.mark.parametrize("modelled", [None, 0.0, -5.0, math.inf, math.nan])
def test_hints_without_information_are_ignored(limit: float | None, modelled: float | None) -> None:
    predictor = Predictor(lambda _: modelled)
    assert quartiles(predictor.expect(make_job(time_limit=limit), 0.0)) == quartiles(
        Predictor().expect(make_job(), 0.0)
    )


def test_a_time_in_the_past_still_gives_a_prediction() -> None:
    predictor = predictor_after([60.0] * 5)
    assert 20.0 < predictor.expect(make_job("next"), -1e6).quantile(0.5) < 600.0


def test_expectations_of_equal_jobs_change_with_everything_that_is_learned() -> None:
    predictor = predictor_after([60.0, 70.0, 80.0])
    jobs = [make_job(f"waiting-{index}", at=300.0) for index in range(2)]
    first = predictor.expect(jobs[0], 300.0)
    assert quartiles(predictor.expect(jobs[1], 300.0)) == quartiles(first)
    limited = msgspec.structs.replace(jobs[1], time_limit=65.0)
    assert predictor.expect(limited, 300.0).ceiling == 65.0
    long = make_job("long", at=300.0)
    predictor.submitted(long, 300.0)
    predictor.finished(long, 9000.0, 300.0)
    fresh = copy.deepcopy(predictor)
    assert quartiles(predictor.expect(jobs[1], 300.0)) == quartiles(fresh.expect(jobs[1], 300.0))
    assert quartiles(predictor.expect(jobs[1], 300.0)) != quartiles(first)


def predictor_of_two_tenants() -> Predictor:
    """A predictor that has seen the jobs of ten users each: those of `fast` take minutes, those of `slow` days."""
    predictor, now = Predictor(), 0.0
    for index in range(40):
        for tenant, seconds in (("fast", 300.0), ("slow", 200_000.0)):
            job = make_job(f"{tenant}-{index}", at=now, tenant=tenant, user=f"{tenant}-{index % 10}")
            predictor.submitted(job, now)
            now += seconds
            predictor.finished(job, seconds, now)
    return predictor


def test_a_new_user_is_expected_to_be_like_the_users_of_the_tenant() -> None:
    predictor = predictor_of_two_tenants()
    fast, slow, unknown = (
        predictor.expect(make_job("new", at=1e9, tenant=tenant, user="new"), 1e9).quantile(0.5)
        for tenant in ("fast", "slow", "unknown")
    )
    assert 10 * fast < slow
    assert fast <= unknown <= slow


def test_a_new_user_borrows_from_others_with_the_same_workload() -> None:
    predictor, now = Predictor(), 0.0
    for index in range(60):
        workload, seconds = (("short", 300.0), ("long", 100_000.0))[index % 2]
        job = make_job(f"past-{index}", at=now, user=f"user-{index % 7}", workload=workload)
        predictor.submitted(job, now)
        now += seconds
        predictor.finished(job, seconds, now)
    short, long, other = (
        predictor.expect(make_job("new", at=now, user="new", workload=workload), now).quantile(0.5)
        for workload in ("short", "long", "unknown")
    )
    assert short < other < long


def test_the_jobs_of_a_known_user_outweigh_those_of_the_tenant() -> None:
    predictor, now = predictor_of_two_tenants(), 1e9
    for index in range(20):
        job = make_job(f"own-{index}", at=now, tenant="slow", user="quick")
        predictor.submitted(job, now)
        now += 60.0
        predictor.finished(job, 60.0, now)
    assert predictor.expect(make_job("next", at=now, tenant="slow", user="quick"), now).quantile(0.5) < 300


@given(histories(), st.lists(st.tuples(st.floats(0.0, 5000.0), st.sampled_from([None, 60.0, 3600.0]))))
@settings(max_examples=30, deadline=None)
def test_the_service_of_many_runs_is_that_of_each(past: list[Job], running: list[tuple[float, float | None]]) -> None:
    now = past[-1].submitted
    predictor = predictor_at(past, now)
    jobs = [
        make_job(f"run-{index}", at=now, gpus=1 + index % 3, user="ann", time_limit=limit)
        for index, (_, limit) in enumerate(running)
    ]
    for job in jobs:
        predictor.submitted(job, now)
    elapsed = np.array([seconds for seconds, _ in running])
    alone = [
        predictor.expect_running(job, now, seconds).service_per_completion(78.0)
        for job, seconds in zip(jobs, elapsed.tolist(), strict=True)
    ]
    assert predictor.service_of(jobs, elapsed, 78.0).tolist() == alone
