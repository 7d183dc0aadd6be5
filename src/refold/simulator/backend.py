# cython: boundscheck=True, wraparound=True
"""The simulated back end: carries out orders by adding the resulting events to the agenda."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf

import cython

from refold.core import (
    ChangeMeasured,
    Event,
    GpuLost,
    NodeLost,
    Order,
    RunFailed,
    RunFinished,
    RunProgressed,
    RunStarted,
    RunStopped,
    StartRun,
    StopRun,
)
from refold.errors import BadValue
from refold.model import Allocation, Job, Placement, Seconds
from refold.simulator.costs import NO_COSTS, Costs, SpeedModel
from refold.simulator.faults import Endless, NeverEnds

if not cython.compiled:
    from refold.simulator.agenda import Agenda


class _SimulatedRun:
    """A simulated run: when it begins to compute, its speed, and the numbers of its events in the agenda (0: none)."""

    __slots__ = (
        "cost_event",
        "end_event",
        "number",
        "placement",
        "report_event",
        "since",
        "speed",
        "start_event",
        "stopped_at",
    )

    def __init__(self, number: int, placement: Placement, since: Seconds, speed: float) -> None:
        self.number = number
        self.placement = placement
        self.since = since
        self.speed = speed
        self.stopped_at = inf
        self.end_event = 0
        self.start_event = 0
        self.report_event = 0
        self.cost_event = 0

    def done(self, now: Seconds) -> Seconds:
        """Return the work done by `now`, in seconds; none is done after the stop order."""
        return max(0.0, min(now, self.stopped_at) - self.since) * self.speed

    def uses(self, lost: NodeLost | GpuLost) -> bool:
        return any(
            share.node == lost.node and (isinstance(lost, NodeLost) or lost.gpu in share.gpus)
            for share in self.placement
        )


class SimulatedBackend:
    """Computes when each run ends instead of running it. Runs report progress if `costs` has a report interval.

    The runs of jobs in `never_end` end only by a stop order, or when a node or GPU that they use goes down.
    """

    def __init__(
        self,
        jobs: Iterable[Job],
        agenda: Agenda,
        charge: SpeedModel,
        costs: Costs = NO_COSTS,
        never_end: Iterable[NeverEnds] = (),
        done: Mapping[str, Seconds] | None = None,
    ) -> None:
        """`done`: the work that jobs have done already."""
        self._jobs = {job.id: job for job in jobs}
        self._agenda = agenda
        self._charge = charge
        self._costs = costs
        self._max_work = {fault.job: self._max_work_of(fault) for fault in never_end}
        self._done: dict[str, Seconds] = dict(done or {})
        self._runs: dict[str, _SimulatedRun] = {}
        self._live_changes: dict[str, Allocation] = {}
        """Jobs that are changed without a restart, and their next allocations."""
        self._survivors: dict[str, Seconds] = {}
        """When jobs have lost one of several nodes that continue with the state in memory of the others."""
        self.max_time_limit = max((self._jobs[job].time_limit or 0.0 for job in self._max_work), default=0.0)
        """The longest time limit of the jobs that never end; 0 if there is none."""
        self.never_ending = 0
        """The number of current runs that do not end by themselves."""
        self.never_ending_reported_by = -inf
        """The time by which each of these runs has reported progress once, if it ever does."""

    def _max_work_of(self, fault: NeverEnds) -> Seconds:
        """Return how much work a job that never ends will do, in seconds."""
        if fault.job not in self._jobs:
            raise BadValue(f"never_end has job {fault.job!r}, which is not part of the simulation")
        return inf if isinstance(fault, Endless) else min(fault.after, self._charge.work(self._jobs[fault.job]))

    def carry_out(self, now: Seconds, orders: Iterable[Order]) -> None:
        """Carry out orders."""
        for order in orders:
            if type(order) is StartRun:
                self._start(now, order)
            elif type(order) is StopRun:
                self._stop(now, order)

    def consequences(self, now: Seconds, events: Sequence[Event]) -> list[Event]:
        """Take note of events, and return the events that they cause: runs on a node or GPU that goes down fail."""
        losses: list[NodeLost | GpuLost] = []
        for event in events:
            if type(event) is RunFinished:
                run = self._runs.pop(event.job, None)
                self._done.pop(event.job, None)
                if run is not None and run.report_event:
                    self._agenda.withdraw(run.report_event)
            elif type(event) is RunStopped:
                self._remove_run(event.job)
                self._done[event.job] = event.done
            elif type(event) is RunProgressed:
                self._report_again(now, event)
            elif type(event) is NodeLost or type(event) is GpuLost:
                losses.append(event)
        if not losses:
            return []
        affected = [
            (job_id, lost) for job_id, run in self._runs.items() if (lost := next(filter(run.uses, losses), None))
        ]
        return [
            self._fail(now, job_id, "node lost" if isinstance(lost, NodeLost) else "GPU lost")
            for job_id, lost in affected
        ]

    def _start(self, now: Seconds, order: StartRun) -> None:
        job, costs = self._jobs[order.job], self._costs
        is_live = self._live_changes.pop(job.id, None) == order.allocation or self._survivors.pop(job.id, -inf) == now
        delay = costs.start if order.run == 1 else costs.live if is_live and costs.live is not None else costs.restart
        remaining = max(0.0, self._charge.work(job) - self._done.get(job.id, 0.0))
        speed = self._charge.speed(job, order.allocation)
        run = _SimulatedRun(order.run, order.allocation.placement, now + delay, speed)
        if delay:
            run.start_event = self._agenda.add(now + delay, RunStarted(job.id, order.run))
        if is_live:
            run.cost_event = self._agenda.add(now + delay, ChangeMeasured(job.id, order.run, delay, "live"))
        if job.id in self._max_work:
            self.never_ending += 1
            first_report = now + delay + (costs.report_every or 0.0)
            self.never_ending_reported_by = max(self.never_ending_reported_by, first_report)
        else:
            run.end_event = self._agenda.add(now + delay + remaining / speed, RunFinished(job.id, order.run))
        self._runs[job.id] = run
        self._schedule_report(now + delay, job, run)

    def _schedule_report(self, now: Seconds, job: Job, run: _SimulatedRun) -> None:
        every = self._costs.report_every
        if every is None:
            return
        at = now + every
        done_by_then = self._work_done(job.id, run, at)
        if job.id in self._max_work and done_by_then == self._work_done(job.id, run, now):
            run.report_event = 0  # the job hangs, and does not report any more
            return
        done = self._done.get(job.id, 0.0) + done_by_then
        speed = self._samples_per_second(job, run) if self._costs.report_speeds else None
        report = RunProgressed(job.id, run.number, done, self._steps(job, done), None, speed)
        run.report_event = self._agenda.add(at, report)

    def _samples_per_second(self, job: Job, run: _SimulatedRun) -> float | None:
        if not (job.batch and job.steps):
            return None
        return job.batch * job.steps * run.speed / self._charge.work(job)

    def _report_again(self, now: Seconds, event: RunProgressed) -> None:
        run = self._runs.get(event.job)
        if run is not None and run.number == event.run:
            self._schedule_report(now, self._jobs[event.job], run)

    def _work_done(self, job_id: str, run: _SimulatedRun, now: Seconds) -> Seconds:
        """Return the work that a run has done by `now`; a job that hangs does a limited amount over all its runs."""
        done = run.done(now)
        return min(done, self._max_work[job_id] - self._done.get(job_id, 0.0)) if job_id in self._max_work else done

    def _steps(self, job: Job, done: Seconds) -> int | None:
        """Convert work to steps; None for a job that does not count steps."""
        if job.steps is None:
            return None
        work = self._charge.work(job)
        return min(job.steps, int(job.steps * done / work)) if work else job.steps

    def _stop(self, now: Seconds, order: StopRun) -> None:
        job_id, number = order.job, order.run
        run = self._runs.get(job_id)
        if run is None or run.number != number:
            return  # it has ended by itself and has reported so
        if self._costs.live is not None and order.next is not None and _has_same_nodes(run.placement, order.next):
            self._live_changes[job_id] = order.next
        self._withdraw_events(now, run)
        done = self._done.get(job_id, 0.0) + self._work_done(job_id, run, now)
        run.start_event = 0
        run.stopped_at = now
        stopped = RunStopped(job_id, number, done, self._steps(self._jobs[job_id], done))
        delay = 0.0 if job_id in self._live_changes else self._costs.stop
        run.end_event = self._agenda.add(now + delay, stopped)

    def _fail(self, now: Seconds, job_id: str, why: str) -> Event:
        run = self._runs[job_id]
        self._remove_run(job_id)
        self._withdraw_events(now, run)
        before, since = self._done.get(job_id, 0.0), self._work_done(job_id, run, now)
        if self._costs.live is not None and self._jobs[job_id].reshapable and len(run.placement) > 1:
            self._survivors[job_id] = now
            done = self._done[job_id] = before + since
        else:
            done = self._done[job_id] = self._checkpointed(before, since)
        steps = self._steps(self._jobs[job_id], done)
        return RunFailed(job_id, run.number, why, done, retry=True, steps=steps)

    def _checkpointed(self, before: Seconds, since: Seconds) -> Seconds:
        every = self._costs.checkpoint_every
        return before if every is None else before + since // every * every

    def _remove_run(self, job_id: str) -> None:
        if self._runs.pop(job_id, None) is not None and job_id in self._max_work:
            self.never_ending -= 1

    def _withdraw_events(self, now: Seconds, run: _SimulatedRun) -> None:
        """Withdraw the future events of a run that is stopped or lost."""
        if run.end_event:
            self._agenda.withdraw(run.end_event)
        if run.report_event:
            self._agenda.withdraw(run.report_event)
            run.report_event = 0
        if run.start_event and run.since > now:
            self._agenda.withdraw(run.start_event)
        if run.cost_event and run.since > now:
            self._agenda.withdraw(run.cost_event)


def _has_same_nodes(placement: Placement, allocation: Allocation) -> bool:
    return [share.node for share in placement] == [share.node for share in allocation.placement]
