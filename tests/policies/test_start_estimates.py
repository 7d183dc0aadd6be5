"""Start estimates: bounds hold as often as documented, adapt after a change, and are deterministic."""

from heapq import heappop, heappush
from math import exp
from random import Random

import pytest
from hypothesis import given, strategies as st

from refold.model import MINUTE, StartEstimate
from refold.policies.backfill.start_estimates import MIN_EXTENSION, MIN_STORED_ERRORS, WAIT_OFFSET, StartEstimates


def stream(jobs: int, seed: int, factors: tuple[float, float]) -> list[tuple[StartEstimate, float]]:
    """Return the first estimate and the start of each job; actual waits are off by a factor per half, and by noise."""
    rng, estimates = Random(seed), StartEstimates()
    first: dict[str, StartEstimate] = {}
    started: dict[str, float] = {}
    starts: list[tuple[float, str]] = []
    now = 0.0
    for number in range(jobs):
        now += rng.expovariate(1 / 300)
        while starts and starts[0][0] <= now:
            at, name = heappop(starts)
            estimates.pop_overdue(at)
            estimates.note_start(name, at)
            started[name] = at
        for name in estimates.pop_overdue(now):
            estimates.estimate(name, "any", now, now + 600)
        name, planned = f"j{number}", rng.expovariate(1 / 3600)
        first[name] = estimates.estimate(name, "any", now, now + planned)
        wait = planned * factors[2 * number // jobs] * exp(rng.gauss(0, 1))
        heappush(starts, (now + wait, name))
    return [(first[name], at) for name, at in sorted(started.items(), key=lambda item: item[1])]


def share_within_bound(results: list[tuple[StartEstimate, float]]) -> float:
    return sum(expected.latest is not None and at <= expected.latest for expected, at in results) / len(results)


@pytest.mark.parametrize("seed", range(4))
def test_bounds_hold_for_95_of_100_jobs(seed: int) -> None:
    results = stream(2000, seed, (1.0, 1.0))
    assert share_within_bound(results) >= 0.95
    assert share_within_bound(results[500:]) >= 0.95


@pytest.mark.parametrize("seed", range(4))
def test_bounds_hold_again_soon_after_waits_become_five_times_as_long(seed: int) -> None:
    results = stream(3000, seed, (1.0, 5.0))
    assert share_within_bound(results[2000:]) >= 0.95


def test_bounds_are_not_much_wider_than_necessary() -> None:
    results = stream(2000, 1, (1.0, 1.0))
    needed = sorted(at - expected.at for expected, at in results[500:])[int(0.98 * 1500)]
    margins = sorted(expected.latest - expected.at for expected, _ in results[500:] if expected.latest is not None)
    assert margins[len(margins) // 2] < 3 * needed


def test_the_same_stream_gives_the_same_estimates() -> None:
    assert stream(500, 7, (1.0, 3.0)) == stream(500, 7, (1.0, 3.0))


def test_without_observations_the_bound_is_twenty_times_the_planned_wait() -> None:
    estimate = StartEstimates().estimate("a", "any", 1000, 1400)
    assert (estimate.soonest, estimate.at, estimate.latest) == pytest.approx(
        (1400, 1400, 1000 + 20 * (400 + WAIT_OFFSET) - WAIT_OFFSET)
    )


def test_errors_are_learned_per_kind_and_kinds_with_few_observations_use_those_of_all_kinds() -> None:
    estimates = StartEstimates()
    for number in range(MIN_STORED_ERRORS):
        for kind, wait in (("quick", 300.0), ("slow", 5400.0)):
            estimates.estimate(f"{kind}{number}", kind, 0, 600)
            estimates.note_start(f"{kind}{number}", wait)
    quick, slow, other = (estimates.estimate(kind, kind, 10_000, 10_600) for kind in ("quick", "slow", "other"))
    assert (quick.at, slow.at) == pytest.approx((10_300, 15_400))
    assert quick.latest is not None
    assert slow.latest is not None
    assert quick.latest == pytest.approx(10_000 + 3 * 1200 - WAIT_OFFSET)  # at least three times the plan
    assert 15_399 < slow.latest < 18_000
    assert other.latest is not None
    assert other.latest > 15_399


def test_an_overdue_bound_is_reported_once_and_extended_by_at_least_half_an_hour() -> None:
    estimates = StartEstimates()
    first = estimates.estimate("a", "any", 0, 0)
    assert first.latest is not None
    assert estimates.pop_overdue(first.latest) == []
    assert estimates.pop_overdue(first.latest + 1) == ["a"]
    assert estimates.pop_overdue(first.latest + 1) == []
    again = estimates.estimate("a", "any", first.latest + 1, first.latest + 1)
    assert again.latest is not None
    assert again.latest >= first.latest + 1 + MIN_EXTENSION
    assert estimates.pop_overdue(again.latest + 1) == ["a"]


def trained(wait: float) -> StartEstimates:
    """Return estimates that have observed enough jobs with this wait that were planned to start at once."""
    estimates = StartEstimates()
    for number in range(MIN_STORED_ERRORS):
        estimates.estimate(f"seen{number}", "any", 0, 0)
        estimates.note_start(f"seen{number}", wait)
    return estimates


def test_an_extended_bound_is_half_an_hour_away_even_if_short_waits_are_expected() -> None:
    estimates = trained(wait=0.0)
    assert estimates.estimate("a", "any", 0, 0).latest == pytest.approx(2 * WAIT_OFFSET)
    assert estimates.pop_overdue(10_000) == ["a"]
    assert estimates.estimate("a", "any", 10_000, 10_000).latest == 10_000 + MIN_EXTENSION


def test_bounds_become_wider_as_soon_as_jobs_are_overdue_not_only_when_they_start() -> None:
    estimates = trained(wait=3000.0)
    before = estimates.estimate("before", "any", 0, 0).latest
    for number in range(10):
        estimates.estimate(f"late{number}", "any", 0, 0)
    estimates.pop_overdue(10**6)
    after = estimates.estimate("after", "any", 0, 0).latest
    assert before is not None
    assert after is not None
    assert after > 2 * before


def test_a_job_that_is_overdue_again_and_again_counts_once() -> None:
    bounds = []
    for times in (1, 5):
        estimates = trained(wait=3000.0)
        estimates.estimate("late", "any", 0, 0)
        for time in range(times):
            now = 10**6 * (time + 1)
            assert estimates.pop_overdue(now) == ["late"]
            estimates.estimate("late", "any", now, now)
        bounds.append(estimates.estimate("other", "any", 0, 0).latest)
    assert bounds[0] == bounds[1]


def test_jobs_that_were_forgotten_or_have_started_are_not_overdue() -> None:
    estimates = StartEstimates()
    estimates.estimate("forgotten", "any", 0, 0)
    estimates.estimate("started", "any", 0, 0)
    estimates.forget("forgotten")
    estimates.note_start("started", 5)
    assert estimates.pop_overdue(10**9) == []


def test_nothing_is_learned_from_the_start_of_a_job_without_an_estimate() -> None:
    estimates = StartEstimates()
    estimates.note_start("unknown", 5)
    assert estimates.estimate("b", "any", 0, 100).at == 100


@given(st.lists(st.tuples(st.floats(0, 10**5), st.floats(0, 10**6)), max_size=60), st.floats(0, 10**5))
def test_soonest_is_not_after_the_expected_start_and_that_not_after_the_latest(
    observed: list[tuple[float, float]], planned: float
) -> None:
    estimates = StartEstimates()
    for number, (plan, wait) in enumerate(observed):
        estimates.estimate(f"{number}", "any", 0, plan)
        estimates.note_start(f"{number}", wait)
    estimate = estimates.estimate("a", "any", 50, 50 + planned)
    assert estimate.soonest is not None
    assert estimate.latest is not None
    assert 50 <= estimate.soonest <= estimate.at <= estimate.latest


def learned_from(factors: list[float]) -> StartEstimates:
    """Return estimates after jobs that were planned to wait 50 minutes and waited a multiple of that.

    Waits are compared with ten minutes added: 60 minutes as planned.
    """
    estimates = StartEstimates()
    for number, factor in enumerate(factors):
        estimates.estimate(f"past{number}", "kind", 0.0, 50 * MINUTE)
        estimates.note_start(f"past{number}", factor * 60 * MINUTE - 10 * MINUTE)
    return estimates


def minutes(estimate: StartEstimate) -> list[float | None]:
    return [None if at is None else round(at / MINUTE, 6) for at in (estimate.soonest, estimate.at, estimate.latest)]


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        ([1.0] * 19 + [5.0], [50, 50, 290]),  # the bound is the largest of 20 errors
        ([1.0] * 20, [50, 50, 170]),  # at least three times the plan
        ([0.5] * 2 + [1.0] * 9 + [2.0] * 9, [20, 50, 170]),
        ([0.5] * 2 + [1.0] * 8 + [2.0] * 10, [20, 110, 170]),
        ([0.1] * 20, [0, 0, 170]),  # never before now
        ([0.5] * 19, [20, 20, 1190]),  # too few for a bound: twenty times the plan
    ],
)
def test_estimates_are_quantiles_of_the_errors_of_earlier_plans(factors: list[float], expected: list[float]) -> None:
    assert minutes(learned_from(factors).estimate("new", "kind", 0.0, 50 * MINUTE)) == expected


def test_estimates_are_relative_to_now() -> None:
    estimates = learned_from([0.5] * 2 + [1.0] * 9 + [2.0] * 9)
    assert minutes(estimates.estimate("new", "kind", 1000 * MINUTE, 1050 * MINUTE)) == [1020, 1050, 1170]
    assert minutes(estimates.estimate("due", "kind", 1000 * MINUTE, 900 * MINUTE)) == [1000, 1000, 1020]


@pytest.mark.parametrize(("ones", "expected"), [(999, 290), (1000, 290), (1001, 50)])
def test_only_the_latest_2000_errors_are_stored(ones: int, expected: float) -> None:
    """The expected start follows from the median, which is five as long as half of the stored errors are."""
    estimates = learned_from([9.0] * 500 + [5.0] * 1000 + [1.0] * ones)
    assert minutes(estimates.estimate("new", "kind", 0.0, 50 * MINUTE))[1] == expected
