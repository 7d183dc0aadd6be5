"""Closed lists are on their pages as a whole."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from refold.model import Reason
from refold.server.config.settings import Kind

DOCS = Path(__file__).parents[2] / "docs"


def listed(page: str, head: str) -> list[str]:
    """What stands in the first column of the table with this head."""
    _, _, rest = (DOCS / page).read_text().partition(head)
    table, _, _ = rest.partition("\n\n")
    return [
        word for line in table.splitlines() for word in re.findall(r"`([^`]+)`", line.split("|")[1] if line else "")
    ]


@pytest.mark.parametrize(
    ("page", "head", "closed"),
    [
        ("queue.md", "| reason | is | ends |\n", [reason.value for reason in Reason]),
        ("config.md", "| kind | is told when |\n", list(get_args(Kind))),
    ],
    ids=["why a job waits", "of what people are told"],
)
def test_every_member_of_a_closed_list_has_its_line(page: str, head: str, closed: list[str]) -> None:
    assert sorted(listed(page, head)) == sorted(closed)
