"""Measured speeds correct the performance model of policies, and make up for it where there is none."""

from __future__ import annotations

import pytest

from refold.core import (
    ChangeMeasured,
    Event,
    JobSubmitted,
    ListJournal,
    RunProgressed,
    RunStarted,
    RunStopped,
    Scheduler,
    StopRun,
)
from refold.engines.local import local_cluster
from refold.model import Allocation, Cluster, Demand, Job, Plan, Share
from refold.planning.plans import CATALOGUE_ONLY
from refold.policies.common import ProgressEstimator
from refold.simulator.registry import make_policy
from refold.testing import make_cluster, make_job

GPU = "A800-80GB"
FOUR = Allocation((Share(0, (0, 1, 2, 3)),), Plan(data=4))
OTHERS = [
    Allocation((Share(0, (0, 1, 2, 3)),), Plan(data=2, tensor=2)),
    Allocation((Share(0, (0, 1)),), Plan(data=2)),
    Allocation((Share(0, tuple(range(8))),), Plan(data=8)),
]


class Live:
    """A scheduler whose events and orders are recorded, with a step every ten seconds."""

    def __init__(self, cluster: Cluster, policy: str, **settings: object) -> None:
        self.journal = ListJournal()
        self._cluster, self._policy, self._settings = cluster, policy, settings
        self.scheduler = Scheduler(cluster, make_policy(policy, settings), self.journal)
        self.now = 0.0

    def step(self, *events: Event) -> list[StopRun]:
        """Take a step; return the stops that it orders."""
        self.now += 10.0
        orders = self.scheduler.step(self.now, events).orders
        return [order for order in orders if isinstance(order, StopRun)]

    def run_of(self, job: Job) -> tuple[int, Allocation]:
        run = self.scheduler.view.runs[job.id]
        return run.number, run.allocation

    def assert_replays(self) -> None:
        again = Scheduler(self._cluster, make_policy(self._policy, self._settings))
        assert all(again.step(entry.now, entry.events).orders == entry.orders for entry in self.journal.entries)


def estimator_of(live: Live) -> ProgressEstimator:
    """Return what a policy estimates with the view of a scheduler."""
    estimator = ProgressEstimator(live.scheduler.view, CATALOGUE_ONLY, 78.0)
    estimator.learn(live.scheduler.view)
    return estimator


@pytest.mark.parametrize("factor", [0.5, 2.0])
@pytest.mark.parametrize("policy", ["refold", "rubick"])
def test_a_model_that_is_wrong_by_a_factor_of_two_is_corrected_after_ten_reports(policy: str, factor: float) -> None:
    live = Live(make_cluster(8, types=GPU), policy)
    job = make_job("a", gpus=4, workload="bert", batch=64, steps=10**6, reshapable=True)
    live.step(JobSubmitted(job))
    number, held = live.run_of(job)
    before = estimator_of(live)
    truth = factor * before.speed(job, held)
    modelled = {other.plan: before.speed(job, other) for other in OTHERS}
    live.step(RunStarted("a", number))
    for report in range(1, 11):
        noise = 1 + 0.05 * (-1) ** report
        live.step(RunProgressed("a", number, 0.0, int(truth * 10 * report), None, 64 * truth * noise))
    after = estimator_of(live)
    assert after.speed(job, held) == pytest.approx(truth, rel=0.1)
    assert after.remaining_work(live.scheduler.view, job) == pytest.approx(10**6 - truth * 100, rel=0.01)
    for other in OTHERS:
        if other != held:
            assert after.speed(job, other) == pytest.approx(factor * modelled[other.plan], rel=0.1)
    live.assert_replays()


def test_a_change_costs_what_the_cheapest_way_has_cost_that_is_possible() -> None:
    live = Live(make_cluster(8, 8, types=GPU), "refold")
    job = make_job("a", gpus=4, workload="bert", batch=64, steps=10**6, reshapable=True, gpu_range=(1, 8))
    live.step(JobSubmitted(job))
    number, _ = live.run_of(job)

    def costs() -> list[float]:
        estimator, view = estimator_of(live), live.scheduler.view
        return [estimator.restart_cost(view, job, demand) for demand in (Demand(1, 8), Demand(2, 8), Demand(1, 16))]

    assert costs() == [78.0, 78.0, 78.0]
    live.step(ChangeMeasured("a", number, 3.0, "live"))
    assert costs() == [3.0, 78.0, 78.0]
    live.step(ChangeMeasured("a", number, 40.0, "cold"), ChangeMeasured("a", number, 2.0, "warm"))
    assert costs() == [2.0, 40.0, 40.0]


