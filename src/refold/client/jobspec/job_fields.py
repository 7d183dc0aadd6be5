"""The fields of a job in YAML: one struct for `refold run`, `refold submit` and `refold whatif`."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Annotated, ClassVar, Literal, get_args

import msgspec
from msgspec import Meta

from refold.client.api import MAX_COMMAND_CHARS, MAX_JOB_GPUS, MAX_NAME_CHARS, MAX_TEXT_CHARS, MAX_TIME_SECONDS
from refold.client.jobspec.gpu_requests import NO_GPU_REQUEST, GpuRequest, read_gpu_request
from refold.client.jobspec.plans import PlanChoice, read_plan_choice
from refold.client.jobspec.quantities import parse_cpus, parse_gib
from refold.errors import BadValue
from refold.model import (
    AUTO,
    DAY,
    EXPECTED_ARRAY,
    EXPECTED_DEPENDENCY,
    HOUR,
    MAX_RETRIES,
    MINUTE,
    JobClass,
    LaunchEngine,
    Seconds,
    StopSignal,
    TopologyRequest,
    parse_array,
    parse_dependencies,
    parse_duration,
)
from refold.model.documents import Part, ReadBy, convert

EXPECTED_COMMAND = "a command: a shell command line, or a list of arguments"
EXPECTED_CPUS = "CPUs per node, such as 4 or 4+, or auto"
EXPECTED_MEMORY = "memory per node in GiB, such as 32 or 32+, or auto"
MAX_RESOURCE_AMOUNT = 2**20
MAX_PATTERN_CHARS = 512
STOP_SIGNALS: tuple[str, ...] = get_args(StopSignal)


def _read_command(part: Part) -> list[str]:
    """Read a list of arguments, or a command line for a shell."""
    if not isinstance(part.value, list):
        return ["sh", "-c", part.text(EXPECTED_COMMAND, MAX_COMMAND_CHARS)]
    if not part.value:
        raise part.unexpected(EXPECTED_COMMAND)
    return [entry.text(EXPECTED_COMMAND, MAX_COMMAND_CHARS) for entry in part.value]


def _read_signal(part: Part) -> str:
    """Read the name of a signal, with or without SIG."""
    short = part.text().upper().removeprefix("SIG")
    if short not in STOP_SIGNALS:
        raise part.unexpected(f"one of {', '.join(STOP_SIGNALS)}")
    return short


def _read_variable(part: Part) -> str:
    """Read the value of an environment variable as it is written: `on`, `007`, `1e-4`."""
    if part.value is None or part.is_container:
        raise part.unexpected("text; write '' for an empty value")
    return part.written


def _read_cpus(part: Part) -> float | Literal["auto"]:
    return _read_amount(part, parse_cpus, EXPECTED_CPUS)


def _read_memory(part: Part) -> float | Literal["auto"]:
    return _read_amount(part, parse_gib, EXPECTED_MEMORY)


def _read_amount(part: Part, parse: Callable[[str], float], expected: str) -> float | Literal["auto"]:
    if part.value == AUTO:
        return AUTO
    amount = part.quantity(parse, expected)
    if amount > MAX_RESOURCE_AMOUNT:
        raise part.unexpected(f"a number ≤ {MAX_RESOURCE_AMOUNT:,}")
    return amount


def _read_duration(part: Part) -> Seconds:
    return part.duration(maximum=MAX_TIME_SECONDS)


def _read_positive_duration(part: Part) -> Seconds:
    return part.positive_duration(maximum=MAX_TIME_SECONDS)


def _read_topology(part: Part) -> TopologyRequest:
    return TopologyRequest(**msgspec.structs.asdict(convert(part, TopologyFields)))


def read_begin(part: Part) -> Seconds:
    """Read a begin time, in seconds from now."""
    try:
        return parse_begin(part.written, datetime.now().astimezone())
    except ValueError:
        raise part.unexpected(EXPECTED_BEGIN) from None


def read_array(part: Part) -> str:
    """Read the task numbers of an array as they are written: `0-9%2`, `3`."""
    try:
        parse_array(part.written)
    except BadValue:
        raise part.unexpected(EXPECTED_ARRAY) from None
    return part.written


def read_dependencies(part: Part) -> list[str]:
    """Read a dependency, several in Slurm's notation, or a list of either."""
    entries = part.value if isinstance(part.value, list) else [part]
    try:
        return [str(found) for entry in entries for found in parse_dependencies(entry.text(maximum=MAX_TEXT_CHARS))]
    except BadValue:
        raise part.unexpected(EXPECTED_DEPENDENCY) from None


