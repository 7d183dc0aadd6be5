"""Job files of any supported format: Refold's YAML, batch scripts with `#SBATCH` lines, Kubernetes manifests."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path, PurePath
from time import time

import msgspec
from msgspec.structs import replace

from refold.client.api import Submission
from refold.client.jobspec.builder import SpecSource
from refold.client.jobspec.manifests import read_manifest
from refold.client.jobspec.refold_yaml import EXPECTED_JOB, read_refold_yaml
from refold.client.jobspec.sbatch import read_script
from refold.errors import BadFile, BadLine
from refold.model import Job, JobArray, parse_array, task_id
from refold.model.documents import Part, load_yaml_documents, read_text

MAX_JOBS = 1000
"""Maximum number of jobs in one file. Job arrays have a separate limit."""

MAX_NOTES = 50

_DIRECTIVE = re.compile(r"(?:[ \t]*(?:#[^\n]*)?\n)*?#SBATCH\s")
_SCRIPTS = (".sh", ".bash", ".sbatch", ".slurm")


class SpecFile(msgspec.Struct, frozen=True):
    """The submissions of a job file, notes on fields that are ignored, and the variables to export ('': not given)."""

    submissions: list[Submission]
    notes: list[str] = []
    export: str = ""


def read_spec(path: Path, folder: Path | None = None, now: float | None = None) -> SpecFile:
    """Read a job file. Relative folders in it are relative to `folder` (default: the current folder).

    Delays (`begin: 10m`) are relative to `now`, in Unix seconds (default: the current time).
    """
    return parse_spec(read_text(path), path.stem, str(path), str((folder or Path.cwd()).absolute()), now)


def parse_spec(text: str, name: str, where: str, folder: str = "", now: float | None = None) -> SpecFile:
    """Parse the text of a job file. `name`: default job name; `where`: the file's name in errors.

    `folder`: the default working folder, to which relative folders are relative; `now` as in `read_spec`.
    """
    text = text.removeprefix("\ufeff")
    _reject_lone_surrogates(text, where)
    source = SpecSource(where, name, folder, time() if now is None else now)
    if is_script(text, where):
        job = read_script(text, source)
        return SpecFile([job.submission], job.notes, job.export)
    documents = [document for document in load_yaml_documents(text, where) if document.value is not None]
    parts = [part for document in documents for part in _job_parts(document)]
    if not parts:
        raise BadLine(where, 1, f"has no jobs, expected {EXPECTED_JOB}")
    if len(parts) > MAX_JOBS:
        raise parts[MAX_JOBS].error(f"has more than {MAX_JOBS:,} jobs")
    jobs = [(read_manifest if _is_manifest(part) else read_refold_yaml)(part, source) for part in parts]
    return SpecFile([job.submission for job in jobs], _limit_notes([note for job in jobs for note in job.notes]))


def _job_parts(document: Part) -> list[Part]:
    """Return the jobs of a document, which is a job, a list of jobs, or `jobs:` and a list."""
    if isinstance(document.value, dict) and document.value.keys() == {"jobs"}:
        document = document.at("jobs")
        return document.entries("a list of jobs")
    return document.value if isinstance(document.value, list) else [document]


def _limit_notes(notes: list[str]) -> list[str]:
    """Remove duplicates and keep at most `MAX_NOTES`."""
    unique = list(dict.fromkeys(notes))
    return unique if len(unique) <= MAX_NOTES else [*unique[:MAX_NOTES], f"and {len(unique) - MAX_NOTES:,} more notes"]


def is_script(text: str, where: str) -> bool:
    """Whether the text is a script: it has a shebang, a directive before any command, or a script's file suffix."""
    return text.startswith("#!") or bool(_DIRECTIVE.match(text)) or PurePath(where).suffix in _SCRIPTS


def _is_manifest(document: Part) -> bool:
    return isinstance(document.value, dict) and not document.value.keys().isdisjoint(("apiVersion", "kind"))


def _reject_lone_surrogates(text: str, where: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        raise BadLine(where, line, "contains half of a surrogate pair, which is not a character") from None


# Job arrays (`--array`): one job per task.


def array_jobs(job: Job, array: JobArray, number: int) -> list[Job]:
    """Return the jobs of an array, whose id is that of the given job. `number`: that of the first job."""
    return [
        replace(job, id=task_id(job.id, place.task), launch=replace(job.launch, array=place))
        for place in array.places(job.id, number)
    ]


# Jobs for `refold run`: those of a job file, with their names as ids.

UNSUPPORTED = {
    "after": "jobs do not wait for each other (for a delay, use begin)",
    "hold": "jobs cannot be released",
    "secrets": "the journal would contain them",
}
"""Fields that `refold run` rejects, and why."""

IGNORED = ("retries", "never_retry", "progress", "no_progress", "notify")
"""Fields that have no effect in `refold run`."""


def read_jobs(path: Path) -> tuple[list[Job], list[str]]:
    """Read the jobs of a file, in order, and notes on fields that are ignored. Jobs of the same name are numbered."""
    now = time()
    spec = read_spec(path, now=now)
    for submission in spec.submissions:
        for field, reason in UNSUPPORTED.items():
            if getattr(submission, field):
                raise BadFile(
                    path, f"job {submission.name!r}: {field} is not supported by `refold run`: {reason}; use the daemon"
                )
    ids = _make_ids([submission.name for submission in spec.submissions])
    jobs: list[Job] = []
    for job_id, submission in zip(ids, spec.submissions, strict=True):
        delay = 0.0 if submission.begin is None else max(0.0, round(submission.begin - now, 3))
        job = submission.to_job(job_id, submission.tenant or "default", "", delay)
        jobs += array_jobs(job, parse_array(submission.array), len(jobs) + 1) if submission.array else [job]
    return jobs, [*spec.notes, *_ignored_notes(path, spec.submissions)]


def _make_ids(names: list[str]) -> list[str]:
    """Return the names, with a number if several jobs have the same."""
    repeated = {name for name, count in Counter(names).items() if count > 1}
    taken = set(names)
    ids: list[str] = []
    for name in names:
        number = 1
        while name in repeated and f"{name}-{number}" in taken:
            number += 1
        ids.append(f"{name}-{number}" if name in repeated else name)
        taken.add(ids[-1])
    return ids


def _ignored_notes(path: Path, submissions: list[Submission]) -> list[str]:
    ignored = [field for field in IGNORED if any(getattr(submission, field) for submission in submissions)]
    if any("%" in submission.array for submission in submissions):
        ignored.append("the limit of array")
    return [f"{path}: {', '.join(ignored)}: no effect in `refold run`, only in the daemon"] if ignored else []
