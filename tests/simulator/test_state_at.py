"""The decisions of a journal are repeated, except for orders that follow from its events."""

from refold.core import JobCancelled, JobSubmitted, RunStopped, Scheduler
from refold.policies.queueing import Fifo
from refold.simulator import RecordedDecisions
from refold.testing import make_cluster, make_job


def test_a_run_that_is_cancelled_and_ends_in_the_same_step_is_not_stopped_again() -> None:
    live = Scheduler(make_cluster(1), Fifo())
    entries = [
        live.step(0.0, [JobSubmitted(make_job("a"))]),
        live.step(1.0, [JobCancelled("a"), RunStopped("a", 1)]),
    ]
    recorded = RecordedDecisions(lambda _: None)
    replayed = Scheduler(make_cluster(1), recorded)
    for entry in entries:
        recorded.entry = entry
        assert replayed.step(entry.now, entry.events).orders == entry.orders
    assert replayed.view.runs == {}
