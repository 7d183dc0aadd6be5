"""Step 3 of a Refold round: runs with more remaining work are shrunk, moved or stopped for a job.

The delays of all jobs affected are summed in seconds, restarts included, and compared with the delay of waiting. The
delay of a job of unknown length cannot be computed: it preempts runs whose weighted remaining work is several times its
own (`preemption_margin`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from math import inf
from typing import Any, NamedTuple

import numpy as np

from refold.model import WHOLE, Allocation, Seconds, format_duration
from refold.placement import Floats, Ints, Placer
from refold.policies.common import Draft, Option
from refold.policies.refold.clearing import Clearing
from refold.policies.refold.jobs import Protection, RoundJobs
from refold.policies.refold.table import Flags

MAX_SHAPES_TRIED = 6
"""Number of a job's best shapes that are tried when it preempts."""

RESTARTS_OF_LENT_GPUS = 2
"""A run that is shrunk for a shorter job can have its GPUs back after it: then it has been restarted twice."""

MAX_FOLLOWERS = 20.0
"""Most arrivals that are assumed to wait behind a waiting job."""

MAX_FIRST_NODES = 8
"""Number of nodes that are tried as the first node from which guaranteed runs are moved."""

MIN_RANKED = 128
"""Number of runs that are sorted first, of those that may be preempted."""


class _Preemption(NamedTuple):
    """A draft in which a job has preempted others, and the total delay, in seconds at the preemptor's weight."""

    cost: Seconds
    draft: Any


class _LazyList:
    """Job ids that are computed on demand and remembered, so that they can be iterated again."""

    def __init__(self, source: Iterable[str]) -> None:
        self._source, self._found = iter(source), list[str]()

    def __iter__(self) -> Iterator[str]:
        yield from self._found
        for job_id in self._source:
            self._found.append(job_id)
            yield job_id

    def __bool__(self) -> bool:
        return next(iter(self), None) is not None


