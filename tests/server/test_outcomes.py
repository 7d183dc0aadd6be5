"""Outcomes of jobs that a rule ends."""

from __future__ import annotations

from collections.abc import Sequence

from refold.core import Entry, Scheduler, View
from refold.core.events import Event, JobCancelled, JobSubmitted, RunFailed, RunFinished, RunStarted, RunStopped
from refold.model import Decision, End, Job
from refold.policies.queueing.fifo import Fifo
from refold.server.outcomes import JobOutcomes, OutcomeState
from refold.testing import make_cluster, make_job


class EndsRunsAfter:
    """Fifo that ends all runs from a time on."""

    name = "ends"

    def __init__(self, since: float) -> None:
        self._since, self._fifo = since, Fifo()

    def decide(self, view: View) -> Decision:
        """Decide as fifo until `since`, then end all runs."""
        if view.now < self._since:
            return self._fifo.decide(view)
        return Decision(ends=tuple(End(run.job, "stuck") for run in view.runs.values() if not run.stopping))


def outcome_after(last: Sequence[Event], cancelled: Sequence[Event] = ()) -> tuple[OutcomeState, str]:
    """Return state and reason of a job that a rule ends after three seconds, given its last reports."""
    job: Job = make_job("job")
    outcomes = JobOutcomes([job])
    scheduler = Scheduler(make_cluster(1), EndsRunsAfter(3.0))
    steps: list[tuple[float, Sequence[Event]]] = [
        (0.0, [JobSubmitted(job)]),
        (1.0, [RunStarted("job", 1)]),
        (2.0, cancelled),
        (3.0, []),
        (4.0, last),
    ]
    for now, events in steps:
        entry: Entry = scheduler.step(now, events)
        outcomes.apply(entry, scheduler.view)
    return outcomes.by_id["job"].state, outcomes.by_id["job"].why


def test_a_job_ended_by_a_rule_has_the_reason() -> None:
    assert outcome_after([RunStopped("job", 1)]) == ("cancelled", "stuck")


def test_a_job_cancelled_before_the_rule_ended_it_has_no_reason() -> None:
    assert outcome_after([RunStopped("job", 1)], cancelled=[JobCancelled("job")]) == ("cancelled", "")


def test_a_run_that_finishes_while_it_is_being_ended_has_finished() -> None:
    assert outcome_after([RunFinished("job", 1)]) == ("finished", "")


def test_a_job_whose_run_fails_while_it_is_being_ended_has_the_reason_of_the_rule() -> None:
    assert outcome_after([RunFailed("job", 1, "exit 3")]) == ("cancelled", "stuck")
