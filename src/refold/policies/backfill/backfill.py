"""Backfill: the first jobs in the queue have reservations; other jobs start ahead of them if they do not delay these.

`easy` makes a reservation for the first job in the queue, `conservative` for every job. A reservation names nodes,
GPUs and a time. Times follow from assumed durations, so a job is backfilled only if it will end in time with the
configured confidence. If it does not, and the first job in the queue does not start at its reserved time, the jobs
that overtook it are preempted, if they may be; otherwise its reservation is renewed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import inf
from typing import Any, ClassVar, Literal, get_args

from refold.core import View
from refold.errors import BadValue
from refold.model import MINUTE, NO_CHANGE, Allocation, Decision, Placement, Seconds, Start, Stop, Wait
from refold.placement import Placer
from refold.planning.plans import CATALOGUE_ONLY, Knowledge
from refold.policies import Choices, Range, SettingRange
from refold.policies.backfill.bookings import Reservation
from refold.policies.backfill.forecast import SizeChoice
from refold.policies.backfill.ordering import Ordering, OrderName
from refold.policies.backfill.preemption import Preempt, Preemption
from refold.policies.backfill.queue import BackfillQueue, Gaps, QueuedJob, QueuedRequest
from refold.policies.backfill.schedule import Schedule
from refold.policies.common import DurationSource, DurationSourceName, Reasons

BackfillOrder = Literal["queue", "shortest"]

STOP_SECONDS: Seconds = MINUTE
"""Assumed time until a stopping run has stopped; extended by the same time whenever it has passed."""

CONSERVATIVE_DEPTH = 500
"""Number of jobs per lane that get a reservation under `conservative`: it bounds the time of a decision."""

DROP_PAST_EVERY = 64
"""Number of rounds after which past bookings are dropped."""


class Backfill:
    """Common part of `easy` and `conservative`; `depth` is the number of jobs per lane that get a reservation."""

    name = "backfill"
    depth = 1
    ranges: ClassVar[Mapping[str, SettingRange]] = {
        "order": Choices(("arrival", "fair-share", "shortest", "attained")),
        "duration_quantile": Range(0.1, 0.95),
        "confidence": Range(0.1, 0.95),
        "backfill_order": Choices(("queue", "shortest")),
        "preempt": Choices(("never", "whole-node", "always")),
        "lanes": Choices((False, True)),
        "depth": Choices((1, 2, 4, 8, 16, 64)),
    }

    def __init__(
        self,
        placement: str = "best-fit",
        seed: int = 0,
        order: OrderName = "arrival",
        durations: DurationSourceName = "predicted",
        duration_quantile: float = 0.5,
        confidence: float = 0.8,
        backfill_order: BackfillOrder = "shortest",
        preempt: Preempt = "always",
        lanes: bool = False,
        depth: int = 0,
        knowledge: Knowledge | Mapping[str, Any] = CATALOGUE_ONLY,
    ) -> None:
        """Create the policy.

        `duration_quantile`: quantile of durations for reservations. `confidence`: quantile for filling gaps.
        `backfill_order`: whether gaps are offered in queue order or to the shortest job first. `preempt`: for which
        first jobs the runs that overtook them are preempted. `lanes`: whether jobs that take whole nodes have a
        separate lane. `depth`: number of jobs per lane that get a reservation (0: the default of the policy).
        `knowledge`: speeds for jobs with a GPU range.
        """
        _check(duration_quantile, confidence, backfill_order, preempt)
        if depth < 0:
            raise BadValue(f"depth is {depth}, expected ≥ 0 (0: the default of {self.name})")
        self.depth = depth or self.depth
        self._placer = Placer(placement, seed)
        self._durations = DurationSource(durations, knowledge)
        self._ordering = Ordering(order)
        self._duration_quantile, self._confidence = duration_quantile, confidence
        self._two_lanes = lanes
        self._shortest_first = backfill_order == "shortest"
        self._preemption = Preemption(preempt, self._placer)
        self._reasons = Reasons(self._placer)
        self._knowledge = Knowledge.from_settings(knowledge)
        self._schedule: Schedule | None = None
        self._arrivals = 0
        self._rounds = 0
        self._starts: list[Start] = []
        self._stops: list[Stop] = []

    def decide(self, view: View) -> Decision:
        """Update the schedule, start jobs whose reservation is due, make reservations, and fill the gaps."""
        self._starts, self._stops = [], []
        schedule = self._observe(view)
        if not view.waiting:
            self._reasons.clear()
            return NO_CHANGE
        self._start_due(view, schedule)
        self._preempt_for_first(view, schedule)
        self._extend_overdue_runs(view, schedule)
        if self._start_at_once(view, schedule):
            return Decision(tuple(self._starts), waits=self._reasons.collect(view, self._starts))
        self._note_arrivals(view, schedule)
        self._make_reservations(view, schedule)
        while self._advance_reservations(view, schedule):
            self._make_reservations(view, schedule)  # the first jobs of the lanes have changed
        self._fill_gaps(view, schedule)
        waits = self._collect_reasons(view, schedule)
        return Decision(tuple(self._starts), tuple(self._stops), waits=waits, wake_at=schedule.due.next(view.now))

    def _observe(self, view: View) -> Schedule:
        """Update the schedule by what has changed since the last round."""
        self._placer.observe(view)
        self._durations.observe(view)
        schedule = self._schedule
        if schedule is None:
            second_lane_gpus = view.cluster.max_node_gpus if self._two_lanes else inf
            queue = BackfillQueue(second_lane_gpus)
            schedule = self._schedule = Schedule(view, self._placer, queue, Gaps(self._shortest_first))
            self._sizes = SizeChoice(view, self._knowledge)
        self._rounds += 1
        if self._rounds % DROP_PAST_EVERY == 0:
            schedule.bookings.table.drop_before(view.now)
        self._apply_changes(view, schedule)
        if self._ordering.observe(view):
            schedule.queue.resort(lambda queued: self._ordering.key(view, queued.job, queued.duration))
        return schedule

    def _apply_changes(self, view: View, schedule: Schedule) -> None:
        changes, now = view.changes, view.now
        ended = (*(run.job for run in changes.ended), *(job.id for job in changes.requeued))
        for job_id in ended:  # jobs were requeued without a run if their start was rejected
            schedule.runs.end(job_id, now)
            self._preemption.forget(job_id)
        for node in changes.nodes:
            schedule.update_node(view, node)
        for job_id in changes.removed:
            schedule.remove(job_id)
        for run in changes.started:
            if run.job not in schedule.runs and view.runs.get(run.job) is run:
                remaining = self._durations.remaining_run_time(view, run, self._duration_quantile)
                schedule.runs.add(run.job, run.allocation.placement, now, now + remaining)

    def _note_arrivals(self, view: View, schedule: Schedule) -> None:
        for job in (*view.changes.requeued, *view.changes.submitted):
            remaining = self._durations.remaining_time(view, job)
            duration = remaining.quantile(self._duration_quantile)
            backfill_duration = max(remaining.quantile(self._confidence), duration)
            self._arrivals += 1
            position = self._ordering.key(view, job, duration), self._arrivals
            schedule.add(self._sizes.best(view, schedule, QueuedRequest(job, position, duration, backfill_duration)))

    # Reservations that are due.

    def _start_due(self, view: View, schedule: Schedule) -> None:
        """Start jobs whose reserved time has come, if their GPUs are free; postpone the others."""
        for queued in schedule.pop_due(view.now):
            reserved = schedule.reservations.get(queued.job.id)
            if reserved is not None and not self._start_if_free(view, schedule, queued, reserved):
                schedule.postpone(queued, view.now)
                _displace_later_jobs(schedule, queued, reserved.placement, view.now)

    def _preempt_for_first(self, view: View, schedule: Schedule) -> None:
        """Start the first job of a lane that is overdue, or preempt the runs that overtook it and reserve their GPUs.

        Without these runs it would have started by now, so in the end they have not delayed it.
        """
        claim = self._preemption.find_claim(view, schedule)
        if claim is None:
            return
        first, placement = claim
        if view.trial().take(placement):
            self._start(view, schedule, first, placement)
        else:
            schedule.reserve(first, Reservation(placement, view.now, view.now + first.duration))
            for run in self._preemption.runs_to_stop(view, claim):
                why = f"{self.name}: preempted for {first.job.id}, whose reserved start is due"
                self._stops.append(Stop(run.job, why))
            self._reasons.note_releasing(first.job)
        _displace_later_jobs(schedule, first, placement, view.now)

    def _extend_overdue_runs(self, view: View, schedule: Schedule) -> None:
        """Extend runs that have exceeded their assumed end, and displace the reservations that conflict with them."""
        overdue = schedule.runs.pop_overdue(view.now)
        stopped = {stop.job for stop in self._stops} if overdue else ()
        for job_id in overdue:
            run = view.runs[job_id]
            if run.stopping or job_id in stopped:
                schedule.runs.extend(job_id, view.now, view.now + STOP_SECONDS)
                continue
            end = view.now + self._durations.remaining_run_time(view, run, self._duration_quantile)
            schedule.runs.extend(job_id, view.now, end)
            makes_way = partial(self._preemption.delays, view, schedule, run)
            schedule.displace_conflicting(run.allocation.placement, view.now, end, makes_way)

    def _start_at_once(self, view: View, schedule: Schedule) -> bool:
        """Start a job that has arrived while no other waits, if it fits now; return whether it does."""
        submitted = view.changes.submitted
        if len(schedule.queue) or len(submitted) != 1 or len(view.waiting) != 1:
            return False
        job, now, bookings = submitted[0], view.now, schedule.bookings
        if job.gpu_range is not None or not view.trial().free.fits_one_instance(job.demand):
            return False
        duration = self._durations.remaining_time(view, job).quantile(self._duration_quantile)
        placement = view.trial().place(self._placer, job.demand) if bookings.fits(job.demand, duration, now) else None
        if placement is None:
            return False
        self._arrivals += 1
        bookings.pop_newly_free()  # it is for jobs that wait
        schedule.runs.add(job.id, placement, now, now + duration)
        self._durations.note_start(job.id, 1.0)
        self._starts.append(Start(job.id, Allocation(placement)))
        return True

    # Making reservations and filling gaps.

    def _make_reservations(self, view: View, schedule: Schedule) -> None:
        """Give the first jobs of each lane, and jobs that lost their reservation, the earliest possible one."""
        schedule.cancel_beyond_depth(self.depth, view.now)
        again = True
        while again:
            again = False
            for unreserved in schedule.without_reservation(self.depth):
                queued = self._sizes.update(view, schedule, unreserved)
                reservation = schedule.find(queued, view.now)
                if reservation is None:
                    self._reasons.note_resources(view, queued.job)
                    continue  # it does not fit at any time while some nodes are down
                if self._start_if_free(view, schedule, queued, reservation):
                    again = True
                    continue
                schedule.reserve(queued, reservation)
                if view.shortage(queued.demand).instances_fit >= queued.demand.instances:
                    self._reasons.note_reserved(queued.job)
                else:
                    self._reasons.note_resources(view, queued.job)

    def _advance_reservations(self, view: View, schedule: Schedule) -> bool:
        """Move reservations forward after releases; return whether a job has started."""
        starts = len(self._starts)
        for queued in schedule.advance(view.now):
            self._start_if_free(view, schedule, queued, schedule.reservations.by_job[queued.job.id])
        return len(self._starts) > starts

    def _fill_gaps(self, view: View, schedule: Schedule) -> None:
        """Start jobs without a reservation that fit for as long as they will run."""
        gaps, bookings = schedule.gaps, schedule.bookings
        gaps.reopen(view, bookings)
        while (queued := gaps.next(view.now, bookings)) is not None:
            placement = bookings.place_now(queued.demand, queued.backfill_duration, view.now)
            if placement is None or not view.trial().take(placement):
                gaps.close(queued.demand)
                continue
            self._start(view, schedule, queued, placement)

    def _start_if_free(self, view: View, schedule: Schedule, queued: QueuedJob, reserved: Reservation) -> bool:
        """Start a job if its reserved time has come and the GPUs are free; return whether it starts."""
        if reserved.start > view.now or not view.trial().take(reserved.placement):
            return False
        self._start(view, schedule, queued, reserved.placement)
        return True

    def _start(self, view: View, schedule: Schedule, queued: QueuedJob, placement: Placement) -> None:
        job_id = queued.job.id
        schedule.start(queued, placement, view.now)
        self._durations.note_start(job_id, queued.speedup)
        self._starts.append(Start(job_id, Allocation(placement, queued.plan)))
        if len(schedule.queue):
            self._preemption.note_start(queued, self._arrivals)

    def _collect_reasons(self, view: View, schedule: Schedule) -> tuple[Wait, ...]:
        queue = schedule.queue
        for job in (*view.changes.requeued, *view.changes.submitted):
            if job.id in queue and schedule.gaps.may_fit(queue.get(job.id).demand, view.now):
                self._reasons.note_reserved(job)
        return self._reasons.collect(view, self._starts)


def _displace_later_jobs(schedule: Schedule, queued: QueuedJob, placement: Placement, now: Seconds) -> None:
    """Cancel reservations of jobs behind `queued` that conflict with its placement from now on."""
    end = now + queued.duration
    schedule.displace_conflicting(placement, now, end, lambda other: other.position > queued.position)


def _check(duration_quantile: float, confidence: float, backfill_order: str, preempt: str) -> None:
    for name, quantile in (("duration_quantile", duration_quantile), ("confidence", confidence)):
        if not 0 < quantile < 1:
            raise BadValue(f"{name} is {quantile}, expected a quantile between 0 and 1")
    for name, value, allowed in (
        ("backfill_order", backfill_order, get_args(BackfillOrder)),
        ("preempt", preempt, get_args(Preempt)),
    ):
        if value not in allowed:
            raise BadValue(f"{name} is {value!r}, expected one of {', '.join(allowed)}")


class Easy(Backfill):
    """The first job in the queue has a reservation; other jobs start if they do not delay it."""

    name = "easy"


class Conservative(Backfill):
    """The first jobs in the queue have reservations; other jobs start if they delay none of them."""

    name = "conservative"
    depth = CONSERVATIVE_DEPTH
