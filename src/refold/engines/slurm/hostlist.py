"""Slurm's lists of hosts, `rack[1-2]n[08-11,13],login`, and of array tasks, `0-15:4,20%3`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

from refold.errors import BadValue

MAX_NAMES = 100_000
"""Maximum number of names or tasks in a list."""

_OUTER_COMMA = re.compile(r",(?![^\[]*\])")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?(?::(\d{1,9}))?", re.ASCII)


def expand_hosts(text: str) -> list[str]:
    """Return the names that a list of hosts stands for, in its order."""
    if not text:
        return []
    names: list[str] = []
    for pattern in _OUTER_COMMA.split(text):
        parts = _BRACKETS.split(pattern)
        if any(bracket in part for part in parts for bracket in "[]") or not pattern:
            raise BadValue(f"{text[:80]!r} is not a list of hosts such as n[1-4,7]")
        choices = [_numbers(part) if index % 2 else [part] for index, part in enumerate(parts)]
        size = 1
        for choice in choices:
            size *= len(choice)
        if len(names) + size > MAX_NAMES:
            raise BadValue(f"{text[:80]!r} names more than {MAX_NAMES:,} hosts")
        names += map("".join, product(*choices))
    return names


def expand_tasks(text: str) -> list[int]:
    """Return the task numbers of a job array. The limit of tasks that run at once, `%3`, is ignored."""
    tasks = [int(number) for number in _numbers(text.partition("%")[0])]
    if len(tasks) > MAX_NAMES:
        raise BadValue(f"{text[:80]!r} has more than {MAX_NAMES:,} tasks")
    return tasks


def _numbers(text: str) -> list[str]:
    return [number for part in text.split(",") for number in _range(part, text)]


def _range(part: str, text: str) -> Iterator[str]:
    """Yield the numbers of '8', '08-11' or '0-15:4', with as many digits as the first."""
    match = _RANGE.fullmatch(part)
    if match is None:
        raise BadValue(f"{text[:80]!r} is not a list of numbers such as 1-4,7")
    first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
    if last < first or not step or (last - first) // step >= MAX_NAMES:
        raise BadValue(f"{text[:80]!r} is not a list of numbers such as 1-4,7")
    return (f"{number:0{len(match[1])}}" for number in range(first, last + 1, step))
