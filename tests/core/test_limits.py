"""A tenant with a limit never uses more GPUs than that, whatever happens and whatever a policy would like."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from random_histories import Grower, History, Move, finish_everybody, moves
from scripted_policy import Told, on

from refold.core import Scheduler
from refold.core.events import (
    Event,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobSubmitted,
    RunAdopted,
    RunFailed,
    RunFinished,
    RunRecalled,
    RunStopped,
)
from refold.core.orders import StartRun, StopRun
from refold.errors import BadDecision, BadValue
from refold.model import Cluster, Decision, Job, Reason, Reshape, Start, Tenant, Wait
from refold.plans.speeds import Speeds
from refold.policies.common.options import range_of
from refold.policies.queueing.fifo import FifoSkip
from refold.registry import make_policy
from refold.simulator import Costs, RecordedSpeeds, simulate
from refold.simulator.modelled_speeds import ModelledSpeeds
from refold.testing import Audit, make_cluster, make_job, reshapable_workload
from refold.testing.disturbances import everybody


def limited(*sizes: int, **limits: float) -> Cluster:
    tenants = tuple(Tenant(name, limit_gpus=most) for name, most in limits.items())
    return msgspec.structs.replace(make_cluster(*sizes), tenants=tenants)


def job(name: str, gpus: int = 1, **more: Any) -> Job:
    return make_job(name, gpus=gpus, tenant="a", **more)


def world(*sizes: int, **limits: float) -> History:
    return History(limited(*sizes, **limits), FifoSkip())


def reasons(history: History) -> dict[str, Reason]:
    return {name: history.view.reason(name).reason for name in history.view.held}


def orders(history: History, *events: Event) -> tuple[StartRun | StopRun, ...]:
    history.step(*events)
    return history.entries.entries[-1].orders


def test_who_is_beyond_the_limit_waits_until_others_of_its_tenant_are_over() -> None:
    one = world(4, a=2)
    one.step(JobSubmitted(job("x")), JobSubmitted(job("y")), JobSubmitted(job("z")), JobSubmitted(make_job("other")))
    assert (list(one.view.runs), one.view.reason("z")) == (["x", "y", "other"], Wait("z", Reason.LIMIT))
    assert orders(one, RunFinished("y", 1)) == (StartRun("z", 1, on(1)),)


def test_a_job_that_fails_and_is_tried_again_still_counts() -> None:
    one = world(4, a=2)
    one.step(JobSubmitted(job("x", 2)), JobSubmitted(job("y", 2)))
    assert orders(one, RunFailed("x", 1, "exit 1", retry=True)) == (StartRun("x", 2, on(0, 1)),)
    one.step(RunRecalled("x", 2))
    assert orders(one, RunStopped("x", 2)) == (StartRun("x", 3, on(0, 1)),)
    assert list(one.view.held) == ["y"]


def test_whoever_is_held_does_not_count_and_is_let_in_again_as_the_last() -> None:
    one = world(4, a=2)
    one.step(JobSubmitted(job("x", 2)), JobSubmitted(job("y", 2)), JobSubmitted(job("z", 2)))
    one.step(JobHeld("x"))
    assert orders(one, RunStopped("x", 1)) == (StartRun("y", 1, on(0, 1)),)
    one.step(JobReleased("x"))
    assert reasons(one) == {"z": Reason.LIMIT, "x": Reason.LIMIT}
    assert orders(one, RunFinished("y", 1)) == (StartRun("z", 1, on(0, 1)),)


def test_who_waits_for_the_limit_is_let_in_by_priority_and_then_by_arrival() -> None:
    one = world(1, a=1)
    priorities = {"w": 0, "x": 0, "y": 5, "z": 5}
    one.step(*(JobSubmitted(job(name, priority=priority)) for name, priority in priorities.items()))
    started = []
    for _ in range(4):
        (run,) = one.view.runs.values()
        started.append(run.job)
        one.step(RunFinished(run.job, 1))
    assert started == ["w", "y", "z", "x"]


def test_one_of_whom_there_are_too_many_can_be_held_and_cancelled() -> None:
    one = world(2, a=1)
    one.step(*(JobSubmitted(job(name)) for name in "wxyz"))
    one.step(JobHeld("x"), JobCancelled("y"), JobReleased("z"))
    assert reasons(one) == {"x": Reason.HELD, "z": Reason.LIMIT}
    assert orders(one, RunFinished("w", 1)) == (StartRun("z", 1, on(0)),)
    assert one.scheduler.late_reports == 1


def test_a_job_that_asks_for_more_than_the_limit_keeps_nobody_else_waiting() -> None:
    one = world(4, a=2)
    one.step(JobSubmitted(job("large", 3, priority=9)), JobSubmitted(job("small")))
    assert (list(one.view.runs), one.view.reason("large")) == (["small"], Wait("large", Reason.LIMIT))
    one.step(RunFinished("small", 1))
    assert list(one.view.held) == ["large"]
    one.step(JobCancelled("large"))
    assert everybody(one.view) == set()


def test_a_run_that_is_older_than_the_limit_goes_on_and_counts() -> None:
    one = world(4, a=1)
    one.step(
        *(JobSubmitted(job(name)) for name in "xyz"), RunAdopted("x", 1, on(0), 0.0), RunAdopted("y", 1, on(1), 0.0)
    )
    assert (list(one.view.runs), list(one.view.held)) == (["x", "y"], ["z"])
    assert orders(one, RunFinished("x", 1)) == ()
    assert orders(one, RunFinished("y", 1)) == (StartRun("z", 1, on(0)),)


def test_a_run_of_a_job_that_asks_for_more_than_the_new_limit_goes_on() -> None:
    one = world(4, a=1)
    one.step(JobSubmitted(job("large", 3)), RunAdopted("large", 1, on(0, 1, 2), 0.0), JobSubmitted(job("small")))
    assert (list(one.view.runs), list(one.view.held)) == (["large"], ["small"])
    assert orders(one, RunFinished("large", 1)) == (StartRun("small", 1, on(0)),)


def test_a_share_of_a_gpu_counts_as_much_as_it_is() -> None:
    one = world(4, a=0.75)
    one.step(*(JobSubmitted(job(name, share=0.25)) for name in "wxyz"))
    assert (list(one.view.runs), list(one.view.held)) == (["w", "x", "y"], ["z"])


def test_a_job_that_may_grow_is_let_in_with_what_it_may_grow_to() -> None:
    one = world(8, a=4)
    range_to_two: dict[str, Any] = {"reshapable": True, "gpu_range": (1, 2)}
    one.step(JobSubmitted(job("x", **range_to_two)), JobSubmitted(job("y", **range_to_two)), JobSubmitted(job("z")))
    assert (list(one.view.runs), list(one.view.held)) == (["x", "y"], ["z"])
    one.step(RunFinished("x", 1), RunFinished("y", 1), JobSubmitted(job("any", reshapable=True)))
    assert list(one.view.held) == ["any"]
    one.step(RunFinished("z", 1))
    assert list(one.view.runs) == ["any"]


def test_no_policy_may_give_a_job_more_than_it_was_let_in_with() -> None:
    told = Told()
    scheduler = Scheduler(limited(8, a=4), told)
    told.next = Decision((Start("x", on(0)),))
    scheduler.step(0.0, [JobSubmitted(job("x", reshapable=True)), JobSubmitted(job("y", reshapable=True))])
    told.next = Decision(reshapes=(Reshape("x", on(0, 1, 2, 3, 4)),))
    with pytest.raises(BadDecision, match="told gave job 'x' 5 GPUs, tenant 'a' may use 4 for it"):
        scheduler.step(1.0, ())
    told.next = Decision(reshapes=(Reshape("x", on(0, 1, 2, 3)),))
    assert scheduler.step(2.0, ()).orders == (StopRun("x", 1),)
    scheduler.step(3.0, [RunFinished("x", 1)])
    told.next = Decision((Start("y", on(0, 1, 2, 3, 4)),))
    with pytest.raises(BadDecision, match="rule: limit"):
        scheduler.step(4.0, ())


def test_each_tenant_waits_for_its_own_limit_and_an_opening_keeps_the_order_of_all() -> None:
    one = world(8, a=1, b=1)
    arrivals = [("a", 0), ("b", 0), ("a", 0), ("b", 0), ("a", 1), ("b", 2), ("a", 0)]
    jobs = [make_job(f"{tenant}{n}", tenant=tenant, priority=p) for n, (tenant, p) in enumerate(arrivals)]
    one.step(*map(JobSubmitted, [*jobs, make_job("large", gpus=2, tenant="a", priority=9)]))
    one.step(JobCancelled("b3"))
    told = [event.job.id for event in one.scheduler.snapshot() if isinstance(event, JobSubmitted)]
    assert told == ["a0", "b1", "b5", "a4", "a2", "a6", "large"]
    assert orders(one, RunFinished("a0", 1)) == (StartRun("a4", 1, on(0)),)


def test_a_limit_is_a_number_of_gpus() -> None:
    with pytest.raises(BadValue, match="tenant 'a': a limit is GPUs ≥ 0"):
        Tenant("a", limit_gpus=-1.0)


def test_the_sizes_of_a_job_end_where_its_tenants_limit_does() -> None:
    cluster = limited(8, a=4)
    assert range_of(job("x", reshapable=True, gpu_range=(1, 8)), cluster) == (1, 4)
    assert range_of(job("x", reshapable=True, gpu_range=(1, 3)), cluster) == (1, 3)
    assert range_of(job("x", reshapable=True), cluster) == (1, 4)
    assert range_of(make_job("x", tenant="b", reshapable=True, gpu_range=(1, 8)), cluster) == (1, 8)


@settings(max_examples=60, deadline=None)
@given(moves)
def test_whatever_happens_no_tenant_exceeds_its_limit_and_nobody_is_forgotten(some: list[Move]) -> None:
    for policy in (FifoSkip(), Grower()):
        one = History(limited(4, 4, 2, a=3, b=2.5), policy, refused=lambda _: None)
        for _ in one.play(some):  # the audit complains if a limit is exceeded
            assert everybody(one.view) == one.audit.jobs.keys() - one.audit.over.keys()
        finish_everybody(one.scheduler, one.now, nodes=3)
        most = {"a": 3, "b": 2, "c": 4}
        too_large = {name for name, job in one.audit.jobs.items() if job.demand.gpus > most[job.tenant]}
        assert everybody(one.view) == too_large - one.audit.over.keys()


@pytest.mark.parametrize("policy", ["refold", "rubick", "rubick-r", "sia", "pollux", "optimus", "easy", "conservative"])
def test_policies_that_reshape_jobs_stay_within_limits_and_finish_them_all(policy: str) -> None:
    jobs, cluster = reshapable_workload(1, 5 if policy == "pollux" else 14)
    tenants = (Tenant("sure", 12.0, 16.0), Tenant("small", 0.0, 16.0))
    cluster = msgspec.structs.replace(cluster, tenants=tenants)
    audit = Audit(cluster)
    charge = ModelledSpeeds(Speeds(cluster), RecordedSpeeds(cluster))
    simulate(jobs, cluster, make_policy(policy), journal=audit, charge=charge, costs=Costs(10.0, 5.0, 40.0))
    assert set(audit.over) == {job.id for job in jobs}
