"""What is to be submitted: a file, a script or a command, and options that come before what it says."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from refold.api import Submission
    from refold.model import Plan


@dataclass(frozen=True, slots=True)
class SubmitOptions:
    """What was typed beside the file. `fields` are those of a submission as they are; None: nothing was said."""

    fields: Mapping[str, Any]
    gpus: str | None = None
    gpu_types: str | None = None
    memory: str | None = None
    time_limit: str | None = None
    estimate: str | None = None
    plan: str | None = None
    workdir: Path | None = None
    environment: Sequence[str] = field(default=())
    secrets: Sequence[str] = field(default=())


def submissions_from(
    file: str | None, command: Sequence[str], options: SubmitOptions
) -> tuple[list[Submission], tuple[str, ...]]:
    """The jobs of a file, or the command as one, each with what the options say; and what is not honoured."""
    from refold.errors import BadInput
    from refold.jobspec import from_command, one_submission, read_spec

    if (file is None) == (not command):
        raise BadInput(
            "what is to be submitted? A file, such as refold submit job.yaml or refold submit job.sh, "
            "or a command after two dashes: refold submit --gpus 2 -- python train.py"
        )
    notes: tuple[str, ...] = ()
    if file is None:
        found = [from_command(list(command), folder=str(Path.cwd()))]
    else:
        read = read_spec(Path(file))
        found, notes = list(read.submissions), tuple(read.notes)
    return [one_submission(one, _changes(one, options)) for one in found], notes


def _changes(given: Submission, options: SubmitOptions) -> dict[str, Any]:
    """Fields that the options say; some of them depend on others, and on what the file says."""
    from refold.jobspec import gib_or_more

    fields = {name: value for name, value in options.fields.items() if value is not None}
    instances = fields.get("instances", given.instances)
    if options.gpus is not None:
        fields |= _gpus(options.gpus, instances)
    if options.gpu_types is not None:
        fields["gpu_types"] = [name.strip() for name in options.gpu_types.split(",") if name.strip()]
    if options.memory is not None:
        fields["memory_gib"] = _amount("--memory", options.memory, gib_or_more, "memory such as 32 or 512MB")
    for name, text in (("time_limit", options.time_limit), ("estimate", options.estimate)):
        if text is not None:
            fields[name] = _seconds("--time" if name == "time_limit" else "--estimate", text)
    if options.plan is not None:
        fields["plan"] = _plan(options.plan, instances * fields.get("gpus", given.gpus))
    if options.workdir is not None:
        fields["folder"] = str(options.workdir.expanduser().absolute())
    if options.environment:
        fields["environment"] = {**given.environment, **dict(_variable(text) for text in options.environment)}
    if options.secrets:
        fields["secrets"] = {**given.secrets, **{name: _secret(name) for name in options.secrets}}
    return fields


def _gpus(text: str, instances: int) -> dict[str, Any]:
    """'8', '0.5', '2..8' or 'A100:8', in all; of a part of one, each instance gets so much."""
    from refold.errors import BadInput, BadValue
    from refold.jobspec import wanted_from_text

    try:
        wanted = wanted_from_text(text)
    except (BadValue, IndexError):
        wanted = None
    if wanted is None or not wanted.counted:
        raise BadInput(f"--gpus {text}: expected a number such as 8, a part of one such as 0.5, or 2..8")
    kinds = {"gpu_types": list(wanted.kinds)} if wanted.kinds else {}
    if wanted.share < 1:
        return {"gpus": 1, "gpu_share": wanted.share, "gpu_range": None, **kinds}
    each, rest = divmod(wanted.least, instances)
    if rest:
        raise BadInput(f"--gpus {text}: expected GPUs in all that {instances} instances have equally many of")
    span = (wanted.least, wanted.most) if wanted.least < wanted.most else None
    return {"gpus": each, "gpu_share": 1.0, "gpu_range": span, **kinds}


def _plan(text: str, gpus: int) -> str | Plan:
    """`auto`, `off`, or a plan; where it does not say how often the data are split, by the GPUs that are left."""
    from refold.model import Plan, fields_from_text

    if text in ("auto", "off"):
        return text
    given = fields_from_text(text)
    plan = Plan(**given)
    if "data" not in given and gpus and gpus % plan.gpus == 0:
        return Plan(**given, data=gpus // plan.gpus)
    return plan


def _seconds(option: str, text: str) -> float:
    from refold.model import seconds_from_text

    return _amount(option, text, seconds_from_text, "how long, such as 90s, 15m, 1h30m or 2d")


def _amount(option: str, text: str, read: Any, expected: str) -> float:
    from refold.errors import BadInput

    try:
        return float(read(text))
    except ValueError:
        raise BadInput(f"{option} {text}: expected {expected}") from None


def _variable(text: str) -> tuple[str, str]:
    from refold.errors import BadInput

    name, equals, value = text.partition("=")
    if not name or not equals:
        raise BadInput(f"--env {text}: expected NAME=VALUE, such as --env SEED=3")
    return name, value


def _secret(name: str) -> str:
    """From the environment: what is typed is in the shell's history, and in the list of processes."""
    from refold.errors import BadInput

    if name not in os.environ:
        raise BadInput(f"--secret {name}: the environment has no such variable; export it first")
    return os.environ[name]
