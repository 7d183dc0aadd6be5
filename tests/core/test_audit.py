"""The audit of a journal detects invalid entries."""

import msgspec
import pytest

from refold.core import Entry
from refold.core.events import JobCancelled, JobHeld, JobSubmitted, RunRecalled
from refold.core.orders import StartRun, StopRun
from refold.model import Allocation, Job, Plan, Share, Tenant
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
        (make_job("a", gpus=2), on(0), "'a' requested 2 GPU per instance"),
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
