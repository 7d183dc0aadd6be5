"""What a person means to submit, as a submission."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, TypeAlias

import msgspec

from refold.api import Submission, bad_field
from refold.errors import BadInput

Submittable: TypeAlias = Submission | Mapping[str, Any] | str | os.PathLike[str]
"""A submission, its fields, or a file that has one."""


def one_submission(what: Submittable | None, fields: Mapping[str, Any]) -> Submission:
    """The submission that `what` is or has, with fields that come before its own.

    A command runs in the folder where this is called, and has the name of what it runs, unless told otherwise.
    """
    given: dict[str, Any] = {"folder": str(Path.cwd())}
    if isinstance(what, str | os.PathLike):
        given = msgspec.structs.asdict(_only_submission(Path(what)))
    elif isinstance(what, Submission):
        given = msgspec.structs.asdict(what)
    elif what is not None:
        given = dict(what)
    given |= fields
    if "name" not in given and _are_words(given.get("command")):
        return from_command(given.pop("command"), **given)
    try:
        return msgspec.convert(given, Submission)
    except msgspec.ValidationError as error:
        raise bad_field(error) from None


def asked_once(submission: Submission) -> Submission:
    """With a mark of its own, so that to ask again after a broken connection does not submit it twice."""
    return submission if submission.request else msgspec.structs.replace(submission, request=os.urandom(16).hex())


def _are_words(command: object) -> bool:
    return isinstance(command, list | tuple) and bool(command) and all(isinstance(word, str) for word in command)


def _only_submission(path: Path) -> Submission:
    from refold.jobspec.reader import read_spec  # a client that sends no files needs no YAML parser

    submissions = read_spec(path).submissions
    if len(submissions) != 1:
        raise BadInput(f"{path} has {len(submissions)} jobs, expected one: submit_all takes many")
    return submissions[0]


def from_command(words: Sequence[str], **fields: Any) -> Submission:
    """A command of the shell as a job: `refold submit -- python train.py`. `fields` are those of a submission."""
    if not words:
        raise BadInput("a job needs a command, such as `python train.py`")
    from refold.jobspec.builder import name_from

    usual = {"name": name_from(_what_runs(words)), "folder": str(Path.cwd())}
    return one_submission(None, usual | fields | {"command": list(words)})


def _what_runs(words: Sequence[str]) -> str:
    """`train` of `python -u train.py --fast`: the first file that is named, or else the program."""
    named = next((word for word in words[1:] if PurePath(word).suffix in (".py", ".sh") and word[0] != "-"), words[0])
    return PurePath(named).stem or PurePath(words[0]).name
