"""How the command of a job is run. Back ends use this; of policies, only the run-time watch (`no_progress`)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, get_args

import msgspec

from refold.errors import BadValue
from refold.model.units import WHOLE, Seconds, format_count, format_memory

# Job arrays, as in Slurm: jobs that differ only in a task number.

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


# How the command of a job is run.

StopSignal = Literal["TERM", "INT", "USR1", "USR2", "HUP"]
LaunchEngine = Literal["megatron", "deepspeed", "fsdp", "accelerate", "trainer"]
"""Training frameworks that can be told a plan; `plans.LAUNCH_TARGETS` has their arguments."""
LAUNCH_ENGINES: tuple[LaunchEngine, ...] = get_args(LaunchEngine)
STOP_SIGNALS: tuple[StopSignal, ...] = get_args(StopSignal)

MAX_RETRIES = 1000


class Launch(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Environment, working directory, stop signal, retries, progress patterns, dependencies and notifications of a job.

    `environment`: variables in addition to those that every run gets.
    `exported`: id of the stored environment of the submitter; empty: runs inherit the environment of the back end.
    `folder`: the working directory; empty: a directory of the job's own, shared by its runs.
    `output`, `error`: files that receive a copy of the output, as patterns (`output_pattern`), relative to the folder;
    without `error`, errors are part of the output.
    `grace`: the time from `stop_signal` to a forced kill; None: the default of the back end.
    `progress`: a regular expression for output lines whose first group is the number of steps done.
    `no_progress`: a run that reports no progress for this long is considered hung.
    `never_retry`: regular expressions; a failed run whose output matches one is not retried.
    `after`: dependencies on other jobs. `begin`: the job is not scheduled before this time.
    `array`: the place of the job in an array of jobs.
    `notify`: notification URLs, in Apprise syntax.
    `gang`: the pods in Kubernetes that the job consists of; empty: the back end starts the command.
    `auto`: resources that the job leaves to the scheduler; the chosen amounts are in its demand.
    """

    environment: tuple[tuple[str, str], ...] = ()
    exported: str = ""
    folder: str = ""
    output: str = ""
    error: str = ""
    grace: Seconds | None = None
    stop_signal: StopSignal = "TERM"
    retries: int = 0
    progress: str = ""
    no_progress: Seconds | None = None
    never_retry: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    begin: Seconds | None = None
    array: ArrayTask | None = None
    notify: tuple[str, ...] = ()
    gang: str = ""
    auto: tuple[AutoRequest, ...] = ()

    def __post_init__(self) -> None:
        if self.stop_signal not in STOP_SIGNALS:
            raise BadValue(f"stop_signal is {self.stop_signal!r}, expected one of {', '.join(STOP_SIGNALS)}")
        if not 0 <= self.retries <= MAX_RETRIES:
            raise BadValue(f"retries is {self.retries}, expected 0 to {MAX_RETRIES}")
        if self.grace is not None and not 0 <= self.grace < math.inf:
            raise BadValue(f"grace is {self.grace}, expected seconds ≥ 0")
        if self.no_progress is not None and not 0 < self.no_progress < math.inf:
            raise BadValue(f"no_progress is {self.no_progress}, expected seconds > 0")


DEFAULT_LAUNCH = Launch()
"""The launch settings of a job that specifies none."""


# Requests of CPUs or memory that the scheduler chooses (`auto`), from what earlier runs of a group have used.

AutoResource = Literal["cpus", "memory"]
AUTO: Literal["auto"] = "auto"


