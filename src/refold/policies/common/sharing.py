"""Sharing: a waiting job gets its minimum from runs that hold more GPUs than they requested.

A job that requests a range of GPUs consents to being reshaped within it, and what it holds beyond its request is lent:
it keeps that only while no other job waits for it. Jobs without a range are sized by the policy alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from refold.model import WHOLE, Allocation, Job
from refold.placement import Placer
from refold.policies.common.draft import Draft
from refold.policies.common.options import Option

MAX_LENDERS_TRIED = 8
"""Number of lenders that are tried for a waiting job, alone and together."""


class _Lender(NamedTuple):
    """A job with more GPUs than it requested, and the shapes that it can be shrunk to, smallest first."""

    job_id: str
    held: Allocation
    shapes: list[Option]


class Sharing:
    """Places jobs on a draft by shrinking others to no less than they requested."""

    def __init__(
        self,
        draft: Draft,
        placer: Placer,
        jobs: Mapping[str, Job],
        options_of: Callable[[str], Sequence[Option]],
        with_range: Iterable[str],
    ) -> None:
        """`jobs`: all waiting and running jobs. `options_of`: the shapes that a job may have. `with_range`: jobs that
        requested a range of GPUs.
        """
        self._draft, self._placer, self._jobs, self._options_of = draft, placer, jobs, options_of
        self._with_range = with_range

    def is_possible(self) -> bool:
        """Return whether any job holds more than it requested."""
        return bool(self._lenders())

    def place(self, waiting: Iterable[str]) -> None:
        """Give each of these jobs its smallest shape, in order, if others hold enough beyond their request."""
        if not self.is_possible():
            return
        placed = [job_id for job_id in waiting if self._place_one(job_id)]
        for job_id in placed:
            self._grow(job_id)

    def _place_one(self, job_id: str) -> bool:
        before = self._draft.snapshot()
        for lenders in _groups(self._lenders()):
            for option in self._smallest_shapes(job_id):
                if self._place_by_shrinking(job_id, option, lenders):
                    return True
                self._draft.restore(before)
        return False

    def _grow(self, job_id: str) -> None:
        """Give a job that was placed here GPUs that are left free: it starts anew in any case."""
        held = self._draft.allocation_of(job_id)
        assert held is not None
        larger = [option for option in self._options_of(job_id) if option.gpus > held.gpu_milli // WHOLE]
        why = self._draft.changed.get(job_id, "")
        for option in sorted(larger, key=lambda option: -option.speed):
            if self._draft.move(job_id, self._placer, option.demand, option.plan, why):
                return

    def _place_by_shrinking(self, job_id: str, option: Option, lenders: list[_Lender]) -> bool:
        """Release lenders, place the job, then the lenders in as large a shape as fits; return whether all fit."""
        draft = self._draft
        for lender in lenders:
            draft.release(lender.job_id)
        why = "shrunk for other jobs" if job_id in draft.changed else ""
        if not draft.place(job_id, self._placer, option.demand, option.plan, why):
            return False
        if not all(draft.place_first(lender.job_id, self._placer, lender.shapes) for lender in lenders):
            return False
        for lender in lenders:
            self._grow_back(lender, job_id)
        return True

    def _grow_back(self, lender: _Lender, job_id: str) -> None:
        """Let a lender, which has its smallest shape, keep what it held, or the fastest shape that fits."""
        draft = self._draft
        draft.release(lender.job_id)
        if draft.assign(lender.job_id, lender.held):
            return
        fastest_first = sorted(lender.shapes, key=lambda option: -option.speed)
        option = draft.place_first(lender.job_id, self._placer, fastest_first)
        assert option is not None, "the smallest shape fits"
        lent = lender.held.gpu_milli // WHOLE - option.gpus
        draft.changed[lender.job_id] = f"gave {lent} GPUs beyond its request to {job_id}, which was waiting"

    def _smallest_shapes(self, job_id: str) -> list[Option]:
        """Return the shapes with the fewest GPUs: of the job's range, or as many as it requested."""
        job = self._jobs[job_id]
        minimum = job.gpu_range[0] if job.gpu_range else requested_gpus(job)
        options = [option for option in self._options_of(job_id) if option.gpus >= minimum]
        return [option for option in options if option.gpus == min(option.gpus for option in options)]

    def _lenders(self) -> list[_Lender]:
        """Return the jobs that may be shrunk, those with the most GPUs beyond their request first."""
        lenders: list[_Lender] = []
        for job_id in self._with_range:
            held = self._draft.allocation_of(job_id)
            if held is None or not self._draft.may_change(job_id):
                continue
            requested, gpus = requested_gpus(self._jobs[job_id]), held.gpu_milli // WHOLE
            if gpus > requested:
                shapes = [option for option in self._options_of(job_id) if requested <= option.gpus < gpus]
                lenders.append(_Lender(job_id, held, shapes))
        return sorted(lenders, key=lambda lender: (-self._surplus(lender), lender.job_id))

    def _surplus(self, lender: _Lender) -> int:
        return lender.held.gpu_milli // WHOLE - requested_gpus(self._jobs[lender.job_id])


def requested_gpus(job: Job) -> int:
    """Return the total number of GPUs that a job requested."""
    return job.demand.instances * job.demand.gpus


def _groups(lenders: list[_Lender]) -> Iterator[list[_Lender]]:
    """Yield no lender, each one alone, then the first two, the first three, …"""
    yield []
    yield from ([lender] for lender in lenders[:MAX_LENDERS_TRIED])
    yield from (lenders[:count] for count in range(2, min(len(lenders), MAX_LENDERS_TRIED) + 1))
