"""Runs, booked until their assumed ends. A run that exceeds its assumed end is extended."""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf

from refold.model import WHOLE, Placement, Seconds
from refold.policies.backfill.bookings import Bookings, Reservation


class BookedRuns:
    """The runs on a timetable."""

    def __init__(self, bookings: Bookings) -> None:
        self._bookings = bookings
        self._runs: dict[str, Reservation] = {}
        self._ends: list[tuple[Seconds, str]] = []
        """Heap of (assumed end, job); may contain outdated entries."""

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._runs

    def add(self, job_id: str, placement: Placement, now: Seconds, end: Seconds) -> None:
        """Book a run from now until its assumed end."""
        self._bookings.table.book(placement, now, end)
        self._runs[job_id] = Reservation(placement, now, end)
        if end < inf:
            heappush(self._ends, (end, job_id))

    def end(self, job_id: str, now: Seconds) -> None:
        """Release the resources of a run that has ended, if it is booked."""
        booked = self._runs.pop(job_id, None)
        if booked is None:
            return
        if booked.end > now:
            self._bookings.table.release(booked.placement, now, booked.end)
        self._bookings.note_released(booked.placement)

    def pop_overdue(self, now: Seconds) -> list[str]:
        """Return the runs that continue although their assumed end has come; each has to be extended."""
        overdue: list[str] = []
        while self._ends and self._ends[0][0] <= now:
            end, job_id = heappop(self._ends)
            booked = self._runs.get(job_id)
            is_repeated = overdue[-1:] == [job_id]  # an earlier run of the job had the same assumed end
            if booked is not None and booked.end == end and not is_repeated:
                overdue.append(job_id)
        return overdue

    def extend(self, job_id: str, now: Seconds, end: Seconds) -> None:
        """Book a run for longer, from now until `end`."""
        booked = self._runs[job_id]
        self._bookings.table.book(booked.placement, now, end)
        self._runs[job_id] = Reservation(booked.placement, booked.start, end)
        heappush(self._ends, (end, job_id))

    def ends_and_gpus(self) -> list[tuple[Seconds, float]]:
        """Return the assumed end of each run, and the GPUs that it holds."""
        return [(run.end, _gpus(run.placement)) for run in self._runs.values()]


def _gpus(placement: Placement) -> float:
    return sum(len(share.gpus) * share.gpu_milli for share in placement) / WHOLE