class AutoRequest(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A resource whose amount was chosen: from `runs` earlier runs, of which none has used more than `used`.

    `used` is in MiB, or in thousandths of a CPU. Without runs, the amount is the default.
    """

    resource: AutoResource
    runs: int = 0
    used: int = 0

    def text(self, chosen: int) -> str:
        """Describe the choice: 'memory: auto is 5 GiB: 7 earlier runs used 4 GiB at most'."""
        amount = _format(self.resource, chosen) if chosen else "not limited"
        runs = f"{format_count(self.runs, 'earlier run')} used"
        why = f"{runs} {_format(self.resource, self.used)} at most" if self.runs else "no earlier run was measured"
        return f"{self.resource}: auto is {amount}: {why}"


def _format(resource: AutoResource, amount: int) -> str:
    if resource == "memory":
        return format_memory(amount)
    return "1 CPU" if amount == WHOLE else f"{amount / WHOLE:g} CPUs"


# Names of output files with fields, as in Slurm: 'logs/%x-%j.out'.

OUTPUT_FIELDS: Mapping[str, str] = {
    "j": "number of the job",
    "A": "number of the array",
    "a": "task number in the array",
    "x": "job name",
    "u": "user",
    "t": "index of the instance",
}
"""What the fields of a pattern stand for; `%%` is a percent sign, and `%4a` pads with zeros."""

_FIELD = re.compile(r"%(\d?)(.?)", re.DOTALL)


def check_output_pattern(pattern: str) -> None:
    """Raise BadValue if a pattern has an unknown field."""
    expand_output_pattern(pattern, dict.fromkeys(OUTPUT_FIELDS, ""))


def expand_output_pattern(pattern: str, values: Mapping[str, str]) -> str:
    """Replace the fields of a pattern by their values."""

    def value_of(match: re.Match[str]) -> str:
        width, field = match.groups()
        if field == "%" and not width:
            return "%"
        if field not in values:
            known = ", ".join(f"%{name} ({meaning})" for name, meaning in OUTPUT_FIELDS.items())
            raise BadValue(f"{pattern[:64]!r} has the unknown field {match[0]!r}, expected {known} or %%")
        return values[field].zfill(int(width or 0))

    return _FIELD.sub(value_of, pattern)


# Dependencies between jobs, as in Slurm: 'afterany:train-7', 'singleton'.

AFTER_OK, AFTER_ANY, AFTER_NOT_OK = "afterok", "afterany", "afternotok"
SINGLETON = "singleton"
EXPECTED_DEPENDENCY = "JOB, afterok:JOB, afterany:JOB, afternotok:JOB or singleton"

DEPENDENCY_KINDS = (AFTER_OK, AFTER_ANY, AFTER_NOT_OK)
_ALL_TASKS = "_*"
_JOB = re.compile(r"[\w.-]+(?:_\*)?")


class Dependency(NamedTuple):
    """A condition for the start of a job.

    `afterok`: the other job has finished; `afternotok`: it has failed or was cancelled; `afterany`: it has ended.
    `singleton`, without another job: all earlier jobs of the same name and user have ended. The job 'train-12_*' stands
    for all tasks of an array: a job per task would be too much if arrays of thousands depend on each other.
    """

    kind: str
    job: str = ""

    def __str__(self) -> str:
        if self.kind == AFTER_OK and self.job != SINGLETON:
            return self.job
        return f"{self.kind}:{self.job}" if self.job else self.kind

    @property
    def array(self) -> str:
        """The id of the array whose tasks the job stands for; '' if it is one job."""
        return self.job.removesuffix(_ALL_TASKS) if self.job.endswith(_ALL_TASKS) else ""

    def is_met_by(self, state: str) -> bool:
        """Whether the condition is met if the other job has ended in this state."""
        return self.kind == AFTER_ANY or (state == "finished") == (self.kind == AFTER_OK)

    def failing_state(self, states: Iterable[str]) -> str:
        """Return the state, of those of the other jobs, because of which the condition cannot be met; '' if none."""
        return next((state for state in sorted(states) if state and not self.is_met_by(state)), "")

    def failure(self, state: str) -> str:
        """Describe a condition that cannot be met, because the other job has ended in this state."""
        return dependency_failure(self.job, state)


def dependency_failure(job: str, state: str) -> str:
    """Describe a dependency on a job that has ended in a state in which it does not meet the dependency."""
    return f"dependency {job!r} {'was cancelled' if state == 'cancelled' else state}"


def array_dependency(kind: str, array: str) -> Dependency:
    """Return a dependency on all tasks of an array."""
    return Dependency(kind, array + _ALL_TASKS)


def parse_dependency(text: str) -> Dependency:
    """Parse one dependency; a job without a type is one that has to finish."""
    kind, colon, job = text.partition(":")
    if text == SINGLETON:
        return Dependency(SINGLETON)
    dependency = Dependency(kind, job) if colon else Dependency(AFTER_OK, text)
    if dependency.kind not in DEPENDENCY_KINDS or not _JOB.fullmatch(dependency.job):
        raise BadValue(f"after is {text[:64]!r}, expected {EXPECTED_DEPENDENCY}")
    return dependency


def parse_dependencies(text: str) -> list[Dependency]:
    """Parse dependencies in Slurm's notation: 'afterok:7:8,afterany:9,singleton'."""
    found: list[Dependency] = []
    for word in text.split(","):
        kind, *jobs = word.split(":")
        found += [parse_dependency(f"{kind}:{job}") for job in jobs] if jobs else [parse_dependency(word)]
    return found
