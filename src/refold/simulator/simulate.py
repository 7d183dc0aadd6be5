"""The simulator: the scheduler, driven by an agenda instead of a clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from refold.core import Journal, Policy, Scheduler, View
from refold.core.events import Event, RunFinished
from refold.errors import BadDecision, BadValue
from refold.model import Cluster, Job
from refold.simulator.agenda import Agenda
from refold.simulator.charges import FREE_OF_CHARGE, AsRecorded, Charge, Costs
from refold.simulator.faults import Fault, put_on
from refold.simulator.pretend import PretendBackend

MOST_WAKES_IN_VAIN = 10_000
"""After so many the policy is thought to wait for something that will not come."""

REPORT_EVERY = 256
"""How many steps lie between two reports of progress."""


def simulate(
    jobs: Sequence[Job],
    cluster: Cluster,
    policy: Policy,
    *,
    journal: Journal | None = None,
    charge: Charge | None = None,
    costs: Costs = FREE_OF_CHARGE,
    faults: Iterable[Fault] = (),
    progress: Callable[[int], None] | None = None,
) -> View:
    """Run all jobs, which are sorted by submission, to their end; the journal has what happened.

    `progress` is told now and then how many jobs have finished. Returns the view at the end: whoever still
    waits there has waited in vain.
    """
    _check(jobs)
    agenda = Agenda(jobs)
    backend = PretendBackend(jobs, agenda, charge or AsRecorded(cluster), costs)
    scheduler = Scheduler(cluster, policy, journal)
    put_on(agenda, faults)
    steps = finished = woken_in_vain = 0
    while (moment := agenda.next()) is not None:
        now, events = moment
        events += backend.also_happens(now, events)
        entry = scheduler.step(now, events)
        if entry.orders:
            backend.carry_out(now, entry.orders)
        if entry.wake_at is not None:
            agenda.wake(entry.wake_at)
            woken_in_vain = 0 if entry.orders or scheduler.view.runs or not agenda.all_arrived else woken_in_vain + 1
            if woken_in_vain > MOST_WAKES_IN_VAIN:
                what = f"asked {woken_in_vain} times in a row to be woken, while nothing ran, and started nobody"
                raise BadDecision(policy.name, "wake", what)
        if agenda.all_arrived and not scheduler.view.waiting and not scheduler.view.runs:
            break
        if progress is not None:
            steps += 1
            finished += _finished(events)
            if steps % REPORT_EVERY == 0:
                progress(finished)
    return scheduler.view


def _check(jobs: Sequence[Job]) -> None:
    if len({job.id for job in jobs}) != len(jobs):
        raise BadValue("two jobs of a simulation have the same id")
    if any(job.submitted > following.submitted for job, following in pairwise(jobs)):
        raise BadValue("the jobs of a simulation are sorted by submission")


def _finished(events: Sequence[Event]) -> int:
    return sum(isinstance(event, RunFinished) for event in events)
