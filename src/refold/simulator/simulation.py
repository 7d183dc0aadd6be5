"""The simulator: the scheduler, driven by an agenda instead of a clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from math import inf

from refold.core import Entry, Event, Journal, Policy, RunFinished, Scheduler, View
from refold.errors import BadDecision, BadValue
from refold.model import DAY, Cluster, Job, Seconds
from refold.simulator.agenda import Agenda
from refold.simulator.backend import SimulatedBackend
from refold.simulator.costs import FREE_OF_CHARGE, Costs, RecordedSpeeds, SpeedModel
from refold.simulator.faults import Fault, NeverEnds, put_on

MOST_WAKES_IN_VAIN = 10_000
"""After so many the policy is thought to wait for something that will not come."""

PATIENCE: Seconds = 7 * DAY
"""So long after any limit that a user gave, a policy that has not stopped runs that never end is thought not to."""

MOST_STEPS_IN_VAIN = 1_000
"""Some policies ask to be woken at few moments, which are far apart: so many steps are always waited for."""

REPORT_EVERY = 256
"""How many steps lie between two reports of progress."""


def simulate(
    jobs: Sequence[Job],
    cluster: Cluster,
    policy: Policy,
    *,
    journal: Journal | None = None,
    charge: SpeedModel | None = None,
    costs: Costs = FREE_OF_CHARGE,
    faults: Iterable[Fault] = (),
    never_end: Iterable[NeverEnds] = (),
    progress: Callable[[int], None] | None = None,
) -> View:
    """Run all jobs, which are sorted by submission, to their end; the journal has what happened.

    `progress` is told now and then how many jobs have finished. Returns the view at the end: whoever still
    waits there has waited in vain. Jobs that never end, and that nobody stops, still run there.
    """
    _check(jobs)
    agenda = Agenda(jobs)
    backend = SimulatedBackend(jobs, agenda, charge or RecordedSpeeds(cluster), costs, never_end)
    scheduler = Scheduler(cluster, policy, journal)
    changes_of_nodes = tuple(faults)
    put_on(agenda, changes_of_nodes)
    hope = _EndDetector(policy.name, agenda, backend, changes_of_nodes)
    steps = finished = 0
    while (moment := agenda.next()) is not None:
        now, events = moment
        events += backend.also_happens(now, events)
        entry = scheduler.step(now, events)
        if entry.orders:
            backend.carry_out(now, entry.orders)
        if entry.wake_at is not None:
            agenda.wake(entry.wake_at)
        if not hope.is_left(entry, scheduler.view):
            break
        if progress is not None:
            steps += 1
            finished += _finished(events)
            if steps % REPORT_EVERY == 0:
                progress(finished)
    return scheduler.view


class _EndDetector:
    """Whether something can still come of a simulation."""

    def __init__(self, policy: str, agenda: Agenda, backend: SimulatedBackend, faults: Sequence[Fault]) -> None:
        self._policy, self._agenda, self._backend = policy, agenda, backend
        moments = [moment for fault in faults for moment in (fault.lost, fault.returned) if moment < inf]
        self._nodes_change_until = max(moments, default=-inf)
        self._wakes_until = -inf
        self._wakes_while_nothing_ran = 0
        self._steps_in_vain = 0
        self._in_vain_since = inf
        self._patience = PATIENCE + backend.longest_limit

    def is_left(self, entry: Entry, view: View) -> bool:
        """After each step: whether a job is still to come, to start, or to end. Raises where a policy dreams."""
        if entry.wake_at is not None:
            self._wakes_until = max(self._wakes_until, entry.wake_at)
        if not self._agenda.all_arrived:
            return True
        if not view.runs:
            self._demand_that_somebody_starts(entry)
            return bool(view.waiting)
        self._wakes_while_nothing_ran = 0
        if len(view.runs) > self._backend.never_ending:
            self._steps_in_vain, self._in_vain_since = 0, inf
            return True
        return self._may_be_stopped(entry, view)

    def _demand_that_somebody_starts(self, entry: Entry) -> None:
        if entry.wake_at is not None:
            self._wakes_while_nothing_ran += 1
        if (times := self._wakes_while_nothing_ran) > MOST_WAKES_IN_VAIN:
            what = f"asked {times} times in a row to be woken, while nothing ran, and started nobody"
            raise BadDecision(self._policy, "wake", what)

    def _may_be_stopped(self, entry: Entry, view: View) -> bool:
        """Whether one of the runs that never end, which are all there are, may still be stopped: by whom, and when?

        Reports of theirs do not count, but for the first: a policy that wants to act at some time asks to be woken.
        """
        self._steps_in_vain += 1
        self._in_vain_since = min(self._in_vain_since, entry.now)
        if self._steps_in_vain > MOST_STEPS_IN_VAIN and entry.now - self._in_vain_since > self._patience:
            return False
        reported = self._backend.never_ending_silent_until
        if entry.now < max(self._wakes_until, self._nodes_change_until, reported):
            return True
        return any(run.stopping for run in view.runs.values())


def _check(jobs: Sequence[Job]) -> None:
    if len({job.id for job in jobs}) != len(jobs):
        raise BadValue("two jobs of a simulation have the same id")
    if any(job.submitted > following.submitted for job, following in pairwise(jobs)):
        raise BadValue("the jobs of a simulation are sorted by submission")


def _finished(events: Sequence[Event]) -> int:
    return sum(isinstance(event, RunFinished) for event in events)
