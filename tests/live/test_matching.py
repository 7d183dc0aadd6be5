"""Patterns are looked for in a process that may take as long as it likes, for it is not waited for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from refold.live.matching import Matcher, TooSlow


@pytest.fixture
def matcher() -> Iterator[Matcher]:
    made = Matcher(patience=0.2)
    yield made
    made.close()


def test_the_last_place_counts_and_the_first_group_is_told(matcher: Matcher) -> None:
    text = "step 1 of 9\nstep 2 of 9\nover\n"
    patterns = [r"^step (\d+) of (\d+)$", "over", "nowhere", "step (x)?"]
    assert matcher.last_found(text, patterns) == ["2", "over", None, ""]


def test_an_answer_is_no_longer_than_anybody_needs(matcher: Matcher) -> None:
    assert matcher.last_found("x" * 100_000, [".*x"]) == ["x" * 200]


def test_a_pattern_that_takes_for_ever_is_named_and_the_next_are_looked_for(matcher: Matcher) -> None:
    text = "a" * 60 + "!"
    with pytest.raises(TooSlow) as slow:
        matcher.last_found(text, ["a", "(a+)+$", "!"])
    assert slow.value.at == 1
    assert matcher.last_found(text, ["!"]) == ["!"]


def test_a_pattern_that_is_none_is_found_nowhere(matcher: Matcher) -> None:
    assert matcher.last_found("(", ["(", "x{1,999999999999999999999}", r"\("]) == [None, None, "("]


@pytest.mark.parametrize("pattern", ["((a{1000}){1000}){1000}", "(" * 90 + "a" + ")" * 90])
def test_patterns_that_look_huge_do_no_harm(matcher: Matcher, pattern: str) -> None:
    matcher.last_found("a" * 5000, [pattern])
    assert matcher.last_found("a", ["a"]) == ["a"]


def test_any_text_can_be_looked_at(matcher: Matcher) -> None:
    assert matcher.last_found("\0\ud800\n€" + "\N{GRINNING FACE}", ["€(.)"]) == ["\N{GRINNING FACE}"]
