"""The audit of a journal detects invalid entries."""

from typing import Any

import msgspec
import pytest

from refold.core import (
    Entry,
    Event,
    GpuLost,
    GpuReturned,
    JobCancelled,
    JobContinued,
    JobHeld,
    JobReleased,
    JobSubmitted,
    NodeLost,
    NodeReturned,
    Order,
    RunAdopted,
    RunFailed,
    RunFinished,
    RunRecalled,
    RunStopped,
    StartRun,
    StopRun,
)
from refold.model import Allocation, Job, Plan, Reason, Share, Tenant, Wait
from refold.testing import Audit, AuditFailed, make_cluster, make_job

CLUSTER = make_cluster(4, 4, types=["A100", "T4"])


def on(*gpus: int, node: int = 0, plan: Plan | None = None) -> Allocation:
    return Allocation((Share(node, gpus),), plan)


def start_audited(job: Job, allocation: Allocation) -> Audit:
    audit = Audit(CLUSTER)
    audit.write(Entry(0.0, (JobSubmitted(job),), (StartRun(job.id, 1, allocation),)))
    return audit


RESHAPABLE = make_job("a", gpus=2, reshapable=True, plan=Plan(2), types=["A100"])


@pytest.mark.parametrize(
    ("job", "allocation", "message"),
    [
        (RESHAPABLE, on(0, 1, 2, plan=Plan(4)), "'a' got 3 GPUs for plan DP4"),
        (RESHAPABLE, on(0, 1, node=1), "'a' got a GPU of type 'T4', which it does not accept"),
        (RESHAPABLE, on(), "'a' got no GPU"),
        (RESHAPABLE, on(3, 4), "GPU 4 of node 'n0'"),
        (RESHAPABLE, on(1, 1), "GPU 1 of node 'n0' has 2000 of 1000 thousandths allocated"),
        (make_job("a", gpus=2), on(0), "'a' requested 2 GPUs per instance"),
        (make_job("a", gpus=2), on(0, 1, plan=Plan(2)), "'a' is not reshapable, but got plan DP2"),
    ],
)
def test_an_invalid_allocation_fails_the_audit(job: Job, allocation: Allocation, message: str) -> None:
    with pytest.raises(AuditFailed, match=message):
        start_audited(job, allocation)


@pytest.mark.parametrize("allocation", [on(0, 1, plan=Plan(2)), on(0, 1, 2, plan=Plan(tensor=3)), on(2), on(0, 3)])
def test_valid_allocations_pass_the_audit(allocation: Allocation) -> None:
    assert list(start_audited(RESHAPABLE, allocation).running) == ["a"]


def test_stopping_a_job_that_is_not_preemptible_fails_unless_it_is_cancelled() -> None:
    job = make_job("a", preemptible=False)
    with pytest.raises(AuditFailed, match="a stop was ordered for 'a', which is not preemptible"):
        start_audited(job, on(0)).write(Entry(1.0, (), (StopRun("a", 1),)))
    audit = start_audited(job, on(0))
    audit.write(Entry(1.0, (JobCancelled("a"),), (StopRun("a", 1),)))
    assert audit.stops == 1


def test_a_start_over_a_limit_or_of_a_held_job_fails_the_audit() -> None:
    cluster = msgspec.structs.replace(CLUSTER, tenants=(Tenant("t", limit_gpus=1.0),))
    jobs = [make_job(name, tenant="t") for name in "ab"]
    audit = Audit(cluster)
    audit.write(Entry(0.0, tuple(map(JobSubmitted, jobs)), (StartRun("a", 1, on(0)),)))
    with pytest.raises(AuditFailed, match="tenant 't' uses 2 GPUs, its limit is 1"):
        audit.write(Entry(1.0, (), (StartRun("b", 1, on(1)),)))
    audit = Audit(CLUSTER)
    with pytest.raises(AuditFailed, match="'a' was started while it is held"):
        audit.write(Entry(0.0, (JobSubmitted(jobs[0]), JobHeld("a")), (StartRun("a", 1, on(0)),)))


def test_recalling_or_holding_a_job_that_is_not_preemptible_passes_the_audit() -> None:
    for event in (RunRecalled("a", 1), JobHeld("a")):
        audit = start_audited(make_job("a", preemptible=False), on(0))
        audit.write(Entry(1.0, (event,), (StopRun("a", 1),)))
        assert audit.stops == 1


A, B = make_job("a"), make_job("b")
SUBMITTED = (JobSubmitted(A), JobSubmitted(B))


def audited(*steps: tuple[tuple[Event, ...], tuple[Order, ...]]) -> Audit:
    """Audit one entry per step, a second apart."""
    audit = Audit(CLUSTER)
    for number, (events, orders) in enumerate(steps):
        audit.write(Entry(float(number), events, orders))
    return audit


