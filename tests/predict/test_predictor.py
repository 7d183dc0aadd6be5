"""The Predictor: how long jobs last, learned from those that have ended, and from nothing else."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
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


def after(durations: Iterable[float], **fields: Any) -> Predictor:
    """One who has seen equal jobs, one after the other."""
    predictor, now = Predictor(), 0.0
    for index, seconds in enumerate(durations):
        job = make_job(f"past-{index}", at=now, **fields)
        predictor.submitted(job, now)
        now += seconds
        predictor.finished(job, seconds, now)
    return predictor


def answers(distribution: DurationDistribution) -> list[float]:
    return [distribution.quantile(chance) for chance in QUARTILES]


@st.composite
def histories(draw: st.DrawFn) -> list[Job]:
    """Jobs of a few kinds, in order of submission."""
    made = st.tuples(st.floats(0.0, 500.0), st.floats(1.0, 2000.0), st.integers(1, 3), st.sampled_from(["ann", "bob"]))
    jobs, now = [], 0.0
    for index, (gap, work, gpus, user) in enumerate(draw(st.lists(made, min_size=2, max_size=25))):
        now += gap
        jobs.append(make_job(f"job-{index}", at=now, work=work, gpus=gpus, user=user))
    return jobs


def told_until(jobs: Sequence[Job], moment: float) -> Predictor:
    """One who was told everything that had happened by a moment."""
    predictor = Predictor()
    facts = [(job.submitted, 1, index) for index, job in enumerate(jobs)]
    facts += [(job.submitted + (job.work or 0.0), 0, index) for index, job in enumerate(jobs)]
    for now, came, index in sorted(facts):
        if now > moment:
            break
        job = jobs[index]
        if came:
            predictor.submitted(job, now)
        else:
            predictor.finished(job, job.work or 0.0, now)
    return predictor


@settings(max_examples=25, deadline=None)
@given(histories(), st.data())
def test_the_future_changes_nothing(jobs: list[Job], data: st.DataObject) -> None:
    """Jobs that end later may last as long as they like: what is said now is the same."""
    moment = data.draw(st.floats(0.0, jobs[-1].submitted), label="moment")

    def other_future(job: Job) -> Job:
        if job.submitted + (job.work or 0.0) <= moment:
            return job
        more = data.draw(st.floats(0.0, 1e6), label=f"more of {job.id}")
        return msgspec.structs.replace(job, work=(job.work or 0.0) + more)

    others = [other_future(job) for job in jobs]
    asked, elsewhere = make_job("asked", work=7.0, user="ann"), make_job("asked", work=None, user="ann")
    one, other = told_until(jobs, moment), told_until(others, moment)
    assert answers(one.expect(asked, moment)) == answers(other.expect(elsewhere, moment))
    running = next(
        (place for place, job in enumerate(jobs) if job.submitted <= moment < job.submitted + (job.work or 0.0)), None
    )
    if running is not None:
        elapsed = moment - jobs[running].submitted
        known = one.expect_running(jobs[running], moment, elapsed)
        assert answers(known) == answers(other.expect_running(others[running], moment, elapsed))
        assert known.quantile(0.01) >= elapsed


@settings(max_examples=10, deadline=None)
@given(histories())
def test_told_the_same_again_it_says_the_same(jobs: list[Job]) -> None:
    asked, moment = make_job("asked", user="bob"), jobs[-1].submitted
    assert answers(told_until(jobs, moment).expect(asked, moment)) == answers(
        told_until(jobs, moment).expect(asked, moment)
    )


def test_asking_changes_nothing() -> None:
    predictor, job = after([60.0] * 5), make_job("next")
    first = answers(predictor.expect(job, 400.0))
    predictor.expect_running(job, 400.0, 1000.0, 0.3)
    assert answers(predictor.expect(job, 400.0)) == first


def test_a_copy_goes_its_own_way() -> None:
    predictor, job = after([60.0] * 5), make_job("next")
    other = copy.deepcopy(predictor)
    other.finished(make_job("long"), 1e5, 1e5)
    assert answers(predictor.expect(job, 1e5)) != answers(other.expect(job, 1e5))


def test_before_anything_was_seen_ten_minutes_are_believed_but_nothing_is_a_surprise() -> None:
    distribution = Predictor().expect(make_job(), 0.0)
    assert 300.0 < distribution.quantile(0.5) < 1200.0
    assert distribution.quantile(0.1) < 60.0
    assert distribution.quantile(0.9) > 2 * HOUR


def test_what_always_lasts_the_same_is_known_closely() -> None:
    distribution = after([1000.0] * 200).expect(make_job("next"), 3e5)
    assert distribution.quantile(0.1) > 800.0
    assert distribution.quantile(0.9) < 1250.0


def test_a_steady_mixture_has_the_quantiles_of_what_was_seen() -> None:
    """Against the empirical quantiles: on average, of jobs that are all alike and do not change over time."""
    durations = np.exp(np.random.default_rng(5).normal(6.0, 1.0, 3000)).tolist()
    predictor, now, said = after(durations[:1000]), sum(durations[:1000]), []
    for index, seconds in enumerate(durations[1000:]):
        job = make_job(f"more-{index}", at=now)
        predictor.submitted(job, now)
        distribution = predictor.expect(job, now)
        said.append([math.log(distribution.quantile(chance)) for chance in (0.1, 0.25, 0.5, 0.75, 0.9)])
        now += seconds
        predictor.finished(job, seconds, now)
    expected = np.log(np.quantile(durations, (0.1, 0.25, 0.5, 0.75, 0.9)))
    assert np.mean(said, axis=0) == pytest.approx(expected, abs=0.15)


def test_users_and_sizes_are_told_apart() -> None:
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


def test_when_things_change_it_follows() -> None:
    distribution = after([100.0] * 200 + [10_000.0] * 60).expect(make_job("next"), 1e6)
    assert distribution.quantile(0.5) > 5000.0


def test_a_newcomer_is_foreseen_by_what_is_known_of_all() -> None:
    predictor = after([50.0] * 100, user="ann")
    assert predictor.expect(make_job("next", user="new"), 1e4).quantile(0.5) < 150.0


def test_a_job_that_has_run_for_an_hour_is_no_ten_minute_job() -> None:
    distribution = after([600.0] * 50).expect_running(make_job("next"), 1e5, HOUR)
    assert distribution.probability(HOUR) == 0.0
    assert distribution.quantile(0.01) >= HOUR


def test_a_limit_is_a_bound() -> None:
    distribution = after([1000.0] * 50).expect(make_job("next", time_limit=300.0), 1e5)
    assert distribution.quantile(0.999) <= 300.0
    assert distribution.probability(300.0) == 1.0


def test_limits_that_are_always_five_times_too_long_are_seen_through() -> None:
    predictor, chance = Predictor(), np.random.default_rng(3)
    for index, seconds in enumerate(np.exp(chance.uniform(3.0, 11.0, 400)).tolist()):
        job = make_job(f"past-{index}", time_limit=5.0 * seconds)
        predictor.submitted(job, index * 1e5)
        predictor.finished(job, seconds, index * 1e5 + seconds)
    for seconds in (100.0, 10_000.0):
        distribution = predictor.expect(make_job("next", time_limit=5.0 * seconds), 1e8)
        assert 0.7 * seconds < distribution.quantile(0.5) < 1.4 * seconds


def test_a_model_of_the_job_is_believed_before_anything_was_seen() -> None:
    predictor = Predictor(lambda job: 20_000.0 if job.steps else None)
    assert 10_000.0 < predictor.expect(make_job(steps=100), 0.0).quantile(0.5) < 30_000.0
    assert predictor.expect(make_job(), 0.0).quantile(0.5) < 1200.0


def test_half_done_after_an_hour_makes_two_hours() -> None:
    distribution = Predictor().expect_running(make_job(), HOUR, HOUR, 0.5)
    assert distribution.quantile(0.5) == pytest.approx(2 * HOUR, rel=0.1)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_progress_is_the_surer_the_more_is_behind(share: float) -> None:
    def spread(of: float) -> float:
        distribution = Predictor().expect_running(make_job(), HOUR, HOUR, of)
        return math.log(distribution.quantile(0.9) / distribution.quantile(0.1))

    assert spread(share) < spread(share / 2)


def test_progress_of_nothing_says_nothing() -> None:
    predictor, job = Predictor(), make_job()
    assert answers(predictor.expect_running(job, 60.0, 60.0, 0.0)) == answers(predictor.expect_running(job, 60.0, 60.0))


def test_a_job_that_is_gone_leaves_nothing_behind() -> None:
    predictor, job = after([60.0] * 5), make_job("gone")
    predictor.submitted(job, 300.0)
    predictor.forget("gone")
    predictor.forget("never there")
    assert predictor.unfinished == 0


def test_submitted_twice_counts_once() -> None:
    predictor, job = Predictor(), make_job("once")
    predictor.submitted(job, 0.0)
    predictor.submitted(job, 5.0)
    predictor.finished(job, 10.0, 10.0)
    assert predictor.unfinished == 0


def test_an_end_without_a_submission_is_an_example_too() -> None:
    predictor = Predictor()
    for index in range(100):
        predictor.finished(make_job(f"past-{index}"), 40.0, index * 100.0)
    assert 30.0 < predictor.expect(make_job("next"), 1e5).quantile(0.5) < 55.0


def test_more_kinds_of_jobs_than_there_are_rows_do_no_harm() -> None:
    predictor = Predictor()
    for index in range(4000):
        predictor.finished(make_job(f"past-{index}", user=f"user-{index}", group=f"group-{index}"), 500.0, index * 1e3)
    assert 300.0 < predictor.expect(make_job("next", user="new"), 1e7).quantile(0.5) < 800.0


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
def test_no_job_lasts_so_long(seconds: float) -> None:
    with pytest.raises(BadValue, match="expected seconds ≥ 0"):
        Predictor().finished(make_job(), seconds, 0.0)
    with pytest.raises(BadValue, match="expected seconds ≥ 0"):
        Predictor().expect_running(make_job(), 0.0, seconds)


@pytest.mark.parametrize("share", [-0.1, 1.5, math.nan])
def test_no_job_has_done_such_a_share(share: float) -> None:
    with pytest.raises(BadValue, match="expected 0 to 1"):
        Predictor().expect_running(make_job(), 0.0, 60.0, share)


def test_no_time_is_not_a_time() -> None:
    with pytest.raises(BadValue, match="finite time"):
        Predictor().expect(make_job(), math.nan)


@pytest.mark.parametrize("limit", [None, math.inf])
@pytest.mark.parametrize("modelled", [None, 0.0, -5.0, math.inf, math.nan])
def test_what_says_nothing_is_as_good_as_nothing(limit: float | None, modelled: float | None) -> None:
    predictor = Predictor(lambda _: modelled)
    assert answers(predictor.expect(make_job(time_limit=limit), 0.0)) == answers(Predictor().expect(make_job(), 0.0))


def test_a_question_about_the_past_has_an_answer() -> None:
    predictor = after([60.0] * 5)
    assert 20.0 < predictor.expect(make_job("next"), -1e6).quantile(0.5) < 600.0
