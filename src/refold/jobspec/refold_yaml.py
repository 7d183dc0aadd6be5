"""Refold's YAML job format: SkyPilot's task fields where they exist, and further fields."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, get_args

from refold.api import MAX_COMMAND_CHARS, MAX_NAME_CHARS, MAX_TEXT_CHARS, MAX_TIME_SECONDS, Submission
from refold.documents import Part
from refold.jobspec.builder import SpecBuilder, SpecSource, read_job_name
from refold.jobspec.gpu_requests import RequestedSize, read_size
from refold.jobspec.plans import make_plan, read_plan_choice
from refold.jobspec.quantities import parse_cpus, parse_gib
from refold.model import MAX_RETRIES, JobClass, Plan, StopSignal

EXPECTED_JOB = "the fields of a job, such as 'name: …' and 'run: …'; '---' separates jobs"
EXPECTED_COMMAND = "a command: a shell command line, or a list of arguments"
SETUP_SCRIPT = "set -e\n{setup}\nset +e\n{then}"

Reader = Callable[[SpecBuilder, Part], None]


def read_refold_yaml(document: Part, source: SpecSource) -> tuple[Submission, list[str]]:
    """Return the submission that a YAML document describes, and notes on ignored fields."""
    builder = SpecBuilder(source, document)
    parts = dict(document.fields((*FIELDS, *UNSUPPORTED), EXPECTED_JOB))
    for key, part in parts.items():
        if key in UNSUPPORTED:
            builder.note(part, f"{key} is ignored: {UNSUPPORTED[key]}")
        elif reader := FIELDS[key]:
            reader(builder, part)
    if "resources" in parts:
        parts |= {f"resources.{key}": part for key, part in parts["resources"].fields().items()}
    _put_command(builder, parts)
    _put_size_and_plan(builder, parts)
    return builder.submission(), builder.notes


def _put_command(builder: SpecBuilder, parts: dict[str, Part]) -> None:
    """Set the command. `setup` runs first, in the same shell; if it fails, the command does not run."""
    if "run" not in parts:
        raise builder.root.error(f"run is missing, expected {EXPECTED_COMMAND}")
    run = parts["run"]
    setup = parts["setup"].text("a shell script", MAX_COMMAND_CHARS) if "setup" in parts else ""
    if isinstance(run.value, list):
        arguments = [entry.text(EXPECTED_COMMAND, MAX_COMMAND_CHARS) for entry in run.value]
        if not arguments:
            raise run.unexpected(EXPECTED_COMMAND)
        if setup:
            name = builder.fields.get("name", "run")
            arguments = ["sh", "-c", SETUP_SCRIPT.format(setup=setup, then='exec "$@"'), name, *arguments]
    else:
        text = run.text(EXPECTED_COMMAND, MAX_COMMAND_CHARS)
        arguments = ["sh", "-c", SETUP_SCRIPT.format(setup=setup, then=text) if setup else text]
    builder.put("command", arguments, run)


def _put_size_and_plan(builder: SpecBuilder, parts: dict[str, Part]) -> None:
    choice = read_plan_choice(parts["plan"]) if "plan" in parts else "off"
    size, gpu_types = read_size(parts, _implied_gpus(parts, choice))
    if choice == "off" and _requests_no_gpu(parts):
        size = RequestedSize(size.nodes, 0)
        builder.note(
            parts["resources"], "resources has no accelerators, so the job gets no GPU; add gpus: 1 to request one"
        )
    count_part = next((parts[key] for key in _GPU_COUNTS if key in parts), builder.root)
    builder.put("instances", size.nodes, parts.get("num_nodes", count_part))
    builder.put("gpus", size.gpus, count_part)
    builder.put("gpu_share", size.share, count_part)
    builder.put("gpu_types", list(gpu_types), parts.get("resources.accelerators", count_part))
    if size.range:
        builder.put("gpu_range", size.range, parts.get("elastic", count_part))
    if "plan" in parts:
        builder.put(
            "plan", choice if isinstance(choice, str) else make_plan(parts["plan"], choice, size.total), parts["plan"]
        )
    if choice == "auto" and "workload" not in parts:
        builder.note(parts["plan"], "plan: auto has no effect without a workload that names the model")


def _implied_gpus(parts: dict[str, Part], choice: str | dict[str, Any]) -> tuple[Part, int] | None:
    """Return the number of GPUs that the plan or `elastic.min` implies, and the part that implies it."""
    if isinstance(choice, dict):
        return parts["plan"], Plan(**choice).gpus
    if "elastic" in parts:
        bounds = parts["elastic"].fields(("min", "max"))
        return parts["elastic"], bounds["min"].integer("a total number of GPUs ≥ 1", 1) if "min" in bounds else 1
    return None


def _requests_no_gpu(parts: dict[str, Part]) -> bool:
    """Whether `resources` requests CPUs or memory and no GPUs, which means a job without GPUs, as in SkyPilot."""
    return parts.keys().isdisjoint(_GPU_COUNTS) and not parts.keys().isdisjoint(("resources.cpus", "resources.memory"))


_GPU_COUNTS = ("gpus", "gpus_per_node", "resources.accelerators", "elastic")


# Readers, one per field.


def _resources(builder: SpecBuilder, part: Part) -> None:
    for key, inner in part.fields((*RESOURCE_FIELDS, *UNSUPPORTED_RESOURCES)).items():
        if key in UNSUPPORTED_RESOURCES:
            builder.note(inner, f"resources.{key} is ignored: {UNSUPPORTED_RESOURCES[key]}")
        elif reader := RESOURCE_FIELDS[key]:
            reader(builder, inner)


def _amount(builder: SpecBuilder, part: Part, field: str, read: Callable[[str], float], expected: str) -> None:
    try:
        builder.put(field, read(part.text(expected)), part)
    except ValueError:
        raise part.unexpected(expected) from None


def _text(builder: SpecBuilder, part: Part, field: str, max_chars: int) -> None:
    builder.put(field, part.text(maximum=max_chars), part)


def _name(builder: SpecBuilder, part: Part) -> None:
    builder.put("name", read_job_name(part), part)


def _text_list(builder: SpecBuilder, part: Part, field: str, max_chars: int) -> None:
    """Read a string or a list of strings."""
    entries = part.value if isinstance(part.value, list) else [part]
    builder.put(field, [entry.text(maximum=max_chars) for entry in entries], part)


def _integer(builder: SpecBuilder, part: Part, field: str) -> None:
    builder.put(field, part.integer(), part)


def _boolean(builder: SpecBuilder, part: Part, field: str) -> None:
    builder.put(field, part.boolean(), part)


def _duration(builder: SpecBuilder, part: Part, field: str) -> None:
    builder.put(field, part.duration(maximum=MAX_TIME_SECONDS), part)


def _positive_duration(builder: SpecBuilder, part: Part, field: str) -> None:
    if field in builder.parts:
        raise part.error(f"conflicts with {builder.parts[field].path}, expected only one of them")
    _duration(builder, part, field)
    if not builder.fields[field]:
        raise part.unexpected("a duration > 0 such as 90s, 15m or 1h30m")


def _time(builder: SpecBuilder, part: Part) -> None:
    """Read `time: 2h` (the time limit), or `time: {limit: …, estimate: …}`."""
    if not isinstance(part.value, dict):
        return _positive_duration(builder, part, "time_limit")
    for key, inner in part.fields(("limit", "estimate")).items():
        _positive_duration(builder, inner, "time_limit" if key == "limit" else key)
    return None


def _checkpoint(builder: SpecBuilder, part: Part) -> None:
    for key, inner in part.fields(("path", "signal", "grace")).items():
        if key == "grace":
            _duration(builder, inner, "grace")
        elif key == "path":
            builder.add_variables({"REFOLD_CHECKPOINT": builder.source.folder_at(inner)}, inner)
        else:
            builder.put("stop_signal", read_signal(inner, inner.text()), inner)


def read_signal(part: Part, name: str) -> str:
    """Check a signal name and return it without SIG."""
    short = name.upper().removeprefix("SIG")
    if short not in get_args(StopSignal):
        raise part.unexpected(f"one of {', '.join(get_args(StopSignal))}")
    return short


def _hang(builder: SpecBuilder, part: Part) -> None:
    for inner in part.fields(("no_progress_for",)).values():
        _positive_duration(builder, inner, "no_progress")


def _variables(builder: SpecBuilder, part: Part, field: str) -> None:
    for key, inner in part.fields(expected="names and their values").items():
        if inner.value is None or isinstance(inner.value, dict | list):
            raise inner.unexpected("text; write '' for an empty value")
        builder.fields.setdefault(field, {})[key] = inner.written
    builder.parts[field] = part


def _class(builder: SpecBuilder, part: Part) -> None:
    builder.put("job_class", part.one_of(get_args(JobClass)), part)


def _priority(builder: SpecBuilder, part: Part) -> None:
    builder.put("priority", part.integer("a whole number", -(2**31), 2**31), part)


def _retries(builder: SpecBuilder, part: Part) -> None:
    builder.put("retries", part.integer(f"a whole number from 0 to {MAX_RETRIES}", 0, MAX_RETRIES), part)


def _workdir(builder: SpecBuilder, part: Part) -> None:
    builder.put("folder", builder.source.folder_at(part), part)


FIELDS: dict[str, Reader | None] = {
    "name": _name,
    "run": None,
    "setup": None,
    "workdir": _workdir,
    "envs": partial(_variables, field="environment"),
    "secrets": partial(_variables, field="secrets"),
    "num_nodes": None,
    "gpus": None,
    "gpus_per_node": None,
    "resources": _resources,
    "elastic": None,
    "plan": None,
    "workload": partial(_text, field="workload", max_chars=256),
    "steps": partial(_integer, field="steps"),
    "batch": partial(_integer, field="batch"),
    "sequence": partial(_integer, field="sequence"),
    "tenant": partial(_text, field="tenant", max_chars=MAX_NAME_CHARS),
    "class": _class,
    "priority": _priority,
    "time": _time,
    "time_limit": partial(_positive_duration, field="time_limit"),
    "preemptible": partial(_boolean, field="preemptible"),
    "reshapable": partial(_boolean, field="reshapable"),
    "checkpoint": _checkpoint,
    "hang": _hang,
    "progress": partial(_text, field="progress", max_chars=512),
    "retries": _retries,
    "never_retry": partial(_text_list, field="never_retry", max_chars=512),
    "after": partial(_text_list, field="after", max_chars=MAX_NAME_CHARS),
    "notify": partial(_text_list, field="notify", max_chars=MAX_TEXT_CHARS),
    "hold": partial(_boolean, field="hold"),
}
"""Every field and its reader; None: read together with other fields."""

RESOURCE_FIELDS: dict[str, Reader | None] = {
    "accelerators": None,
    "cpus": partial(_amount, field="cpus", read=parse_cpus, expected="CPUs per node, such as 4 or 4+"),
    "memory": partial(
        _amount, field="memory_gib", read=parse_gib, expected="memory per node in GiB, such as 32 or 32+"
    ),
}

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
