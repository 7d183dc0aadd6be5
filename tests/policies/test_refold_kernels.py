"""The compiled loops of Refold over all jobs."""

from math import nan
from typing import NamedTuple

import numpy as np
from hypothesis import given, strategies as st

from refold.policies.refold.kernels import (
    DelayColumns,
    DelayRules,
    EndedRuns,
    PredictionColumns,
    UsableGpus,
    UseColumns,
    count_use,
    order_by_rank,
    outdated_rows,
    weigh_jobs,
)
from refold.predict import is_outdated

seconds = st.floats(0.0, 1e5)


class OneJob(NamedTuple):
    is_known: bool
    is_running: bool
    reported_done: float
    computing_since: float
    predicted_done: float
    predicted_ended: int

    def done(self, now: float) -> float:
        since = self.computing_since
        return self.reported_done if np.isnan(since) else self.reported_done + (now - since)


jobs = st.builds(
    OneJob, st.booleans(), st.booleans(), seconds, st.one_of(st.just(nan), seconds), seconds, st.integers(0, 200)
)


@given(st.lists(jobs, min_size=1, max_size=50), st.integers(0, 300))
def test_what_is_outdated(rows: list[OneJob], ended_runs: int) -> None:
    now = 2e5
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    known, predicted = outdated_rows(now, ended_runs, PredictionColumns(*columns))
    assert known.tolist() == [at for at, job in enumerate(rows) if job.is_known and job.is_running]
    assert predicted.tolist() == [
        at
        for at, job in enumerate(rows)
        if not job.is_known
        and is_outdated(job.predicted_done, job.predicted_ended, job.done(now), ended_runs, job.is_running)
    ]


def test_a_prediction_is_outdated_when_the_work_done_has_grown_or_many_runs_have_ended() -> None:
    assert not is_outdated(100.0, 0, 114.0, 1000, is_running=True)
    assert is_outdated(100.0, 0, 116.0, 0, is_running=True)
    assert is_outdated(100.0, 0, 99.0, 0, is_running=True)
    assert not is_outdated(100.0, 0, 100.0, 49, is_running=False)
    assert is_outdated(100.0, 0, 100.0, 50, is_running=False)


RULES = DelayRules(100.0, 50.0, 8.0, overtaking_share=0.5, restarted_share=0.9)


def test_weights_of_delays() -> None:
    known, unknown, preferred, other_wide = range(4)
    columns = DelayColumns(
        submitted=np.zeros(4),
        is_known=np.array([True, False, False, False]),
        run_time=np.full(4, 500.0),
        reported_done=np.full(4, 200.0),
        computing_since=np.array([nan, 700.0, nan, nan]),
        may_be_preferred=np.array([False, False, True, True]),
        is_running=np.array([False, True, False, False]),
        is_restarted=np.array([False, False, True, False]),
        overtaken=np.full(4, 60.0),
        used_in_all=np.full(4, 100.0),
    )
    is_preferred = np.array([False, False, True, False])
    weights, work, is_overdue = weigh_jobs(1000.0, RULES, columns, is_preferred, np.full(4, 42.0))
    assert weights[known] == 1 + (1000 + 500) / 100
    assert weights[unknown] == 1 + (1000 - (200 + 300)) / 50
    assert (weights[preferred], weights[other_wide]) == (8.0, 1.0)
    assert work.tolist() == (42.0 / weights).tolist()
    assert is_overdue.tolist() == [True, False, False, True]
    without_preference = weigh_jobs(1000.0, RULES._replace(wide_weight=0.0), columns, is_preferred, work)
    assert without_preference.weights[[preferred, other_wide]].tolist() == [1 + (1000 - 200) / 50] * 2


class OneUse(NamedTuple):
    submitted: float
    rank: int
    asked_gpus: float
    is_running: bool
    held_type: int
    held_since: float
    usable_types: int
    used_behind: float
    has_room: bool


uses = st.builds(
    OneUse,
    st.sampled_from([0.0, 1.0, 2.0]),
    st.integers(0, 1),
    st.sampled_from([1.0, 4.0]),
    st.booleans(),
    st.integers(0, 1),
    st.sampled_from([3.0, 5.0]),
    st.integers(0, 1),
    st.sampled_from([nan, 0.0, 2.0]),
    st.booleans(),
)


@given(st.lists(uses, min_size=1, max_size=12), st.sampled_from([nan, 3.0]))
def test_the_use_of_those_behind_a_waiting_job_counts(jobs: list[OneUse], used_before: float) -> None:
    now, is_usable = 8.0, np.array([[True, True], [True, False]])  # by set of types, and type
    held = np.array([job.asked_gpus * job.is_running for job in jobs])
    table = {name: np.array([getattr(job, name) for job in jobs]) for name in OneUse._fields}
    zeros = {"overtaken": np.zeros(len(jobs)), "used_in_all": np.zeros(len(jobs)), "held_gpus": held}
    before, columns = {name: column.copy() for name, column in table.items()}, UseColumns(**table, **zeros)
    counted = UsableGpus(
        np.array([12.0, 8.0]), np.full(2, used_before), is_usable, np.ones((2, 2), np.bool_), np.array([1.0, 2.0])
    )
    ended = EndedRuns(np.array([1]), np.array([1.0]), np.array([1]), np.array([2.0]))
    count_use(now, np.lexsort((table["submitted"], -table["rank"])), columns, counted, ended)
    for row, job in enumerate(jobs):
        types = is_usable[job.usable_types]
        place = -job.rank, job.submitted
        used = [types[one.held_type] * one.is_running * one.asked_gpus * (now - one.held_since) for one in jobs]
        behind = sum(use for use, one in zip(used, jobs, strict=True) if (-one.rank, one.submitted) > place)
        assert columns.used_behind[row] == behind
        in_all = 0.0 if np.isnan(used_before) else max(sum(used) + sum(types * [1.0, 2.0]) - used_before, 0.0)
        newly_behind = max(behind - before["used_behind"][row] + 2.0 * (types[1] and place < (-1, 1.0)), 0.0)
        is_counted, waits = not np.isnan(job.used_behind), not job.is_running
        assert columns.overtaken[row] == (newly_behind if is_counted and waits else 0.0)
        by_all = newly_behind if waits and job.has_room else in_all
        assert columns.used_in_all[row] == (by_all if is_counted else 0.0)


ranks = st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0.0, 1.0, 2.0])), max_size=40)


@given(ranks, ranks)
def test_the_order_by_rank_follows_from_that_of_other_jobs(
    first: list[tuple[int, float]], then: list[tuple[int, float]]
) -> None:
    before = np.empty(0, dtype=np.int64)
    for jobs in (first, then):
        rank, submitted = np.array([job[0] for job in jobs], np.int64), np.array([job[1] for job in jobs])
        nothing = dict.fromkeys(UseColumns._fields, np.empty(0))
        before = order_by_rank(before, UseColumns(**{**nothing, "rank": rank, "submitted": submitted}))
        assert before.tolist() == np.lexsort((submitted, -rank)).tolist()
