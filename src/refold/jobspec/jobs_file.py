"""Jobs from a YAML file: a list of commands, what each needs, and when it is to be submitted."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import yaml

from refold.errors import BadFile, BadValue, UnknownName
from refold.model import WHOLE, Demand, Job, JobClass, Milli, Seconds, milli_from_number, seconds_from_text


def read_jobs(path: Path) -> list[Job]:
    """The jobs of a file, in its order; or what is wrong with it, where, and what would be right."""
    jobs: dict[str, Job] = {}
    for number, entry in enumerate(_entries(path), start=1):
        try:
            job = _job(entry)
        except ValueError as problem:
            raise BadFile(path, f"{_name_of_entry(number, entry)}: {problem}") from None
        if job.id in jobs:
            raise BadFile(path, f"{_name_of_entry(number, entry)}: the name is taken, expected each name once")
        jobs[job.id] = job
    return list(jobs.values())


def _entries(path: Path) -> list[Any]:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadFile(path, f"cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadFile(path, f"is not YAML: {' '.join(str(error).split())}") from None
    entries = document.get("jobs") if isinstance(document, dict) and document.keys() == {"jobs"} else document
    if not isinstance(entries, list) or not entries:
        raise BadFile(path, "expected a list of jobs, or 'jobs:' and a list")
    return entries


def _name_of_entry(number: int, entry: Any) -> str:
    name = entry.get("name") if isinstance(entry, dict) else None
    return f"job {number}" if name is None else f"job {number} ({name!r})"


def _job(entry: Any) -> Job:
    if not isinstance(entry, dict):
        raise BadValue(f"is {entry!r}, expected 'name: …', 'run: …' and so on")
    for key in entry:
        if key not in KEYS:
            raise BadValue(str(UnknownName("key", str(key), KEYS)))
    for key in ("name", "run"):
        if key not in entry:
            raise BadValue(f"{key} is absent, expected {KEYS[key][1]}")
    given = {key: _read(key, value) for key, value in entry.items()}
    gpus, gpu_milli = given.pop("gpus", (1, WHOLE))
    if "gpu_range" in given:
        _check_that_sizes_are_open(given.get("reshapable", False), gpus > 0 and gpu_milli == WHOLE)
    return Job(
        id=given.pop("name"),
        command=given.pop("run"),
        submitted=given.pop("after", 0.0),
        job_class=given.pop("class", "guaranteed"),
        demand=Demand(given.pop("instances", 1), gpus, gpu_milli),
        **given,
    )


def _check_that_sizes_are_open(reshapable: bool, whole: bool) -> None:
    if not whole:
        raise BadValue("gpu_range is for jobs that ask for whole GPUs")
    if not reshapable:
        raise BadValue("gpu_range is for jobs that can run on other numbers of GPUs: say reshapable: true as well")


def _read(key: str, value: Any) -> Any:
    reader, expected = KEYS[key]
    try:
        return reader(value)
    except (TypeError, ValueError):
        raise BadValue(f"{key} is {value!r}, expected {expected}") from None


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise TypeError
    return str(value)


def _command(value: Any) -> tuple[str, ...]:
    if isinstance(value, list) and value:
        return tuple(_text(word) for word in value)
    if not isinstance(value, str) or not value.strip():
        raise TypeError
    return ("sh", "-c", value)


def _gpus(value: Any) -> tuple[int, Milli]:
    """So many GPUs, and how much of each."""
    number = _number(value)
    if number == int(number):
        return int(number), WHOLE
    milli = milli_from_number(number)
    if not 0 < milli < WHOLE:
        raise ValueError
    return 1, milli


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    if not 0 <= value < math.inf:
        raise ValueError
    return float(value)


def _seconds(value: Any) -> Seconds:
    return seconds_from_text(value) if isinstance(value, str) else _number(value)


def _longer_than_none(value: Any) -> Seconds:
    seconds = _seconds(value)
    if seconds == 0:
        raise ValueError
    return seconds


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError
    return value


def _at_least_one(value: Any) -> int:
    if _whole(value) < 1:
        raise ValueError
    return _whole(value)


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _class(value: Any) -> JobClass:
    if value not in get_args(JobClass):
        raise ValueError
    job_class: JobClass = value
    return job_class


def _range(value: Any) -> tuple[int, int]:
    if not isinstance(value, list):
        raise TypeError
    least, most = (_at_least_one(end) for end in value)
    if least > most:
        raise ValueError
    return least, most


KEYS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "name": (_text, "text"),
    "run": (_command, "a command: text for the shell, or a list of words"),
    "gpus": (_gpus, "a whole number ≥ 0, or a part of one GPU such as 0.5"),
    "instances": (_at_least_one, "a whole number ≥ 1"),
    "after": (_seconds, "how long to wait before it is submitted, such as 10s"),
    "tenant": (_text, "text"),
    "user": (_text, "text"),
    "group": (_text, "text"),
    "class": (_class, "guaranteed or best-effort"),
    "priority": (_whole, "a whole number"),
    "work": (_seconds, "how long it will take, such as 90s, if that is known"),
    "time_limit": (_longer_than_none, "how long it may take, such as 2h"),
    "preemptible": (_truth, "true or false"),
    "reshapable": (_truth, "true or false"),
    "gpu_range": (_range, "the fewest GPUs and the most, such as [1, 8]"),
}
"""Every key, how it is read, and what is expected of it."""
