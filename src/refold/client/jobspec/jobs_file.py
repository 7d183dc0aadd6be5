"""Jobs for `refold run`: those of a job file, with their names as ids."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from time import time

from refold.client.api import Submission
from refold.client.jobspec.arrays import array_jobs
from refold.client.jobspec.reader import read_spec
from refold.errors import BadFile
from refold.model import Job, parse_array

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
