"""Ordinary training scripts become ones that follow the scheduler by a few lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from converted_scripts import FOLDER, NAMES, changed_lines, converted

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "convert_script.md"
MOST_LINES = 12


def test_there_are_six_scripts() -> None:
    assert len(NAMES) == 6
    assert sorted(path.stem for path in FOLDER.glob("*.py")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_conversion_writes_at_most_twelve_lines(name: str) -> None:
    compile(converted(name), name, "exec")
    assert 0 < changed_lines(name)[0] <= MOST_LINES


def test_the_documentation_tells_how_many_lines_change() -> None:
    rows = re.findall(r"^\| \[(\w+)\.py\]\(.*?\) \|.*\| (\d+) \| (\d+) \|$", PAGE.read_text(), re.MULTILINE)
    assert sorted(rows) == [(name, *map(str, changed_lines(name))) for name in NAMES]