def _read_texts(part: Part, max_chars: int) -> list[str]:
    entries = part.value if isinstance(part.value, list) else [part]
    return [entry.text(maximum=max_chars) for entry in entries]


JobName = Annotated[
    str, Meta(pattern=r"^[\w.-]{1,64}\Z", description="a name of up to 64 letters, digits, '.', '_' and '-'")
]
Command = Annotated[list[str], ReadBy(_read_command), Meta(description=EXPECTED_COMMAND)]
Variables = Annotated[dict[str, Annotated[str, ReadBy(_read_variable)]], Meta(description="names and their values")]
JobDuration = Annotated[float, ReadBy(_read_duration)]
PositiveJobDuration = Annotated[float, ReadBy(_read_positive_duration)]
Tally = Annotated[int, Meta(ge=0, le=2**40)]
GpuCount = Annotated[int, Meta(ge=1, le=MAX_JOB_GPUS, description="a total number of GPUs ≥ 1")]
PositiveCount = Annotated[int, Meta(ge=1, le=MAX_JOB_GPUS, description="a whole number ≥ 1")]
Request = Annotated[GpuRequest, ReadBy(read_gpu_request)]
OutputPattern = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT_CHARS)]
Dependencies = Annotated[list[str], ReadBy(read_dependencies)]
Patterns = Annotated[list[str], ReadBy(lambda part: _read_texts(part, MAX_PATTERN_CHARS))]
Addresses = Annotated[list[str], ReadBy(lambda part: _read_texts(part, MAX_TEXT_CHARS))]


class TopologyFields(TopologyRequest, frozen=True):
    """The fields of a request, with a duration."""

    wait: JobDuration | None = None


class RequestedResources(msgspec.Struct, frozen=True):
    """Resources per node, as in SkyPilot. `UNSUPPORTED_RESOURCES` are ignored."""

    accelerators: Request = NO_GPU_REQUEST
    cpus: Annotated[float | Literal["auto"], ReadBy(_read_cpus)] | None = None
    memory: Annotated[float | Literal["auto"], ReadBy(_read_memory)] | None = None


class Elastic(msgspec.Struct, frozen=True):
    """The range of GPUs in total."""

    min: GpuCount | None = None
    max: GpuCount | None = None


class CheckpointFields(msgspec.Struct, frozen=True):
    """Where the job saves its state, the signal that requests it, and the time it takes."""

    path: str | None = None
    signal: Annotated[str, ReadBy(_read_signal)] | None = None
    grace: JobDuration | None = None


class Hang(msgspec.Struct, frozen=True):
    """When a run counts as hanging."""

    no_progress_for: PositiveJobDuration | None = None


class ReshapeFields(msgspec.Struct, frozen=True):
    """How often the job may be stopped or reshaped: in total, and the least time between two changes."""

    at_most: Tally | None = None
    every: PositiveJobDuration | None = None


