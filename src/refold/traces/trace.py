"""What every reader gives: jobs in order of submission, what was left out, and how the file was read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from refold.errors import BadRow
from refold.model import Demand, Job

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
REPLACEMENT = "\ufffd"
"""What a control character in a name is read as: it could move the cursor, or change colours, when printed."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A job history. `left_out`: the rows that could not be read; `notes`: the readings we had to choose."""

    name: str
    jobs: tuple[Job, ...]
    left_out: tuple[BadRow, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def span(self) -> float:
        """Seconds from the first submission to the last."""
        return self.jobs[-1].submitted - self.jobs[0].submitted if self.jobs else 0.0

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds of work in all; jobs of unknown length count nothing."""
        return sum(job.demand.total_gpus * (job.work or 0.0) for job in self.jobs)


def counted(count: int, noun: str) -> str:
    """'1 job', '2 jobs', '1,500 jobs'."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def in_whole_file(count: int, noun: str, what: str) -> str:
    """A note that stays true when only the first jobs of a file are used."""
    return f"in the whole file: {counted(count, noun)} {what}"


def in_order(name: str, jobs: Iterable[Job], *, left_out: Iterable[BadRow] = (), notes: Iterable[str] = ()) -> Trace:
    """A Trace of these jobs, sorted by submission (the file's order breaks ties): ids unique, names printable."""
    printable, cleaned = _with_printable_names(sorted(jobs, key=lambda job: job.submitted))
    unique, renamed = _with_unique_ids(printable)
    if cleaned:
        read_as = f"with control characters in their names, which are read as {REPLACEMENT!r}"
        notes = (*notes, in_whole_file(cleaned, "job", read_as))
    if renamed:
        notes = (*notes, in_whole_file(renamed, "repeated id", "given a suffix (such as '.2')"))
    return Trace(name, tuple(unique), tuple(left_out), tuple(notes))


def _with_unique_ids(jobs: list[Job]) -> tuple[list[Job], int]:
    """The same jobs, where the second of an id becomes `id.2`, the third `id.3`; and how many were."""
    taken = {job.id for job in jobs}
    if len(taken) == len(jobs):
        return jobs, 0
    last_turn: dict[str, int] = {}
    unique = []
    for job in jobs:
        turn = last_turn.get(job.id, 0) + 1
        if turn == 1:
            unique.append(job)
        else:
            while (new_id := f"{job.id}.{turn}") in taken:
                turn += 1
            taken.add(new_id)
            unique.append(msgspec.structs.replace(job, id=new_id))
        last_turn[job.id] = turn
    return unique, len(jobs) - len(last_turn)


def _with_printable_names(jobs: list[Job]) -> tuple[list[Job], int]:
    """The same jobs without control characters in what people read; and how many had some."""
    demands: dict[Demand, Demand] = {}
    clean: list[Job] = []
    cleaned = 0
    for job in jobs:
        demand = demands.get(job.demand)
        if demand is None:
            demand = demands[job.demand] = _printable_demand(job.demand)
        # The quick test says no to more than control characters; what it lets pass has none.
        quick = (job.id + job.tenant + job.user + job.group + job.workload).isprintable()
        if quick and demand == job.demand:
            clean.append(job)
            continue
        names = {name: _printable(getattr(job, name)) for name in ("id", "tenant", "user", "group", "workload")}
        printable = msgspec.structs.replace(job, demand=demand, **names)
        cleaned += printable != job
        clean.append(printable)
    return clean, cleaned


def _printable(text: str) -> str:
    return _CONTROL.sub(REPLACEMENT, text)


def _printable_demand(demand: Demand) -> Demand:
    if "".join(demand.gpu_types).isprintable():
        return demand
    return msgspec.structs.replace(demand, gpu_types=tuple(sorted(set(map(_printable, demand.gpu_types)))))