class Preemptor:
    """Places jobs on a draft by preempting others."""

    def __init__(self, jobs: RoundJobs, draft: Draft, placer: Placer) -> None:
        self._jobs, self._draft, self._placer = jobs, draft, placer
        self._victims = _Victims(jobs, draft)
        self._estimated_ends: list[tuple[Seconds, str]] | None = None
        self.gpus_ahead = 0
        """GPUs that jobs need that are before the current one and still wait."""

    def preempt_for(
        self, job_id: str, ranked: list[Option], costs: Mapping[Option, Seconds], placed: Option | None
    ) -> bool:
        """Preempt other jobs if the total delay is smaller than without; return whether it is.

        `ranked`: shapes, that with the lowest of the `costs` first. `placed`: the shape that the job has without
        preemption.
        """
        guaranteed = job_id in self._jobs.guaranteed
        if not guaranteed and not self._victims.exist:
            return False
        draft, victims = self._draft, _LazyList(self._victims.for_job(job_id))
        if not victims and not guaranteed:
            return False
        before = draft.snapshot()
        if placed is not None:
            draft.release(job_id)
        without_job = draft.snapshot()
        without_preemption = costs[placed] if placed is not None else self._cost_of_waiting(job_id, ranked, costs)
        best = _Preemption(without_preemption, None)
        for option in ranked if guaranteed else ranked[:MAX_SHAPES_TRIED]:
            cost = costs[option]
            if placed is None and without_preemption < inf:  # arrivals that do not wait with this job wait for it
                cost += self._delay_of_arrivals(self._jobs.run_time(job_id, option))
            if cost >= best.cost:  # even if nobody is delayed
                continue
            draft.restore(without_job)
            cost += self._place_by_displacing(job_id, option, victims) / self._jobs.weight(job_id)
            if cost < best.cost:
                best = _Preemption(cost, draft.snapshot())
        if guaranteed and best.draft is None:
            draft.restore(without_job)
            best = self._make_room(job_id, ranked, victims)
        draft.restore(best.draft or before)
        if best.draft is None:
            return False
        self._update_estimated_ends({*before.changed, *draft.changed})
        return True

    def _update_estimated_ends(self, changed: set[str]) -> None:
        """Estimate the ends of these jobs again: of thousands, a preemption changes few."""
        if self._estimated_ends is None:
            return
        ends = [end for end in self._estimated_ends if end[1] not in changed]
        for job_id in changed:
            held = self._draft.allocation_of(job_id)
            if held is not None:
                ends.append((self._jobs.remaining_time(job_id, held), job_id))
        self._estimated_ends = sorted(ends)

    def _make_room(self, job_id: str, ranked: list[Option], victims: Iterable[str]) -> _Preemption:
        """Place a guaranteed job in the first of its shapes, smallest first, for which there can be room."""
        draft, before = self._draft, self._draft.snapshot()
        starting = [other for other, _ in draft.allocations() if other not in self._jobs.view.runs]
        clearing = Clearing(self._jobs, draft, self._placer, [*victims, *starting])
        for option in sorted(ranked, key=lambda option: option.gpus):
            if option.gpus > self._jobs.by_id[job_id].demand.total_gpus:
                break

            def place_victim(other: str, held: Allocation, option: Option = option) -> Seconds:
                return self._place_victim(other, held, self._jobs.remaining_time(other, held), job_id, option)

            for skipped in range(MAX_FIRST_NODES):
                harm = clearing.place(job_id, option, skipped, place_victim)
                if harm is not None:
                    return _Preemption(harm, draft.snapshot())
                draft.restore(before)
        return _Preemption(inf, None)

    def _cost_of_waiting(self, job_id: str, ranked: list[Option], costs: Mapping[Option, Seconds]) -> Seconds:
        """Return the cost of waiting until enough runs have ended for this job and those before it.

        Jobs that arrive in the meantime wait as well, on average half as long. The cost is infinite for guaranteed and
        overdue jobs, and for those of unknown length.
        """
        jobs, draft = self._jobs, self._draft
        if job_id in jobs.guaranteed or jobs.is_overdue(job_id) or not jobs.knows_work(job_id):
            return inf
        before = draft.snapshot()
        if self._estimated_ends is None:
            ends = ((jobs.remaining_time(other, held), other) for other, held in draft.allocations())
            self._estimated_ends = sorted(ends)
        fewest_gpus = min(option.gpus for option in ranked)
        try:
            for seconds, other in self._estimated_ends:
                draft.release(other)
                available = draft.free.whole_gpus - self.gpus_ahead
                if available < fewest_gpus:
                    continue
                placed = draft.place_first(job_id, self._placer, (o for o in ranked if o.gpus <= available))
                if placed is not None:
                    return seconds + costs[placed] + self._delay_of_arrivals(seconds)
            return inf
        finally:
            draft.restore(before)

    def _delay_of_arrivals(self, seconds: Seconds) -> Seconds:
        """Return the total delay of the jobs that arrive while GPUs are not free: each waits half of it, on average."""
        gap = self._jobs.arrivals.mean_gap
        return min(seconds / gap, MAX_FOLLOWERS) * seconds / 2 if gap else 0.0

    def _place_by_displacing(self, job_id: str, option: Option, victims: Iterable[str]) -> Seconds:
        """Place a job by releasing victims, in order, until it fits; then place the victims again.

        Returns the weighted delay of the victims; infinite if the job does not fit or a guarantee would be broken.
        """
        draft, moved = self._draft, dict[str, tuple[Allocation, Seconds]]()
        is_placed = draft.place(job_id, self._placer, option.demand, option.plan)
        for other in victims:
            if is_placed:
                break
            held = draft.allocation_of(other)
            if held is not None and self._victims.may_be_displaced(other, job_id):
                moved[other] = held, self._jobs.remaining_time(other, held)
                draft.release(other)
                is_placed = draft.place(job_id, self._placer, option.demand, option.plan)
        if not is_placed:
            return inf
        guaranteed_first = sorted(moved, key=lambda other: other not in self._jobs.guaranteed)
        return sum(self._place_victim(other, *moved[other], job_id, option) for other in guaranteed_first)

    def _place_victim(
        self, job_id: str, held: Allocation, before: Seconds, preemptor: str, preemptor_option: Option
    ) -> Seconds:
        """Place a victim again and return its weighted delay.

        It keeps its allocation if possible. Otherwise it gets the fastest shape that fits, until it ends or, if that is
        better, until the preemptor has ended. If none fits, it waits until the preemptor has ended.
        """
        jobs, draft = self._jobs, self._draft
        if draft.assign(job_id, held):
            return 0.0
        gpus = held.gpu_milli // WHOLE
        option = draft.place_first(job_id, self._placer, self._fallback_shapes(job_id))
        if option is not None:
            later = max(0.0, jobs.run_time(job_id, option) - before) + jobs.restart_cost(job_id, option)
            slower = max(0.0, 1 - option.speed / jobs.speed(job_id, held))
            lent = RESTARTS_OF_LENT_GPUS * jobs.restart_cost(job_id, option)
            later = min(later, lent + slower * jobs.run_time(preemptor, preemptor_option))
            change = (
                f"gave {gpus - option.gpus} GPUs to {preemptor}" if option.gpus < gpus else f"moved for {preemptor}"
            )
            draft.changed[job_id] = f"{change}: −{slower:.0%} speed, ends {format_duration(later)} later"
            return later * jobs.weight(job_id) + self._idle_cost(job_id, option.gpus)
        if job_id in jobs.guaranteed:
            return inf
        wait = jobs.run_time(preemptor, preemptor_option) + jobs.restart_cost(job_id)
        resumes = format_duration(wait)
        if preemptor in jobs.guaranteed:
            reason = "is guaranteed"
        else:
            by_share = jobs.is_ahead_by_fair_share(preemptor, job_id)
            reason = "goes first by fair share" if by_share else "has less work left"
        draft.changed[job_id] = f"gave all {gpus} GPUs to {preemptor}, which {reason}: resumes in about {resumes}"
        return wait * jobs.weight(job_id) + self._idle_cost(job_id, gpus)

    def _fallback_shapes(self, job_id: str) -> Sequence[Option]:
        """Return the shapes to try for a victim, in order; none for a run that cannot be reshaped, only stopped."""
        jobs = self._jobs
        if job_id in jobs.view.runs and not jobs.by_id[job_id].reshapable:
            return ()
        # A guaranteed victim gets its smallest shape, to leave GPUs for other guaranteed victims.
        smallest_first = jobs.guarantee_options.get(job_id)
        return smallest_first or sorted(jobs.options_of(job_id), key=lambda option: -option.speed)

    def _idle_cost(self, job_id: str, gpus: int) -> Seconds:
        """Return the delay of waiting jobs caused by GPUs that restart a job and do not compute."""
        view = self._jobs.view
        return self._jobs.restart_cost(job_id) * gpus * len(view.waiting) / max(view.cluster.gpus, 1)