class JobFields(msgspec.Struct, frozen=True):
    """The fields of a job; those that a submission has too have its names. docs/jobs.md describes them."""

    run: Command
    name: JobName = ""
    setup: Annotated[str, Meta(max_length=MAX_COMMAND_CHARS, description="a shell script")] = ""
    workdir: Annotated[str, Meta(min_length=1, description="a folder")] = "."
    output: OutputPattern = ""
    error: OutputPattern = ""
    environment: Variables = msgspec.field(default_factory=dict, name="envs")
    secrets: Variables = {}
    num_nodes: PositiveCount | None = None
    gpus: Request = NO_GPU_REQUEST
    gpus_per_node: Annotated[int, Meta(ge=0, le=MAX_JOB_GPUS, description="a whole number ≥ 0")] | None = None
    resources: RequestedResources = RequestedResources()
    elastic: Annotated[Elastic, Meta(description="min and max, such as {min: 2, max: 8}")] | None = None
    topology: Annotated[TopologyRequest, ReadBy(_read_topology)] | None = None
    plan: Annotated[PlanChoice, ReadBy(read_plan_choice)] = "off"
    workload: Annotated[str, Meta(min_length=1, max_length=256)] = ""
    batch: Tally = 0
    sequence: Tally = 0
    engine: LaunchEngine | None = None
    steps: Tally | None = None
    tenant: Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARS)] = ""
    job_class: JobClass = msgspec.field(default="guaranteed", name="class")
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31, description="a whole number")] = 0
    preemptible: bool | None = None
    reshapable: bool = False
    reshape: Annotated[ReshapeFields, Meta(description="such as {at_most: 5, every: 10m}")] = ReshapeFields()
    time_limit: PositiveJobDuration | None = None
    estimate: PositiveJobDuration | None = None
    checkpoint: CheckpointFields = CheckpointFields()
    progress: Annotated[str, Meta(min_length=1, max_length=MAX_PATTERN_CHARS)] = ""
    hang: Hang = Hang()
    retries: Annotated[int, Meta(ge=0, le=MAX_RETRIES)] = 0
    never_retry: Patterns = []
    after: Dependencies = []
    begin: Annotated[float, ReadBy(read_begin)] = 0.0
    array: Annotated[str, ReadBy(read_array)] = ""
    notify: Addresses = []
    hold: bool = False
    allow_impossible: bool = False

    HINTS: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("command", "cmd", "script", "args", "entrypoint", "commands"), "run"),
        **dict.fromkeys(("gpu", "num_gpus", "ngpus", "n_gpus", "gpu_count"), "gpus"),
        **dict.fromkeys(("gpu_type", "gpu_types", "accelerators"), "resources: {accelerators: H100}"),
        "gpu_range": "gpus with a range, such as 2..8",
        **dict.fromkeys(("instances", "nodes", "replicas", "num_instances", "nnodes"), "num_nodes"),
        **dict.fromkeys(("time", "timelimit", "time-limit", "walltime", "timeout", "max_time"), "time_limit"),
        **dict.fromkeys(("work", "duration", "runtime", "run_time"), "estimate"),
        **dict.fromkeys(("cpu", "cpus"), "resources: {cpus: 4}"),
        **dict.fromkeys(("mem", "memory"), "resources: {memory: 32}"),
        **dict.fromkeys(("env", "environment"), "envs"),
        **dict.fromkeys(("cwd", "chdir", "working_dir", "workingDir", "folder", "directory"), "workdir"),
        **dict.fromkeys(("job-name", "job_name", "jobname", "id", "group"), "name"),
        **dict.fromkeys(("depends_on", "dependency", "dependencies", "needs"), "after"),
        **dict.fromkeys(("delay", "start", "start_after"), "begin"),
        **dict.fromkeys(("account", "queue", "project", "team"), "tenant"),
        **dict.fromkeys(("signal", "stop_signal", "grace"), "checkpoint: {signal: USR1, grace: 2m}"),
        **dict.fromkeys(("retry", "max_retries", "restarts"), "retries"),
        **dict.fromkeys(("mail", "email", "notifications"), "notify"),
        **dict.fromkeys(("job_class", "qos"), "class"),
        **dict.fromkeys(("model", "batch_size"), "workload and batch"),
        **dict.fromkeys(("framework", "launcher", "backend"), "engine"),
        "no_progress": "hang: {no_progress_for: 10m}",
        "user": "tenant; the user is that of the submitter",
    }
    """What to write instead of names that other schedulers and the REST API have."""


