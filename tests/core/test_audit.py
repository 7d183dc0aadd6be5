"""The audit complains where it should: a journal in which something is wrong, entry by entry."""

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


def audited(job: Job, allocation: Allocation) -> Audit:
    audit = Audit(CLUSTER)
    audit.write(Entry(0.0, (JobSubmitted(job),), (StartRun(job.id, 1, allocation),)))
    return audit


RESHAPABLE = make_job("a", gpus=2, reshapable=True, plan=Plan(2), types=["A100"])


@pytest.mark.parametrize(
    ("job", "allocation", "complaint"),
    [
        (RESHAPABLE, on(0, 1, 2, plan=Plan(4)), "'a' got 3 GPUs for DP4"),
        (RESHAPABLE, on(0, 1, node=1), "'a' got a T4"),
        (RESHAPABLE, on(), "'a' got no GPU at all"),
        (RESHAPABLE, on(3, 4), "GPU 4 of 'n0'"),
        (RESHAPABLE, on(1, 1), "GPU 1 of 'n0' is given 2000 milli"),
        (make_job("a", gpus=2), on(0), "'a' asked for 2 GPU an instance"),
        (make_job("a", gpus=2), on(0, 1, plan=Plan(2)), "'a' is not reshapable, and got DP2"),
    ],
)
def test_a_shape_that_a_job_may_not_have_is_noticed(job: Job, allocation: Allocation, complaint: str) -> None:
    with pytest.raises(AuditFailed, match=complaint):
        audited(job, allocation)


@pytest.mark.parametrize("allocation", [on(0, 1, plan=Plan(2)), on(0, 1, 2, plan=Plan(tensor=3)), on(2), on(0, 3)])
def test_other_shapes_are_fine(allocation: Allocation) -> None:
    assert list(audited(RESHAPABLE, allocation).running) == ["a"]


def test_a_job_that_is_not_preemptible_is_stopped_only_if_it_is_cancelled() -> None:
    job = make_job("a", preemptible=False)
    with pytest.raises(AuditFailed, match="'a' was told to stop and is not preemptible"):
        audited(job, on(0)).write(Entry(1.0, (), (StopRun("a", 1),)))
    audit = audited(job, on(0))
    audit.write(Entry(1.0, (JobCancelled("a"),), (StopRun("a", 1),)))
    assert audit.stops == 1


def test_a_start_beyond_a_tenants_limit_or_of_a_job_that_is_held_is_noticed() -> None:
    cluster = msgspec.structs.replace(CLUSTER, tenants=(Tenant("t", limit_gpus=1.0),))
    jobs = [make_job(name, tenant="t") for name in "ab"]
    audit = Audit(cluster)
    audit.write(Entry(0.0, tuple(map(JobSubmitted, jobs)), (StartRun("a", 1, on(0)),)))
    with pytest.raises(AuditFailed, match="tenant 't' uses 2 GPUs and may use 1"):
        audit.write(Entry(1.0, (), (StartRun("b", 1, on(1)),)))
    audit = Audit(CLUSTER)
    with pytest.raises(AuditFailed, match="'a' was started while it is held"):
        audit.write(Entry(0.0, (JobSubmitted(jobs[0]), JobHeld("a")), (StartRun("a", 1, on(0)),)))


def test_a_job_that_is_not_preemptible_may_be_recalled_or_held() -> None:
    for fact in (RunRecalled("a", 1), JobHeld("a")):
        audit = audited(make_job("a", preemptible=False), on(0))
        audit.write(Entry(1.0, (fact,), (StopRun("a", 1),)))
        assert audit.stops == 1
