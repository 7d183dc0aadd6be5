"""Patterns are looked for in a process that may take as long as it likes, for it is not waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from refold.api.wire import Submission
from refold.errors import BadValue
from refold.jobspec import patterns
from refold.jobspec.patterns import Matcher, TooSlow, check_patterns, check_patterns_here


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


SLOW_TO_READ = "(?i)" + r"[\x01-\uffff]" * 38
"""As long as a pattern may be."""


@pytest.mark.parametrize("check", [check_patterns, check_patterns_here])
@pytest.mark.parametrize(
    ("field", "pattern", "problem"),
    [
        (
            "never_retry",
            "(",
            "never_retry is '(', which is not a regular expression: missing ), unterminated subpattern at position 0",
        ),
        ("progress", "step", r"progress is 'step', expected a group, such as in 'step (\d+)'"),
    ],
)
def test_a_pattern_that_is_wrong_is_refused_with_its_field(
    check: Callable[[list[tuple[str, str]]], None], field: str, pattern: str, problem: str
) -> None:
    with pytest.raises(BadValue) as refused:
        check([("never_retry", "fine"), (field, pattern)])
    assert str(refused.value) == problem


def test_a_pattern_that_takes_long_to_read_is_refused_and_not_waited_for() -> None:
    with pytest.raises(
        BadValue, match=r"^never_retry is '\(\?i\).*', which takes too long to read, expected a simpler one$"
    ):
        check_patterns([("progress", "step (.)"), ("never_retry", SLOW_TO_READ + SLOW_TO_READ[4:] * 20)], patience=0.2)


def test_what_is_known_to_be_good_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [("never_retry", "known by now"), ("progress", "also known (.)")]
    check_patterns(asked)
    monkeypatch.setattr(patterns, "_PROGRAM", "/nowhere")
    check_patterns(asked)
    with pytest.raises(BadValue, match="expected a group"):
        check_patterns([("progress", "known by now")])
    with pytest.raises(BadValue, match="takes too long"):
        check_patterns([("never_retry", "not known yet")])


def test_more_patterns_than_a_pipe_holds_are_read() -> None:
    check_patterns([("never_retry", f"{number:0500}") for number in range(300)])


def test_nothing_compiles_the_patterns_of_a_submission() -> None:
    asked = Submission("a", ["x"], progress="(", never_retry=["[", SLOW_TO_READ])
    assert asked.patterns == [("progress", "("), ("never_retry", "["), ("never_retry", SLOW_TO_READ)]
