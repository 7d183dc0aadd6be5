"""What every reader gives: jobs in order of submission, what was left out, and how the file was read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from refold.errors import BadRow
from refold.model import Job


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


def in_order(name: str, jobs: Iterable[Job], *, left_out: Iterable[BadRow] = (), notes: Iterable[str] = ()) -> Trace:
    """A Trace of these jobs: sorted by submission (the file's order breaks ties), every id made unique."""
    unique, renamed = _with_unique_ids(sorted(jobs, key=lambda job: job.submitted))
    if renamed:
        notes = (*notes, f"{renamed} repeated ids were given a suffix (such as '.2')")
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
