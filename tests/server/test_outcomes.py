"""What is told of jobs at the end: of those that were ended by a rule, with the reason."""

from __future__ import annotations

from collections.abc import Sequence

from refold.core import Entry, Scheduler, View
from refold.core.events import Event, JobCancelled, JobSubmitted, RunFailed, RunFinished, RunStarted, RunStopped
from refold.model import Decision, End, Job
from refold.policies.queueing.fifo import Fifo
from refold.server.outcomes import JobOutcomes, OutcomeState
from refold.testing import make_cluster, make_job


class EndsWhoeverRuns:
    """Fifo that ends its runs from a moment on."""

    name = "ends"

    def __init__(self, since: float) -> None:
        self._since, self._fifo = since, Fifo()

    def decide(self, view: View) -> Decision:
        """As fifo does, until then."""
        if view.now < self._since:
            return self._fifo.decide(view)
        return Decision(ends=tuple(End(run.job, "goes nowhere") for run in view.runs.values() if not run.stopping))


def told_after(last: Sequence[Event], cancelled: Sequence[Event] = ()) -> tuple[OutcomeState, str]:
    """Where a job stands, and why, that was ended by a rule after three seconds and then reported so."""
    job: Job = make_job("job")
    outcomes = JobOutcomes([job])
    scheduler = Scheduler(make_cluster(1), EndsWhoeverRuns(3.0))
    steps: list[tuple[float, Sequence[Event]]] = [
        (0.0, [JobSubmitted(job)]),
        (1.0, [RunStarted("job", 1)]),
        (2.0, cancelled),
        (3.0, []),
        (4.0, last),
    ]
    for now, events in steps:
        entry: Entry = scheduler.step(now, events)
        outcomes.note(entry, scheduler.view)
    return outcomes.of["job"].state, outcomes.of["job"].why


def test_a_job_that_was_ended_by_a_rule_is_told_with_the_reason() -> None:
    assert told_after([RunStopped("job", 1)]) == ("cancelled", "goes nowhere")


def test_a_job_that_was_cancelled_before_the_rule_could_end_it_is_told_without() -> None:
    assert told_after([RunStopped("job", 1)], cancelled=[JobCancelled("job")]) == ("cancelled", "")


def test_a_run_that_finishes_while_it_is_ended_has_finished() -> None:
    assert told_after([RunFinished("job", 1)]) == ("finished", "")


def test_a_run_that_fails_while_it_is_ended_is_told_with_what_it_says_itself() -> None:
    assert told_after([RunFailed("job", 1, "exit 3")]) == ("failed", "exit 3")
