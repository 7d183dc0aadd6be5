"""The pretend back end: carries out orders by writing into the agenda what will come of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from refold.core import (
    Event,
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
from refold.model import Job, Placement, Seconds
from refold.simulator.agenda import Agenda
from refold.simulator.costs import FREE_OF_CHARGE, Costs, SpeedModel
from refold.simulator.faults import Endless, NeverEnds


class _SimulatedRun:
    """A run: since when it computes, how fast, and which entry of the agenda will end it."""

    __slots__ = ("ending", "number", "placement", "reporting", "since", "speed", "starting", "stopped")

    def __init__(self, number: int, placement: Placement, since: Seconds, speed: float) -> None:
        self.number = number
        self.placement = placement
        self.since = since
        self.speed = speed
        self.stopped = inf
        self.ending = 0
        self.starting = 0
        self.reporting = 0

    def done(self, now: Seconds) -> Seconds:
        """The work it has done by now; from when it was told to stop it does no more."""
        return max(0.0, min(now, self.stopped) - self.since) * self.speed

    def is_on(self, nodes: Sequence[int]) -> bool:
        return any(share.node in nodes for share in self.placement)


class SimulatedBackend:
    """Runs nothing, and knows to the second when it would end. Runs report their progress if costs say how often.

    Some jobs never end: their runs do so only when they are told to stop, or with a node.
    """

    def __init__(
        self,
        jobs: Iterable[Job],
        agenda: Agenda,
        charge: SpeedModel,
        costs: Costs = FREE_OF_CHARGE,
        never_end: Iterable[NeverEnds] = (),
    ) -> None:
        self._jobs = {job.id: job for job in jobs}
        self._agenda = agenda
        self._charge = charge
        self._costs = costs
        self._most = {one.job: self._most_of(one) for one in never_end}
        self._done: dict[str, Seconds] = {}
        self._runs: dict[str, _SimulatedRun] = {}
        self.longest_limit = max((self._jobs[job].time_limit or 0.0 for job in self._most), default=0.0)
        """The longest that a user of a job that never ends gave it."""
        self.never_ending = 0
        """How many runs do not end by themselves."""
        self.never_ending_silent_until = -inf
        """By then each of them has reported once, if it ever does."""

    def _most_of(self, one: NeverEnds) -> Seconds:
        """As much work as a job that never ends will do."""
        if one.job not in self._jobs:
            raise BadValue(f"job {one.job!r} never ends, and is not among the jobs of the simulation")
        return inf if isinstance(one, Endless) else min(one.after, self._charge.work(self._jobs[one.job]))

    def carry_out(self, now: Seconds, orders: Iterable[Order]) -> None:
        """Do as told."""
        for order in orders:
            if type(order) is StartRun:
                self._start(now, order)
            elif type(order) is StopRun:
                self._stop(now, order.job, order.run)

    def also_happens(self, now: Seconds, events: Sequence[Event]) -> list[Event]:
        """What these events bring about: whoever ran on a node that is lost now has failed, and nobody else."""
        nodes: list[int] = []
        for event in events:
            if type(event) is RunFinished:
                ended = self._runs.pop(event.job, None)
                self._done.pop(event.job, None)
                if ended is not None and ended.reporting:
                    self._agenda.withdraw(ended.reporting)
            elif type(event) is RunStopped:
                self._forget(event.job)
                self._done[event.job] = event.done
            elif type(event) is RunProgressed:
                self._report_again(now, event)
            elif type(event) is NodeLost:
                nodes.append(event.node)
        if not nodes:
            return []
        on_them = [job_id for job_id, run in self._runs.items() if run.is_on(nodes)]
        return [self._lose(now, job_id) for job_id in on_them]

    def _start(self, now: Seconds, order: StartRun) -> None:
        job, costs = self._jobs[order.job], self._costs
        delay = costs.start if order.run == 1 else costs.restart
        left = max(0.0, self._charge.work(job) - self._done.get(job.id, 0.0))
        speed = self._charge.speed(job, order.allocation)
        run = _SimulatedRun(order.run, order.allocation.placement, now + delay, speed)
        if delay:
            run.starting = self._agenda.add(now + delay, RunStarted(job.id, order.run))
        if job.id in self._most:
            self.never_ending += 1
            first_report = now + delay + (costs.report_every or 0.0)
            self.never_ending_silent_until = max(self.never_ending_silent_until, first_report)
        else:
            run.ending = self._agenda.add(now + delay + left / speed, RunFinished(job.id, order.run))
        self._runs[job.id] = run
        self._plan_report(now + delay, job, run)

    def _plan_report(self, now: Seconds, job: Job, run: _SimulatedRun) -> None:
        every = self._costs.report_every
        if every is None:
            return
        at = now + every
        worked = self._worked(job.id, run, at)
        if job.id in self._most and worked == self._worked(job.id, run, now):
            run.reporting = 0  # it is stuck
            return
        done = self._done.get(job.id, 0.0) + worked
        run.reporting = self._agenda.add(at, RunProgressed(job.id, run.number, done, self._steps(job, done)))

    def _report_again(self, now: Seconds, event: RunProgressed) -> None:
        run = self._runs.get(event.job)
        if run is not None and run.number == event.run:
            self._plan_report(now, self._jobs[event.job], run)

    def _worked(self, job_id: str, run: _SimulatedRun, now: Seconds) -> Seconds:
        """The work that a run has done by now; a job that gets stuck does only so much in all its runs."""
        done = run.done(now)
        return min(done, self._most[job_id] - self._done.get(job_id, 0.0)) if job_id in self._most else done

    def _steps(self, job: Job, done: Seconds) -> int | None:
        """How many steps so much work is; None of a job that does not count them."""
        if job.steps is None:
            return None
        work = self._charge.work(job)
        return min(job.steps, int(job.steps * done / work)) if work else job.steps

    def _stop(self, now: Seconds, job_id: str, number: int) -> None:
        run = self._runs.get(job_id)
        if run is None or run.number != number:
            return  # it ended by itself, and has said so
        self._withdraw(now, run)
        done = self._done.get(job_id, 0.0) + self._worked(job_id, run, now)
        run.starting = 0
        run.stopped = now
        stopped = RunStopped(job_id, number, done, self._steps(self._jobs[job_id], done))
        run.ending = self._agenda.add(now + self._costs.stop, stopped)

    def _lose(self, now: Seconds, job_id: str) -> Event:
        run = self._runs[job_id]
        self._forget(job_id)
        self._withdraw(now, run)
        done = self._done[job_id] = self._kept(self._done.get(job_id, 0.0), self._worked(job_id, run, now))
        steps = self._steps(self._jobs[job_id], done)
        return RunFailed(job_id, run.number, "node lost", done, retry=True, steps=steps)

    def _kept(self, before: Seconds, since: Seconds) -> Seconds:
        every = self._costs.checkpoint_every
        return before if every is None else before + since // every * every

    def _forget(self, job_id: str) -> None:
        if self._runs.pop(job_id, None) is not None and job_id in self._most:
            self.never_ending -= 1

    def _withdraw(self, now: Seconds, run: _SimulatedRun) -> None:
        """What would have come of a run does not, now that it is told to stop, or is lost."""
        if run.ending:
            self._agenda.withdraw(run.ending)
        if run.reporting:
            self._agenda.withdraw(run.reporting)
            run.reporting = 0
        if run.starting and run.since > now:
            self._agenda.withdraw(run.starting)
