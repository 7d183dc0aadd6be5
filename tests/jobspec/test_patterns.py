"""Regular expressions of users are matched in a separate process with a time limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from refold.api.wire import Submission
from refold.errors import BadValue
from refold.jobspec import patterns
from refold.jobspec.patterns import Matcher, PatternTimeout, check_patterns, check_patterns_in_process


@pytest.fixture
def matcher() -> Iterator[Matcher]:
    matcher = Matcher(timeout=0.2)
    yield matcher
    matcher.close()


def test_the_first_group_of_the_last_match_is_returned(matcher: Matcher) -> None:
    text = "step 1 of 9\nstep 2 of 9\ndone\n"
    patterns = [r"^step (\d+) of (\d+)$", "done", "absent", "step (x)?"]
    assert matcher.find_last_matches(text, patterns) == ["2", "done", None, ""]


def test_long_matches_are_truncated(matcher: Matcher) -> None:
    assert matcher.find_last_matches("x" * 100_000, [".*x"]) == ["x" * 200]


def test_a_slow_pattern_is_identified_and_later_patterns_still_work(matcher: Matcher) -> None:
    text = "a" * 60 + "!"
    with pytest.raises(PatternTimeout) as raised:
        matcher.find_last_matches(text, ["a", "(a+)+$", "!"])
    assert raised.value.index == 1
    assert matcher.find_last_matches(text, ["!"]) == ["!"]


def test_an_invalid_pattern_matches_nothing(matcher: Matcher) -> None:
    assert matcher.find_last_matches("(", ["(", "x{1,999999999999999999999}", r"\("]) == [None, None, "("]


@pytest.mark.parametrize("pattern", ["((a{1000}){1000}){1000}", "(" * 90 + "a" + ")" * 90])
def test_huge_patterns_do_no_harm(matcher: Matcher, pattern: str) -> None:
    matcher.find_last_matches("a" * 5000, [pattern])
    assert matcher.find_last_matches("a", ["a"]) == ["a"]


def test_any_text_can_be_searched(matcher: Matcher) -> None:
    assert matcher.find_last_matches("\0\ud800\n€" + "\N{GRINNING FACE}", ["€(.)"]) == ["\N{GRINNING FACE}"]


SLOW_TO_COMPILE = "(?i)" + r"[\x01-\uffff]" * 38
"""A pattern of the maximum length."""


@pytest.mark.parametrize("check", [check_patterns, check_patterns_in_process])
@pytest.mark.parametrize(
    ("field", "pattern", "problem"),
    [
        (
            "never_retry",
            "(",
            "never_retry is '(', which is not a regular expression: missing ), unterminated subpattern at position 0",
        ),
        ("progress", "step", r"progress is 'step', expected a pattern with a group such as 'step (\d+)'"),
    ],
)
def test_an_invalid_pattern_is_rejected_with_its_field(
    check: Callable[[list[tuple[str, str]]], None], field: str, pattern: str, problem: str
) -> None:
    with pytest.raises(BadValue) as raised:
        check([("never_retry", "fine"), (field, pattern)])
    assert str(raised.value) == problem


def test_a_pattern_that_is_slow_to_compile_is_rejected() -> None:
    with pytest.raises(
        BadValue, match=r"^never_retry is '\(\?i\).*', which takes too long to compile, expected a simpler pattern$"
    ):
        check_patterns(
            [("progress", "step (.)"), ("never_retry", SLOW_TO_COMPILE + SLOW_TO_COMPILE[4:] * 20)], timeout=0.2
        )


def test_valid_patterns_are_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    valid = [("never_retry", "cached"), ("progress", "also cached (.)")]
    check_patterns(valid)
    monkeypatch.setattr(patterns, "_PROGRAM", "/nowhere")
    check_patterns(valid)
    with pytest.raises(BadValue, match="expected a pattern with a group"):
        check_patterns([("progress", "cached")])
    with pytest.raises(BadValue, match="takes too long"):
        check_patterns([("never_retry", "not cached")])


def test_more_patterns_than_fit_into_a_pipe_are_checked() -> None:
    check_patterns([("never_retry", f"{number:0500}") for number in range(300)])


def test_a_submission_does_not_compile_its_patterns() -> None:
    submission = Submission("a", ["x"], progress="(", never_retry=["[", SLOW_TO_COMPILE])
    assert submission.patterns == [("progress", "("), ("never_retry", "["), ("never_retry", SLOW_TO_COMPILE)]
