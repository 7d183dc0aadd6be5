"""Arrays of batch scripts: one job for each number."""

from __future__ import annotations

import re

from refold.documents import Part

MOST_TASKS = 10_000
LARGEST_TASK = 4_000_000
EXPECTED = f"numbers such as 0-9, 1,3,5 or 0-99:10%4, and at most {MOST_TASKS:,} of them"

_NUMBERS = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?", re.ASCII)


def array_variables(part: Part, name: str) -> tuple[list[dict[str, str]], int]:
    """What each task of an array finds in its environment; and how many may run at once (0: all)."""
    numbers, percent, limit = part.written.partition("%")
    if percent and not re.fullmatch(r"[1-9]\d{0,6}", limit, re.ASCII):
        raise part.wrong(EXPECTED)
    tasks: set[int] = set()
    step = 1
    for word in numbers.split(","):
        these = _numbers(part, word)
        step = these.step if len(these) > 1 else step
        if len(tasks) + len(these) > MOST_TASKS:
            raise part.wrong(EXPECTED)
        tasks.update(these)
    common = {
        "SLURM_ARRAY_JOB_ID": name,
        "SLURM_ARRAY_TASK_COUNT": str(len(tasks)),
        "SLURM_ARRAY_TASK_MIN": str(min(tasks)),
        "SLURM_ARRAY_TASK_MAX": str(max(tasks)),
        "SLURM_ARRAY_TASK_STEP": str(step),
    }
    return [common | {"SLURM_ARRAY_TASK_ID": str(task)} for task in sorted(tasks)], int(limit or 0)


def _numbers(part: Part, word: str) -> range:
    found = _NUMBERS.fullmatch(word)
    if found is None:
        raise part.wrong(EXPECTED)
    first, last, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
    if not (first <= last <= LARGEST_TASK and step):
        raise part.wrong(EXPECTED)
    return range(first, last + 1, step)