class _Victims:
    """The jobs that may be preempted."""

    def __init__(self, jobs: RoundJobs, draft: Draft) -> None:
        self._jobs, self._draft = jobs, draft
        self._protections: dict[str, Protection] = {}

    def for_job(self, job_id: str) -> Iterable[str]:
        """Return the jobs that a job may displace: lowest priority first, then most remaining work.

        Whether each `may_be_displaced` is not checked here: of thousands, only the first few are.
        """
        jobs, ranked = self._jobs, self._ranked
        if job_id in jobs.guaranteed:
            held = [other for other in jobs.table.ids[ranked.all.rows] if other != job_id and self._may_change(other)]
            return sorted(held, key=lambda other: other in jobs.guaranteed)  # other guaranteed jobs last
        margin = 1.0 if jobs.knows_work(job_id) else jobs.settings.preemption_margin
        work = 0.0 if jobs.is_overdue(job_id) else margin * jobs.weighted_work_of(job_id)
        longer = map(jobs.table.ids.__getitem__, ranked.before(jobs.by_id[job_id].priority, work))
        return chain(longer, self._wide_jobs_for(job_id, work)) if jobs.is_wide_beyond_share(job_id) else longer

    def _wide_jobs_for(self, job_id: str, work: float) -> Iterator[str]:
        """Yield the wide runs with more work that a wide job may displace, although their weighted work is less."""
        jobs, table, rows = self._jobs, self._jobs.table, self._preferred_wide_runs
        priority = jobs.by_id[job_id].priority
        others = rows[(table.column("priority")[rows] == priority) & (jobs.weighted_work[rows] <= work)]
        own_work = jobs.work[table.row_of[job_id]]
        longer = others[jobs.work[others] > jobs.settings.preemption_margin * own_work]
        yield from table.ids[_rank(jobs, longer).rows]

    def may_be_displaced(self, other: str, job_id: str) -> bool:
        """Return whether a run may be stopped for a job: not one that was restarted recently, if it is as urgent."""
        jobs, protection = self._jobs, self._protections.get(other)
        if protection is None:
            may_change = self._draft.may_change(other)
            protection = self._protections[other] = jobs.protection(other) if may_change else Protection.FROM_ALL
        if protection is Protection.NONE or protection is Protection.FROM_ALL:
            return protection is Protection.NONE
        if job_id in jobs.guaranteed or jobs.by_id[other].priority < jobs.by_id[job_id].priority:
            return True
        is_ahead = jobs.by_id[job_id].submitted < jobs.by_id[other].submitted
        return protection is Protection.UNLESS_OVERDUE and is_ahead and jobs.is_overdue(job_id)

    def _may_change(self, other: str) -> bool:
        return self._draft.allocation_of(other) is not None and self._draft.may_change(other)

    @cached_property
    def exist(self) -> bool:
        """Whether any run may be stopped."""
        return bool(self._jobs.table.column("may_be_stopped").any())

    @cached_property
    def _ranked(self) -> _RankedRuns:
        return _RankedRuns(self._jobs, self._may_be_stopped)

    @cached_property
    def _preferred_wide_runs(self) -> Ints:
        """The rows of preferred wide runs that may be stopped."""
        return np.flatnonzero(self._may_be_stopped & self._jobs.is_preferred_wide_job)

    @cached_property
    def _may_be_stopped(self) -> Flags:
        """By row, which runs may be changed; guaranteed ones only if they have another shape."""
        jobs, table = self._jobs, self._jobs.table
        may_be_stopped: Flags = table.column("may_be_stopped").copy()
        fixed = [job_id for job_id in jobs.guaranteed if not jobs.has_other_shapes(job_id)]
        may_be_stopped[table.rows([*fixed, *self._draft.without_allocation()])] = False
        return may_be_stopped


