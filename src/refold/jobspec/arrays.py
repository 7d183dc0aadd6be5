"""Job arrays of batch scripts (`--array`): one job per task."""

from __future__ import annotations

import re

from refold.documents import Part

MAX_TASKS = 10_000
MAX_TASK_NUMBER = 4_000_000
EXPECTED_ARRAY = f"task numbers such as 0-9, 1,3,5 or 0-99:10%4, at most {MAX_TASKS:,} tasks"

_RANGE = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?", re.ASCII)


def array_variables(part: Part, name: str) -> tuple[list[dict[str, str]], int]:
    """Return the SLURM_ARRAY_* variables of each task, and the limit of concurrent tasks (0: none)."""
    numbers, percent, limit = part.written.partition("%")
    if percent and not re.fullmatch(r"[1-9]\d{0,6}", limit, re.ASCII):
        raise part.unexpected(EXPECTED_ARRAY)
    tasks: set[int] = set()
    step = 1
    for word in numbers.split(","):
        task_range = _parse_range(part, word)
        step = task_range.step if len(task_range) > 1 else step
        if len(tasks) + len(task_range) > MAX_TASKS:
            raise part.unexpected(EXPECTED_ARRAY)
        tasks.update(task_range)
    common = {
        "SLURM_ARRAY_JOB_ID": name,
        "SLURM_ARRAY_TASK_COUNT": str(len(tasks)),
        "SLURM_ARRAY_TASK_MIN": str(min(tasks)),
        "SLURM_ARRAY_TASK_MAX": str(max(tasks)),
        "SLURM_ARRAY_TASK_STEP": str(step),
    }
    return [common | {"SLURM_ARRAY_TASK_ID": str(task)} for task in sorted(tasks)], int(limit or 0)


def _parse_range(part: Part, word: str) -> range:
    match = _RANGE.fullmatch(word)
    if match is None:
        raise part.unexpected(EXPECTED_ARRAY)
    first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
    if not (first <= last <= MAX_TASK_NUMBER and step):
        raise part.unexpected(EXPECTED_ARRAY)
    return range(first, last + 1, step)
