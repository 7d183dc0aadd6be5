"""Regular expressions of users: what they match, and which ones are rejected."""

from __future__ import annotations

import pytest

from refold.client.api.submissions import Submission
from refold.client.jobspec.patterns import MAX_LINE_BYTES, Pattern, check_patterns
from refold.errors import BadValue


@pytest.mark.parametrize(
    ("pattern", "text", "match"),
    [
        (r"^step (\d+) of (\d+)$", "step 1 of 9\nstep 2 of 9\ndone\n", "2"),
        ("done", "step 1\ndone\n", "done"),
        ("absent", "step 1\ndone\n", None),
        ("step (x)?", "step 1", ""),
        (r"step (\d+)", "step 1 step 2\n\n", "2"),
        (r"step\s(\d+)", "step\n7", None),
        (r"(\d+)\z", "1\n2\nx", "2"),
        ("€(.)", "\0\n€\N{GRINNING FACE}", "\N{GRINNING FACE}"),
        ("a", "\ud800a", "a"),
        ("", "a\n", ""),
        (".*x", "x" * 100_000, "x" * 200),
        ("b", "a" * MAX_LINE_BYTES + "b", None),
    ],
)
def test_the_first_group_of_the_last_match_in_a_line_is_returned(pattern: str, text: str, match: str | None) -> None:
    assert Pattern(pattern).last_match(text) == match


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("^ValueError", "x\nValueError: 3", True),
        ("^ValueError", "a ValueError: 3", False),
        (r"x\nValue", "x\nValueError: 3", True),
        ("x$", "x\ny", True),
        ("x.y", "x\ny", False),
        ("(?i)ERROR", "an error", True),
        ("b", "a" * MAX_LINE_BYTES + "b", True),
    ],
)
def test_a_pattern_matches_anywhere_in_the_text(pattern: str, text: str, matches: bool) -> None:
    assert Pattern(pattern).matches(text) == matches


@pytest.mark.parametrize("pattern", ["(a+)+$", "(x+x+)+y", "(a|aa)+$", "(?:a?){30}a{30}!", "(" * 250 + "a" + ")" * 250])
def test_patterns_that_backtrack_elsewhere_do_not_hang(pattern: str) -> None:
    text = "a" * 200_000 + "!"
    assert Pattern(pattern).matches(text) == (pattern.startswith("((") or pattern.endswith("!"))
    Pattern(pattern).last_match(text)


SYNTAX = "patterns have RE2 syntax (no back-references, no look-around)"


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("(", f"missing ): (; {SYNTAX}"),
        ("*", f"no argument for repetition operator: *; {SYNTAX}"),
        (r"(a)\1", rf"invalid escape sequence: \1; {SYNTAX}"),
        ("(?=a)", f"invalid perl operator: (?=; {SYNTAX}"),
        ("x{1,999999}", f"invalid repetition size: {{1,999999}}; {SYNTAX}"),
        ("((a{1000}){1000}){1000}", f"invalid repetition size: {{1000}}; {SYNTAX}"),
        ("a{900}b{900}c{900}", "the pattern is too large: 2,704 instructions, at most 2,000"),
    ],
)
def test_an_invalid_pattern_is_rejected(pattern: str, problem: str) -> None:
    with pytest.raises(BadValue) as raised:
        Pattern(pattern)
    assert str(raised.value) == problem


@pytest.mark.parametrize(
    ("field", "pattern", "problem"),
    [
        ("never_retry", "[", f"never_retry is '[', expected a regular expression: missing ]: [; {SYNTAX}"),
        ("progress", "step", r"progress is 'step', expected a pattern with a group such as 'step (\d+)'"),
        ("progress", "(?:step)", r"progress is '(?:step)', expected a pattern with a group such as 'step (\d+)'"),
    ],
)
def test_the_error_names_the_field(field: str, pattern: str, problem: str) -> None:
    with pytest.raises(BadValue) as raised:
        check_patterns([("never_retry", "no group"), ("progress", "(.)"), (field, pattern)])
    assert str(raised.value) == problem


def test_a_submission_does_not_compile_its_patterns() -> None:
    submission = Submission("a", ["x"], progress="(", never_retry=["["])
    assert submission.patterns == [("progress", "("), ("never_retry", "[")]
