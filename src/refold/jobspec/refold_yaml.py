"""Our own YAML: the names of SkyPilot's tasks where these have one, and what we know beside."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, get_args

from refold.api import LONGEST_COMMAND, LONGEST_NAME, LONGEST_TEXT, LONGEST_TIME, Submission
from refold.documents import Part
from refold.jobspec.builder import SpecBuilder, SpecSource, job_name
from refold.jobspec.gpu_requests import RequestedSize, size_of
from refold.jobspec.plans import plan_on, plan_wish
from refold.jobspec.quantities import at_least, gib_or_more
from refold.model import MOST_RETRIES, JobClass, Plan, StopSignal

JOB = "the fields of a job, such as 'name: …' and 'run: …'; '---' stands between several"
COMMAND = "a command: text for the shell, or a list of words"
SETUP_FIRST = "set -e\n{setup}\nset +e\n{then}"

Reader = Callable[[SpecBuilder, Part], None]


def read_own(document: Part, source: SpecSource) -> tuple[Submission, list[str]]:
    """The job that a document asks for, and what of it is not honoured."""
    draft = SpecBuilder(source, document)
    said = dict(document.fields((*KEYS, *NOT_HONOURED), JOB))
    for key, part in said.items():
        if key in NOT_HONOURED:
            draft.note(part, f"{key} is not honoured: {NOT_HONOURED[key]}")
        elif reader := KEYS[key]:
            reader(draft, part)
    if "resources" in said:
        said |= {f"resources.{key}": part for key, part in said["resources"].fields().items()}
    _put_command(draft, said)
    _put_size_and_plan(draft, said)
    return draft.submission(), draft.notes


def _put_command(draft: SpecBuilder, said: dict[str, Part]) -> None:
    """`setup` runs in the shell that runs the rest, and the rest does not run if it fails."""
    if "run" not in said:
        raise draft.root.refused(f"run is absent, expected {COMMAND}")
    run = said["run"]
    setup = said["setup"].text("text for the shell", LONGEST_COMMAND) if "setup" in said else ""
    if isinstance(run.value, list):
        words = [word.text(COMMAND, LONGEST_COMMAND) for word in run.value]
        if not words:
            raise run.wrong(COMMAND)
        if setup:
            name = draft.fields.get("name", "run")
            words = ["sh", "-c", SETUP_FIRST.format(setup=setup, then='exec "$@"'), name, *words]
    else:
        text = run.text(COMMAND, LONGEST_COMMAND)
        words = ["sh", "-c", SETUP_FIRST.format(setup=setup, then=text) if setup else text]
    draft.put("command", words, run)


def _put_size_and_plan(draft: SpecBuilder, said: dict[str, Part]) -> None:
    wish = plan_wish(said["plan"]) if "plan" in said else "off"
    size, kinds = size_of(said, _unsaid(said, wish))
    if wish == "off" and _asks_for_no_gpu(said):
        size = RequestedSize(size.nodes, 0)
        draft.note(said["resources"], "resources names no accelerators, so the job gets no GPU; gpus: 1 asks for one")
    counting = next((said[key] for key in _COUNTING if key in said), draft.root)
    draft.put("instances", size.nodes, said.get("num_nodes", counting))
    draft.put("gpus", size.gpus, counting)
    draft.put("gpu_share", size.share, counting)
    draft.put("gpu_types", list(kinds), said.get("resources.accelerators", counting))
    if size.range:
        draft.put("gpu_range", size.range, said.get("elastic", counting))
    if "plan" in said:
        draft.put("plan", wish if isinstance(wish, str) else plan_on(said["plan"], wish, size.total), said["plan"])
    if wish == "auto" and "workload" not in said:
        draft.note(
            said["plan"], "plan is auto, which needs a workload that names the model: the command chooses itself"
        )


def _unsaid(said: dict[str, Part], wish: str | dict[str, Any]) -> tuple[Part, int] | None:
    """How many GPUs are meant where nobody counts them: those of the plan, or the fewest that will do."""
    if isinstance(wish, dict):
        return said["plan"], Plan(**wish).gpus
    if "elastic" in said:
        ends = said["elastic"].fields(("min", "max"))
        return said["elastic"], ends["min"].whole("GPUs in all, 1 or more", 1) if "min" in ends else 1
    return None


def _asks_for_no_gpu(said: dict[str, Part]) -> bool:
    """As in SkyPilot: who says what is needed, and does not mention GPUs, needs none."""
    return said.keys().isdisjoint(_COUNTING) and not said.keys().isdisjoint(("resources.cpus", "resources.memory"))


_COUNTING = ("gpus", "gpus_per_node", "resources.accelerators", "elastic")


# Readers of one key each.


def _resources(draft: SpecBuilder, part: Part) -> None:
    for key, inner in part.fields((*RESOURCES, *RESOURCES_NOT_HONOURED)).items():
        if key in RESOURCES_NOT_HONOURED:
            draft.note(inner, f"resources.{key} is not honoured: {RESOURCES_NOT_HONOURED[key]}")
        elif reader := RESOURCES[key]:
            reader(draft, inner)


def _amount(draft: SpecBuilder, part: Part, field: str, read: Callable[[str], float], expected: str) -> None:
    try:
        draft.put(field, read(part.text(expected)), part)
    except ValueError:
        raise part.wrong(expected) from None


def _text(draft: SpecBuilder, part: Part, field: str, most: int) -> None:
    draft.put(field, part.text(most=most), part)


def _name(draft: SpecBuilder, part: Part) -> None:
    draft.put("name", job_name(part), part)


def _texts(draft: SpecBuilder, part: Part, field: str, most: int) -> None:
    """One text, or a list of them."""
    entries = part.value if isinstance(part.value, list) else [part]
    draft.put(field, [entry.text(most=most) for entry in entries], part)


def _whole(draft: SpecBuilder, part: Part, field: str) -> None:
    draft.put(field, part.whole(), part)


def _truth(draft: SpecBuilder, part: Part, field: str) -> None:
    draft.put(field, part.truth(), part)


def _seconds(draft: SpecBuilder, part: Part, field: str) -> None:
    draft.put(field, part.seconds(most=LONGEST_TIME), part)


def _longer_than_none(draft: SpecBuilder, part: Part, field: str) -> None:
    if field in draft.said:
        raise part.refused(f"{draft.said[field].path} says it as well, expected one of the two")
    _seconds(draft, part, field)
    if not draft.fields[field]:
        raise part.wrong("longer than no time, such as 90s, 15m or 1h30m")


def _time(draft: SpecBuilder, part: Part) -> None:
    """`time: 2h` is a limit; else it says both."""
    if not isinstance(part.value, dict):
        return _longer_than_none(draft, part, "time_limit")
    for key, inner in part.fields(("limit", "estimate")).items():
        _longer_than_none(draft, inner, "time_limit" if key == "limit" else key)
    return None


def _checkpoint(draft: SpecBuilder, part: Part) -> None:
    for key, inner in part.fields(("path", "signal", "grace")).items():
        if key == "grace":
            _seconds(draft, inner, "grace")
        elif key == "path":
            draft.add_variables({"REFOLD_CHECKPOINT": draft.source.folder_at(inner)}, inner)
        else:
            draft.put("stop_signal", signal_at(inner, inner.text()), inner)


def signal_at(part: Part, name: str) -> str:
    """A signal that runs can be asked to stop with."""
    short = name.upper().removeprefix("SIG")
    if short not in get_args(StopSignal):
        raise part.wrong(f"one of {', '.join(get_args(StopSignal))}")
    return short


def _hang(draft: SpecBuilder, part: Part) -> None:
    for inner in part.fields(("no_progress_for",)).values():
        _longer_than_none(draft, inner, "no_progress")


def _variables(draft: SpecBuilder, part: Part, field: str) -> None:
    for key, inner in part.fields(expected="names and their values").items():
        if inner.value is None or isinstance(inner.value, dict | list):
            raise inner.wrong("text; a value that is empty is written ''")
        draft.fields.setdefault(field, {})[key] = inner.written
    draft.said[field] = part


def _class(draft: SpecBuilder, part: Part) -> None:
    draft.put("job_class", part.one_of(get_args(JobClass)), part)


def _priority(draft: SpecBuilder, part: Part) -> None:
    draft.put("priority", part.whole("a whole number", -(2**31), 2**31), part)


def _retries(draft: SpecBuilder, part: Part) -> None:
    draft.put("retries", part.whole(f"a whole number from 0 to {MOST_RETRIES}", 0, MOST_RETRIES), part)


def _workdir(draft: SpecBuilder, part: Part) -> None:
    draft.put("folder", draft.source.folder_at(part), part)


KEYS: dict[str, Reader | None] = {
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
    "workload": partial(_text, field="workload", most=256),
    "steps": partial(_whole, field="steps"),
    "batch": partial(_whole, field="batch"),
    "sequence": partial(_whole, field="sequence"),
    "tenant": partial(_text, field="tenant", most=LONGEST_NAME),
    "class": _class,
    "priority": _priority,
    "time": _time,
    "time_limit": partial(_longer_than_none, field="time_limit"),
    "preemptible": partial(_truth, field="preemptible"),
    "reshapable": partial(_truth, field="reshapable"),
    "checkpoint": _checkpoint,
    "hang": _hang,
    "progress": partial(_text, field="progress", most=512),
    "retries": _retries,
    "never_retry": partial(_texts, field="never_retry", most=512),
    "after": partial(_texts, field="after", most=LONGEST_NAME),
    "notify": partial(_texts, field="notify", most=LONGEST_TEXT),
    "hold": partial(_truth, field="hold"),
}
"""Every key, and how it is read; None: together with others."""

RESOURCES: dict[str, Reader | None] = {
    "accelerators": None,
    "cpus": partial(_amount, field="cpus", read=at_least, expected="CPUs of a node, such as 4 or 4+"),
    "memory": partial(_amount, field="memory_gib", read=gib_or_more, expected="GiB of a node, such as 32 or 32+"),
}

_MACHINE = "jobs run on the machines of this cluster"
_FILES = "jobs run where the files are; say workdir"
NOT_HONOURED = {
    "file_mounts": _FILES,
    "storage_mounts": _FILES,
    "volumes": _FILES,
    "service": "this is no server of requests",
    "config": "it is for SkyPilot itself",
    "experimental": "it is for SkyPilot itself",
    "event_callback": "say notify",
    "inputs": _FILES,
    "outputs": _FILES,
    "pool": _MACHINE,
}
"""Keys of SkyPilot's tasks that mean nothing here, and why."""

RESOURCES_NOT_HONOURED = {
    **dict.fromkeys(("cloud", "infra", "region", "zone", "instance_type", "disk_size", "disk_tier"), _MACHINE),
    **dict.fromkeys(("network_tier", "local_disk", "accelerator_args", "labels", "autostop", "autodown"), _MACHINE),
    **dict.fromkeys(("use_spot", "spot_recovery"), "say class: best-effort"),
    "job_recovery": "say retries",
    "image_id": "the command runs on the machine itself",
    "ports": "what listens on a port does so on the machine itself",
    "priority": "say priority, outside of resources",
    "max_hourly_cost": _MACHINE,
    "any_of": "name the kinds of GPUs in accelerators, such as {H100: 8, A100: 8}",
    "ordered": "name the kinds of GPUs in accelerators, such as {H100: 8, A100: 8}",
}
