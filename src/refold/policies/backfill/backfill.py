"""Backfill: the first jobs in the queue have reservations; other jobs start ahead of them if they do not delay these.

`easy` makes a reservation for the first job in the queue, `conservative` for every job. A reservation names nodes,
GPUs and a time. Times follow from assumed durations, so a job is backfilled only if it will end in time with the
configured confidence. If it does not, and the first job in the queue does not start at its reserved time, the jobs
that overtook it are preempted, if they may be; otherwise its reservation is renewed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from math import inf
from typing import Any, Literal, get_args

import numpy as np

from refold.core import View
from refold.errors import BadValue
from refold.model import (
    DAY,
    MINUTE,
    NO_CHANGE,
    WHOLE,
    Allocation,
    Decision,
    Demand,
    Job,
    Placement,
    Run,
    Seconds,
    Start,
    StartEstimate,
    Stop,
    Wait,
)
from refold.packing import Placer, estimate_fifo_starts
from refold.plans import CATALOGUE_ONLY, Knowledge
from refold.policies.backfill.ordering import Ordering, OrderName
from refold.policies.backfill.preemption import free_without, runs_to_stop, will_be_free
from refold.policies.backfill.queue import BackfillQueue, Gaps, QueuedJob, QueuePosition
from refold.policies.backfill.reservations import Reservation, Reservations
from refold.policies.backfill.sizing import JobSize, Sizes
from refold.policies.backfill.start_estimates import StartEstimates
from refold.policies.common import DurationSource, DurationSourceName, Reasons

Preempt = Literal["never", "whole-node", "always"]
BackfillOrder = Literal["queue", "shortest"]

UNLIMITED_DEPTH = 2**60

MAX_NODE_CHECKS = 150_000
"""Maximum number of node checks per decision for resources that reservations leave when they move forward. Nodes on
which resources were released otherwise are always checked."""

STOP_SECONDS: Seconds = MINUTE
"""Assumed time until a stopping run has stopped; extended by the same time whenever it has passed."""

MAX_START_DELAY: Seconds = 30 * DAY
"""Start estimates are no later than this from now: a job beyond it waits for nodes that are down."""

SWITCH_FACTOR = 0.5
"""A displaced job keeps waiting for the same GPUs unless others are free within this share of that time."""

DROP_PAST_EVERY = 64
"""Number of rounds after which past bookings are dropped."""


class Backfill:
    """Common part of `easy` and `conservative`; `depth` is the number of jobs per lane that get a reservation."""

    name = "backfill"
    depth = 1

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
        max_overtaken: int = 0,
        max_wait_seconds: float = 0.0,
        depth: int = 0,
        knowledge: Knowledge | Mapping[str, Any] = CATALOGUE_ONLY,
    ) -> None:
        """Create the policy.

        `duration_quantile`: quantile of durations for reservations. `confidence`: quantile for filling gaps.
        `backfill_order`: whether gaps are offered in queue order or to the shortest job first. `preempt`: for which
        first jobs the runs that overtook them are preempted. `lanes`: whether jobs that take whole nodes have a
        separate lane. `max_overtaken`, `max_wait_seconds`: a job that was overtaken this often, or has waited this
        long, is not overtaken again (0: no limit). `depth`: number of jobs per lane that get a reservation (0: the
        default of the policy). `knowledge`: speeds for jobs with a GPU range.
        """
        _check(duration_quantile, confidence, backfill_order, preempt, max_overtaken, max_wait_seconds)
        if depth < 0:
            raise BadValue(f"depth is {depth}, expected ≥ 0 (0: the default of {self.name})")
        self.depth = depth or self.depth
        self._placer = Placer(placement, seed)
        self._durations = DurationSource(durations, knowledge)
        self._ordering = Ordering(order)
        self._duration_quantile, self._confidence = duration_quantile, confidence
        self._preempt, self._two_lanes = preempt, lanes
        self._queue = BackfillQueue(max_overtaken, max_wait_seconds or inf)
        self._gaps = Gaps(backfill_order == "shortest")
        self._estimates = StartEstimates()
        self._reasons = Reasons(self._placer)
        self._knowledge = Knowledge.from_settings(knowledge)
        self._sizes: Sizes | None = None
        self._reservations: Reservations | None = None
        self._whole_node = 0
        """GPUs of the largest node."""
        self._due: list[tuple[Seconds, str]] = []
        """Heap of (reserved start, job); may contain outdated entries."""
        self._overtakers: dict[str, tuple[QueuePosition, int]] = {}
        """Runs that may have overtaken jobs: their queue position, and the number of arrivals before their start."""
        self._displaced: dict[str, Reservation | None] = {}
        """Jobs that lost their reservation and need another: perhaps this one, the same placement at a later time."""
        self._arrivals = 0
        self._rounds = 0
        self._starts: list[Start] = []
        self._stops: list[Stop] = []

    def decide(self, view: View) -> Decision:
        """Update the timetable, start jobs whose reservation is due, make reservations, and fill the gaps."""
        self._starts, self._stops = [], []
        self._placer.observe(view)
        self._durations.observe(view)
        reservations = self._reservations_for(view)
        self._rounds += 1
        if self._rounds % DROP_PAST_EVERY == 0:
            reservations.drop_before(view.now)
        self._apply_changes(view, reservations)
        if not view.waiting:
            self._reasons.clear()
            return NO_CHANGE
        self._start_due(view, reservations)
        self._preempt_for_first(view, reservations)
        self._extend_overdue_runs(view, reservations)
        self._note_arrivals(view, reservations)
        self._make_reservations(view, reservations)
        while self._advance_reservations(view, reservations):
            self._make_reservations(view, reservations)  # the first jobs of the lanes have changed
        self._start_due(view, reservations)  # jobs that the start limit no longer holds back
        self._fill_gaps(view, reservations)
        waits = self._collect_reasons(view)
        return Decision(
            starts=tuple(self._starts),
            stops=tuple(self._stops),
            waits=waits,
            start_estimates=self._make_estimates(view, reservations),
            wake_at=self._next_due(view),
        )

    # Changes since the last round.

    def _reservations_for(self, view: View) -> Reservations:
        reservations = self._reservations
        if reservations is None:
            reservations = self._reservations = Reservations(view.cluster, self._placer)
            self._whole_node = max(node.gpus for node in view.cluster.nodes)
            for node in range(len(view.cluster.nodes)):
                self._update_node(view, reservations, node)
        return reservations

    def _apply_changes(self, view: View, reservations: Reservations) -> None:
        changes, now = view.changes, view.now
        for run in changes.ended:
            reservations.end_run(run.job, now)
            self._overtakers.pop(run.job, None)
        for job in changes.requeued:
            reservations.end_run(job.id, now)  # its start was rejected
            self._overtakers.pop(job.id, None)
        for node in changes.nodes:
            self._update_node(view, reservations, node)
        for job_id in changes.removed:
            self._remove(job_id, reservations)
            self._estimates.forget(job_id)
        for run in changes.started:
            if not reservations.has_run(run.job) and view.runs.get(run.job) is run:
                remaining = self._durations.remaining_run_time(view, run, self._duration_quantile)
                reservations.add_run(run.job, run.allocation.placement, now, now + remaining)
        if self._ordering.observe(view):
            self._queue.resort(lambda queued: self._ordering.key(view, queued.job, queued.duration))

    def _update_node(self, view: View, reservations: Reservations, node: int) -> None:
        """Note whether a node and its GPUs are up; jobs with reservations on what went down need others."""
        displaced = reservations.set_node_up(node, view.is_up(node))
        for gpu in range(view.cluster.nodes[node].gpus):
            displaced += reservations.set_gpu_up(node, gpu, view.is_gpu_up(node, gpu))
        for job_id in displaced:
            self._displace(job_id, None)

    def _remove(self, job_id: str, reservations: Reservations) -> QueuedJob | None:
        """Remove a job from the queue, with its reservation."""
        queued = self._queue.remove(job_id)
        if queued is not None:
            self._gaps.remove(queued)
            reservations.cancel(job_id)
            self._displaced.pop(job_id, None)
        return queued

    def _note_arrivals(self, view: View, reservations: Reservations) -> None:
        for job in (*view.changes.requeued, *view.changes.submitted):
            remaining = self._durations.remaining_time(view, job)
            duration = remaining.quantile(self._duration_quantile)
            backfill_duration = max(remaining.quantile(self._confidence), duration)
            self._arrivals += 1
            position = self._ordering.key(view, job, duration), self._arrivals
            queued = self._best_size(view, reservations, job, position, duration, backfill_duration)
            self._queue.add(queued)
            self._gaps.add(queued)

    def _best_size(
        self,
        view: View,
        reservations: Reservations,
        job: Job,
        position: QueuePosition,
        duration: Seconds,
        backfill_duration: Seconds,
    ) -> QueuedJob:
        """Return the job with the size at which it would end first; durations are those of what it requested."""
        candidates = [
            self._queued_job(job, size, position, duration, backfill_duration)
            for size in self._sizes_on(view).for_job(job)
        ]
        if len(candidates) == 1:
            return candidates[0]
        return min(candidates, key=lambda queued: self._estimated_end(view, reservations, queued))

    def _resize(self, view: View, reservations: Reservations, queued: QueuedJob) -> QueuedJob:
        """Return the job with another size if it would end sooner with that by now."""
        if queued.job.gpu_range is None:
            return queued
        duration, backfill_duration = queued.duration * queued.speedup, queued.backfill_duration * queued.speedup
        other = self._best_size(view, reservations, queued.job, queued.position, duration, backfill_duration)
        if other.demand == queued.demand:
            return queued
        self._gaps.remove(queued)
        self._queue.remove(queued.job.id)
        other.overtaken, other.reserved_start = queued.overtaken, queued.reserved_start
        self._queue.add(other)
        self._gaps.add(other)
        self._displaced.pop(queued.job.id, None)
        return other

    def _queued_job(
        self, job: Job, size: JobSize, position: QueuePosition, duration: Seconds, backfill_duration: Seconds
    ) -> QueuedJob:
        lane = int(self._two_lanes and size.demand.gpus >= self._whole_node)
        kind = _kind(size.demand, self._whole_node)
        return QueuedJob(job, size, position, duration / size.speedup, backfill_duration / size.speedup, lane, kind)

    def _estimated_end(self, view: View, reservations: Reservations, queued: QueuedJob) -> tuple[Seconds, int]:
        """Return when a job would end at its size, given the queue; ties are broken by the fewest GPUs."""
        reservation = reservations.find(queued.demand, queued.duration, view.now)
        queue_start = self._queue_start(view, reservations, queued)
        start = inf if reservation is None else max(reservation.start, queue_start)
        return start + queued.duration, queued.demand.total_gpu_milli

    def _queue_start(self, view: View, reservations: Reservations, queued: QueuedJob) -> Seconds:
        """Return a rough estimate of when a job without a reservation starts, given the jobs ahead of it."""
        return self._queue_starts(view, reservations, [queued])[queued.job.id]

    def _queue_starts(self, view: View, reservations: Reservations, jobs: Sequence[QueuedJob]) -> dict[str, Seconds]:
        """Return these estimates for several jobs, by one simulation of the queue up to the last of them."""
        queue = self._queue.up_to(max(jobs, key=lambda queued: queued.position))
        gpus = np.fromiter((queued.gpus for queued in queue), np.float64, len(queue))
        durations = np.fromiter((queued.duration for queued in queue), np.float64, len(queue))
        starts = estimate_fifo_starts(view.now, view.free_gpus, *reservations.ends_and_gpus(), gpus, durations)
        job_ids = {queued.job.id for queued in jobs}
        return {
            queued.job.id: min(float(start), view.now + MAX_START_DELAY)
            for queued, start in zip(queue, starts, strict=True)
            if queued.job.id in job_ids
        }

    def _sizes_on(self, view: View) -> Sizes:
        if self._sizes is None:
            self._sizes = Sizes(view.cluster, self._knowledge)
        return self._sizes

    # Reservations that are due.

    def _start_due(self, view: View, reservations: Reservations) -> None:
        """Start jobs whose reserved time has come, if their GPUs are free; postpone the others."""
        due: list[QueuedJob] = []
        while self._due and self._due[0][0] <= view.now:
            _, job_id = heappop(self._due)
            reserved = reservations.get(job_id)
            if reserved is not None and reserved.start <= view.now:
                due.append(self._queue.get(job_id))
        for queued in sorted(due, key=lambda queued: queued.position):
            reserved = reservations.get(queued.job.id)
            if reserved is None:
                continue
            if queued.position <= self._queue.start_limit(view.now) and view.trial().take(reserved.placement):
                self._start(view, reservations, queued, reserved.placement)
            else:
                reservations.postpone(queued.job.id, view.now)
                heappush(self._due, (view.now, queued.job.id))
                self._displace_later_jobs(view, reservations, queued, reserved.placement)

    def _displace_later_jobs(
        self, view: View, reservations: Reservations, queued: QueuedJob, placement: Placement
    ) -> None:
        """Cancel reservations of jobs behind `queued` that conflict with its placement from now on."""
        end = view.now + queued.duration
        for other in reservations.conflicting(placement, view.now, end):
            if self._queue.get(other).position > queued.position:
                self._displace(other, _shifted(reservations.cancel(other), end))

    def _preempt_for_first(self, view: View, reservations: Reservations) -> None:
        """Preempt runs that overtook the first job of a lane if it has not started by its reserved time.

        Without these runs it would have started by now, so in the end they have not delayed it.
        """
        for first in self._queue.first(1):
            if (
                view.now < first.reserved_start
                or first.position > self._queue.start_limit(view.now)
                or not self._may_preempt(first)
            ):
                continue
            reserved = reservations.get(first.job.id)
            if reserved is not None and reserved.start <= view.now and will_be_free(view, reserved.placement):
                continue  # its GPUs are being released
            placement = self._place_without_overtakers(view, reservations, first)
            if placement is not None:
                self._claim(view, reservations, first, placement)
                return  # the other lane follows when these runs have stopped

    def _place_without_overtakers(self, view: View, reservations: Reservations, first: QueuedJob) -> Placement | None:
        """Place the first job of a lane as if its overtakers had stopped, beside due reservations of the other lane."""
        free = free_without(view, self._preemptible_overtakers(view, first))
        for other in self._queue.first(1):
            reserved = reservations.get(other.job.id)
            if other is not first and reserved is not None and reserved.start <= view.now:
                free.take_available(reserved.placement)
        return self._placer.place(free, first.demand)

    def _preemptible_overtakers(self, view: View, queued: QueuedJob) -> list[Run]:
        """Return the runs that overtook a waiting job and may be preempted."""
        return [run for run in view.runs.values() if not run.stopping and self._may_be_stopped(view, run, queued)]

    def _claim(self, view: View, reservations: Reservations, first: QueuedJob, placement: Placement) -> None:
        """Start an overdue job on a placement if it is free; otherwise preempt runs and reserve it from now on."""
        reservations.cancel(first.job.id)
        self._displaced.pop(first.job.id, None)
        if view.trial().take(placement):
            self._start(view, reservations, first, placement)
        else:
            self._preempt_and_reserve(view, reservations, first, placement)
        self._displace_later_jobs(view, reservations, first, placement)

    def _preempt_and_reserve(
        self, view: View, reservations: Reservations, first: QueuedJob, placement: Placement
    ) -> None:
        """Preempt the runs on a placement and reserve it from now on."""
        reservations.reserve(first.job.id, first.demand, Reservation(placement, view.now, view.now + first.duration))
        self._gaps.remove(first)
        heappush(self._due, (view.now, first.job.id))
        for run in runs_to_stop(view, self._preemptible_overtakers(view, first), placement):
            self._stops.append(Stop(run.job, f"{self.name}: preempted for {first.job.id}, whose reserved start is due"))
        self._reasons.note_releasing(first.job)

    def _may_preempt(self, queued: QueuedJob) -> bool:
        if self._preempt == "never" or (self._preempt == "whole-node" and queued.demand.gpus < self._whole_node):
            return False
        return any(queued is first for first in self._queue.first(1))

    def _may_be_stopped(self, view: View, run: Run, queued: QueuedJob) -> bool:
        position, arrivals = self._overtakers.get(run.job, (queued.position, 0))
        was_waiting = queued.position[1] <= arrivals
        return was_waiting and position > queued.position and view.active[run.job].preemptible

    def _extend_overdue_runs(self, view: View, reservations: Reservations) -> None:
        """Extend runs that have exceeded their assumed end, and displace the reservations that conflict with them."""
        stopped = {stop.job for stop in self._stops}
        for job_id in reservations.pop_overdue_runs(view.now):
            run = view.runs[job_id]
            if run.stopping or job_id in stopped:
                reservations.extend_run(job_id, view.now, view.now + STOP_SECONDS)
                continue
            end = view.now + self._durations.remaining_run_time(view, run, self._duration_quantile)
            reservations.extend_run(job_id, view.now, end)
            for other in reservations.conflicting(run.allocation.placement, view.now, end):
                queued = self._queue.get(other)
                if not (self._may_preempt(queued) and self._may_be_stopped(view, run, queued)):
                    self._displace(other, _shifted(reservations.cancel(other), end))
                # otherwise the run continues until the reserved start, and is preempted then

    def _displace(self, job_id: str, later: Reservation | None) -> None:
        """Note that a job needs a new reservation, perhaps the same placement at a later time."""
        self._displaced[job_id] = later
        self._gaps.add(self._queue.get(job_id))

    # Making reservations.

    def _make_reservations(self, view: View, reservations: Reservations) -> None:
        """Give the first jobs of each lane, and jobs that lost their reservation, the earliest possible one."""
        self._cancel_beyond_depth(view, reservations)
        again = True
        while again:
            again = False
            for unreserved in sorted(self._without_reservation(reservations), key=lambda queued: queued.position):
                queued = self._resize(view, reservations, unreserved)
                reservation = self._find(view, reservations, queued)
                if reservation is None:
                    continue  # it does not fit at any time while some nodes are down
                can_start = reservation.start <= view.now and queued.position <= self._queue.start_limit(view.now)
                if can_start and view.trial().take(reservation.placement):
                    self._start(view, reservations, queued, reservation.placement)
                    again = True
                else:
                    reservations.reserve(queued.job.id, queued.demand, reservation)
                    queued.reserved_start = min(queued.reserved_start, reservation.start)
                    heappush(self._due, (reservation.start, queued.job.id))
                    self._gaps.remove(queued)
                    if view.shortage(queued.demand).instances_fit >= queued.demand.instances:
                        self._reasons.note_reserved(queued.job)
                    else:
                        self._reasons.note_resources(view, queued.job)

    def _cancel_beyond_depth(self, view: View, reservations: Reservations) -> None:
        """Cancel reservations of jobs that are no longer among the first, because jobs were inserted ahead of them."""
        if len(reservations.reserved) <= self.depth:
            return
        first = {queued.job.id for queued in self._queue.first(self.depth)}
        for job_id, reserved in list(reservations.reserved.items()):
            if job_id not in first and reserved.start > view.now:
                reservations.cancel(job_id)
                self._gaps.add(self._queue.get(job_id))

    def _without_reservation(self, reservations: Reservations) -> set[QueuedJob]:
        """Return the jobs that should have a reservation and have none."""
        if self.depth >= UNLIMITED_DEPTH:
            return set(self._gaps.jobs())
        unreserved = {queued for queued in self._queue.first(self.depth) if reservations.get(queued.job.id) is None}
        return unreserved | {self._queue.get(job_id) for job_id in self._displaced}

    def _find(self, view: View, reservations: Reservations, queued: QueuedJob) -> Reservation | None:
        """Return the earliest reservation; for a displaced job its former placement, unless another is much earlier."""
        earliest = reservations.find(queued.demand, queued.duration, view.now)
        former = self._displaced.pop(queued.job.id, None)
        if earliest is None or former is None or earliest.start < view.now + SWITCH_FACTOR * (former.start - view.now):
            return earliest
        return former if reservations.is_free(former) else earliest

    def _advance_reservations(self, view: View, reservations: Reservations) -> bool:
        """Move reservations forward after releases; return whether a job has started."""
        if not reservations.reserved or not reservations.can_advance:
            return False
        starts = len(self._starts)
        order = self._queue.in_order(reservations.reserved)
        for job_id in reservations.advance(order, view.now, MAX_NODE_CHECKS):
            queued, reserved = self._queue.get(job_id), reservations.get(job_id)
            assert reserved is not None
            if (
                reserved.start <= view.now
                and queued.position <= self._queue.start_limit(view.now)
                and view.trial().take(reserved.placement)
            ):
                self._start(view, reservations, queued, reserved.placement)
            else:
                heappush(self._due, (reserved.start, job_id))
        return len(self._starts) > starts

    def _fill_gaps(self, view: View, reservations: Reservations) -> None:
        """Start jobs without a reservation that fit for as long as they will run."""
        self._gaps.reopen(view, reservations.pop_newly_free(), reservations)
        limit = self._queue.start_limit(view.now)
        while (queued := self._gaps.next(view.now, limit, reservations)) is not None:
            placement = reservations.place_now(queued.demand, queued.backfill_duration, view.now)
            if placement is None or not view.trial().take(placement):
                self._gaps.close(queued.demand)
                continue
            self._start(view, reservations, queued, placement)
            limit = self._queue.start_limit(view.now)

    def _start(self, view: View, reservations: Reservations, queued: QueuedJob, placement: Placement) -> None:
        job_id, end = queued.job.id, view.now + queued.duration
        reserved = reservations.get(job_id)
        if reserved is not None and reserved.placement is placement:
            reservations.start_reserved(job_id, view.now, end)
            self._remove(job_id, reservations)
        else:
            self._remove(job_id, reservations)
            reservations.add_run(job_id, placement, view.now, end)
        self._durations.note_start(job_id, queued.speedup)
        self._starts.append(Start(queued.job.id, Allocation(placement, queued.plan)))
        self._estimates.note_start(queued.job.id, view.now)
        if len(self._queue):
            self._overtakers[queued.job.id] = queued.position, self._arrivals
            self._queue.count_overtaken(queued.position)

    # Reasons and start estimates.

    def _collect_reasons(self, view: View) -> tuple[Wait, ...]:
        for job in (*view.changes.requeued, *view.changes.submitted):
            if job.id in self._queue and self._gaps.may_fit(self._queue.get(job.id).demand, view.now):
                self._reasons.note_reserved(job)
        return self._reasons.collect(view, self._starts)

    def _make_estimates(self, view: View, reservations: Reservations) -> tuple[StartEstimate, ...]:
        """Return start estimates for new jobs, and for jobs whose bound has passed."""
        now = view.now
        jobs = [job.id for job in (*view.changes.requeued, *view.changes.submitted) if job.id in self._queue]
        jobs += self._estimates.pop_overdue(now)
        queue = [self._queue.get(job_id) for job_id in dict.fromkeys(jobs)]
        unreserved = [queued for queued in queue if reservations.get(queued.job.id) is None]
        queue_starts = self._queue_starts(view, reservations, unreserved) if unreserved else {}
        return tuple(self._estimate(queued, reservations.get(queued.job.id), queue_starts, now) for queued in queue)

    def _estimate(
        self, queued: QueuedJob, reserved: Reservation | None, queue_starts: Mapping[str, Seconds], now: Seconds
    ) -> StartEstimate:
        if reserved is not None:
            return self._estimates.estimate(queued.job.id, f"{queued.kind}, reserved", now, reserved.start)
        return self._estimates.estimate(queued.job.id, queued.kind, now, queue_starts[queued.job.id])

    def _next_due(self, view: View) -> Seconds | None:
        """Return when the next reservation is due; None if there is none."""
        assert self._reservations is not None
        while self._due:
            at, job_id = self._due[0]
            reserved = self._reservations.get(job_id)
            if reserved is not None and reserved.start == at and at > view.now:
                return at if at < inf else None
            if reserved is not None and reserved.start == at:
                break  # its GPUs are being released: the end of that is an event
            heappop(self._due)
        starts = (reservation.start for reservation in self._reservations.reserved.values())
        return min((start for start in starts if start > view.now), default=None)


def _shifted(reservation: Reservation | None, start: Seconds) -> Reservation | None:
    """Return the same placement and duration, from `start` on."""
    if reservation is None:
        return None
    return Reservation(reservation.placement, start, start + reservation.end - reservation.start)


def _kind(demand: Demand, whole_node: int) -> str:
    """Return the class of jobs that wait for similar resources."""
    if demand.instances * demand.gpus <= 1:
        return "one GPU" if demand.gpu_milli == WHOLE else "part of a GPU"
    if demand.gpus < whole_node:
        return "several GPUs"
    return "a node" if demand.instances == 1 else "several nodes"


def _check(
    duration_quantile: float,
    confidence: float,
    backfill_order: str,
    preempt: str,
    max_overtaken: int,
    max_wait_seconds: float,
) -> None:
    for name, quantile in (("duration_quantile", duration_quantile), ("confidence", confidence)):
        if not 0 < quantile < 1:
            raise BadValue(f"{name} is {quantile}, expected a quantile between 0 and 1")
    for name, value, allowed in (
        ("backfill_order", backfill_order, get_args(BackfillOrder)),
        ("preempt", preempt, get_args(Preempt)),
    ):
        if value not in allowed:
            raise BadValue(f"{name} is {value!r}, expected one of {', '.join(allowed)}")
    if max_overtaken < 0:
        raise BadValue(f"max_overtaken is {max_overtaken}, expected ≥ 0 (0: no limit)")
    if not max_wait_seconds >= 0:
        raise BadValue(f"max_wait_seconds is {max_wait_seconds}, expected ≥ 0 (0: no limit)")


class Easy(Backfill):
    """The first job in the queue has a reservation; other jobs start if they do not delay it."""

    name = "easy"


class Conservative(Backfill):
    """Every waiting job has a reservation; other jobs start if they delay none."""

    name = "conservative"
    depth = UNLIMITED_DEPTH
