"""AntMan: guaranteed jobs get their GPUs, best-effort jobs are shrunk, stopped and grown; worked out by hand."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from refold.core import Journals, Policy
from refold.core.entries import ListJournal
from refold.core.orders import StartRun
from refold.errors import BadValue
from refold.model import Cluster, Job, Plan, Tenant
from refold.policies.published.antman import AntMan
from refold.simulator import Costs, Fault, simulate
from refold.testing import Audit, PolicyContract, make_cluster, make_job
from refold.testing.makers import seeded_workload

ONE_NODE = make_cluster(8, types="A800-80GB", cpus=96)
TWO_NODES = make_cluster(8, 8, types="A800-80GB", cpus=96)


def guaranteed(id: str, gpus: int, **more: Any) -> Job:
    """Return a guaranteed job without a speed model."""
    return make_job(id, gpus=gpus, **more)


def elastic(id: str, gpus: int, **more: Any) -> Job:
    """Return a best-effort GPT-2 job with ZeRO; its batch of 16 can be split over 1, 2, 4 or 8 GPUs."""
    plan = Plan(data=gpus, zero=2)
    fields: dict[str, Any] = {
        "work": 1000,
        "workload": "gpt2",
        "reshapable": True,
        "job_class": "best-effort",
        "plan": plan,
    } | more
    return make_job(id, gpus=gpus, cpus=8 * gpus, **fields)


def started(policy: Policy, jobs: Sequence[Job], cluster: Cluster) -> list[tuple[float, str, int]]:
    """Return the time, job and GPUs of every start."""
    return [(at, order.job, order.allocation.gpu_milli // 1000) for at, order in start_orders(policy, jobs, cluster)]


def start_orders(policy: Policy, jobs: Sequence[Job], cluster: Cluster) -> list[tuple[float, StartRun]]:
    journal = ListJournal()
    simulate(jobs, cluster, policy, journal=Journals(Audit(cluster), journal))
    return [(entry.now, order) for entry in journal.entries for order in entry.orders if isinstance(order, StartRun)]


class TestAntMan(PolicyContract):
    def make_policy(self) -> Policy:
        return AntMan()


@pytest.mark.parametrize("seed", range(4))
def test_best_effort_jobs_of_all_kinds_complete(seed: int) -> None:
    jobs, cluster = seeded_workload(seed)
    for index in range(1, len(jobs), 2):
        jobs[index] = msgspec.structs.replace(jobs[index], job_class="best-effort")
    audit = Audit(cluster)
    costs = Costs(start=5.0, stop=3.0, restart=8.0, checkpoint_every=20.0)
    faults = [Fault(0, 40.0, 300.0), Fault(1, 200.0, 500.0)]
    simulate(jobs, cluster, AntMan(), journal=audit, costs=costs, faults=faults)
    assert {job.id for job in jobs} == set(audit.ended)
    assert audit.stops > 0


class TestGuaranteed:
    def test_a_best_effort_job_is_shrunk_by_the_smallest_sufficient_size(self) -> None:
        jobs = [elastic("elastic", 8), guaranteed("sure", 3, at=10)]
        # The batch cannot be split over 7 or 6 GPUs, so the job is shrunk by 4.
        found = start_orders(AntMan(), jobs, ONE_NODE)[:3]
        assert [(at, order.job, order.allocation.gpu_milli) for at, order in found] == [
            (0, "elastic", 8000),
            (10, "elastic", 4000),
            (10, "sure", 3000),
        ]
        assert found[1][1].allocation.plan == Plan(data=4, zero=2)
        assert found[1][1].allocation.cpu_milli == 32_000

    def test_a_distributed_plan_gives_up_replicas(self) -> None:
        plan = Plan(data=2, tensor=8)
        wide = make_job(
            "wide",
            instances=2,
            gpus=8,
            work=1000,
            workload="llama-2-7b",
            plan=plan,
            reshapable=True,
            job_class="best-effort",
        )
        found = start_orders(AntMan(), [wide, guaranteed("sure", 8, at=10)], TWO_NODES)[:3]
        assert [(at, order.job) for at, order in found] == [(0, "wide"), (10, "wide"), (10, "sure")]
        assert found[1][1].allocation.plan == Plan(data=1, tensor=8)

    def test_a_job_without_a_speed_model_is_stopped_and_resumed_later(self) -> None:
        jobs = [make_job("rigid", gpus=8, work=50, job_class="best-effort"), guaranteed("sure", 1, at=10)]
        assert started(AntMan(), jobs, ONE_NODE) == [(0, "rigid", 8), (10, "sure", 1), (110, "rigid", 8)]

    def test_a_job_that_is_not_preemptible_is_not_stopped(self) -> None:
        rigid = make_job("rigid", gpus=8, work=50, job_class="best-effort", preemptible=False)
        assert started(AntMan(), [rigid, guaranteed("sure", 1, at=10)], ONE_NODE) == [(0, "rigid", 8), (50, "sure", 1)]

    def test_the_latest_submitted_job_is_preempted_first(self) -> None:
        first = make_job("first", gpus=4, job_class="best-effort")
        last = make_job("last", at=1, gpus=4, job_class="best-effort")
        found = started(AntMan(), [first, last, guaranteed("sure", 4, at=10)], ONE_NODE)
        assert found == [(0, "first", 4), (1, "last", 4), (10, "sure", 4), (100, "last", 4)]

    def test_guaranteed_jobs_do_not_preempt_each_other(self) -> None:
        jobs = [guaranteed("a", 8), guaranteed("b", 1, at=10)]
        assert started(AntMan(), jobs, ONE_NODE) == [(0, "a", 8), (100, "b", 1)]

    def test_no_job_is_shrunk_if_the_guaranteed_job_still_does_not_fit(self) -> None:
        jobs = [
            guaranteed("kept", 1),
            make_job("rigid", gpus=8, work=50, job_class="best-effort"),
            guaranteed("gang", 8, at=10, instances=2, work=10),
        ]
        # The gang needs both nodes; a guaranteed job runs on one of them until 100 s.
        assert started(AntMan(), jobs, TWO_NODES) == [(0, "kept", 1), (0, "rigid", 8), (100, "gang", 16)]

    def test_a_quota_counts_requested_gpus(self) -> None:
        cluster = Cluster(ONE_NODE.nodes, tenants=(Tenant("A", 4.0),))
        jobs = [
            guaranteed("a1", 3, tenant="A"),
            guaranteed("a2", 2, at=1, tenant="A"),
            guaranteed("a3", 1, at=2, tenant="A"),
            make_job("b", at=3, gpus=4, tenant="B", job_class="best-effort"),
        ]
        assert started(AntMan(), jobs, cluster) == [(0, "a1", 3), (2, "a3", 1), (3, "b", 4), (100, "a2", 2)]


class TestBestEffort:
    def test_a_best_effort_job_takes_the_free_gpus_rounded_down(self) -> None:
        jobs = [guaranteed("sure", 3, work=5000), elastic("elastic", 8, at=1)]
        assert started(AntMan(), jobs, ONE_NODE) == [(0, "sure", 3), (1, "elastic", 4)]

    def test_free_gpus_let_one_job_per_round_grow(self) -> None:
        jobs = [guaranteed("sure", 4), elastic("first", 2), elastic("second", 2)]
        found = started(AntMan(), jobs, ONE_NODE)
        # At 100 s four GPUs are free: the first job takes two of them and, after its restart, the second job takes two.
        assert found[:3] == [(0, "sure", 4), (0, "first", 2), (0, "second", 2)]
        assert found[3:5] == [(100, "first", 4), (100, "second", 4)]

    def test_a_job_at_the_restart_limit_is_not_grown(self) -> None:
        jobs = [guaranteed("sure", 4), elastic("elastic", 4)]
        assert started(AntMan(), jobs, ONE_NODE) == [(0, "sure", 4), (0, "elastic", 4), (100, "elastic", 8)]
        assert started(AntMan(max_restarts=0), jobs, ONE_NODE) == [(0, "sure", 4), (0, "elastic", 4)]

    def test_a_plan_that_cannot_be_scaled_waits_for_its_request(self) -> None:
        tensor = elastic("tensor", 5, at=1, plan=Plan(tensor=5), work=10)
        jobs = [guaranteed("sure", 4), tensor]
        assert started(AntMan(), jobs, ONE_NODE) == [(0, "sure", 4), (100, "tensor", 5)]


def test_a_negative_number_of_restarts_is_rejected() -> None:
    with pytest.raises(BadValue, match="max_restarts"):
        AntMan(max_restarts=-1)
