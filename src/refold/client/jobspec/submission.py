"""Submissions from Python arguments, commands and job files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from refold.client.api import Submission, field_error
from refold.client.jobspec.builder import make_job_name
from refold.errors import BadInput

if TYPE_CHECKING:
    from refold.client.jobspec.reader import SpecFile

Submittable: TypeAlias = Submission | Mapping[str, Any] | str | os.PathLike[str]
"""A submission, its fields, or the path of a job file."""


def make_submission(source: Submittable | None, fields: Mapping[str, Any]) -> Submission:
    """Return the submission that `source` is or contains; `fields` override its own.

    Defaults: the job runs in the current folder and is named after its script or program.
    """
    values: dict[str, Any] = {"folder": str(Path.cwd())}
    if isinstance(source, str | os.PathLike):
        values = msgspec.structs.asdict(_only_submission(Path(source)))
    elif isinstance(source, Submission):
        values = msgspec.structs.asdict(source)
    elif source is not None:
        values = dict(source)
    values |= fields
    if "name" not in values and _is_command(values.get("command")):
        return submission_from_command(values.pop("command"), **values)
    try:
        return msgspec.convert(values, Submission)
    except msgspec.ValidationError as error:
        raise field_error(error, Submission) from None


def export_of(source: Submittable | None) -> str:
    """Return the variables that a job file asks to export (`#SBATCH --export`); '' if it does not."""
    return _read_file(Path(source)).export if isinstance(source, str | os.PathLike) else ""


def with_request_id(submission: Submission) -> Submission:
    """Add a random request id if there is none, so that a retry after a broken connection does not submit twice."""
    return submission if submission.request else msgspec.structs.replace(submission, request=os.urandom(16).hex())


def _is_command(command: object) -> bool:
    return (
        isinstance(command, list | tuple) and bool(command) and all(isinstance(argument, str) for argument in command)
    )


def _read_file(path: Path) -> SpecFile:
    from refold.client.jobspec.reader import read_spec  # a client that sends no files needs no YAML parser

    return read_spec(path)


def _only_submission(path: Path) -> Submission:
    submissions = _read_file(path).submissions
    if len(submissions) != 1:
        raise BadInput(f"{path} has {len(submissions)} jobs, expected one; use submit_all for several")
    return submissions[0]


def submission_from_command(command: Sequence[str], **fields: Any) -> Submission:
    """Return a submission that runs a command line, as in `refold submit -- python train.py`."""
    if not command:
        raise BadInput("a job needs a command, such as `python train.py`")
    defaults = {"name": make_job_name(_script_name(command)), "folder": str(Path.cwd())}
    return make_submission(None, defaults | fields | {"command": list(command)})


def _script_name(command: Sequence[str]) -> str:
    """Return `train` for `python -u train.py --fast`: the first script among the arguments, else the program."""
    scripts = (word for word in command[1:] if PurePath(word).suffix in (".py", ".sh") and word[0] != "-")
    script = next(scripts, command[0])
    return PurePath(script).stem or PurePath(command[0]).name
