"""The compiled loops of Refold over all jobs."""

from math import nan
from typing import NamedTuple

import numpy as np
from hypothesis import given, strategies as st

from refold.policies.refold.kernels import DelayColumns, DelayRules, PredictionColumns, delay_weights, outdated_rows
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


def test_weights_of_delays() -> None:
    known, unknown, preferred, other_wide = range(4)
    columns = DelayColumns(
        submitted=np.zeros(4),
        is_known=np.array([True, False, False, False]),
        run_time=np.full(4, 500.0),
        reported_done=np.full(4, 200.0),
        computing_since=np.array([nan, 700.0, nan, nan]),
        may_be_preferred=np.array([False, False, True, True]),
    )
    is_preferred = np.array([False, False, True, False])
    weights = delay_weights(1000.0, DelayRules(100.0, 50.0, 8.0), columns, is_preferred)
    assert weights[known] == 1 + (1000 + 500) / 100
    assert weights[unknown] == 1 + (1000 - (200 + 300)) / 50
    assert (weights[preferred], weights[other_wide]) == (8.0, 1.0)
    without_preference = delay_weights(1000.0, DelayRules(100.0, 50.0, 0.0), columns, is_preferred)
    assert without_preference[[preferred, other_wide]].tolist() == [1 + (1000 - 200) / 50] * 2
