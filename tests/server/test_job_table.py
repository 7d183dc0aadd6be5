"""The table of jobs that have not ended."""

from refold.core import JobSubmitted, RunFinished, Scheduler
from refold.journal import JobEnded
from refold.policies.queueing import Fifo
from refold.server.job_table import JobTable
from refold.testing import make_cluster, make_job


def test_the_run_time_of_a_job_that_was_placed_at_time_zero_is_counted() -> None:
    cluster = make_cluster(1)
    scheduler, table = Scheduler(cluster, Fifo()), JobTable(cluster)
    table.apply(scheduler.step(0.0, [JobSubmitted(make_job("a"))]), scheduler.view.infeasible)
    changes, _ = table.apply(scheduler.step(10.0, [RunFinished("a", 1)]), scheduler.view.infeasible)
    ended = [change.record for change in changes if isinstance(change, JobEnded)]
    assert [(record.job.id, record.state, record.run_time) for record in ended] == [("a", "finished", 10.0)]