_MACHINE = "jobs run on the nodes of this cluster"
_FILES = "jobs run where the files are; use workdir"
UNSUPPORTED = {
    "file_mounts": _FILES,
    "storage_mounts": _FILES,
    "volumes": _FILES,
    "service": "Refold does not run inference services",
    "config": "it configures SkyPilot itself",
    "experimental": "it configures SkyPilot itself",
    "event_callback": "use notify",
    "inputs": _FILES,
    "outputs": _FILES,
    "pool": _MACHINE,
}
"""Fields of SkyPilot's tasks that are ignored, and why or what to use instead."""

UNSUPPORTED_RESOURCES = {
    **dict.fromkeys(("cloud", "infra", "region", "zone", "instance_type", "disk_size", "disk_tier"), _MACHINE),
    **dict.fromkeys(("network_tier", "local_disk", "accelerator_args", "labels", "autostop", "autodown"), _MACHINE),
    **dict.fromkeys(("use_spot", "spot_recovery"), "use class: best-effort"),
    "job_recovery": "use retries",
    "image_id": "the command runs directly on the node",
    "ports": "ports are those of the node itself",
    "priority": "use the top-level field priority",
    "max_hourly_cost": _MACHINE,
    "any_of": "list the GPU types in accelerators, such as {H100: 8, A100: 8}",
    "ordered": "list the GPU types in accelerators, such as {H100: 8, A100: 8}",
}


# Begin times of jobs (`--begin`): delays, times of day and dates, in Slurm's notation and ours.

EXPECTED_BEGIN = "a time within ten years, such as now+10m, 16:00, tomorrow or 2026-12-31T08:00"

_UNITS = {"second": 1.0, "minute": MINUTE, "hour": HOUR, "day": DAY, "week": 7 * DAY}
_COUNT = re.compile(r"(\d{1,9})(second|minute|hour|day|week)s?", re.ASCII)
_TIME_OF_DAY = re.compile(r"\d{1,2}:\d{2}(?::\d{2})?", re.ASCII)
_HOURS = {"midnight": "00:00", "noon": "12:00", "teatime": "16:00"}


def parse_begin(text: str, now: datetime) -> Seconds:
    """Return the seconds from `now` (with a time zone) until a begin time; 0 if it has passed."""
    delay = _parse(text, now)
    if not 0 <= delay <= MAX_TIME_SECONDS:
        raise BadValue(f"{text!r} is more than ten years from now")
    return delay


def _parse(text: str, now: datetime) -> Seconds:
    text = _HOURS.get(text, text)
    word, plus, delay = text.partition("+")
    if text in ("now", "today"):
        return 0.0
    if word == "now" and plus:
        return _parse_delay(delay)
    if text == "tomorrow":
        return (now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1) - now).total_seconds()
    if _TIME_OF_DAY.fullmatch(text):
        return _until_time_of_day(text, now)
    if "-" in text:
        return _until_date(text, now)
    return _parse_delay(text)


def _parse_delay(text: str) -> Seconds:
    """Parse '10m', '600' (seconds), or '10minutes' as Slurm has it."""
    if match := _COUNT.fullmatch(text):
        return int(match[1]) * _UNITS[match[2]]
    return parse_duration(text)


def _until_time_of_day(text: str, now: datetime) -> Seconds:
    """Return the seconds until the next time that a clock shows this time."""
    try:
        hour, minute, *second = map(int, text.split(":"))
        moment = now.replace(hour=hour, minute=minute, second=second[0] if second else 0, microsecond=0)
    except ValueError:
        raise BadValue(f"{text!r} is not a time of day") from None
    return (moment - now + timedelta(days=moment < now)).total_seconds()


def _until_date(text: str, now: datetime) -> Seconds:
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.astimezone()  # as a time of the local time zone
    except (ValueError, OverflowError, OSError):
        raise BadValue(f"{text!r} is not a date") from None
    return max(0.0, (moment - now).total_seconds())
