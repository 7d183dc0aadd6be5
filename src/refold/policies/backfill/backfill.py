"""Backfill: whoever is first is promised a place and a time; others start before it where that is not in its way.

`easy` promises a place to the first in the queue, `conservative` to everybody. Places name nodes and GPUs. Times come
from how long jobs are believed to last, so a job is put before others only if it will have ended in time, with the
confidence asked for. Where that proves wrong by the time that was promised to the first in the queue, the jobs that
were put before it are stopped for it, if they may be; else its promise is renewed.
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
    KEEP,
    MINUTE,
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
from refold.packing import Placer, starts_in_turn
from refold.plans import NOTHING_MORE, Knowledge
from refold.policies.backfill.ordering import Ordering, OrderName
from refold.policies.backfill.preemption import free_without, is_given_back, runs_to_stop
from refold.policies.backfill.queue import BackfillQueue, Gaps, Place, QueuedJob
from refold.policies.backfill.reservations import Reservation, Reservations
from refold.policies.backfill.sizing import JobSize, Sizes
from refold.policies.backfill.start_estimates import StartEstimates
from refold.policies.common import DurationSource, Reasons, Source

Preempt = Literal["never", "whole-node", "always"]
Filling = Literal["order", "shortest"]

EVERYBODY = 2**60

MOST_LOOKS = 150_000
"""How many looks at nodes a decision may take for what jobs leave that begin earlier; what others leave is looked at
in any case."""

STOPPING: Seconds = MINUTE
"""How long a run that was told to stop is believed to take, again and again."""


AT_MOST: Seconds = 30 * DAY
"""Nobody's turn is thought to be farther away than that: if so, it waits for nodes that are down."""

MUCH_EARLIER = 0.5
"""A place is left for another, after it has been waited for, if that is to be had in so much of the time."""

FORGETS_EVERY = 64
"""After so many looks what is past is forgotten."""


