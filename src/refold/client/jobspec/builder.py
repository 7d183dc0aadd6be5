"""Builds a submission while a job file is read, and locates errors in the file."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from refold.client.api import MAX_NAME_CHARS, Submission, field_error
from refold.client.jobspec.patterns import check_patterns
from refold.errors import BadField, BadLine, BadValue, RefoldError
from refold.model.documents import Part

_KINDS = {"int": "a whole number", "float": "a number", "str": "text", "array": "a list", "object": "keys and values"}
_EXPECTED = re.compile(r"expected (?P<kind>\w+)(?P<length> of length)?(?: (?P<relation>[<>]=?) (?P<limit>[-\d.e+]+))?")
MAX_PROBLEM_CHARS = 300
"""Maximum length of an error message, which may quote a long value."""


@dataclass(frozen=True, slots=True)
class SpecSource:
    """The file that is being read: its name in errors, the default job name, and the default working folder.

    Relative folders are relative to `folder`; if that is empty (unknown), they are rejected. Begin times are relative
    to `now`, in Unix seconds.
    """

    where: str
    name: str
    folder: str = ""
    now: float = 0.0

    def folder_at(self, part: Part) -> str:
        """Return the absolute path of the folder given by a part of the file."""
        folder = Path(part.text("a folder"))
        if not folder.is_absolute() and not self.folder:
            raise part.unexpected("an absolute path to a folder")
        try:
            return os.path.normpath(Path(self.folder) / folder.expanduser())
        except (RuntimeError, ValueError):  # '~name' of an unknown user
            raise part.unexpected("a folder") from None


class ReadJob(msgspec.Struct, frozen=True):
    """A job of a file, notes on fields that are ignored, and the variables to export (`--export`; '': not given)."""

    submission: Submission
    notes: list[str]
    export: str = ""


class LocatedFields:
    """Fields of a submission, each with the part of the file it comes from."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.parts: dict[str, Part] = {}

    def put(self, name: str, value: Any, part: Part) -> None:
        """Set a field, and remember the part of the file it comes from."""
        self.fields[name] = value
        self.parts[name] = part


class SpecBuilder(LocatedFields):
    """The fields of a submission, and notes on what is ignored."""

    def __init__(self, source: SpecSource, root: Part) -> None:
        super().__init__()
        self.source = source
        self.root = root
        self.notes: list[str] = []
        self.export = ""

    def note(self, part: Part, text: str) -> None:
        self.notes.append(f"{part.where} line {part.line}: {text}")

    def add_variables(self, variables: dict[str, str], part: Part) -> None:
        """Add environment variables; those that are set already are not overridden."""
        source_part = self.parts.get("environment", part)
        self.put("environment", variables | self.fields.get("environment", {}), source_part)

    def submission(self) -> Submission:
        """Return the submission, or raise an error that names the line of the file."""
        self.fields.setdefault("name", make_job_name(self.source.name))
        self.fields.setdefault("folder", self.source.folder)
        try:
            submission = msgspec.convert(self.fields, Submission)
            check_patterns(submission.patterns)
        except msgspec.ValidationError as error:
            raise self._locate(field_error(error)) from None
        except BadValue as error:
            raise self._locate(BadField(str(error))) from None
        return submission

    def _locate(self, error: BadField) -> RefoldError:
        """Return the error with the line and field name of the file."""
        problem = str(error).removeprefix("job 'job-1': ")[:MAX_PROBLEM_CHARS]
        name = re.split(r"\W", error.field or problem, maxsplit=1)[0]
        part = self.parts.get(name)
        if part is None or not part.path:
            return BadLine(self.root.where, self.root.line, problem)
        if expected := _EXPECTED.fullmatch(problem.removeprefix(f"{error.field}: ")):
            return part.unexpected(_describe(expected))
        return BadLine(part.where, part.line, problem.replace(name, part.path, 1))


def _describe(expected: re.Match[str]) -> str:
    """Reword msgspec's expectation: 'int <= 63488' becomes 'a whole number ≤ 63,488'."""
    kind = _KINDS.get(expected["kind"], expected["kind"])
    if expected["limit"] is None:
        return kind
    relation = {"<=": "≤", ">=": "≥"}.get(expected["relation"], expected["relation"])
    limit = f"{float(expected['limit']):,.15g}"
    return f"{kind} of length {relation} {limit}" if expected["length"] else f"{kind} {relation} {limit}"


# Names of jobs.


def make_job_name(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip("-")[:MAX_NAME_CHARS] or "job"
