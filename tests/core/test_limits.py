"""The GPU limits of tenants hold under all events and all policies."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from random_histories import Grower, History, Move, finish_all_jobs, moves, orders_of
from scripted_policy import ScriptedPolicy, on

from refold.core import Scheduler
from refold.core.events import (
    JobCancelled,
    JobHeld,
    JobReleased,
    JobSubmitted,
    NodesAllowed,
    RunAdopted,
    RunFailed,
    RunFinished,
    RunRecalled,
    RunStopped,
)
from refold.core.orders import StartRun, StopRun
from refold.errors import BadDecision, BadValue
from refold.model import Cluster, Decision, Job, NodeSet, Reason, Reshape, Start, Tenant, Wait
from refold.planning.plans.speeds import Speeds
from refold.policies.common.options import allowed_gpu_range
from refold.policies.queueing.fifo import FifoSkip
from refold.simulator import Costs, RecordedSpeeds, simulate
from refold.simulator.costs import ModelledSpeeds
from refold.simulator.registry import make_policy
from refold.testing import Audit, make_cluster, make_job, reshapable_workload
from refold.testing.disturbances import unfinished_jobs


def make_limited_cluster(*sizes: int, **limits: float) -> Cluster:
    tenants = tuple(Tenant(name, limit_gpus=limit) for name, limit in limits.items())
    return msgspec.structs.replace(make_cluster(*sizes), tenants=tenants)


def tenant_job(name: str, gpus: int = 1, **more: Any) -> Job:
    return make_job(name, gpus=gpus, tenant="a", **more)


def make_history(*sizes: int, **limits: float) -> History:
    return History(make_limited_cluster(*sizes, **limits), FifoSkip())


def reasons(history: History) -> dict[str, Reason]:
    return {name: history.view.reason(name).reason for name in history.view.held}


def test_a_job_over_the_limit_waits_until_other_jobs_of_its_tenant_end() -> None:
    history = make_history(4, a=2)
    history.step(
        JobSubmitted(tenant_job("x")),
        JobSubmitted(tenant_job("y")),
        JobSubmitted(tenant_job("z")),
        JobSubmitted(make_job("other")),
    )
    assert (list(history.view.runs), history.view.reason("z")) == (["x", "y", "other"], Wait("z", Reason.LIMIT))
    assert orders_of(history, RunFinished("y", 1)) == (StartRun("z", 1, on(1)),)


def test_a_job_that_is_retried_still_counts_against_the_limit() -> None:
    history = make_history(4, a=2)
    history.step(JobSubmitted(tenant_job("x", 2)), JobSubmitted(tenant_job("y", 2)))
    assert orders_of(history, RunFailed("x", 1, "exit 1", retry=True)) == (StartRun("x", 2, on(0, 1)),)
    history.step(RunRecalled("x", 2))
    assert orders_of(history, RunStopped("x", 2)) == (StartRun("x", 3, on(0, 1)),)
    assert list(history.view.held) == ["y"]


def test_a_held_job_does_not_count_and_is_queued_last_when_released() -> None:
    history = make_history(4, a=2)
    history.step(JobSubmitted(tenant_job("x", 2)), JobSubmitted(tenant_job("y", 2)), JobSubmitted(tenant_job("z", 2)))
    history.step(JobHeld("x"))
    assert orders_of(history, RunStopped("x", 1)) == (StartRun("y", 1, on(0, 1)),)
    history.step(JobReleased("x"))
    assert reasons(history) == {"z": Reason.LIMIT, "x": Reason.LIMIT}
    assert orders_of(history, RunFinished("y", 1)) == (StartRun("z", 1, on(0, 1)),)


def test_jobs_are_admitted_by_priority_and_then_by_arrival() -> None:
    history = make_history(1, a=1)
    priorities = {"w": 0, "x": 0, "y": 5, "z": 5}
    history.step(*(JobSubmitted(tenant_job(name, priority=priority)) for name, priority in priorities.items()))
    started = []
    for _ in range(4):
        (run,) = history.view.runs.values()
        started.append(run.job)
        history.step(RunFinished(run.job, 1))
    assert started == ["w", "y", "z", "x"]


def test_a_job_over_the_limit_can_be_held_and_cancelled() -> None:
    history = make_history(2, a=1)
    history.step(*(JobSubmitted(tenant_job(name)) for name in "wxyz"))
    history.step(JobHeld("x"), JobCancelled("y"), JobReleased("z"))
    assert reasons(history) == {"x": Reason.HELD, "z": Reason.LIMIT}
    assert orders_of(history, RunFinished("w", 1)) == (StartRun("z", 1, on(0)),)
    assert history.scheduler.late_reports == 1


@pytest.mark.parametrize("cancelled", "xyz")
def test_only_the_job_that_leaves_the_queue_for_admission_is_removed(cancelled: str) -> None:
    history = make_history(1, a=1)
    history.step(*(JobSubmitted(tenant_job(name)) for name in "wxyz"))
    history.step(JobCancelled(cancelled))
    for name in ["w", *sorted({*"xyz"} - {cancelled})]:
        assert list(history.view.runs) == [name]
        history.step(RunFinished(name, 1))
    assert unfinished_jobs(history.view) == set()


def test_a_job_larger_than_the_limit_does_not_block_others() -> None:
    history = make_history(4, a=2)
    history.step(JobSubmitted(tenant_job("large", 3, priority=9)), JobSubmitted(tenant_job("small")))
    assert (list(history.view.runs), history.view.reason("large")) == (["small"], Wait("large", Reason.LIMIT))
    history.step(RunFinished("small", 1))
    assert list(history.view.held) == ["large"]
    history.step(JobCancelled("large"))
    assert unfinished_jobs(history.view) == set()


def test_a_run_older_than_the_limit_continues_and_counts() -> None:
    history = make_history(4, a=1)
    history.step(
        *(JobSubmitted(tenant_job(name)) for name in "xyz"),
        RunAdopted("x", 1, on(0), 0.0),
        RunAdopted("y", 1, on(1), 0.0),
    )
    assert (list(history.view.runs), list(history.view.held)) == (["x", "y"], ["z"])
    assert orders_of(history, RunFinished("x", 1)) == ()
    assert orders_of(history, RunFinished("y", 1)) == (StartRun("z", 1, on(0)),)


def test_a_run_larger_than_a_new_limit_continues() -> None:
    history = make_history(4, a=1)
    history.step(
        JobSubmitted(tenant_job("large", 3)),
        RunAdopted("large", 1, on(0, 1, 2), 0.0),
        JobSubmitted(tenant_job("small")),
    )
    assert (list(history.view.runs), list(history.view.held)) == (["large"], ["small"])
    assert orders_of(history, RunFinished("large", 1)) == (StartRun("small", 1, on(0)),)


def test_a_job_that_fits_on_none_of_its_nodes_by_now_is_not_admitted_and_blocks_nobody() -> None:
    history = make_history(2, a=1)
    history.step(*(JobSubmitted(tenant_job(name)) for name in "xyz"), JobSubmitted(tenant_job("w")))
    history.step(NodesAllowed(("y", "z"), NodeSet()))
    assert orders_of(history, RunFinished("x", 1)) == (StartRun("w", 1, on(0)),)
    assert (list(history.view.waiting), list(history.view.infeasible)) == ([], ["y", "z"])
    history.step(NodesAllowed(("y",), None))
    assert reasons(history) == {"y": Reason.LIMIT}


def test_fractions_of_gpus_count_as_fractions() -> None:
    history = make_history(4, a=0.75)
    history.step(*(JobSubmitted(tenant_job(name, share=0.25)) for name in "wxyz"))
    assert (list(history.view.runs), list(history.view.held)) == (["w", "x", "y"], ["z"])


def test_a_reshapable_job_counts_with_its_maximum_size() -> None:
    history = make_history(8, a=4)
    range_to_two: dict[str, Any] = {"reshapable": True, "gpu_range": (1, 2)}
    history.step(
        JobSubmitted(tenant_job("x", **range_to_two)),
        JobSubmitted(tenant_job("y", **range_to_two)),
        JobSubmitted(tenant_job("z")),
    )
    assert (list(history.view.runs), list(history.view.held)) == (["x", "y"], ["z"])
    history.step(RunFinished("x", 1), RunFinished("y", 1), JobSubmitted(tenant_job("any", reshapable=True)))
    assert list(history.view.held) == ["any"]
    history.step(RunFinished("z", 1))
    assert list(history.view.runs) == ["any"]


def test_a_policy_cannot_give_a_job_more_than_its_admitted_maximum() -> None:
    policy = ScriptedPolicy()
    scheduler = Scheduler(make_limited_cluster(8, a=4), policy)
    policy.next = Decision((Start("x", on(0)),))
    scheduler.step(
        0.0, [JobSubmitted(tenant_job("x", reshapable=True)), JobSubmitted(tenant_job("y", reshapable=True))]
    )
    policy.next = Decision(reshapes=(Reshape("x", on(0, 1, 2, 3, 4)),))
    with pytest.raises(BadDecision, match="scripted gave job 'x' 5 GPUs, but the limit of tenant 'a' allows 4"):
        scheduler.step(1.0, ())
    policy.next = Decision(reshapes=(Reshape("x", on(0, 1, 2, 3)),))
    assert scheduler.step(2.0, ()).orders == (StopRun("x", 1, next=on(0, 1, 2, 3)),)
    scheduler.step(3.0, [RunFinished("x", 1)])
    policy.next = Decision((Start("y", on(0, 1, 2, 3, 4)),))
    with pytest.raises(BadDecision, match="rule: limit"):
        scheduler.step(4.0, ())


def test_limits_are_per_tenant_and_a_snapshot_keeps_the_order_of_admission() -> None:
    history = make_history(8, a=1, b=1)
    arrivals = [("a", 0), ("b", 0), ("a", 0), ("b", 0), ("a", 1), ("b", 2), ("a", 0)]
    jobs = [make_job(f"{tenant}{n}", tenant=tenant, priority=p) for n, (tenant, p) in enumerate(arrivals)]
    history.step(*map(JobSubmitted, [*jobs, make_job("large", gpus=2, tenant="a", priority=9)]))
    history.step(JobCancelled("b3"))
    submitted = [event.job.id for event in history.scheduler.snapshot() if isinstance(event, JobSubmitted)]
    assert submitted == ["a0", "b1", "b5", "a4", "a2", "a6", "large"]
    assert orders_of(history, RunFinished("a0", 1)) == (StartRun("a4", 1, on(0)),)


def test_a_negative_limit_is_rejected() -> None:
    with pytest.raises(BadValue, match=r"tenant 'a': limit_gpus is .*, expected GPUs ≥ 0"):
        Tenant("a", limit_gpus=-1.0)


def test_the_gpu_range_of_a_job_is_capped_by_its_tenants_limit() -> None:
    cluster = make_limited_cluster(8, a=4)
    assert allowed_gpu_range(tenant_job("x", reshapable=True, gpu_range=(1, 8)), cluster) == (1, 4)
    assert allowed_gpu_range(tenant_job("x", reshapable=True, gpu_range=(1, 3)), cluster) == (1, 3)
    assert allowed_gpu_range(tenant_job("x", reshapable=True), cluster) == (1, 4)
    assert allowed_gpu_range(make_job("x", tenant="b", reshapable=True, gpu_range=(1, 8)), cluster) == (1, 8)


@settings(max_examples=60, deadline=None)
@given(moves)
def test_no_tenant_exceeds_its_limit_and_no_job_is_lost_under_random_events(moves_to_play: list[Move]) -> None:
    for policy in (FifoSkip(), Grower()):
        history = History(make_limited_cluster(4, 4, 2, a=3, b=2.5), policy, on_rejection=lambda _: None)
        for _ in history.play(moves_to_play):  # the audit fails if a limit is exceeded
            assert unfinished_jobs(history.view) == history.audit.jobs.keys() - history.audit.ended.keys()
        finish_all_jobs(history.scheduler, history.now, nodes=3)
        limits = {"a": 3, "b": 2, "c": 4}
        too_large = {name for name, job in history.audit.jobs.items() if job.demand.gpus > limits[job.tenant]}
        assert unfinished_jobs(history.view) == too_large - history.audit.ended.keys()


@pytest.mark.parametrize("policy", ["refold", "rubick", "rubick-r", "sia", "pollux", "optimus", "easy", "conservative"])
def test_reshaping_policies_respect_limits_and_finish_all_jobs(policy: str) -> None:
    jobs, cluster = reshapable_workload(1, 5 if policy == "pollux" else 14)
    tenants = (Tenant("sure", 12.0, 16.0), Tenant("small", 0.0, 16.0))
    cluster = msgspec.structs.replace(cluster, tenants=tenants)
    audit = Audit(cluster)
    charge = ModelledSpeeds(Speeds(cluster), RecordedSpeeds(cluster))
    simulate(jobs, cluster, make_policy(policy), journal=audit, charge=charge, costs=Costs(10.0, 5.0, 40.0))
    assert set(audit.ended) == {job.id for job in jobs}
