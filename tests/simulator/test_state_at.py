"""The decisions of a journal are repeated, except for orders that follow from its events."""

from typing import Any

import pytest

from refold.core import JobCancelled, JobSubmitted, RunFinished, RunStopped, Scheduler
from refold.policies.queueing import Fifo
from refold.simulator import RecordedDecisions, StateAt
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


@pytest.mark.parametrize(
    ("fields", "known"), [({"work": None}, False), ({"work": None, "time_limit": 60.0}, True), ({"work": 5.0}, True)]
)
def test_run_times_are_known_from_limits_and_estimates_or_once_a_job_has_ended(
    fields: dict[str, Any], known: bool
) -> None:
    cluster = make_cluster(1)
    live = Scheduler(cluster, Fifo())
    jobs = [make_job("first", **fields), make_job("second", **fields)]
    entries = [live.step(0.0, [JobSubmitted(job) for job in jobs])]
    assert StateAt.from_entries(cluster, entries).knows_run_times == known
    entries.append(live.step(9.0, [RunFinished("first", 1)]))
    assert StateAt.from_entries(cluster, entries).knows_run_times
