"""Promised starts hold as often as is said, soon again after the world has changed, and are the same every time."""

from heapq import heappop, heappush
from math import exp
from random import Random

import pytest
from hypothesis import given, strategies as st

from refold.model import StartEstimate
from refold.policies.backfill.start_estimates import ENOUGH, RENEWED_BY_AT_LEAST, SHORT, StartEstimates


def stream(jobs: int, seed: int, longer: tuple[float, float]) -> list[tuple[StartEstimate, float]]:
    """What jobs were first promised, and when they started: plans are off by chance, and by a factor, in each half."""
    chance, promises = Random(seed), StartEstimates()
    told: dict[str, StartEstimate] = {}
    started: dict[str, float] = {}
    starts: list[tuple[float, str]] = []
    now = 0.0
    for number in range(jobs):
        now += chance.expovariate(1 / 300)
        while starts and starts[0][0] <= now:
            at, name = heappop(starts)
            promises.overdue(at)
            promises.started(name, at)
            started[name] = at
        for name in promises.overdue(now):
            promises.make(name, "any", now, now + 600)
        name, planned = f"j{number}", chance.expovariate(1 / 3600)
        told[name] = promises.make(name, "any", now, now + planned)
        wait = planned * longer[2 * number // jobs] * exp(chance.gauss(0, 1))
        heappush(starts, (now + wait, name))
    return [(told[name], at) for name, at in sorted(started.items(), key=lambda item: item[1])]


def kept(told: list[tuple[StartEstimate, float]]) -> float:
    return sum(expected.latest is not None and at <= expected.latest for expected, at in told) / len(told)


@pytest.mark.parametrize("seed", range(4))
def test_promises_hold_for_95_of_100_jobs(seed: int) -> None:
    told = stream(2000, seed, (1.0, 1.0))
    assert kept(told) >= 0.95
    assert kept(told[500:]) >= 0.95


@pytest.mark.parametrize("seed", range(4))
def test_promises_hold_again_soon_after_waits_have_become_five_times_as_long(seed: int) -> None:
    told = stream(3000, seed, (1.0, 5.0))
    assert kept(told[2000:]) >= 0.95


def test_promises_are_not_much_wider_than_they_have_to_be() -> None:
    told = stream(2000, 1, (1.0, 1.0))
    needed = sorted(at - expected.at for expected, at in told[500:])[int(0.98 * 1500)]
    given_room = sorted(expected.latest - expected.at for expected, _ in told[500:] if expected.latest is not None)
    assert given_room[len(given_room) // 2] < 3 * needed


def test_the_same_stream_has_the_same_promises() -> None:
    assert stream(500, 7, (1.0, 3.0)) == stream(500, 7, (1.0, 3.0))


def test_before_anything_is_known_a_wait_may_be_twenty_times_as_long_as_planned() -> None:
    told = StartEstimates().make("a", "any", 1000, 1400)
    assert (told.soonest, told.at, told.latest) == pytest.approx((1400, 1400, 1000 + 20 * (400 + SHORT) - SHORT))


def test_what_was_learned_of_a_kind_is_for_that_kind_and_of_all_for_kinds_of_which_little_is_known() -> None:
    promises = StartEstimates()
    for number in range(ENOUGH):
        for kind, wait in (("quick", 300.0), ("slow", 5400.0)):
            promises.make(f"{kind}{number}", kind, 0, 600)
            promises.started(f"{kind}{number}", wait)
    quick, slow, other = (promises.make(kind, kind, 10_000, 10_600) for kind in ("quick", "slow", "other"))
    assert (quick.at, slow.at) == pytest.approx((10_300, 15_400))
    assert quick.latest is not None
    assert slow.latest is not None
    assert quick.latest == pytest.approx(10_000 + 3 * 1200 - SHORT)  # never less than three times as long as planned
    assert 15_399 < slow.latest < 18_000
    assert other.latest is not None
    assert other.latest > 15_399


def test_a_broken_promise_is_named_once_and_renewed_for_at_least_half_an_hour() -> None:
    promises = StartEstimates()
    first = promises.make("a", "any", 0, 0)
    assert first.latest is not None
    assert promises.overdue(first.latest) == []
    assert promises.overdue(first.latest + 1) == ["a"]
    assert promises.overdue(first.latest + 1) == []
    again = promises.make("a", "any", first.latest + 1, first.latest + 1)
    assert again.latest is not None
    assert again.latest >= first.latest + 1 + RENEWED_BY_AT_LEAST
    assert promises.overdue(again.latest + 1) == ["a"]


def learned(wait: float) -> StartEstimates:
    """Promises that have seen enough jobs wait for so long that were planned to start at once."""
    promises = StartEstimates()
    for number in range(ENOUGH):
        promises.make(f"seen{number}", "any", 0, 0)
        promises.started(f"seen{number}", wait)
    return promises


def test_what_is_renewed_holds_for_half_an_hour_even_if_little_is_to_be_expected() -> None:
    promises = learned(wait=0.0)
    assert promises.make("a", "any", 0, 0).latest == pytest.approx(2 * SHORT)
    assert promises.overdue(10_000) == ["a"]
    assert promises.make("a", "any", 10_000, 10_000).latest == 10_000 + RENEWED_BY_AT_LEAST


def test_promises_become_wider_as_soon_as_they_are_overdue_and_not_only_when_jobs_start() -> None:
    promises = learned(wait=3000.0)
    before = promises.make("before", "any", 0, 0).latest
    for number in range(10):
        promises.make(f"late{number}", "any", 0, 0)
    promises.overdue(10**6)
    after = promises.make("after", "any", 0, 0).latest
    assert before is not None
    assert after is not None
    assert after > 2 * before


def test_who_is_forgotten_or_has_started_is_not_overdue() -> None:
    promises = StartEstimates()
    promises.make("gone", "any", 0, 0)
    promises.make("started", "any", 0, 0)
    promises.forget("gone")
    promises.started("started", 5)
    assert promises.overdue(10**9) == []


def test_from_a_start_of_somebody_who_was_promised_nothing_nothing_is_learned() -> None:
    promises = StartEstimates()
    promises.started("unknown", 5)
    assert promises.make("b", "any", 0, 100).at == 100


@given(st.lists(st.tuples(st.floats(0, 10**5), st.floats(0, 10**6)), max_size=60), st.floats(0, 10**5))
def test_soonest_is_before_the_expected_start_and_that_before_the_latest(
    seen: list[tuple[float, float]], planned: float
) -> None:
    promises = StartEstimates()
    for number, (plan, wait) in enumerate(seen):
        promises.make(f"{number}", "any", 0, plan)
        promises.started(f"{number}", wait)
    told = promises.make("a", "any", 50, 50 + planned)
    assert told.soonest is not None
    assert told.latest is not None
    assert 50 <= told.soonest <= told.at <= told.latest
