"""Jobs with a range of GPUs whose speed is unknown are assumed to become faster with more."""

from __future__ import annotations

from refold.core import Scheduler
from refold.core.events import JobSubmitted, RunStarted, RunStopped
from refold.model import WHOLE
from refold.policies.refold.policy import Refold
from refold.testing import make_cluster, make_job


def test_a_job_of_unknown_speed_with_a_range_is_alone_on_all_gpus_and_shares_them_with_the_next() -> None:
    alone = make_job("alone", gpus=1, gpu_range=(1, 4), reshapable=True, workload="new", work=1000.0)
    policy = Refold()
    scheduler = Scheduler(make_cluster(4), policy)
    scheduler.step(0.0, [JobSubmitted(alone)])
    scheduler.step(0.0, [RunStarted("alone", 1)])
    assert scheduler.view.runs["alone"].allocation.gpu_milli == 4 * WHOLE
    scheduler.step(10.0, [JobSubmitted(make_job("next", gpus=2, at=10.0, work=100.0))])
    scheduler.step(11.0, [RunStopped("alone", 1, 1.0)])
    held = {job: run.allocation.gpu_milli // WHOLE for job, run in scheduler.view.runs.items()}
    assert held == {"alone": 2, "next": 2}


def test_a_job_of_unknown_speed_without_a_range_gets_what_it_requests() -> None:
    scheduler = Scheduler(make_cluster(4), Refold())
    scheduler.step(0.0, [JobSubmitted(make_job("a", gpus=1, reshapable=True, workload="new", work=1000.0))])
    assert scheduler.view.runs["a"].allocation.gpu_milli == WHOLE
