"""Files of jobs, as people have them: our own YAML, batch scripts with `#SBATCH` lines, manifests of Kubernetes."""

from __future__ import annotations

import re
from pathlib import Path, PurePath

import msgspec

from refold.api import Submission
from refold.documents import BadLine, Part, load_all, read_text
from refold.jobspec.builder import SpecSource
from refold.jobspec.manifests import read_manifest
from refold.jobspec.refold_yaml import JOB, read_own
from refold.jobspec.sbatch import read_script

MOST_JOBS = 1000
"""Of one file, but for arrays, which have a limit of their own."""

MOST_NOTES = 50

_DIRECTIVE = re.compile(r"(?:[ \t]*(?:#[^\n]*)?\n)*?#SBATCH\s")
_SCRIPTS = (".sh", ".bash", ".sbatch", ".slurm")


class SpecFile(msgspec.Struct, frozen=True):
    """What a file asks for, and notes on what of it is not honoured."""

    submissions: list[Submission]
    notes: list[str] = []


def read_spec(path: Path, folder: Path | None = None) -> SpecFile:
    """The jobs of a file. Relative folders in it are inside of `folder`, which is the current one unless said."""
    return parse_spec(read_text(path), path.stem, str(path), str((folder or Path.cwd()).absolute()))


def parse_spec(text: str, name: str, where: str, folder: str = "") -> SpecFile:
    """The jobs that a text asks for. `name`: what they are called that have none; `where`: the file's name in errors.

    `folder`: where jobs run that say nothing else, and what relative folders are inside of.
    """
    text = text.removeprefix("\ufeff")
    _refuse_half_characters(text, where)
    source = SpecSource(where, name, folder)
    if is_script(text, where):
        return SpecFile(*read_script(text, source))
    documents = [document for document in load_all(text, where) if document.value is not None]
    if not documents:
        raise BadLine(where, 1, f"is empty, expected {JOB}")
    if len(documents) > MOST_JOBS:
        raise documents[MOST_JOBS].refused(f"has more than {MOST_JOBS:,} jobs")
    submissions: list[Submission] = []
    notes: list[str] = []
    for document in documents:
        submission, more = (read_manifest if _is_manifest(document) else read_own)(document, source)
        submissions.append(submission)
        notes += more
    return SpecFile(submissions, _some(notes))


def _some(notes: list[str]) -> list[str]:
    """Each note once, and not more of them than anybody reads."""
    once = list(dict.fromkeys(notes))
    return once if len(once) <= MOST_NOTES else [*once[:MOST_NOTES], f"and {len(once) - MOST_NOTES:,} more notes"]


def is_script(text: str, where: str) -> bool:
    """Whether it is for a shell: by its first line, a directive before any command, or the name of its file."""
    return text.startswith("#!") or bool(_DIRECTIVE.match(text)) or PurePath(where).suffix in _SCRIPTS


def _is_manifest(document: Part) -> bool:
    return isinstance(document.value, dict) and not document.value.keys().isdisjoint(("apiVersion", "kind"))


def _refuse_half_characters(text: str, where: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        raise BadLine(where, line, "has half of a surrogate pair, which is no character") from None
