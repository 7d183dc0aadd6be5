"""Job lists for `refold run`: a YAML list of commands, their requests, and their submission times."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import yaml

from refold.errors import BadFile, BadValue, UnknownName
from refold.model import WHOLE, Demand, Job, JobClass, Milli, Seconds, milli_from_number, parse_duration


def read_jobs(path: Path) -> list[Job]:
    """Read the jobs of a file, in order; raise `BadFile` with the job and field that is invalid."""
    jobs: dict[str, Job] = {}
    for number, entry in enumerate(_entries(path), start=1):
        try:
            job = _job(entry)
        except ValueError as problem:
            raise BadFile(path, f"{_describe_entry(number, entry)}: {problem}") from None
        if job.id in jobs:
            raise BadFile(path, f"{_describe_entry(number, entry)}: duplicate name, expected unique names")
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


def _describe_entry(number: int, entry: Any) -> str:
    name = entry.get("name") if isinstance(entry, dict) else None
    return f"job {number}" if name is None else f"job {number} ({name!r})"


def _job(entry: Any) -> Job:
    if not isinstance(entry, dict):
        raise BadValue(f"is {entry!r}, expected fields such as 'name: …' and 'run: …'")
    for key in entry:
        if key not in JOB_FIELDS:
            raise BadValue(str(UnknownName("field", str(key), JOB_FIELDS)))
    for key in ("name", "run"):
        if key not in entry:
            raise BadValue(f"{key} is missing, expected {JOB_FIELDS[key][1]}")
    fields = {key: _read(key, value) for key, value in entry.items()}
    gpus, gpu_milli = fields.pop("gpus", (1, WHOLE))
    if "gpu_range" in fields:
        _check_gpu_range(fields.get("reshapable", False), gpus > 0 and gpu_milli == WHOLE)
    return Job(
        id=fields.pop("name"),
        command=fields.pop("run"),
        submitted=fields.pop("after", 0.0),
        job_class=fields.pop("class", "guaranteed"),
        demand=Demand(fields.pop("instances", 1), gpus, gpu_milli),
        **fields,
    )


def _check_gpu_range(reshapable: bool, has_whole_gpus: bool) -> None:
    if not has_whole_gpus:
        raise BadValue("gpu_range requires whole GPUs")
    if not reshapable:
        raise BadValue("gpu_range requires reshapable: true")


def _read(key: str, value: Any) -> Any:
    reader, expected = JOB_FIELDS[key]
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
    """Return the number of GPUs and the share of each, in thousandths."""
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


def _duration(value: Any) -> Seconds:
    return parse_duration(value) if isinstance(value, str) else _number(value)


def _positive_duration(value: Any) -> Seconds:
    seconds = _duration(value)
    if seconds == 0:
        raise ValueError
    return seconds


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError
    return value


def _positive_integer(value: Any) -> int:
    if _integer(value) < 1:
        raise ValueError
    return _integer(value)


def _boolean(value: Any) -> bool:
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
    minimum, maximum = (_positive_integer(end) for end in value)
    if minimum > maximum:
        raise ValueError
    return minimum, maximum


JOB_FIELDS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "name": (_text, "text"),
    "run": (_command, "a command: a shell command line, or a list of arguments"),
    "gpus": (_gpus, "a whole number ≥ 0, or a fraction of one GPU such as 0.5"),
    "instances": (_positive_integer, "a whole number ≥ 1"),
    "after": (_duration, "the submission time as a delay after the start, such as 10s"),
    "tenant": (_text, "text"),
    "user": (_text, "text"),
    "group": (_text, "text"),
    "class": (_class, "guaranteed or best-effort"),
    "priority": (_integer, "a whole number"),
    "work": (_duration, "the run time, such as 90s, if known"),
    "time_limit": (_positive_duration, "a time limit > 0 such as 2h"),
    "preemptible": (_boolean, "true or false"),
    "reshapable": (_boolean, "true or false"),
    "gpu_range": (_range, "minimum and maximum number of GPUs, such as [1, 8]"),
}
"""Every field, its reader, and its expected value as error messages describe it."""
