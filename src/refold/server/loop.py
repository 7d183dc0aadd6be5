"""The live loop, of the daemon and of `refold run`. Each step:

1. gather: take client requests, reports and due wakes from the inbox, and events of the subscribers;
2. decide: let the scheduler apply the events and the policy decide, unless it has just taken long (`DecisionPace`);
3. commit: write the journal entry, new and ended jobs and notices in one transaction;
4. acknowledge: answer the client requests and publish the notices;
5. act: let the backend carry out the orders, then call the subscribers.

Input that arrives during a step is handled in the next one, so that requests are committed in batches under load.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple

from refold.client.api import wire
from refold.core import (
    ChangeMeasured,
    Entry,
    Event,
    GpuTimeUsed,
    Header,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobSubmitted,
    Order,
    PastJob,
    RunFailed,
    RunProgressed,
    RunStarted,
    RunStopped,
    Scheduler,
    SpeedMeasured,
    StartRun,
    StopRun,
    View,
)
from refold.errors import Unavailable
from refold.model import Seconds
from refold.server.backend import Backend
from refold.server.http import EventStream
from refold.server.inbox import Inbox, PendingRequest
from refold.server.live_state import JobBefore, LiveState
from refold.server.status import ended_status, job_before
from refold.server.store import Checkpoint, Commit, EndedJob, NewJob
from refold.server.subscribers import LoopStep, Subscriber
from refold.server.writer import Writer

CHECKPOINT_INTERVAL_ENTRIES = 5_000
"""Journal entries between two checkpoints, and thus the maximum number that recovery has to apply."""

REISSUE_INTERVAL_SECONDS: Seconds = 60.0
"""How often the current orders are repeated, so that the backend repeats reports that were lost."""

log = logging.getLogger("refold")


class NextEpoch(NamedTuple):
    """The scheduler of the next epoch, its header, and the jobs that have ended."""

    header: Header
    scheduler: Scheduler
    past: Sequence[PastJob]


class Loop:
    """Drives one scheduler with one inbox, writer and backend, within one event loop."""

    def __init__(
        self,
        state: LiveState,
        inbox: Inbox,
        writer: Writer,
        event_stream: EventStream,
        subscribers: Sequence[Subscriber] = (),
    ) -> None:
        self._state = state
        self._inbox = inbox
        self._writer = writer
        self._event_stream = event_stream
        self._subscribers = subscribers
        self._reissue_at: Seconds = 0.0
        self._next_epoch: NextEpoch | None = None
        self._pace = DecisionPace()

    async def run(self, backend: Backend) -> None:
        """Restore the runs of the previous daemon, then take a step whenever input arrives, until the inbox stops."""
        clock, inbox = self._state.clock, self._inbox
        try:
            if self._state.snapshot is not None:
                await self._step(backend, self._state.snapshot, self._state.header, is_first=True)
            else:
                await self._stop_unknown_runs(backend)
            for subscriber in self._subscribers:
                subscriber.started()
            await self._reissue_orders(backend)
            while not inbox.stopping:
                await clock.wait(inbox.arrived, self.next_deadline())
                if self._next_epoch is not None:
                    await self._begin_epoch(backend, self._next_epoch)
                if clock.now() >= self._reissue_at:
                    await self._reissue_orders(backend)
                await self._step(backend)
        except Unavailable:
            log.error(
                "the daemon stops: its last step could not be written, so it was neither acknowledged nor carried out"
            )
        finally:
            inbox.close()
            self._writer.close()

    def begin_epoch(self, epoch: NextEpoch) -> None:
        """Begin a new epoch of the journal at the next step, with another scheduler."""
        self._next_epoch = epoch
        self._inbox.arrived.set()

    async def _begin_epoch(self, backend: Backend, epoch: NextEpoch) -> None:
        self._next_epoch = None
        snapshot = self._state.begin_epoch(epoch.header, epoch.scheduler, epoch.past)
        await self._step(backend, snapshot, epoch.header)

    def next_deadline(self) -> Seconds:
        """Return when the next step is due if no input arrives."""
        due = [subscriber.next_step_at() for subscriber in self._subscribers]
        return min(moment for moment in (self._reissue_at, self._inbox.next_wake(), *due) if moment is not None)

    async def _reissue_orders(self, backend: Backend) -> None:
        """Repeat the orders for all current runs; the backend ignores orders that it has already carried out.

        After a crash this starts runs that were ordered but not started, and makes the backend repeat lost reports.
        """
        self._reissue_at = self._state.now() + REISSUE_INTERVAL_SECONDS
        view = self._state.view
        runs = view.runs.values()
        orders: list[Order] = [StartRun(run.job, run.number, run.allocation) for run in runs]
        orders += [
            StopRun(run.job, run.number, "already stopping", view.next_allocation(run.job))
            for run in runs
            if run.stopping
        ]
        await self._carry_out(backend, orders)

    async def _stop_unknown_runs(self, backend: Backend) -> None:
        """Stop the runs of the previous daemon that the scheduler does not know. No run may be starting meanwhile."""
        await backend.stop_all_except({(run.job, run.number) for run in self._state.view.runs.values()})

    async def _step(
        self,
        backend: Backend,
        snapshot: Sequence[Event] = (),
        epoch: Header | None = None,
        *,
        is_first: bool = False,
    ) -> None:
        """Take a step, as described above. `snapshot`: the state with which an epoch begins."""
        state = self._state

        # 1. Gather.
        now = state.now()
        given = self._inbox.take(now)
        events = [*snapshot, *given.events]
        for subscriber in self._subscribers:
            events += subscriber.before_step(now)
        for request in given.requests:
            events += request.events
        if not (given.requests or events or given.notices or epoch):
            return

        # 2. Decide.
        state.uncommitted = _jobs_before(given.requests, state.view)
        changing = _runs_to_be_followed(events, state.view)
        entry = self._decide(now, events, is_postponable=not (snapshot or epoch), has_requests=bool(given.requests))
        changes, notices = state.job_table.apply(entry, state.view.infeasible)
        if snapshot:
            lost = state.job_table.lose_runs_except(state.view.runs, now)
            notices = [*lost, *(notice for notice in notices if notice.job is not None)]  # nodes were down before
        if entry.wake_at is not None:
            self._inbox.wake_at(entry.wake_at)

        # 3. Commit.
        state.entry += 1
        step = LoopStep(entry, changes, [*given.notices, *notices])
        wire_events = self._wire_events(step)
        new_jobs = [job for request in given.requests for job in request.jobs]
        commit = self._build_commit(step, new_jobs, wire_events, epoch)
        await self._commit(commit)

        # 4. Acknowledge.
        self._inbox.acknowledge(entry)
        self._event_stream.publish(wire_events)

        # 5. Act.
        if is_first:
            await self._stop_unknown_runs(backend)
        await self._carry_out(backend, [*_stops_of_changes(changing, entry), *entry.orders])
        for subscriber in self._subscribers:
            _call_after_step(subscriber, step)

    def _decide(self, now: Seconds, events: list[Event], *, is_postponable: bool, has_requests: bool) -> Entry:
        state = self._state
        decide_at = (
            self._pace.decide_at(now, _freeing_events(events, state.view), has_requests) if is_postponable else None
        )
        began = state.now()
        entry = state.scheduler.step(now, events, decide_at)
        if decide_at is None:
            self._pace.note(began, state.now())
        return entry

    async def _commit(self, commit: Commit) -> None:
        """Write a step to disk. Until then, clients see the jobs that it changes as they were before."""
        state = self._state
        state.uncommitted_ends = {job.status.id: job.status for job in commit.ended}
        for order in commit.entry.orders:
            if order.job not in state.uncommitted and (job := state.view.active.get(order.job)):
                state.uncommitted[order.job] = JobBefore("waiting" if isinstance(order, StartRun) else "running", job)
        await self._writer.commit(commit)
        state.uncommitted_ends, state.uncommitted = {}, {}

    def _wire_events(self, step: LoopStep) -> list[wire.Event]:
        at = self._state.wall_time(step.entry.now)
        return [
            wire.Event(
                number,
                at,
                notice.kind,
                "" if notice.job is None else notice.job.id,
                notice.run,
                notice.text,
                "" if notice.job is None else notice.job.tenant,
                "" if notice.job is None else notice.job.user,
            )
            for number, notice in enumerate(step.notices, start=self._event_stream.last + 1)
        ]

    def _build_commit(
        self, step: LoopStep, jobs: list[NewJob], events: list[wire.Event], epoch: Header | None
    ) -> Commit:
        state = self._state
        ended = [EndedJob(ended_status(job, state.wall_time), job.known_duration) for job in step.ended]
        checkpoint = None
        if epoch is not None or state.entry % CHECKPOINT_INTERVAL_ENTRIES == 0:
            checkpoint = Checkpoint(state.entry, state.as_events(), tuple(state.job_table.records.values()))
        return Commit(state.entry, step.entry, jobs, ended, events, epoch, checkpoint)

    async def _carry_out(self, backend: Backend, orders: Sequence[Order]) -> None:
        for order in orders:
            try:
                await backend.carry_out((order,), self._state.view.active)
            except Exception as error:  # a failed order must not prevent the others
                log.exception("failed to carry out %s", order)
                if isinstance(order, StartRun):
                    self._inbox.report(RunFailed(order.job, order.run, f"could not be started: {error}"))


def _jobs_before(requests: Sequence[PendingRequest], view: View) -> dict[str, JobBefore | None]:
    """Return the jobs that requests change, as they are before; None: they are new."""
    before: dict[str, JobBefore | None] = {}
    for request in requests:
        for event in request.events:
            match event:
                case JobSubmitted(job):
                    before[job.id] = None
                case JobCancelled(job_id) | JobHeld(job_id) | JobReleased(job_id):
                    if job_id not in before and (found := job_before(view, job_id)):
                        before[job_id] = found
    return before


def _freeing_events(events: Sequence[Event], view: View) -> list[Event]:
    """Return the events without those that end or hold jobs that do not run: they free no resources."""
    return [event for event in events if not isinstance(event, JobCancelled | JobHeld) or event.job in view.runs]


def _runs_to_be_followed(events: Sequence[Event], view: View) -> dict[str, int]:
    """Return, by job, runs that are to be followed by another run at once, and about which there is an event."""
    jobs = {event.job for event in events if isinstance(event, RunStopped | JobCancelled | JobHeld)}
    return {job: view.runs[job].number for job in jobs if view.next_allocation(job) is not None}


def _stops_of_changes(changing: Mapping[str, int], entry: Entry) -> list[Order]:
    """Return orders to stop runs that are not followed by another run after all.

    The back end may have begun to prepare that run (see `StopRun.next`); otherwise it does nothing.
    """
    started = {order.job for order in entry.orders if isinstance(order, StartRun)}
    return [StopRun(job, run, "its job does not continue") for job, run in changing.items() if job not in started]


def _call_after_step(subscriber: Subscriber, step: LoopStep) -> None:
    try:
        subscriber.after_step(step)
    except Exception:  # the step is committed and carried out: a subscriber must not fail the loop
        log.exception("a subscriber failed after a step; the step itself was carried out")


# When the policy decides. One that takes long must not hold up requests, whose events are committed without it.

QUICK: Seconds = 0.02
"""A policy that decides faster is called at every step."""

CALM_PAUSE, BUSY_PAUSE, IDLE_PAUSE = 3.0, 1.0, 0.5
"""Pauses after a decision, as multiples of its duration: before events that free nothing; before others if clients
wait for answers, and if none do. GPUs may be free then, but runs that were just started need the processor as well, and
the next decision is about all runs that end meanwhile."""

MAX_PAUSE: Seconds = 2.0

CALM = (JobSubmitted, JobReleased, RunStarted, RunProgressed, SpeedMeasured, ChangeMeasured, GpuTimeUsed)
"""Events that free nothing."""


class DecisionPace:
    """Measures decisions, and says when the next one is due."""

    def __init__(self) -> None:
        self._ended_at: Seconds = -inf
        self._duration: Seconds = 0.0

    def note(self, began_at: Seconds, ended_at: Seconds) -> None:
        self._ended_at, self._duration = ended_at, ended_at - began_at

    def decide_at(self, now: Seconds, events: Iterable[Event], has_requests: bool) -> Seconds | None:
        """Return when the policy is to decide about these events; None: now."""
        if self._duration < QUICK:
            return None
        calm = all(isinstance(event, CALM) for event in events)
        pause = CALM_PAUSE if calm else BUSY_PAUSE if has_requests else IDLE_PAUSE
        due = self._ended_at + min(MAX_PAUSE, pause * self._duration)
        return due if due > now else None
