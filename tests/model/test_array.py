"""Job arrays: task numbers and the places of tasks."""

from __future__ import annotations

import pytest

from refold.errors import BadValue
from refold.model import ArrayTask, JobArray, parse_array, parse_task_numbers


@pytest.mark.parametrize(
    ("text", "array"),
    [
        ("0-3", JobArray((0, 1, 2, 3))),
        ("1,3,5-6", JobArray((1, 3, 5, 6))),
        ("0-10:5", JobArray((0, 5, 10), step=5)),
        ("7", JobArray((7,))),
        ("2,2,1", JobArray((1, 2))),
        ("0-9%2", JobArray(tuple(range(10)), limit=2)),
        ("0-99:50%1", JobArray((0, 50), step=50, limit=1)),
        ("0-9999", JobArray(tuple(range(10_000)))),
    ],
)
def test_task_numbers_are_parsed(text: str, array: JobArray) -> None:
    assert parse_array(text) == array


@pytest.mark.parametrize(
    "text", ["", "a", "3-1", "1,", "1-2-3", "0-9:0", "0-9%", "0-9%0", "0-9%x", "-1", "0-10000", "4000001", "٣", "1 ,2"]
)
def test_other_text_is_rejected(text: str) -> None:
    with pytest.raises(BadValue, match="expected task numbers such as 0-9"):
        parse_array(text)


def test_task_numbers_without_a_limit_are_parsed() -> None:
    assert parse_task_numbers("0-2,7") == {0, 1, 2, 7}
    with pytest.raises(BadValue):
        parse_task_numbers("0-2%1")


def test_each_task_has_a_place_with_the_number_of_its_job() -> None:
    assert JobArray((1, 4), step=3, limit=1).places("train-12", 12) == [
        ArrayTask("train-12", 1, number=12, count=2, minimum=1, maximum=4, step=3, limit=1),
        ArrayTask("train-12", 4, number=13, count=2, minimum=1, maximum=4, step=3, limit=1),
    ]
