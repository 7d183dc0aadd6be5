"""Dependencies between jobs."""

from __future__ import annotations

import pytest

from refold.errors import BadValue
from refold.model import Dependency, parse_dependencies, parse_dependency


@pytest.mark.parametrize(
    ("text", "dependency"),
    [
        ("train-7", Dependency("afterok", "train-7")),
        ("afterok:7", Dependency("afterok", "7")),
        ("afterany:train-7_3", Dependency("afterany", "train-7_3")),
        ("afternotok:7", Dependency("afternotok", "7")),
        ("afterok:train-7_*", Dependency("afterok", "train-7_*")),
        ("singleton", Dependency("singleton")),
        ("afterok:singleton", Dependency("afterok", "singleton")),
    ],
)
def test_a_dependency_is_parsed_and_written(text: str, dependency: Dependency) -> None:
    assert parse_dependency(text) == dependency
    assert parse_dependency(str(dependency)) == dependency


def test_several_are_parsed_in_the_notation_of_slurm() -> None:
    assert list(map(str, parse_dependencies("afterok:1:2,afterany:3,singleton,x"))) == [
        "1", "2", "afterany:3", "singleton", "x",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    ["", "after:3", "afterok:", "afterok:a b", "afterok:1?afterok:2", "singleton:3", "a*", ":", "a,,b", "afterany:1:"],
)
def test_other_text_is_rejected(text: str) -> None:
    with pytest.raises(BadValue, match="expected JOB, afterok:JOB"):
        parse_dependencies(text)


@pytest.mark.parametrize(
    ("kind", "met_by"),
    [
        ("afterok", {"finished"}),
        ("afternotok", {"failed", "cancelled", "is unknown"}),
        ("afterany", {"finished", "failed", "cancelled", "is unknown"}),
    ],
)
def test_a_dependency_is_met_by_the_end_of_the_other_job(kind: str, met_by: set[str]) -> None:
    states = ("finished", "failed", "cancelled", "is unknown")
    assert {state for state in states if Dependency(kind, "a").is_met_by(state)} == met_by
