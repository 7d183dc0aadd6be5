"""Tables in the documentation list every member of the closed lists in the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from refold.client.api.wire import JobStatus
from refold.model import Reason
from refold.server.config.settings import NotificationKind
from refold.server.job_table import NoticeKind

DOCS = Path(__file__).parents[2] / "docs"


def listed_names(page: str, header: str) -> list[str]:
    """Return the names in backticks in the first column of the table with this header."""
    _, _, rest = (DOCS / page).read_text(encoding="utf-8").partition(header)
    table, _, _ = rest.partition("\n\n")
    return [
        name for line in table.splitlines() for name in re.findall(r"`([^`]+)`", line.split("|")[1] if line else "")
    ]


@pytest.mark.parametrize(
    ("page", "header", "expected"),
    [
        ("queue.md", "| reason | meaning | ends |\n", [reason.value for reason in Reason]),
        ("config.md", "| kind | sent when |\n", list(get_args(NotificationKind))),
        ("api.md", "| kinds | of |\n", [*get_args(NoticeKind), "lost"]),
        ("api.md", "| field | meaning |\n", list(JobStatus.__struct_fields__)),
    ],
    ids=["wait reasons", "notification kinds", "event kinds", "fields of a job"],
)
def test_a_table_lists_every_member(page: str, header: str, expected: list[str]) -> None:
    assert sorted(listed_names(page, header)) == sorted(expected)
