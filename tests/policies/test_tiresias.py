"""Tiresias: queues by attained service, promotion, and the Gittins index; worked out by hand."""

from collections.abc import Sequence
from typing import Any

import pytest

from refold.core import Policy
from refold.core.entries import ListJournal
from refold.errors import BadValue
from refold.model import Cluster, Job, Plan
from refold.policies.published.tiresias import Tiresias
from refold.policies.queueing.las import Las
from refold.simulator import Costs, simulate
from refold.testing import Audit, PolicyContract, make_cluster, make_job
from refold.testing.makers import seeded_workload

SHORT_OR_LONG = [10.0] * 10 + [1000.0] * 10
"""Service of past jobs: half used 10 GPU-seconds, half 1,000."""


def starts(policy: Policy, jobs: Sequence[Job], cluster: Cluster) -> list[tuple[float, str]]:
    audit = Audit(cluster)
    simulate(jobs, cluster, policy, journal=audit)
    return [(at, job) for at, job, _ in audit.starts]


class TestTiresias(PolicyContract):
    def make_policy(self) -> Policy:
        return Tiresias(thresholds_gpu_seconds=[20.0, 60.0, 200.0])


class TestTiresiasWithPromotion(PolicyContract):
    def make_policy(self) -> Policy:
        return Tiresias(thresholds_gpu_seconds=[40.0, 100.0], promote_knob=2.0)


class TestTiresiasByGittinsIndex(PolicyContract):
    def make_policy(self) -> Policy:
        return Tiresias(order="gittins", quantum_gpu_seconds=20.0, thresholds_gpu_seconds=[20.0], promote_knob=2.0)


def test_jobs_are_demoted_through_the_queues_and_run_in_order_of_arrival() -> None:
    jobs = [make_job("a", at=0, work=100), make_job("b", at=5, work=100)]
    policy = Tiresias(thresholds_gpu_seconds=[10, 30])
    # a is demoted at 10 s, so b goes first. At 20 s both are in the second queue, where a is first; likewise later.
    expected = [(0, "a"), (10, "b"), (20, "a"), (40, "b"), (60, "a"), (130, "b")]
    assert starts(policy, jobs, make_cluster(1)) == expected


def test_attained_service_is_gpus_times_time() -> None:
    jobs = [make_job("wide", at=0, gpus=4, work=100), make_job("narrow", at=1, gpus=1, work=30)]
    # Four GPUs reach 40 GPU-seconds after 10 s; the narrow job ends before it is demoted.
    policy = Tiresias(thresholds_gpu_seconds=[40, 1000])
    assert starts(policy, jobs, make_cluster(4)) == [(0, "wide"), (10, "narrow"), (40, "wide")]


@pytest.mark.parametrize("seed", range(4))
def test_with_one_threshold_tiresias_equals_las(seed: int) -> None:
    jobs, cluster = seeded_workload(seed)
    journals = ListJournal(), ListJournal()
    policies: list[Policy] = [Tiresias(thresholds_gpu_seconds=[60.0]), Las(threshold_gpu_seconds=60.0)]
    for journal, policy in zip(journals, policies, strict=True):
        simulate(jobs, cluster, policy, journal=journal, costs=Costs(start=1.0, stop=2.0, restart=3.0))
    ours, theirs = ([(entry.now, len(entry.orders)) for entry in journal.entries] for journal in journals)
    assert ours == theirs
    assert sum(count for _, count in ours) > len(jobs)


STREAM = [make_job("old", at=0, work=30), *(make_job(f"new{number}", at=1 + number, work=8) for number in range(5))]
"""One job that is demoted, and a stream of new jobs that go before it."""


def test_no_job_is_promoted_by_default() -> None:
    expected = [(0, "old"), (10, "new0"), (18, "new1"), (26, "new2"), (34, "new3"), (42, "new4"), (50, "old")]
    assert starts(Tiresias(thresholds_gpu_seconds=[10]), STREAM, make_cluster(1)) == expected


def test_a_job_that_has_waited_long_compared_with_its_run_time_is_promoted() -> None:
    policy = Tiresias(thresholds_gpu_seconds=[10], promote_knob=2.0)
    # After running for 10 s and waiting for 20 s, it is promoted at 30 s, and demoted again at 40 s.
    expected = [(0, "old"), (10, "new0"), (18, "new1"), (26, "new2"), (30, "old")]
    expected += [(40, "new2"), (44, "new3"), (52, "new4"), (60, "old")]
    assert starts(policy, STREAM, make_cluster(1)) == expected


NEARLY_DONE = [
    make_job("long", at=0, work=1000),
    make_job("first", at=985, work=5),
    make_job("second", at=997, work=5),
]


def test_with_las_a_nearly_finished_job_is_preempted() -> None:
    expected = [(0, "long"), (985, "first"), (990, "long"), (997, "second"), (1002, "long")]
    assert starts(Tiresias(thresholds_gpu_seconds=[10]), NEARLY_DONE, make_cluster(1)) == expected


def test_with_the_gittins_index_a_nearly_finished_job_continues() -> None:
    policy = Tiresias(order="gittins", quantum_gpu_seconds=10)
    assert policy._gittins is not None
    policy._gittins.add_ended(SHORT_OR_LONG)
    # The index is (1/2) / 10 for a new job, 0 from 10 to 990 GPU-seconds, and 1 / 10 from 990 on.
    assert starts(policy, NEARLY_DONE, make_cluster(1)) == [
        (0, "long"),
        (985, "first"),
        (990, "long"),
        (1005, "second"),
    ]


def test_the_index_is_estimated_from_ended_jobs() -> None:
    past = [make_job(f"past{number}", work=work) for number, work in enumerate([10.0] * 8 + [1000.0] * 8)]
    later = [make_job(job.id, at=2000 + job.submitted / 16, gpus=16, work=(job.work or 0) / 16) for job in NEARLY_DONE]
    policy = Tiresias(order="gittins", quantum_gpu_seconds=10)
    found = starts(policy, [*past, *later], make_cluster(16))
    assert found[16:] == [(2000, "long"), (2061.5625, "first"), (2061.875, "long"), (2062.8125, "second")]


def test_jobs_with_a_speed_model_run_as_requested() -> None:
    cluster = make_cluster(8, types="A800-80GB", cpus=96)
    plan = Plan(data=8, zero=2)
    known: dict[str, Any] = {"workload": "gpt2", "gpus": 8, "cpus": 64, "reshapable": True, "plan": plan}
    jobs = [make_job("a", at=0, work=1000, **known), make_job("b", at=100, work=300, **known)]
    # 3,250 GPU-seconds on eight GPUs take 406.25 s; b ends before it is demoted.
    assert starts(Tiresias(), jobs, cluster) == [(0, "a"), (406.25, "b"), (706.25, "a")]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"thresholds_gpu_seconds": []}, "thresholds_gpu_seconds"),
        ({"thresholds_gpu_seconds": [10, 5]}, "thresholds_gpu_seconds"),
        ({"promote_knob": -1}, "promote_knob"),
        ({"order": "fifo"}, "order"),
        ({"quantum_gpu_seconds": 0}, "quantum_gpu_seconds"),
    ],
)
def test_invalid_settings_are_rejected_by_name(settings: dict[str, object], named: str) -> None:
    with pytest.raises(BadValue, match=named):
        Tiresias(**settings)  # type: ignore[arg-type]