def start(job: str, *gpus: int, run: int = 1, node: int = 0) -> StartRun:
    return StartRun(job, run, on(*gpus, node=node))


@pytest.mark.parametrize(
    ("last", "problem"),
    [
        (((), (start("c", 1),)), "'c' was started but never submitted"),
        (((), (start("a", 1, run=2),)), "'a' was started while it is running"),
        (((RunFinished("a", 1),), (start("a", 1, run=2),)), "'a' was started after its end"),
        (((JobCancelled("b"),), (start("b", 1),)), "'b' was started after its end"),
        (((), (start("b", 1, run=3),)), "'b' was started with run number 3, expected 1"),
        (((), (start("b", 0),)), "GPU 0 of node 'n0' has 2000 of 1000 thousandths allocated"),
        (((), (StartRun("b", 1, Allocation((Share(0, (1,)), Share(0, (2,))))),)), "'b' got 2 of 1 instances"),
        (((NodeLost(1),), (start("b", 0, node=1),)), "'b' was placed on node 'n1', which is down"),
        (((GpuLost(0, 2),), (start("b", 2),)), "'b' was placed on GPU 2 of node 'n0', which is down"),
        (((), (StopRun("b", 1),)), "a stop was ordered for run 1 of 'b', which is not the current run"),
        (((), (StopRun("a", 2),)), "a stop was ordered for run 2 of 'a', which is not the current run"),
        (((RunStopped("a", 1),), ()), "'a' stopped without an order"),
        (
            ((NodeLost(1), RunFailed("a", 1, "node lost")), ()),
            "'a' was lost with a node or GPU that it does not run on",
        ),
        (
            ((GpuLost(0, 1), RunFailed("a", 1, "GPU lost")), ()),
            "'a' was lost with a node or GPU that it does not run on",
        ),
        (((RunAdopted("c", 1, on(1), 0.0),), ()), "'c' was adopted but never submitted"),
    ],
)
def test_a_violation_names_the_entry_the_time_and_the_rule(
    last: tuple[tuple[Event, ...], tuple[Order, ...]], problem: str
) -> None:
    with pytest.raises(AuditFailed) as failure:
        audited((SUBMITTED, (start("a", 0),)), last)
    assert str(failure.value) == f"entry 2 at 1.0: {problem}"


def test_time_that_goes_backwards_fails_the_audit() -> None:
    audit = Audit(CLUSTER)
    audit.write(Entry(5.0))
    audit.write(Entry(5.0))
    with pytest.raises(AuditFailed, match=r"entry 3 at 5\.0: time went backwards from 5\.0 to 4\.5"):
        audit.write(Entry(4.5))


@pytest.mark.parametrize(
    ("job", "problem"),
    [
        ("c", "a wait reason was given for unknown job 'c'"),
        ("a", "a wait reason was given for 'a', which is not waiting"),
    ],
)
def test_a_reason_for_a_job_that_does_not_wait_fails_the_audit(job: str, problem: str) -> None:
    audit = audited((SUBMITTED, (start("a", 0),)))
    with pytest.raises(AuditFailed, match=problem):
        audit.write(Entry(1.0, waits=(Wait(job, Reason.RESOURCES),)))
    audited((SUBMITTED, ())).write(Entry(1.0, waits=(Wait("b", Reason.RESOURCES),)))


def audit_of_two_on_one_node(**demand: Any) -> None:
    jobs = [make_job(name, **demand) for name in "ab"]
    each = [
        StartRun(job.id, 1, Allocation((Share(0, (gpu,), 1000, job.demand.cpu_milli, job.demand.memory_mib),)))
        for gpu, job in enumerate(jobs)
    ]
    audit = Audit(CLUSTER)
    audit.write(Entry(0.0, tuple(map(JobSubmitted, jobs)), (each[0],)))
    audit.write(Entry(1.0, (), (each[1],)))


def test_more_cpus_or_memory_than_a_node_has_fail_the_audit() -> None:
    audit_of_two_on_one_node(cpus=32.0, memory_gib=256.0)
    for too_much in ({"cpus": 32.001}, {"memory_gib": 257.0}):
        with pytest.raises(AuditFailed, match="more CPUs or memory of node 'n0' are allocated than it has"):
            audit_of_two_on_one_node(**too_much)


def test_shares_of_a_gpu_may_add_up_to_one_and_not_more() -> None:
    jobs = [make_job(name, share=share) for name, share in (("a", 0.5), ("b", 0.5), ("c", 0.25))]
    orders = [StartRun(job.id, 1, Allocation((Share(0, (3,), job.demand.gpu_milli),))) for job in jobs]
    audit = Audit(CLUSTER)
    audit.write(Entry(0.0, tuple(map(JobSubmitted, jobs)), tuple(orders[:2])))
    with pytest.raises(AuditFailed, match="GPU 3 of node 'n0' has 1250 of 1000 thousandths allocated"):
        audit.write(Entry(1.0, (), (orders[2],)))


