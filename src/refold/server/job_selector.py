"""Select jobs by pattern, by array, or by the tasks of an array, as `refold cancel` does."""

from __future__ import annotations

import re
from fnmatch import translate

from refold.model import Job, parse_task_numbers

_TASKS = re.compile(r"(?P<array>.+)_\[(?P<tasks>[\d,:-]*)\]", re.ASCII)
_NUMBER = re.compile(r"\d+$", re.ASCII)


def is_pattern(text: str) -> bool:
    """Whether a text has characters that stand for others."""
    return any(character in text for character in "*?[")


class JobSelector:
    """Matches jobs by id ('train-*', '12_3'), by array ('12', 'train-12'), or tasks of an array ('12_[0-3,7]')."""

    def __init__(self, text: str) -> None:
        tasks = _TASKS.fullmatch(text)
        self._tasks = parse_task_numbers(tasks["tasks"]) if tasks else None
        self._pattern = re.compile(translate(tasks["array"] if tasks else text))
        self._matches_arrays = tasks is not None or not is_pattern(text)

    def matches(self, job: Job) -> bool:
        """Whether a job is selected."""
        place = job.launch.array
        if self._tasks is None and self._pattern.match(job.id):
            return True
        if place is None or not self._matches_arrays or (self._tasks is not None and place.task not in self._tasks):
            return False
        number = _NUMBER.search(place.array)
        names = [place.array] + ([number[0], f"{number[0]}_{place.task}"] if number else [])
        return any(self._pattern.match(name) for name in names)
