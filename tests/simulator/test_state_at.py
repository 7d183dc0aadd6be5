"""What the journal says was decided is decided again, whatever followed from its events."""

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
    written = RecordedDecisions(lambda _: None)
    again = Scheduler(make_cluster(1), written)
    for entry in entries:
        written.entry = entry
        assert again.step(entry.now, entry.events).orders == entry.orders
    assert again.view.runs == {}