def test_the_end_of_a_run_frees_its_gpus() -> None:
    audit = audited((SUBMITTED, (start("a", 0),)), ((RunFinished("a", 1),), (start("b", 0),)))
    assert (list(audit.running), audit.ended, audit.waiting()) == (["b"], {"a": "finished"}, [])
    assert audit.starts == [(0.0, "a", 1), (1.0, "b", 1)]


def test_late_reports_of_earlier_runs_change_nothing() -> None:
    audit = audited(
        (SUBMITTED, (start("a", 0),)),
        ((), (StopRun("a", 1),)),
        ((RunStopped("a", 1),), (start("a", 1, run=2),)),
        ((RunFinished("a", 1), RunStopped("a", 1), RunFailed("a", 1, "late")), ()),
    )
    assert audit.running == {"a": (2, on(1))}
    assert (audit.ended, audit.stops) == ({}, 1)


def test_a_failed_job_has_ended_unless_it_is_retried() -> None:
    retried = audited((SUBMITTED, (start("a", 0),)), ((RunFailed("a", 1, "exit 1", retry=True),), ()))
    assert (retried.ended, retried.waiting()) == ({}, ["a", "b"])
    failed = audited((SUBMITTED, (start("a", 0),)), ((RunFailed("a", 1, "exit 1"),), ()))
    assert (failed.ended, failed.waiting()) == ({"a": "failed"}, ["b"])


def test_a_cancelled_job_ends_when_its_run_has_stopped() -> None:
    audit = audited((SUBMITTED, (start("a", 0),)), ((JobCancelled("a"), JobCancelled("b")), (StopRun("a", 1),)))
    assert (list(audit.running), audit.ended) == (["a"], {"b": "cancelled"})
    audit.write(Entry(2.0, (RunStopped("a", 1),)))
    assert audit.ended == {"a": "cancelled", "b": "cancelled"}


def test_nodes_and_gpus_that_have_returned_may_be_used() -> None:
    audit = audited(
        ((*SUBMITTED, NodeLost(1), GpuLost(0, 0)), ()),
        ((NodeReturned(1), GpuReturned(0, 0)), (start("a", 0), start("b", 0, node=1))),
    )
    assert list(audit.running) == ["a", "b"]


def test_a_run_on_a_lost_node_or_gpu_may_fail_with_it() -> None:
    for lost, why in ((NodeLost(0), "node lost"), (GpuLost(0, 0), "GPU lost")):
        audit = audited((SUBMITTED, (start("a", 0),)), ((lost, RunFailed("a", 1, why, retry=True)), ()))
        assert audit.waiting() == ["a", "b"]


def test_a_released_job_may_start() -> None:
    assert list(audited(((*SUBMITTED, JobHeld("a")), ()), ((JobReleased("a"),), (start("a", 0),))).running) == ["a"]


def test_a_job_that_continues_is_started_with_its_next_run_number() -> None:
    continued = (*SUBMITTED, JobContinued("a", runs=4))
    assert list(audited((continued, (start("a", 0, run=5),))).running) == ["a"]
    with pytest.raises(AuditFailed, match="run number 1, expected 5"):
        audited((continued, (start("a", 0),)))


@pytest.mark.parametrize(
    ("before", "allocation"),
    [
        ((NodeLost(0),), on(0)),
        ((GpuLost(0, 0),), on(0)),
        ((), on(0, node=9)),
        ((), on(7)),
        ((), Allocation(())),
        ((RunAdopted("b", 1, on(0), 0.0),), on(0)),
    ],
    ids=["node down", "GPU down", "no such node", "no such GPU", "no placement", "taken"],
)
def test_a_run_is_adopted_only_if_its_resources_are_there(before: tuple[Event, ...], allocation: Allocation) -> None:
    adopted = audited(((*SUBMITTED, RunAdopted("a", 3, on(0), 0.0)), ()))
    assert adopted.running == {"a": (3, on(0))}
    assert "a" not in audited(((*SUBMITTED, *before, RunAdopted("a", 3, allocation, 0.0)), ())).running


def test_a_stop_of_a_run_that_ends_in_the_same_step_is_ignored() -> None:
    audit = audited((SUBMITTED, (start("a", 0),)), ((JobCancelled("a"), RunFinished("a", 1)), (StopRun("a", 1),)))
    assert (audit.stops, audit.ended) == (0, {"a": "finished"})