def test_a_run_on_several_nodes_can_change_live_on_these_nodes() -> None:
    live = Live(make_cluster(8, 8, types=GPU), "refold")
    job = make_job("a", workload="bert", batch=64, steps=10**6, instances=2, gpus=8, gpu_range=(8, 16), reshapable=True)
    live.step(JobSubmitted(job))
    number, held = live.run_of(job)
    assert len(held.placement) == 2
    live.step(ChangeMeasured("a", number, 40.0, "cold"), ChangeMeasured("a", number, 2.0, "warm"))
    estimator, view = estimator_of(live), live.scheduler.view
    assert [estimator.restart_cost(view, job, Demand(*each)) for each in ((2, 4), (1, 8), (2, 16))] == [2.0, 40.0, 40.0]


def test_small_differences_change_no_estimate() -> None:
    live = Live(make_cluster(8, types=GPU), "refold")
    job = make_job("a", gpus=4, workload="bert", batch=64, steps=10**6, reshapable=True)
    live.step(JobSubmitted(job))
    number, held = live.run_of(job)
    live.step(RunProgressed("a", number, 0.0, 10, None, 640.0))
    estimator = estimator_of(live)
    live.step(RunProgressed("a", number, 0.0, 20, None, 650.0))
    assert not estimator.learn(live.scheduler.view)
    assert estimator.speed(job, held) == 10.0


@pytest.mark.parametrize("policy", ["refold", "rubick"])
def test_a_job_of_an_unknown_type_on_slots_grows_once_its_speed_is_measured(policy: str) -> None:
    live = Live(local_cluster(4), policy, restart_seconds=1.0)
    job = make_job("a", workload="my-model", batch=16, steps=10_000, reshapable=True)
    live.step(JobSubmitted(job))
    assert live.run_of(job)[1].gpu_milli == 1000
    stops: list[StopRun] = []
    for report in range(1, 30):
        stops += live.step(RunProgressed("a", 1, 0.0, 10 * report, None, 16.0))
    assert [(stop.run, stop.next and stop.next.plan) for stop in stops] == [(1, Plan(data=4))]
    live.step(RunStopped("a", 1, steps=290))
    assert live.run_of(job)[0] == 2
    live.assert_replays()


@pytest.mark.parametrize("policy", ["sia", "optimus", "pollux"])
def test_published_policies_scale_a_job_of_an_unknown_type_once_its_speed_is_measured(policy: str) -> None:
    live = Live(local_cluster(4), policy, restart_seconds=1.0)
    job = make_job("a", workload="my-model", batch=16, steps=10_000, reshapable=True)
    live.step(JobSubmitted(job))
    steps = 0
    for _ in range(60):
        steps += 10
        number, held = live.run_of(job)
        for stop in live.step(RunProgressed("a", number, 0.0, steps, None, 16.0 * held.gpu_milli / 1000)):
            live.step(RunStopped("a", stop.run, steps=steps))
    assert live.run_of(job)[1].gpu_milli == 4000
    live.assert_replays()


def test_gavel_moves_a_job_to_the_gpu_type_on_which_it_is_faster_than_measured() -> None:
    cluster = make_cluster(1, 1, types=["A100-80GB", "V100-32GB"])
    live = Live(cluster, "gavel", round_seconds=60.0)
    job = make_job("a", workload="bert", batch=64, steps=10**6, reshapable=True)
    live.step(JobSubmitted(job))
    assert live.run_of(job)[1].placement[0].node == 0
    for report in range(1, 20):
        if live.step(RunProgressed("a", 1, 0.0, report, None, 0.5)):
            live.step(RunStopped("a", 1, steps=report))
            break
    assert live.run_of(job)[1].placement[0].node == 1


