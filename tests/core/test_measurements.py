"""Measured speeds, losses and costs of changes: what the view shows, and what a snapshot keeps."""

import pytest
from scripted_policy import ScriptedPolicy, on

from refold.core import Scheduler
from refold.core.events import ChangeMeasured, Event, JobSubmitted, RunProgressed, RunStopped
from refold.model import Allocation, Decision, Job, MeasuredShape, Plan, Start
from refold.testing import make_cluster, make_job

SHAPE = MeasuredShape("gpt", 32, 0, "A100", (1,), Plan())


def started(*jobs: Job) -> Scheduler:
    """Return a scheduler with a run of each job, each on one GPU."""
    policy = ScriptedPolicy()
    scheduler = Scheduler(make_cluster(4), policy)
    policy.next = Decision(tuple(Start(job.id, on(gpu)) for gpu, job in enumerate(jobs)))
    scheduler.step(0.0, [JobSubmitted(job) for job in jobs])
    return scheduler


def speeds(scheduler: Scheduler) -> list[object]:
    return [pytest.approx(speed) for speed in scheduler.view.measured_speeds.values()]


def report(job: str, steps: int, samples_per_second: float | None = None, loss: float | None = None) -> Event:
    return RunProgressed(job, 1, 0.0, steps, loss, samples_per_second)


def test_the_view_has_the_last_loss_and_speed_of_a_run() -> None:
    scheduler = started(make_job("a", workload="gpt", batch=32))
    assert (scheduler.view.loss("a"), scheduler.view.samples_per_second("a")) == (None, None)
    scheduler.step(5.0, [report("a", 10, 64.0, 2.5)])
    scheduler.step(9.0, [report("a", 20)])
    assert (scheduler.view.loss("a"), scheduler.view.samples_per_second("a")) == (2.5, 64.0)
    scheduler.step(10.0, [RunStopped("a", 1, steps=20)])
    assert scheduler.view.loss("a") == 2.5


def test_speeds_are_averaged_by_kind_of_job_resources_and_plan() -> None:
    scheduler = started(*(make_job(name, workload="gpt", batch=32) for name in "ab"))
    scheduler.step(5.0, [report("a", 10, 64.0)])
    assert dict(scheduler.view.measured_speeds) == {SHAPE: 2.0}
    scheduler.step(6.0, [report("b", 10, 128.0)])
    assert dict(scheduler.view.measured_speeds) == {SHAPE: 3.0}


def test_the_average_follows_a_change_of_speed() -> None:
    scheduler = started(make_job("a", workload="gpt", batch=32))
    for second in range(1, 41):
        scheduler.step(float(second), [report("a", second, 32.0 if second <= 20 else 64.0)])
    assert speeds(scheduler) == [pytest.approx(2.0, rel=0.02)]


def test_without_a_batch_size_steps_are_counted_from_the_first_report_on() -> None:
    scheduler = started(make_job("a", workload="gpt"))
    scheduler.step(60.0, [report("a", 100, 64.0)])
    assert speeds(scheduler) == []
    scheduler.step(64.0, [report("a", 110, 64.0)])
    assert speeds(scheduler) == [2.5]


def test_runs_without_a_workload_or_a_reported_speed_are_not_measured() -> None:
    scheduler = started(make_job("a", batch=32), make_job("b", workload="gpt", batch=32))
    scheduler.step(5.0, [report("a", 10, 64.0), report("b", 10)])
    assert speeds(scheduler) == []


def test_the_cost_of_a_change_is_that_of_the_job_else_of_its_workload_else_of_any_in_each_way() -> None:
    jobs = [make_job("a", workload="gpt"), make_job("b", workload="gpt"), make_job("c", workload="vit")]
    scheduler = started(*jobs)
    assert [scheduler.view.change_seconds(job, "live") for job in jobs] == [None, None, None]
    scheduler.step(5.0, [ChangeMeasured("a", 1, 3.0, "live"), ChangeMeasured("c", 9, 1.0, "live")])
    assert [scheduler.view.change_seconds(job, "live") for job in jobs] == [3.0, 3.0, 3.0]
    scheduler.step(6.0, [ChangeMeasured("b", 1, 60.0, "cold"), ChangeMeasured("b", 1, 2.0, "live")])
    assert [scheduler.view.change_seconds(job, "live") for job in jobs] == [3.0, 2.0, 2.0]
    assert [scheduler.view.change_seconds(job, "cold") for job in jobs] == [60.0, 60.0, 60.0]
    assert scheduler.late_reports == 1


def test_a_snapshot_keeps_measured_speeds_and_costs() -> None:
    job = make_job("a", workload="gpt", batch=32)
    before = started(job)
    before.step(5.0, [report("a", 10, 64.0), ChangeMeasured("a", 1, 3.0, "live"), ChangeMeasured("a", 1, 40.0, "cold")])
    after = Scheduler(make_cluster(4), ScriptedPolicy())
    after.step(6.0, before.snapshot())
    assert dict(after.view.measured_speeds) == dict(before.view.measured_speeds)
    assert [after.view.change_seconds(job, way) for way in ("live", "warm", "cold")] == [3.0, None, 40.0]
    for scheduler in (before, after):
        scheduler.step(7.0, [report("a", 20, 128.0)])
    assert speeds(after) == speeds(before)


def test_a_run_that_cannot_use_its_plan_has_the_one_in_use() -> None:
    policy = ScriptedPolicy()
    scheduler = Scheduler(make_cluster(4), policy)
    policy.next = Decision((Start("a", Allocation(on(0, 1).placement, Plan(tensor=2))),))
    scheduler.step(0.0, [JobSubmitted(make_job("a", gpus=2, workload="gpt", batch=32, reshapable=True))])
    for second in (5.0, 6.0):
        scheduler.step(second, [RunProgressed("a", 1, 0.0, int(second), None, 64.0, Plan(data=2, zero=1))])
    assert scheduler.view.runs["a"].allocation.plan == Plan(data=2, zero=1)
    shapes = {plan: MeasuredShape("gpt", 32, 0, "A100", (2,), plan) for plan in (Plan(tensor=2), Plan(data=2, zero=1))}
    expected = {shapes[Plan(tensor=2)]: 0.0, shapes[Plan(data=2, zero=1)]: 2.0}
    assert dict(scheduler.view.measured_speeds) == expected
    after = Scheduler(make_cluster(4), ScriptedPolicy())
    after.step(7.0, scheduler.snapshot())
    assert dict(after.view.measured_speeds) == expected
