"""Job arrays, as in Slurm: jobs that differ only in a task number."""

from __future__ import annotations

import re

import msgspec

from refold.errors import BadValue

MAX_ARRAY_TASKS = 10_000
MAX_TASK_NUMBER = 4_000_000
EXPECTED_ARRAY = f"task numbers such as 0-9, 1,3,5-7 or 0-99:10%4, at most {MAX_ARRAY_TASKS:,} tasks"

_RANGE = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?", re.ASCII)
_LIMIT = re.compile(r"[1-9]\d{0,6}", re.ASCII)


class ArrayTask(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The place of a job in an array. `array`: id of the array; `number`: number of the job itself.

    `limit`: the number of tasks of the array that may run at once; 0: any.
    """

    array: str
    task: int
    number: int
    count: int
    minimum: int
    maximum: int
    step: int = 1
    limit: int = 0


class JobArray(msgspec.Struct, frozen=True):
    """The task numbers of an array in ascending order, their step, and how many may run at once (0: any)."""

    tasks: tuple[int, ...]
    step: int = 1
    limit: int = 0

    def places(self, array_id: str, number: int) -> list[ArrayTask]:
        """Return the place of each task in the array. `number`: that of the first job; the others follow."""
        first = ArrayTask(array_id, 0, 0, len(self.tasks), self.tasks[0], self.tasks[-1], self.step, self.limit)
        return [
            msgspec.structs.replace(first, task=task, number=number + index) for index, task in enumerate(self.tasks)
        ]


def task_id(array_id: str, task: int) -> str:
    """Return the id of a task of an array: 'train-12_3'."""
    return f"{array_id}_{task}"


def parse_array(text: str) -> JobArray:
    """Parse the task numbers of an array and the limit of concurrent tasks: '0-9%2'."""
    numbers, percent, limit = text.partition("%")
    if percent and not _LIMIT.fullmatch(limit):
        raise _unexpected(text)
    ranges = _parse_ranges(numbers, text)
    step = next((one.step for one in reversed(ranges) if len(one) > 1), 1)
    return JobArray(tuple(sorted(set().union(*ranges))), step, int(limit or 0))


def parse_task_numbers(text: str) -> frozenset[int]:
    """Parse task numbers: '1,3,5-7'."""
    return frozenset().union(*_parse_ranges(text, text))


def _parse_ranges(numbers: str, text: str) -> list[range]:
    ranges = [_parse_range(word, text) for word in numbers.split(",")]
    if sum(map(len, ranges)) > MAX_ARRAY_TASKS:
        raise _unexpected(text)
    return ranges


def _parse_range(word: str, text: str) -> range:
    match = _RANGE.fullmatch(word)
    if match is None:
        raise _unexpected(text)
    first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
    if not (first <= last <= MAX_TASK_NUMBER and step):
        raise _unexpected(text)
    return range(first, last + 1, step)


def _unexpected(text: str) -> BadValue:
    return BadValue(f"array is {text[:64]!r}, expected {EXPECTED_ARRAY}")