class _Ranking(NamedTuple):
    """Rows of runs: lowest priority first, then least minus the weighted work, that is, most work."""

    rows: Ints
    priority: Ints
    minus_work: Floats

    def count_before(self, priority: int, work: float) -> int:
        """Return the number of runs with a lower priority, or with this one and more work."""
        first, end = bisect_left(self.priority, priority), bisect_right(self.priority, priority)
        return bisect_left(self.minus_work, -work, first, end)


def _rank(jobs: RoundJobs, rows: Ints) -> _Ranking:
    """Sort rows by priority and work."""
    rows = jobs.table.sort(rows, jobs.table.column("priority")[rows], -jobs.weighted_work[rows])
    return _Ranking(rows, jobs.table.column("priority")[rows], -jobs.weighted_work[rows])


class _RankedRuns:
    """Runs by priority and work. There may be thousands, of which mostly the first few are needed."""

    def __init__(self, jobs: RoundJobs, is_included: Flags) -> None:
        self._jobs, self._is_included = jobs, is_included
        self._size = np.count_nonzero(is_included)

    def before(self, priority: int, work: float) -> Iterator[int]:
        """Yield the rows of the runs with a lower priority, or with this one and more work."""
        first = self._first
        count = first.count_before(priority, work)
        yield from first.rows[:count].tolist()
        if count == len(first.rows) < self._size:
            yield from self.all.rows[count : self.all.count_before(priority, work)].tolist()

    @cached_property
    def _first(self) -> _Ranking:
        """The first ones, at least `MIN_RANKED`; all if they have several priorities."""
        (rows,) = self._is_included.nonzero()
        priority, work = self._jobs.table.column("priority")[rows], self._jobs.weighted_work[rows]
        if len(rows) <= MIN_RANKED or (priority != priority[0]).any():
            return self.all
        return _rank(self._jobs, rows[work >= np.partition(work, -MIN_RANKED)[-MIN_RANKED]])

    @cached_property
    def all(self) -> _Ranking:
        """All of them."""
        return _rank(self._jobs, self._is_included.nonzero()[0])
