"""Random run times: what is known is used, what is not known is infinite, and limits hold."""

from math import inf

import numpy as np
import pytest
from hypothesis import given, strategies as st

from refold.model import Job
from refold.simulator.run_time_draws import MIN_OVERRUN, RunTimes, StartedJob


def job(name: str = "train", *, work: float | None = None, time_limit: float | None = None) -> Job:
    return Job("any", group=name, work=work, time_limit=time_limit)


def trained(*run_times: float, name: str = "train") -> RunTimes:
    learned = RunTimes()
    for number, run_time in enumerate(run_times):
        learned.learn(Job(f"past-{number}", group=name), run_time, 100.0 * number)
    return learned


def drawn(run_times: RunTimes, *jobs: Job, futures: int = 100) -> list[list[float]]:
    """Return the smallest, the median and the largest run time of each job."""
    draws = run_times.draws(futures, seed=1).waiting(jobs, 1000.0)
    columns: list[list[float]] = np.quantile(draws, (0.0, 0.5, 1.0), axis=0, method="nearest").T.tolist()
    return columns


def remaining(run_times: RunTimes, started: StartedJob, futures: int = 100) -> list[float]:
    draws = run_times.draws(futures, seed=1).remaining([started], 1000.0)[:, 0]
    return [float(draws.min()), float(np.median(draws)), float(draws.max())]


def test_before_a_job_has_ended_only_estimates_and_limits_are_known() -> None:
    jobs = (job(), job(time_limit=60.0), job(work=5.0), job(work=90.0, time_limit=60.0))
    assert drawn(RunTimes(), *jobs) == [[inf] * 3, [60.0] * 3, [5.0] * 3, [60.0] * 3]


def test_what_remains_of_a_run_is_known_from_estimates_limits_and_progress() -> None:
    nothing = RunTimes()
    assert remaining(nothing, StartedJob(job(), 10.0)) == [inf] * 3
    assert remaining(nothing, StartedJob(job(time_limit=60.0), 10.0)) == [50.0] * 3
    assert remaining(nothing, StartedJob(job(time_limit=60.0), 70.0)) == [10.0] * 3  # as late again
    assert remaining(nothing, StartedJob(job(work=30.0), 10.0)) == [20.0] * 3
    assert remaining(nothing, StartedJob(job(work=30.0), 40.0)) == [inf] * 3  # the estimate was wrong
    assert remaining(nothing, StartedJob(job(), 100.0, 0.5))[1] == pytest.approx(100, rel=0.3)


def test_run_times_are_predicted_by_name_once_jobs_have_ended() -> None:
    run_times = trained(*[8.0] * 10)
    for number in range(5):
        run_times.learn(Job(f"other-{number}", group="other"), 3600.0, 2000.0 + number)
    (_, short, _), (_, long, _) = drawn(run_times, job(), job("other"))
    assert short == pytest.approx(8, rel=0.2)
    assert long == pytest.approx(3600, rel=0.5)


def test_jobs_of_a_series_about_which_little_is_known_are_all_short_or_all_long() -> None:
    def correlation(ended: int) -> float:
        draws = trained(*[10.0, 1000.0] * (ended // 2)).draws(400, seed=1).waiting([job(), job()], 0.0)
        return float(np.corrcoef(np.log(draws).T)[0, 1])

    assert correlation(2) > 0.7
    assert correlation(100) < 0.3


def test_the_same_seed_gives_the_same_run_times() -> None:
    run_times = trained(5.0, 50.0)
    first, again = (run_times.draws(20, seed=3).waiting([job(), job()], 0.0) for _ in range(2))
    assert first.tolist() == again.tolist()
    assert first.tolist() != run_times.draws(20, seed=4).waiting([job(), job()], 0.0).tolist()


@given(st.lists(st.floats(0.1, 1e6), max_size=5), st.floats(1, 1e5), st.floats(0, 1e6), st.none() | st.floats(0, 1))
def test_no_run_is_expected_beyond_its_time_limit_or_as_late_again_as_it_is(
    ended: list[float], limit: float, elapsed: float, share: float | None
) -> None:
    run_times, limited = trained(*ended), job(time_limit=limit)
    assert drawn(run_times, limited, futures=8)[0][2] <= limit
    least, _, most = remaining(run_times, StartedJob(limited, elapsed, share), futures=8)
    assert 0 <= least <= most <= (limit - elapsed if elapsed < limit else max(elapsed - limit, MIN_OVERRUN))
