"""A failing policy is replaced without losing jobs."""

from __future__ import annotations

from refold.core import Scheduler, View
from refold.core.events import JobSubmitted, Woke
from refold.core.orders import StartRun
from refold.model import Decision
from refold.policies.queueing.fifo import Fifo
from refold.server.fallback import FallbackPolicy
from refold.testing import make_cluster, make_job


class FailsOnce(Fifo):
    """Raises the first time a job named 'bad' is waiting."""

    failed = False

    def decide(self, view: View) -> Decision:
        if "bad" in view.waiting and not FailsOnce.failed:
            FailsOnce.failed = True
            raise RuntimeError("no")
        return super().decide(view)


def test_jobs_submitted_when_the_policy_failed_are_started_by_the_next_instance() -> None:
    FailsOnce.failed = False
    scheduler = Scheduler(make_cluster(4), FallbackPolicy(FailsOnce))
    scheduler.step(0.0, [JobSubmitted(make_job("first"))])
    assert scheduler.step(1.0, [JobSubmitted(make_job("bad")), JobSubmitted(make_job("other"))]).orders == ()
    started = [order.job for order in scheduler.step(2.0, [Woke()]).orders if isinstance(order, StartRun)]
    assert started == ["bad", "other"]
    assert list(scheduler.view.runs) == ["first", "bad", "other"]
