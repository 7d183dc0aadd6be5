"""Durations and amounts: conversion from and to text."""

import pytest
from hypothesis import given, strategies as st

from refold.errors import BadValue
from refold.model import DAY, HOUR, MINUTE, format_duration, mib_from_gib, milli_from_number, parse_duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.5, "9.5 s"),
        (10.4, "10 s"),
        (60, "1 min"),
        (3599, "59 min 59 s"),
        (3600, "1 h"),
        (3661, "1 h 1 min"),
        (86_399, "24 h"),
        (90_000, "1 d 1 h"),
        (10 * 86_400 + 1, "10 d"),
        (-0.5, "-0.5 s"),
    ],
)
def test_durations_are_rounded_to_the_smaller_of_two_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("1 h 30 min", 1.5 * HOUR),
        ("1H30M", 1.5 * HOUR),
        ("1w2d", 9 * DAY),
        ("2min", 2 * MINUTE),
        ("1m 1ms", 60.001),
        ("0.5d", 12 * HOUR),
        ("1h 15", HOUR + 15),
    ],
)
def test_units_may_be_combined(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


def test_the_message_about_an_invalid_duration_shows_valid_ones() -> None:
    with pytest.raises(BadValue) as raised:
        parse_duration(" 5 parsecs ")
    assert str(raised.value) == "'5 parsecs' is not a duration; write it as 90, 90s, 15m, 1h30m or 2d"


@pytest.mark.parametrize("text", ["1e3", "1..5h", ".5h", "5.h", "9" * 400])
def test_numbers_are_plain_and_finite(text: str) -> None:
    with pytest.raises(BadValue, match="is not a duration"):
        parse_duration(text)


@given(st.integers(0, 10**9), st.sampled_from(["s", "m", "h", "d", "w"]))
def test_a_duration_scales_with_its_unit(count: int, unit: str) -> None:
    assert parse_duration(f"{count}{unit}") == count * parse_duration(f"1{unit}")


@given(st.lists(st.tuples(st.integers(0, 999), st.sampled_from(["ms", "s", "min", "h", "d"])), min_size=1, max_size=4))
def test_a_duration_is_the_sum_of_its_parts(parts: list[tuple[int, str]]) -> None:
    texts = [f"{count} {unit}" for count, unit in parts]
    assert parse_duration(" ".join(texts)) == pytest.approx(sum(parse_duration(text) for text in texts))


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_a_longer_duration_is_never_formatted_as_a_shorter_one(one: int, other: int) -> None:
    shorter, longer = sorted((one, other))
    assert parse_duration(format_duration(shorter)) <= parse_duration(format_duration(longer))


@given(st.integers(0, 10**6))
def test_thousandths_and_mebibytes_are_exact_for_whole_amounts(amount: int) -> None:
    assert milli_from_number(amount / 1000) == amount
    assert mib_from_gib(amount / 1024) == amount


def test_fractions_are_rounded_to_the_nearest_unit() -> None:
    assert [milli_from_number(number) for number in (0.5, 1 / 3, 0.0004, 2)] == [500, 333, 0, 2000]
    assert [mib_from_gib(gib) for gib in (0.5, 0.1, 2)] == [512, 102, 2048]