class Backfill:
    """What `easy` and `conservative` have in common: `depth` says how many of each lane are promised a place."""

    name = "backfill"
    depth = 1

    def __init__(
        self,
        placement: str = "best-fit",
        seed: int = 0,
        order: OrderName = "arrival",
        durations: Source = "predicted",
        likely: float = 0.5,
        confidence: float = 0.8,
        filling: Filling = "shortest",
        preempt: Preempt = "always",
        lanes: bool = False,
        most_passed: int = 0,
        most_waiting_seconds: float = 0.0,
        depth: int = 0,
        knowledge: Knowledge | Mapping[str, Any] = NOTHING_MORE,
    ) -> None:
        """`likely`: the quantile of durations that plans are made with; `confidence`: the one for filling gaps.

        `filling`: whether gaps are offered in the order of the queue, or to the shortest first. `preempt`: for whom
        jobs that were put before it are stopped. `lanes`: jobs that take whole nodes stand in a lane of their own.
        `most_passed`, `most_waiting_seconds`: who has been passed over so often, or has waited for so long, is not
        passed over any more (0: however often, however long). `depth`: how many of each lane are promised a place (0:
        as is usual for the policy). `knowledge`: what is known of the speeds of jobs that leave their size open.
        """
        _check(likely, confidence, filling, preempt, most_passed, most_waiting_seconds)
        if depth < 0:
            raise BadValue(f"depth is {depth}, expected ≥ 0 (0: as is usual for {self.name})")
        self.depth = depth or self.depth
        self._placer = Placer(placement, seed)
        self._foresight = DurationSource(durations, knowledge)
        self._turns = Ordering(order)
        self._likely, self._confidence = likely, confidence
        self._preempt, self._two_lanes = preempt, lanes
        self._queue = BackfillQueue(most_passed, most_waiting_seconds or inf)
        self._gaps = Gaps(filling == "shortest")
        self._promises = StartEstimates()
        self._reasons = Reasons(self._placer)
        self._knowledge = Knowledge.of(knowledge)
        self._sizes: Sizes | None = None
        self._reservations: Reservations | None = None
        self._whole_node = 0
        """As many GPUs as the largest node has."""
        self._due: list[tuple[Seconds, str]] = []
        self._put_before: dict[str, tuple[Place, int]] = {}
        """Runs that may have been put before others: the place in the order that they had, and who had come by then."""
        self._displaced: dict[str, Reservation | None] = {}
        """Who has lost a promised place, and has to be promised another, or the same place for later."""
        self._came = 0
        self._looks = 0
        self._starts: list[Start] = []
        self._stops: list[Stop] = []

    def decide(self, view: View) -> Decision:
        """Note what has changed; start whoever is due; promise places; fill the gaps."""
        self._starts, self._stops = [], []
        self._placer.observe(view)
        self._foresight.observe(view)
        reservations = self._reservations_on(view)
        self._looks += 1
        if self._looks % FORGETS_EVERY == 0:
            reservations.forget_before(view.now)
        self._note_ends(view, reservations)
        if not view.waiting:
            self._reasons.nobody_waits()
            return KEEP
        self._start_who_is_due(view, reservations)
        self._stop_others_for_the_first(view, reservations)
        self._book_on_late_runs(view, reservations)
        self._note_arrivals(view, reservations)
        self._promise_places(view, reservations)
        while self._begin_earlier(view, reservations):
            self._promise_places(view, reservations)  # others are the first now
        self._start_who_is_due(view, reservations)  # whom nobody keeps back any more
        self._fill_gaps(view, reservations)
        waits = self._reasons_of(view)
        return Decision(
            starts=tuple(self._starts),
            stops=tuple(self._stops),
            waits=waits,
            start_estimates=self._start_estimates(view, reservations),
            wake_at=self._next_due(view),
        )

    # What has changed.

    def _reservations_on(self, view: View) -> Reservations:
        reservations = self._reservations
        if reservations is None:
            reservations = self._reservations = Reservations(view.cluster, self._placer)
            self._whole_node = max(node.gpus for node in view.cluster.nodes)
            for node in range(len(view.cluster.nodes)):
                if not view.is_up(node):
                    reservations.set_up(node, False)
        return reservations

    def _note_ends(self, view: View, reservations: Reservations) -> None:
        changes, now = view.changes, view.now
        for run in changes.ended:
            reservations.ended(run.job, now)
            self._put_before.pop(run.job, None)
        for job in changes.returned:
            reservations.ended(job.id, now)  # that it was started has been refused
            self._put_before.pop(job.id, None)
        for node in changes.nodes:
            for job_id in reservations.set_up(node, view.is_up(node)):
                self._displace(job_id, None)
        for job_id in changes.gone:
            self._leaves(job_id, reservations)
            self._promises.forget(job_id)
        for run in changes.started:
            if not reservations.is_booked(run.job) and view.runs.get(run.job) is run:
                life = self._foresight.left(view, run, self._likely)
                reservations.run(run.job, run.allocation.placement, now, now + life)
        if self._turns.observe(view):
            self._queue.sort_again(lambda queued: self._turns.key(view, queued.job, queued.likely))

    def _leaves(self, job_id: str, reservations: Reservations) -> QueuedJob | None:
        """A job does not wait any more."""
        queued = self._queue.remove(job_id)
        if queued is not None:
            self._gaps.remove(queued)
            reservations.give_up(job_id)
            self._displaced.pop(job_id, None)
        return queued

    def _note_arrivals(self, view: View, reservations: Reservations) -> None:
        for job in (*view.changes.returned, *view.changes.submitted):
            life = self._foresight.life(view, job)
            likely = life.quantile(self._likely)
            sure = max(life.quantile(self._confidence), likely)
            self._came += 1
            place = self._turns.key(view, job, likely), self._came
            queued = self._ends_first(view, reservations, job, place, likely, sure)
            self._queue.add(queued)
            self._gaps.add(queued)

    def _ends_first(
        self, view: View, reservations: Reservations, job: Job, place: Place, likely: Seconds, sure: Seconds
    ) -> QueuedJob:
        """A job with the size with which it would end first; `likely` and `sure` are of what it asked for."""
        made = [self._waiter(job, size, place, likely, sure) for size in self._sizes_on(view).of(job)]
        if len(made) == 1:
            return made[0]
        return min(made, key=lambda queued: self._would_end(view, reservations, queued))

    def _sized_again(self, view: View, reservations: Reservations, queued: QueuedJob) -> QueuedJob:
        """The same job, with another size if it would end sooner so by now."""
        if queued.job.gpu_range is None:
            return queued
        likely, sure = queued.likely * queued.faster, queued.sure * queued.faster
        other = self._ends_first(view, reservations, queued.job, queued.place, likely, sure)
        if other.demand == queued.demand:
            return queued
        self._gaps.remove(queued)
        self._queue.remove(queued.job.id)
        other.passed, other.promised = queued.passed, queued.promised
        self._queue.add(other)
        self._gaps.add(other)
        self._displaced.pop(queued.job.id, None)
        return other

    def _waiter(self, job: Job, size: JobSize, place: Place, likely: Seconds, sure: Seconds) -> QueuedJob:
        lane = int(self._two_lanes and size.demand.gpus >= self._whole_node)
        kind = _kind(size.demand, self._whole_node)
        return QueuedJob(job, size, place, likely / size.faster, sure / size.faster, lane, kind)

    def _would_end(self, view: View, reservations: Reservations, queued: QueuedJob) -> tuple[Seconds, int]:
        """When a job would end with one of its sizes, given the queue; of equals, the one with the fewest GPUs."""
        found = reservations.find(queued.demand, queued.likely, view.now)
        turn = self._turn(view, reservations, queued)
        start = inf if found is None else max(found.start, turn)
        return start + queued.likely, queued.demand.total_gpu_milli

    def _turn(self, view: View, reservations: Reservations, queued: QueuedJob) -> Seconds:
        """When the turn will come, roughly, of one who is promised nothing."""
        return self._turns_of(view, reservations, [queued])[queued.job.id]

    def _turns_of(self, view: View, reservations: Reservations, queue: Sequence[QueuedJob]) -> dict[str, Seconds]:
        """The same for several: the queue is played forward once, up to the last of them."""
        queue = self._queue.until(max(queue, key=lambda queued: queued.place))
        wanted = np.fromiter((queued.gpus for queued in queue), np.float64, len(queue))
        distribution = np.fromiter((queued.likely for queued in queue), np.float64, len(queue))
        starts = starts_in_turn(view.now, view.free_gpus, *reservations.ends_and_gpus(), wanted, distribution)
        asked = {queued.job.id for queued in queue}
        return {
            queued.job.id: min(float(start), view.now + AT_MOST)
            for queued, start in zip(queue, starts, strict=True)
            if queued.job.id in asked
        }

    def _sizes_on(self, view: View) -> Sizes:
        if self._sizes is None:
            self._sizes = Sizes(view.cluster, self._knowledge)
        return self._sizes

    # What is due.

    def _start_who_is_due(self, view: View, reservations: Reservations) -> None:
        """Start who was promised this moment, if its place is free."""
        due: list[QueuedJob] = []
        while self._due and self._due[0][0] <= view.now:
            _, job_id = heappop(self._due)
            promised = reservations.of(job_id)
            if promised is not None and promised.start <= view.now:
                due.append(self._queue.of(job_id))
        for queued in sorted(due, key=lambda queued: queued.place):
            promised = reservations.of(queued.job.id)
            if promised is None:
                continue
            if queued.place <= self._queue.bar(view.now) and view.trial().take(promised.placement):
                self._start(view, reservations, queued, promised.placement)
            else:
                reservations.put_off(queued.job.id, view.now)
                heappush(self._due, (view.now, queued.job.id))
                self._displace_those_behind(view, reservations, queued, promised.placement)

    def _displace_those_behind(
        self, view: View, reservations: Reservations, queued: QueuedJob, placement: Placement
    ) -> None:
        """A place is kept for one from now on: who was promised something of it and is behind gets another."""
        end = view.now + queued.likely
        for other in reservations.in_the_way_of(placement, view.now, end):
            if self._queue.of(other).place > queued.place:
                self._displace(other, _later(reservations.give_up(other), end))

    def _stop_others_for_the_first(self, view: View, reservations: Reservations) -> None:
        """Where the first of a lane has not started by the time that it was promised, those put before it make way.

        Without those it would have started as soon as now, so it has not been delayed by them in the end.
        """
        for first in self._queue.first(1):
            if view.now < first.promised or first.place > self._queue.bar(view.now) or not self._may_preempt(first):
                continue
            promised = reservations.of(first.job.id)
            if promised is not None and promised.start <= view.now and is_given_back(view, promised.placement):
                continue  # its place is being given back
            placement = self._place_without_others(view, reservations, first)
            if placement is not None:
                self._claim(view, reservations, first, placement)
                return  # another lane has its turn when these have stopped

    def _place_without_others(self, view: View, reservations: Reservations, first: QueuedJob) -> Placement | None:
        """A place for the first of a lane without those put before it, and not the one promised to another lane's."""
        free = free_without(view, self._put_before_it(view, first))
        for other in self._queue.first(1):
            promised = reservations.of(other.job.id)
            if other is not first and promised is not None and promised.start <= view.now:
                free.take_what_is_free(promised.placement)
        return self._placer.place(free, first.demand)

    def _put_before_it(self, view: View, queued: QueuedJob) -> list[Run]:
        """The runs that were put before a waiting job, and may be stopped."""
        return [run for run in view.runs.values() if not run.stopping and self._may_be_stopped(view, run, queued)]

    def _claim(self, view: View, reservations: Reservations, first: QueuedJob, placement: Placement) -> None:
        """Start a job that was promised to by now; or have its place given back, and promise it from now on."""
        reservations.give_up(first.job.id)
        self._displaced.pop(first.job.id, None)
        if view.trial().take(placement):
            self._start(view, reservations, first, placement)
        else:
            self._promise_now(view, reservations, first, placement)
        self._displace_those_behind(view, reservations, first, placement)

    def _promise_now(self, view: View, reservations: Reservations, first: QueuedJob, placement: Placement) -> None:
        """Have a place given back, and promise it from now on."""
        reservations.keep(first.job.id, first.demand, Reservation(placement, view.now, view.now + first.likely))
        self._gaps.remove(first)
        heappush(self._due, (view.now, first.job.id))
        for run in runs_to_stop(view, self._put_before_it(view, first), placement):
            self._stops.append(Stop(run.job, f"{self.name}: {first.job.id} was promised to start by now"))
        self._reasons.releasing(first.job)

    def _may_preempt(self, queued: QueuedJob) -> bool:
        if self._preempt == "never" or (self._preempt == "whole-node" and queued.demand.gpus < self._whole_node):
            return False
        return any(queued is first for first in self._queue.first(1))

    def _may_be_stopped(self, view: View, run: Run, queued: QueuedJob) -> bool:
        place, came = self._put_before.get(run.job, (queued.place, 0))
        was_there = queued.place[1] <= came
        return was_there and place > queued.place and view.active[run.job].preemptible

    def _book_on_late_runs(self, view: View, reservations: Reservations) -> None:
        """Runs that have outlived what was believed of them go on; who was promised their places is promised others."""
        stopped = {stop.job for stop in self._stops}
        for job_id in reservations.late(view.now):
            run = view.runs[job_id]
            if run.stopping or job_id in stopped:
                reservations.book_on(job_id, view.now, view.now + STOPPING)
                continue
            end = view.now + self._foresight.left(view, run, self._likely)
            reservations.book_on(job_id, view.now, end)
            for other in reservations.in_the_way_of(run.allocation.placement, view.now, end):
                queued = self._queue.of(other)
                if not (self._may_preempt(queued) and self._may_be_stopped(view, run, queued)):
                    self._displace(other, _later(reservations.give_up(other), end))
                # else it may go on until then, and is stopped then

    def _displace(self, job_id: str, later: Reservation | None) -> None:
        """A promised place has been given up: another has to be promised, perhaps the same for later."""
        self._displaced[job_id] = later
        self._gaps.add(self._queue.of(job_id))

    # Promising places.

    def _promise_places(self, view: View, reservations: Reservations) -> None:
        """The first of each lane, and whoever has lost the place that it was promised, are promised the earliest."""
        self._let_go(view, reservations)
        again = True
        while again:
            again = False
            for wanting in sorted(self._wanting(reservations), key=lambda queued: queued.place):
                queued = self._sized_again(view, reservations, wanting)
                found = self._find(view, reservations, queued)
                if found is None:
                    continue  # for now no node has room for it at any time: some are down
                starts = found.start <= view.now and queued.place <= self._queue.bar(view.now)
                if starts and view.trial().take(found.placement):
                    self._start(view, reservations, queued, found.placement)
                    again = True
                else:
                    reservations.keep(queued.job.id, queued.demand, found)
                    queued.promised = min(queued.promised, found.start)
                    heappush(self._due, (found.start, queued.job.id))
                    self._gaps.remove(queued)
                    if view.shortage(queued.demand).room >= queued.demand.instances:
                        self._reasons.promised_to_others(queued.job)
                    else:
                        self._reasons.no_place(view, queued.job)

    def _let_go(self, view: View, reservations: Reservations) -> None:
        """Who is not among the first any more, since others came that go before it, is promised nothing any more."""
        if len(reservations.promised) <= self.depth:
            return
        first = {queued.job.id for queued in self._queue.first(self.depth)}
        for job_id, promised in list(reservations.promised.items()):
            if job_id not in first and promised.start > view.now:
                reservations.give_up(job_id)
                self._gaps.add(self._queue.of(job_id))

    def _wanting(self, reservations: Reservations) -> set[QueuedJob]:
        """Who is to be promised a place, and is not."""
        if self.depth >= EVERYBODY:
            return set(self._gaps.everybody())
        wanting = {queued for queued in self._queue.first(self.depth) if reservations.of(queued.job.id) is None}
        return wanting | {self._queue.of(job_id) for job_id in self._displaced}

    def _find(self, view: View, reservations: Reservations, queued: QueuedJob) -> Reservation | None:
        """The earliest place; for one who has waited for another to become free, that, unless this is much earlier."""
        found = reservations.find(queued.demand, queued.likely, view.now)
        same = self._displaced.pop(queued.job.id, None)
        if found is None or same is None or found.start < view.now + MUCH_EARLIER * (same.start - view.now):
            return found
        return same if reservations.is_free(same) else found

    def _begin_earlier(self, view: View, reservations: Reservations) -> bool:
        """Where something has been given back, those who are promised a place may have an earlier one.

        Whether anybody has started.
        """
        if not reservations.promised or not reservations.has_holes:
            return False
        starts = len(self._starts)
        order = self._queue.in_order(reservations.promised)
        for job_id in reservations.begin_earlier(order, view.now, MOST_LOOKS):
            queued, promised = self._queue.of(job_id), reservations.of(job_id)
            assert promised is not None
            if (
                promised.start <= view.now
                and queued.place <= self._queue.bar(view.now)
                and view.trial().take(promised.placement)
            ):
                self._start(view, reservations, queued, promised.placement)
            else:
                heappush(self._due, (promised.start, job_id))
        return len(self._starts) > starts

    def _fill_gaps(self, view: View, reservations: Reservations) -> None:
        """Start others where there is room for as long as they will last."""
        self._gaps.open(view, reservations.opened(), reservations)
        bar = self._queue.bar(view.now)
        while (queued := self._gaps.next(view.now, bar, reservations)) is not None:
            placement = reservations.place_now(queued.demand, queued.sure, view.now)
            if placement is None or not view.trial().take(placement):
                self._gaps.close(queued.demand)
                continue
            self._start(view, reservations, queued, placement)
            bar = self._queue.bar(view.now)

    def _start(self, view: View, reservations: Reservations, queued: QueuedJob, placement: Placement) -> None:
        job_id, end = queued.job.id, view.now + queued.likely
        promised = reservations.of(job_id)
        if promised is not None and promised.placement is placement:
            reservations.run_as_promised(job_id, view.now, end)
            self._leaves(job_id, reservations)
        else:
            self._leaves(job_id, reservations)
            reservations.run(job_id, placement, view.now, end)
        self._foresight.starts(job_id, queued.faster)
        self._starts.append(Start(queued.job.id, Allocation(placement, queued.plan)))
        self._promises.started(queued.job.id, view.now)
        if len(self._queue):
            self._put_before[queued.job.id] = queued.place, self._came
            self._queue.pass_over(queued.place)

    # What is said.

    def _reasons_of(self, view: View) -> tuple[Wait, ...]:
        for job in (*view.changes.returned, *view.changes.submitted):
            if job.id in self._queue and self._gaps.has_room(self._queue.of(job.id).demand, view.now):
                self._reasons.promised_to_others(job)
        return self._reasons.collect(view, self._starts)

    def _start_estimates(self, view: View, reservations: Reservations) -> tuple[StartEstimate, ...]:
        """When those may start who have come, or whose promises were broken."""
        now = view.now
        wanting = [job.id for job in (*view.changes.returned, *view.changes.submitted) if job.id in self._queue]
        wanting += self._promises.overdue(now)
        queue = [self._queue.of(job_id) for job_id in dict.fromkeys(wanting)]
        without = [queued for queued in queue if reservations.of(queued.job.id) is None]
        turns = self._turns_of(view, reservations, without) if without else {}
        return tuple(self._promise(queued, reservations.of(queued.job.id), turns, now) for queued in queue)

    def _promise(
        self, queued: QueuedJob, planned: Reservation | None, turns: Mapping[str, Seconds], now: Seconds
    ) -> StartEstimate:
        if planned is not None:
            return self._promises.make(queued.job.id, f"{queued.kind}, planned", now, planned.start)
        return self._promises.make(queued.job.id, queued.kind, now, turns[queued.job.id])

    def _next_due(self, view: View) -> Seconds | None:
        """When the next promised place is due."""
        assert self._reservations is not None
        while self._due:
            at, job_id = self._due[0]
            promised = self._reservations.of(job_id)
            if promised is not None and promised.start == at and at > view.now:
                return at if at < inf else None
            if promised is not None and promised.start == at:
                break  # its place is being given back: that it has been will be reported
            heappop(self._due)
        later = [one.start for one in self._reservations.promised.values() if one.start > view.now]
        return min(later, default=None)


