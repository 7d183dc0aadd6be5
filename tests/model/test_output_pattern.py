"""Names of output files with fields."""

from __future__ import annotations

import pytest

from refold.errors import BadValue
from refold.model import check_output_pattern, expand_output_pattern

VALUES = {"j": "14", "A": "12", "a": "3", "x": "train", "u": "ann", "t": "0"}


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("", ""),
        ("out.log", "out.log"),
        ("logs/%x-%j.out", "logs/train-14.out"),
        ("%A_%a", "12_3"),
        ("%4a %2j", "0003 14"),
        ("100%%j", "100%j"),
        ("/tmp/%u/%t", "/tmp/ann/0"),
    ],
)
def test_fields_are_replaced(pattern: str, name: str) -> None:
    check_output_pattern(pattern)
    assert expand_output_pattern(pattern, VALUES) == name


@pytest.mark.parametrize("pattern", ["%", "a%", "%q", "%3%", "%44j", "%\n"])
def test_unknown_fields_are_rejected(pattern: str) -> None:
    with pytest.raises(BadValue, match=r"unknown field .*, expected %j \(number of the job\), "):
        check_output_pattern(pattern)
