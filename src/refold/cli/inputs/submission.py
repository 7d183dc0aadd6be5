"""Read the jobs to submit from a file, script or command. Options override the file."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refold.errors import BadInput, BadValue
from refold.model import parse_duration

if TYPE_CHECKING:
    from refold.client.api import Submission
    from refold.model import Dependency, Plan, TopologyRequest


@dataclass(frozen=True, slots=True)
class SubmitOptions:
    """Options of `submit`; None: not given. `fields` are fields of a submission that need no parsing.

    `levels`: the required and the preferred level of domains.
    """

    fields: Mapping[str, Any]
    gpus: str | None = None
    gpu_types: str | None = None
    levels: tuple[str | None, str | None] = (None, None)
    segment: str | None = None
    switches: str | None = None
    memory: str | None = None
    time_limit: str | None = None
    estimate: str | None = None
    reshape_every: str | None = None
    begin: str | None = None
    plan: str | None = None
    workdir: Path | None = None
    environment: Sequence[str] = field(default=())
    secrets: Sequence[str] = field(default=())
    after: Sequence[str] = field(default=())


def read_submissions(
    file: str | None, command: Sequence[str], options: SubmitOptions
) -> tuple[list[Submission], Sequence[str], str]:
    """Return the jobs of a file, or the command as a job, with the options applied.

    Also notes on ignored directives, and the variables that a script exports ('': not given).
    """
    from refold.client.jobspec import make_submission, submission_from_command

    if (file is None) == (not command):
        raise BadInput(
            "expected a file, such as refold submit job.yaml or refold submit job.sh, "
            "or a command after --, such as refold submit --gpus 2 -- python train.py"
        )
    notes: Sequence[str] = ()
    export = ""
    if file is None:
        submissions = [submission_from_command(list(command), folder=str(Path.cwd()))]
    else:
        from refold.client.jobspec import read_spec  # imports the YAML parser

        spec = read_spec(Path(file))
        submissions, notes, export = spec.submissions, spec.notes, spec.export
    return [make_submission(one, _overrides(one, options)) for one in submissions], notes, export


def _overrides(given: Submission, options: SubmitOptions) -> dict[str, Any]:
    """Return the fields set by the options. Some depend on other options and on the file."""
    from refold.client.jobspec import parse_cpus, parse_gib

    fields = {name: value for name, value in options.fields.items() if value is not None}
    instances = fields.get("instances", given.instances)
    if options.gpus is not None:
        fields |= _parse_gpus(options.gpus, instances)
    if options.gpu_types is not None:
        fields["gpu_types"] = [name.strip() for name in options.gpu_types.split(",") if name.strip()]
    if topology := _parse_topology(given, options):
        fields["topology"] = topology
    if options.memory is not None:
        expected = "memory such as 32 or 512MB, or auto"
        fields["memory_gib"] = _parse_resource("--memory", options.memory, parse_gib, expected)
    if isinstance(cpus := fields.get("cpus"), str):
        fields["cpus"] = _parse_resource("--cpus", cpus, parse_cpus, "a number such as 4, or auto")
    durations = {
        "time_limit": ("--time", options.time_limit),
        "estimate": ("--estimate", options.estimate),
        "reshape_every": ("--reshape-every", options.reshape_every),
    }
    for name, (option, text) in durations.items():
        if text is not None:
            fields[name] = _parse_seconds(option, text)
    if options.begin is not None:
        fields["begin"] = time.time() + _parse_begin(options.begin)
    if options.after:
        fields["after"] = [str(found) for text in options.after for found in _parse_dependencies(text)]
    if options.plan is not None:
        fields["plan"] = _parse_plan(options.plan, instances * fields.get("gpus", given.gpus))
    if options.workdir is not None:
        fields["folder"] = str(options.workdir.expanduser().absolute())
    if options.environment:
        fields["environment"] = {**given.environment, **dict(_parse_variable(text) for text in options.environment)}
    if options.secrets:
        fields["secrets"] = {**given.secrets, **{name: _read_secret(name) for name in options.secrets}}
    return fields


def _parse_gpus(text: str, instances: int) -> dict[str, Any]:
    """Parse the total number of GPUs: '8', '2..8', 'A100:8', or '0.5', a share of a GPU for each instance."""
    from refold.client.jobspec import parse_gpu_request

    try:
        request = parse_gpu_request(text)
    except (BadValue, IndexError):
        request = None
    if request is None or not request.has_count:
        raise BadInput(f"--gpus {text}: expected a number such as 8, a share such as 0.5, or a range such as 2..8")
    gpu_types = {"gpu_types": list(request.types)} if request.types else {}
    if request.share < 1:
        return {"gpus": 1, "gpu_share": request.share, "gpu_range": None, **gpu_types}
    each, rest = divmod(request.minimum, instances)
    if rest:
        raise BadInput(f"--gpus {text}: expected a total that is divisible by {instances} instances")
    span = (request.minimum, request.maximum) if request.minimum < request.maximum else None
    return {"gpus": each, "gpu_share": 1.0, "gpu_range": span, **gpu_types}


def _parse_topology(given: Submission, options: SubmitOptions) -> TopologyRequest | None:
    """Return what is requested of domains, by the file as far as the options do not override it; None: no options."""
    import msgspec

    from refold.model import TopologyRequest

    fields: dict[str, Any] = dict(zip(("required", "preferred"), options.levels, strict=True))
    if options.segment is not None:
        size, _, level = options.segment.partition(":")
        if not size.isdecimal() or not int(size):
            raise BadInput(f"--segment {options.segment}: expected instances and a level, such as 16 or 16:rack")
        fields |= {"segment": int(size), "segment_level": level}
    if options.switches is not None:
        fields |= _parse_switches(options.switches)
    changed = {name: value for name, value in fields.items() if value is not None}
    return msgspec.structs.replace(given.topology or TopologyRequest(), **changed) if changed else None


def _parse_switches(text: str) -> dict[str, Any]:
    from refold.client.jobspec import parse_switches

    try:
        most, wait = parse_switches(text, parse_duration)
    except ValueError:
        raise BadInput(
            f"--switches {text}: expected domains and how long to wait for them, such as 1 or 1@10m"
        ) from None
    return {"most": most, "wait": wait}


def _parse_plan(text: str, gpus: int) -> str | Plan:
    """Parse `auto`, `off`, or a plan; without a data-parallel degree, it is set to use all GPUs."""
    from refold.model import Plan, parse_plan_fields

    if text in ("auto", "off"):
        return text
    given = parse_plan_fields(text)
    plan = Plan(**given)
    if "data" not in given and gpus and gpus % plan.gpus == 0:
        return Plan(**given, data=gpus // plan.gpus)
    return plan


def _parse_begin(text: str) -> float:
    from datetime import datetime

    from refold.client.jobspec import EXPECTED_BEGIN, parse_begin

    now = datetime.now().astimezone()
    return _parse_amount("--begin", text, lambda text: parse_begin(text, now), EXPECTED_BEGIN)


def _parse_dependencies(text: str) -> list[Dependency]:
    from refold.model import EXPECTED_DEPENDENCY, parse_dependencies

    try:
        return parse_dependencies(text)
    except BadValue:
        raise BadInput(f"--after {text}: expected {EXPECTED_DEPENDENCY}") from None


def _parse_seconds(option: str, text: str) -> float:
    return _parse_amount(option, text, parse_duration, "a duration such as 90s, 15m, 1h30m or 2d")


def _parse_resource(option: str, text: str, read: Any, expected: str) -> float | str:
    """Parse an amount that may be left to the scheduler."""
    from refold.model import AUTO

    return AUTO if text == AUTO else _parse_amount(option, text, read, expected)


def _parse_amount(option: str, text: str, read: Any, expected: str) -> float:
    try:
        return float(read(text))
    except ValueError:
        raise BadInput(f"{option} {text}: expected {expected}") from None


def _parse_variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise BadInput(f"--env {text}: expected NAME=VALUE, such as --env SEED=3")
    return name, value


def _read_secret(name: str) -> str:
    """Read a secret from the environment: values on the command line appear in shell history and process lists."""
    if name not in os.environ:
        raise BadInput(f"--secret {name}: environment variable not set; export it first")
    return os.environ[name]