def test_more_slots_that_do_not_help_are_not_tried_twice() -> None:
    live = Live(local_cluster(4), "refold", restart_seconds=1.0)
    jobs = [make_job(name, workload="my-model", batch=16, steps=10_000, reshapable=True) for name in "ab"]
    live.step(JobSubmitted(jobs[0]))
    steps, run = 0, 1
    while run == 1:
        steps += 10
        for stop in live.step(RunProgressed("a", 1, 0.0, steps, None, 16.0)):
            live.step(RunStopped("a", stop.run, steps=steps))
            run = 2
    for _ in range(30):
        steps += 10
        assert live.step(RunProgressed("a", 2, 0.0, steps, None, 16.0)) == []
    live.step(JobSubmitted(jobs[1]))
    estimator = estimator_of(live)
    speeds = [estimator.speed(jobs[1], allocation) for allocation in (Allocation((Share(0, (0,)),), Plan()), FOUR)]
    assert speeds == pytest.approx([1.0, 1.0])


class Changed:
    """A long job with a range of GPUs, alone on a node, whose changes take some seconds; others come and go."""

    def __init__(self, seconds: float | None, **settings: object) -> None:
        self.live = Live(make_cluster(8, types=GPU), "refold", **settings)
        self.job = make_job("a", workload="bert", batch=64, steps=10**6, reshapable=True, gpu_range=(1, 8))
        self.live.step(JobSubmitted(self.job))
        self.changes = 0
        self._seconds = seconds

    def begin(self) -> None:
        """Report a first step, and the cost of a change if it is known."""
        number, _ = self.live.run_of(self.job)
        cost = [] if self._seconds is None else [ChangeMeasured("a", number, self._seconds, "live")]
        self.live.step(RunStarted("a", number), RunProgressed("a", number, 0.0, 1), *cost)

    def submit(self, name: str, **options: object) -> None:
        self._step(
            JobSubmitted(make_job(name, **{"gpus": 2, "workload": "bert", "batch": 64, "steps": 100, **options}))
        )

    def wait(self, seconds: float) -> None:
        for _ in range(int(seconds / 10)):
            self._step()

    def _step(self, *events: Event) -> None:
        stops = self.live.step(*events)
        while stops:
            self.changes += sum(stop.job == "a" for stop in stops)
            stops = self.live.step(*(RunStopped(stop.job, stop.run, 1.0, 2) for stop in stops))


def test_a_run_is_changed_once_a_minute_for_other_jobs() -> None:
    changed = Changed(2.0)
    changed.begin()
    changed.submit("first")
    assert changed.changes == 1, "shrunk for the first"
    changed.submit("second")
    changed.wait(20.0)
    assert changed.changes == 1
    changed.wait(60.0)
    assert changed.changes >= 2
    changed.live.assert_replays()


def test_a_change_that_costs_more_is_made_less_often() -> None:
    changed = Changed(10.0)
    changed.begin()
    changed.submit("first")
    changed.submit("second")
    changed.wait(150.0)
    assert changed.changes == 1
    changed.wait(60.0)
    assert changed.changes >= 2


def test_a_job_of_higher_priority_does_not_wait_for_that() -> None:
    changed = Changed(2.0)
    changed.begin()
    changed.submit("first")
    changed.submit("urgent", priority=5)
    assert changed.changes == 2


def test_a_run_without_a_step_is_left_to_begin() -> None:
    changed = Changed(2.0)
    number, _ = changed.live.run_of(changed.job)
    changed.live.step(RunStarted("a", number), ChangeMeasured("a", number, 2.0, "live"))
    changed.submit("first")
    changed.wait(100.0)
    assert changed.changes == 0
    changed.begin()
    changed.wait(30.0)
    assert changed.changes == 1


def test_without_a_step_a_run_is_left_alone_for_some_minutes_only() -> None:
    changed = Changed(2.0)
    number, _ = changed.live.run_of(changed.job)
    changed.live.step(RunStarted("a", number), ChangeMeasured("a", number, 2.0, "live"))
    changed.submit("first")
    changed.wait(320.0)
    assert changed.changes == 1
