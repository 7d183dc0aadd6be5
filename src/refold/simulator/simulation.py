# cython: boundscheck=True, wraparound=True
"""The simulator: the scheduler, driven by an agenda of events instead of a clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf

import cython

from refold.core import Entry, Event, Journal, Policy, RunFinished
from refold.errors import BadDecision
from refold.model import DAY, Cluster, Job, Seconds
from refold.simulator.agenda import check_jobs
from refold.simulator.costs import NO_COSTS, Costs, SpeedModel, recorded_speeds
from refold.simulator.faults import Fault, NeverEnds, schedule_faults

if not cython.compiled:
    from refold.core import Scheduler, View
    from refold.simulator.agenda import Agenda
    from refold.simulator.backend import SimulatedBackend

MAX_IDLE_WAKES = 10_000
"""A policy that sets more wake-ups than this in a row, while nothing runs, will never start a job."""

GIVE_UP_SECONDS: Seconds = 7 * DAY
"""When only runs that never end are left, the policy has this long beyond their time limits to stop them."""

MIN_FUTILE_STEPS = 1_000
"""The minimum number of steps that the policy has to stop them: some policies set few wake-ups, far apart."""

PROGRESS_INTERVAL_STEPS = 256
"""The number of steps between two calls of `progress`."""


def simulate(
    jobs: Sequence[Job],
    cluster: Cluster,
    policy: Policy,
    *,
    journal: Journal | None = None,
    charge: SpeedModel | None = None,
    costs: Costs = NO_COSTS,
    faults: Iterable[Fault] = (),
    never_end: Iterable[NeverEnds] = (),
    progress: Callable[[int], None] | None = None,
) -> View:
    """Simulate all jobs, which must be sorted by submission, until they have ended. The journal records every step.

    `progress` is called at intervals with the number of finished jobs. Returns the view at the end, in which jobs that
    the policy never started still wait, and jobs that never end and were not stopped still run.
    """
    check_jobs(jobs)
    agenda = Agenda(jobs)
    backend = SimulatedBackend(jobs, agenda, charge or recorded_speeds(cluster), costs, never_end)
    scheduler = Scheduler(cluster, policy, journal)
    node_faults = tuple(faults)
    schedule_faults(agenda, node_faults)
    detector = _EndDetector(policy.name, agenda, backend, node_faults)
    steps = finished = 0
    while (upcoming := agenda.next()) is not None:
        now, events = upcoming
        events += backend.consequences(now, events)
        entry = scheduler.step(now, events)
        if entry.orders:
            backend.carry_out(now, entry.orders)
        if entry.wake_at is not None:
            agenda.wake(entry.wake_at)
        if not detector.may_continue(entry, scheduler.view):
            break
        if progress is not None:
            steps += 1
            finished += _count_finished(events)
            if steps % PROGRESS_INTERVAL_STEPS == 0:
                progress(finished)
    return scheduler.view


class _EndDetector:
    """Detects the end of a simulation: no job can start or end any more."""

    def __init__(self, policy: str, agenda: Agenda, backend: SimulatedBackend, faults: Sequence[Fault]) -> None:
        self._policy, self._agenda, self._backend = policy, agenda, backend
        times = [event_time for fault in faults for event_time in (fault.lost, fault.returned) if event_time < inf]
        self._last_node_change = max(times, default=-inf)
        self._last_wake = -inf
        self._idle_wakes = 0
        self._futile_steps = 0
        self._futile_since = inf
        self._give_up_after = GIVE_UP_SECONDS + backend.max_time_limit

    def may_continue(self, entry: Entry, view: View) -> bool:
        """Return, after each step, whether a job may still be submitted, start or end.

        Raises BadDecision if the policy sets wake-ups endlessly without starting a job.
        """
        if entry.wake_at is not None:
            self._last_wake = max(self._last_wake, entry.wake_at)
        if not self._agenda.all_arrived:
            return True
        if not view.runs:
            self._check_idle_wakes(entry)
            return bool(view.waiting)
        self._idle_wakes = 0
        if len(view.runs) > self._backend.never_ending:
            self._futile_steps, self._futile_since = 0, inf
            return True
        return self._may_be_stopped(entry, view)

    def _check_idle_wakes(self, entry: Entry) -> None:
        if entry.wake_at is not None:
            self._idle_wakes += 1
        if (times := self._idle_wakes) > MAX_IDLE_WAKES:
            problem = f"set wake_at {times} times in a row while nothing ran, and started no job"
            raise BadDecision(self._policy, "wake", problem)

    def _may_be_stopped(self, entry: Entry, view: View) -> bool:
        """Whether a run may still be stopped, when all current runs never end by themselves.

        Their progress reports do not count, except for the first: a policy that plans to act later sets `wake_at`.
        """
        self._futile_steps += 1
        self._futile_since = min(self._futile_since, entry.now)
        if self._futile_steps > MIN_FUTILE_STEPS and entry.now - self._futile_since > self._give_up_after:
            return False
        reported = self._backend.never_ending_reported_by
        if entry.now < max(self._last_wake, self._last_node_change, reported):
            return True
        return any(run.stopping for run in view.runs.values())


def _count_finished(events: Sequence[Event]) -> int:
    return sum(isinstance(event, RunFinished) for event in events)
