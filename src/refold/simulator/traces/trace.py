"""The result of every trace reader: jobs in order of submission, skipped rows, and notes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from refold.errors import BadRow
from refold.model import Demand, Job, Seconds, format_count

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
REPLACEMENT = "\ufffd"
"""Replaces control characters in names, which could move the cursor or change colours when printed."""


class TraceJob(NamedTuple):
    """A job, and how long it waited according to its history; None if that is not known."""

    job: Job
    wait: Seconds | None

    @classmethod
    def started_at(cls, job: Job, started: Seconds | None) -> TraceJob:
        """Return a job that waited until a time in the same clock; clocks of different machines may differ a little."""
        return cls(job, None if started is None else max(0.0, started - job.submitted))


@dataclass(frozen=True, slots=True)
class Trace:
    """A job history. `skipped_rows` could not be parsed; `notes` state the assumptions made when reading.

    `waits`: how long jobs waited, by id, as far as the history says so.
    """

    name: str
    jobs: tuple[Job, ...]
    skipped_rows: tuple[BadRow, ...] = ()
    notes: tuple[str, ...] = ()
    waits: Mapping[str, Seconds] = field(default_factory=dict)

    @property
    def span(self) -> float:
        """Seconds from the first submission to the last."""
        return self.jobs[-1].submitted - self.jobs[0].submitted if self.jobs else 0.0

    @property
    def gpu_seconds(self) -> float:
        """Total work in GPU-seconds; jobs of unknown duration count as 0."""
        return sum(job.demand.total_gpus * (job.work or 0.0) for job in self.jobs)


def whole_file_note(count: int, noun: str, what: str) -> str:
    """Return a note that remains true if only the first jobs of a file are used."""
    return f"in the whole file: {format_count(count, noun)} {what}"


def make_trace(
    name: str,
    jobs: Iterable[Job],
    *,
    skipped_rows: Iterable[BadRow] = (),
    notes: Iterable[str] = (),
    waits: Sequence[Seconds | None] = (),
) -> Trace:
    """Return a trace of the jobs sorted by submission (stable), with unique ids and printable names.

    `waits`: how long each of the jobs waited, if that is known of any.
    """
    jobs = list(jobs)
    order = sorted(range(len(jobs)), key=lambda index: jobs[index].submitted)
    printable, changed = _with_printable_names([jobs[index] for index in order])
    unique, renamed = _with_unique_ids(printable)
    if changed:
        replaced = f"with control characters in their names, replaced by {REPLACEMENT!r}"
        notes = (*notes, whole_file_note(changed, "job", replaced))
    if renamed:
        notes = (*notes, whole_file_note(renamed, "duplicate id", "given a suffix (such as '.2')"))
    known = zip(unique, (waits[index] for index in order), strict=True) if waits else ()
    waited = {job.id: wait for job, wait in known if wait is not None}
    return Trace(name, tuple(unique), tuple(skipped_rows), tuple(notes), waited)


def _with_unique_ids(jobs: list[Job]) -> tuple[list[Job], int]:
    """Rename the second job with the same id to `id.2`, the third to `id.3`; return the jobs and how many changed."""
    taken = {job.id for job in jobs}
    if len(taken) == len(jobs):
        return jobs, 0
    last_suffix: dict[str, int] = {}
    unique = []
    for job in jobs:
        suffix = last_suffix.get(job.id, 0) + 1
        if suffix == 1:
            unique.append(job)
        else:
            while (new_id := f"{job.id}.{suffix}") in taken:
                suffix += 1
            taken.add(new_id)
            unique.append(msgspec.structs.replace(job, id=new_id))
        last_suffix[job.id] = suffix
    return unique, len(jobs) - len(last_suffix)


def _with_printable_names(jobs: list[Job]) -> tuple[list[Job], int]:
    """Replace control characters in ids and names; return the jobs and how many changed."""
    demands: dict[Demand, Demand] = {}
    printable_jobs: list[Job] = []
    changed = 0
    for job in jobs:
        demand = demands.get(job.demand)
        if demand is None:
            demand = demands[job.demand] = _printable_demand(job.demand)
        # Fast path: `isprintable` is false for more than control characters, but true only if there are none.
        is_printable = (job.id + job.tenant + job.user + job.group + job.workload).isprintable()
        if is_printable and demand == job.demand:
            printable_jobs.append(job)
            continue
        names = {name: _printable(getattr(job, name)) for name in ("id", "tenant", "user", "group", "workload")}
        printable = msgspec.structs.replace(job, demand=demand, **names)
        changed += printable != job
        printable_jobs.append(printable)
    return printable_jobs, changed


def _printable(text: str) -> str:
    return _CONTROL.sub(REPLACEMENT, text)


def _printable_demand(demand: Demand) -> Demand:
    if "".join(demand.gpu_types).isprintable():
        return demand
    return msgspec.structs.replace(demand, gpu_types=tuple(sorted(set(map(_printable, demand.gpu_types)))))
