"""Step 5 of a Refold round: free GPUs go to the jobs that save the most time per GPU, if the change pays back."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf
from typing import NamedTuple

from refold.model import WHOLE, Allocation, Seconds, format_duration
from refold.placement import Placer
from refold.policies.common import Draft, Option
from refold.policies.refold.jobs import RoundJobs

MIN_SECONDS_SAVED: Seconds = 1.0
"""A job that is not running yet starts on more GPUs if that saves more than this."""


class _Larger(NamedTuple):
    """A larger shape for a job. `rank` is minus the seconds saved per additional GPU, so the best sorts first."""

    rank: float
    job_id: str
    gpus: int
    option: Option
    why: str


class Growth:
    """Gives free GPUs of a draft to jobs that have GPUs already."""

    def __init__(self, jobs: RoundJobs, draft: Draft, placer: Placer) -> None:
        self._jobs, self._draft, self._placer = jobs, draft, placer
        self._rate = 0.0
        self._free = draft.free.whole_gpus
        self._rejected: set[tuple[str, Option]] = set()
        """Shapes that do not fit."""
        self._wake_at: Seconds = inf

    def grow(self) -> Seconds:
        """Give free GPUs to the jobs that save the most time per GPU; return when another attempt is worthwhile."""
        jobs, draft = self._jobs, self._draft
        if not self._free:
            return inf
        self._rate = jobs.delay_per_gpu_second(len(jobs.view.waiting) - len(draft.starting()))
        heap = [
            larger
            for job_id in {**jobs.with_shapes, **dict.fromkeys(jobs.guaranteed)}
            if (held := draft.allocation_of(job_id)) is not None
            and self._may_grow(job_id, held)
            and (larger := self._best(job_id, held))
        ]
        heapify(heap)
        while heap and self._free:
            _, job_id, _, option, why = heappop(heap)
            if not draft.move(job_id, self._placer, option.demand, option.plan, why):
                self._rejected.add((job_id, option))
            self._free = draft.free.whole_gpus
            now_held = draft.allocation_of(job_id)
            assert now_held is not None
            following = self._best(job_id, now_held)
            if following is not None:
                heappush(heap, following)
        return self._wake_at

    def _may_grow(self, job_id: str, held: Allocation) -> bool:
        jobs, gpus = self._jobs, held.gpu_milli // WHOLE
        options = jobs.options_of(job_id)
        if options.most_gpus <= gpus or options.fewest_gpus > gpus + self._free:
            return False
        may_change = self._draft.may_change(job_id) and (job_id in jobs.guaranteed or jobs.is_settled(job_id))
        return jobs.has_other_shapes(job_id) and may_change

    def _best(self, job_id: str, held: Allocation) -> _Larger | None:
        """Return the larger shape that saves the most time per GPU; None if no other is worthwhile."""
        jobs, gpus = self._jobs, held.gpu_milli // WHOLE
        larger = [option for option in jobs.options_of(job_id) if gpus < option.gpus <= gpus + self._free]
        if not larger:
            return None
        now, best = jobs.remaining_time(job_id, held), None
        for option in larger:
            if (job_id, option) in self._rejected:
                continue
            then = jobs.run_time(job_id, option) + jobs.restart_cost(job_id, option)
            saved = now - then - self._rate * max(0.0, then * option.gpus - now * gpus)
            if not self._is_worthwhile(job_id, held, option, saved, now):
                continue
            rank = -saved / (option.gpus - gpus)
            if best is None or rank < best.rank:
                best = _Larger(rank, job_id, option.gpus, option, self._reason(job_id, option))
        return best

    def _is_worthwhile(self, job_id: str, held: Allocation, option: Option, saved: Seconds, now: Seconds) -> bool:
        """Whether a larger shape is worthwhile; for a run, it must pay back before it ends or the next job arrives."""
        restart = self._jobs.restart_cost(job_id, option)
        if not restart:
            return saved > MIN_SECONDS_SAVED
        if saved <= restart:
            return False
        startup = self._jobs.startup_seconds(job_id)
        if startup > 0:
            self._wake_at = min(self._wake_at, self._jobs.view.now + startup)
            return False
        payback = self._payback_seconds(job_id, held, option)
        if min(now, self._jobs.arrivals.gap) >= payback:
            return True
        if now > payback:
            self._wake_at = min(self._wake_at, self._jobs.arrivals.last_arrival + payback)
        return False

    def _payback_seconds(self, job_id: str, held: Allocation, option: Option) -> Seconds:
        """Return the seconds after which a run on the new shape has caught up with the run that was not restarted."""
        gained = 1 - self._jobs.speed(job_id, held) / option.speed
        return self._jobs.restart_cost(job_id, option) / gained if gained > 0 else inf

    def _reason(self, job_id: str, option: Option) -> str:
        """Return the reason for reshaping a run, relative to its present allocation; empty if it is not running."""
        run = self._jobs.view.runs.get(job_id)
        if run is None:
            return ""
        faster = option.speed / self._jobs.speed(job_id, run.allocation) - 1
        more = option.gpus - run.allocation.gpu_milli // WHOLE
        if faster <= 0 or more <= 0:
            return f"moved for other jobs, now on {option.gpus} GPUs: {faster:+.0%} speed"
        payback = format_duration(self._payback_seconds(job_id, run.allocation, option))
        return f"took {more} free GPUs: {faster:+.0%} speed, pays back in {payback}"
