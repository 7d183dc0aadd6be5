"""Slow ranks: found from what each rank has measured of its own work."""

from __future__ import annotations

import pytest

from refold.train.slow_ranks import FORWARD, LOADING, PROBE, ROUNDS, RankTimes, SlowRank, SlowRanks

PARTS = {FORWARD: 0.03, LOADING: 0.001}


def rounds(*changed: tuple[int, dict[str, float]], count: int = ROUNDS, ranks: int = 4) -> list[SlowRank | None]:
    """Return what is found in each round, in which some ranks have other times than the others."""
    slow, found, times = SlowRanks(), [], dict(changed)
    for _ in range(count):
        for rank in range(ranks):
            if slow.is_complete_with(RankTimes(rank, 0.1, {**PARTS, **times.get(rank, {})}), ranks):
                found.append(slow.slowest())
    return found


def test_a_rank_at_half_speed_is_found_after_some_rounds() -> None:
    expected = SlowRank(2, FORWARD, 2.0)
    assert rounds((2, {FORWARD: 0.06})) == [None] * (ROUNDS - 1) + [expected]
    assert str(expected) == "rank 2 is slow: the forward pass takes 2.0 × as long as on the other ranks"


def test_the_slowest_of_several_is_reported() -> None:
    assert rounds((1, {FORWARD: 0.06}), (3, {LOADING: 0.04}))[-1] == SlowRank(3, LOADING, 40.0)


@pytest.mark.parametrize(
    "times",
    [
        pytest.param({FORWARD: 0.04}, id="a third slower is within what differs anyway"),
        pytest.param({LOADING: 0.004}, id="four times as long, but a small part of the step"),
        pytest.param({"only here": 9.0}, id="a part that others do not have"),
    ],
)
def test_small_differences_are_not_reported(times: dict[str, float]) -> None:
    assert rounds((2, times)) == [None] * ROUNDS


def test_a_probe_counts_although_it_is_short() -> None:
    slow, found = SlowRanks(), None
    for _ in range(ROUNDS):
        for rank, seconds in enumerate((1e-4, 1e-4, 2e-4)):
            if slow.is_complete_with(RankTimes(rank, 1.0, {PROBE: seconds}), 3):
                found = slow.slowest()
    assert found == SlowRank(2, PROBE, 2.0)


def test_a_rank_that_is_slow_once_is_not_reported() -> None:
    slow, found = SlowRanks(), []
    for number in range(3 * ROUNDS):
        for rank in range(2):
            seconds = 0.09 if rank == 1 and number % ROUNDS else 0.03
            if slow.is_complete_with(RankTimes(rank, 0.1, {FORWARD: seconds}), 2):
                found.append(slow.slowest())
    assert found == [None] * (3 * ROUNDS)


def test_of_two_ranks_the_slower_one_is_found() -> None:
    assert rounds((0, {FORWARD: 0.08}), ranks=2)[-1] == SlowRank(0, FORWARD, 0.08 / 0.03)
