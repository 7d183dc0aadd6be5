"""A submission while its file is read: what was said so far, and where, so that errors can say both."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from refold.api import LONGEST_NAME, Submission, bad_field
from refold.documents import BadLine, Part
from refold.errors import BadField, BadValue, RefoldError
from refold.jobspec.patterns import check_patterns_here

_KINDS = {"int": "a whole number", "float": "a number", "str": "text", "array": "a list", "object": "keys and values"}
_EXPECTED = re.compile(r"expected (?P<kind>\w+)(?P<length> of length)?(?: (?P<relation>[<>]=?) (?P<limit>[-\d.e+]+))?")
LONGEST_PROBLEM = 300
"""Characters of what is wrong, which may repeat all of a value."""


@dataclass(frozen=True, slots=True)
class SpecSource:
    """A file that is read: its name in errors, what its jobs are called that have no name, and where they run.

    `folder`: what relative folders are inside of, and where a job runs that names none; empty: nobody knows.
    """

    where: str
    name: str
    folder: str = ""

    def folder_at(self, part: Part) -> str:
        """The folder that a part names."""
        named = Path(part.text("a folder"))
        if not named.is_absolute() and not self.folder:
            raise part.wrong("an absolute path to a folder")
        try:
            return os.path.normpath(Path(self.folder) / named.expanduser())
        except (RuntimeError, ValueError):  # the home of nobody
            raise part.wrong("a folder") from None


@dataclass(slots=True)
class SpecBuilder:
    """Fields of a submission, each with the part of the file that says it, and notes on what is left out."""

    source: SpecSource
    root: Part
    fields: dict[str, Any] = field(default_factory=dict)
    said: dict[str, Part] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def put(self, name: str, value: Any, part: Part) -> None:
        """A field of the submission, and where it was said."""
        self.fields[name] = value
        self.said[name] = part

    def note(self, part: Part, text: str) -> None:
        """Something about a part of the file that its author should know."""
        self.notes.append(f"{part.where} line {part.line}: {text}")

    def add_variables(self, variables: dict[str, str], part: Part) -> None:
        """Variables beside those that are there; what was said before stays."""
        said = self.said.get("environment", part)
        self.put("environment", variables | self.fields.get("environment", {}), said)

    def submission(self) -> Submission:
        """What was said, as a whole; or what is wrong with it, and where."""
        self.fields.setdefault("name", name_from(self.source.name))
        self.fields.setdefault("folder", self.source.folder)
        try:
            submission = msgspec.convert(self.fields, Submission)
            check_patterns_here(submission.patterns)
        except msgspec.ValidationError as error:
            raise self._located(bad_field(error)) from None
        except BadValue as error:
            raise self._located(BadField(str(error))) from None
        return submission

    def _located(self, error: BadField) -> RefoldError:
        """What a noun complains of, said of the part of the file that it comes from."""
        problem = str(error).removeprefix("job 'job-1': ")[:LONGEST_PROBLEM]
        name = re.split(r"\W", error.field or problem, maxsplit=1)[0]
        part = self.said.get(name)
        if part is None or not part.path:
            return BadLine(self.root.where, self.root.line, problem)
        if expected := _EXPECTED.fullmatch(problem.removeprefix(f"{error.field}: ")):
            return part.wrong(_in_words(expected))
        return BadLine(part.where, part.line, problem.replace(name, part.path, 1))


def _in_words(expected: re.Match[str]) -> str:
    """`int` <= 63488, as people say it."""
    kind = _KINDS.get(expected["kind"], expected["kind"])
    if expected["limit"] is None:
        return kind
    relation = {"<=": "≤", ">=": "≥"}.get(expected["relation"], expected["relation"])
    limit = f"{float(expected['limit']):,.15g}"
    return f"{kind} of a length {relation} {limit}" if expected["length"] else f"{kind} {relation} {limit}"


def name_from(text: str) -> str:
    """A name for a job, made from any text."""
    return re.sub(r"[^\w.-]+", "-", text).strip("-")[:LONGEST_NAME] or "job"


def job_name(part: Part) -> str:
    """The name that a part says."""
    name = part.text("a name", LONGEST_NAME)
    if not re.fullmatch(r"[\w.-]+", name):
        raise part.wrong("letters, digits, '.', '_' and '-'")
    return name