def _later(reservation: Reservation | None, start: Seconds) -> Reservation | None:
    """The same place, from `start` on."""
    if reservation is None:
        return None
    return Reservation(reservation.placement, start, start + reservation.end - reservation.start)


def _kind(demand: Demand, whole_node: int) -> str:
    """Jobs that have to wait for the same things: a part of a GPU, one, several of a node, a node, several nodes."""
    if demand.instances * demand.gpus <= 1:
        return "one GPU" if demand.gpu_milli == WHOLE else "part of a GPU"
    if demand.gpus < whole_node:
        return "several GPUs"
    return "a node" if demand.instances == 1 else "several nodes"


def _check(
    likely: float, confidence: float, filling: str, preempt: str, most_passed: int, most_waiting_seconds: float
) -> None:
    for name, part in (("likely", likely), ("confidence", confidence)):
        if not 0 < part < 1:
            raise BadValue(f"{name} is {part}, expected a part between 0 and 1")
    for name, value, allowed in (("filling", filling, get_args(Filling)), ("preempt", preempt, get_args(Preempt))):
        if value not in allowed:
            raise BadValue(f"{name} is {value!r}, expected one of {', '.join(allowed)}")
    if most_passed < 0:
        raise BadValue(f"most_passed is {most_passed}, expected ≥ 0 (0: however often)")
    if not most_waiting_seconds >= 0:
        raise BadValue(f"most_waiting_seconds is {most_waiting_seconds}, expected ≥ 0 (0: however long)")


class Easy(Backfill):
    """The first in the queue is promised a place and a time; others start where that is not in its way."""

    name = "easy"


class Conservative(Backfill):
    """Everybody is promised a place and a time; others start where that is in nobody's way."""

    name = "conservative"
    depth = EVERYBODY
