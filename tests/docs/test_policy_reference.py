"""The reference of what a policy may read and decide is that of the code."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from tools.policy_reference import render

from refold.model import Decision, Job

PAGE = Path(__file__).parents[2] / "docs" / "policies" / "reference.md"
REFRESH = "REFOLD_REFRESH_DOCS"


def test_the_reference_of_policies_is_that_of_the_code() -> None:
    if REFRESH in os.environ:
        PAGE.write_text(render(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == render(), f"run {REFRESH}=1 pytest tests/docs to update it"


def test_the_reference_has_every_field_of_a_job_and_of_a_decision_and_nothing_private() -> None:
    page = render()
    fields = [field.name for kind in (Job, Decision) for field in msgspec.structs.fields(kind)]
    assert [name for name in fields if f"| `{name}` |" not in page] == []
    assert "| `waiting` | Jobs without a run that a policy may start" in page
    assert "| `_" not in page and "end_trial" not in page
