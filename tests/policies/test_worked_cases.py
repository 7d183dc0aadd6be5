"""Start times of small cases, worked out by hand, under each policy."""

import pytest

from refold.core import Journals
from refold.core.entries import ListJournal
from refold.core.orders import StopRun
from refold.errors import BadInput, BadValue, UnknownName
from refold.model import Cluster, Job
from refold.placement import RULES
from refold.simulator import Costs, Fault, simulate
from refold.simulator.registry import make_policy
from refold.testing import Audit, make_cluster, make_job


def starts(
    policy: str, jobs: list[Job], cluster: Cluster, costs: Costs | None = None, **settings: object
) -> list[tuple[float, str]]:
    """Return (time, job) of all starts."""
    audit = Audit(cluster)
    simulate(jobs, cluster, make_policy(policy, settings), journal=audit, costs=costs or Costs())
    return [(at, job) for at, job, _ in audit.starts]


WIDE_IN_THE_MIDDLE = [
    make_job("a", at=0, gpus=2, work=10),
    make_job("wide", at=1, gpus=4, work=10),
    make_job("b", at=2, gpus=1, work=3),
    make_job("c", at=3, gpus=1, work=20),
]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("fifo", [(0, "a"), (10, "wide"), (20, "b"), (20, "c")]),
        ("fifo-skip", [(0, "a"), (2, "b"), (3, "c"), (23, "wide")]),
        ("sjf", [(0, "a"), (2, "b"), (3, "c"), (23, "wide")]),
        # `wide` has no less work left than `a` and `b`, so it preempts neither; at 10 it preempts `c`.
        ("srtf", [(0, "a"), (2, "b"), (3, "c"), (10, "wide"), (20, "c")]),
    ],
)
def test_a_wide_job_in_the_middle(policy: str, expected: list[tuple[float, str]]) -> None:
    assert starts(policy, WIDE_IN_THE_MIDDLE, make_cluster(4)) == expected


@pytest.mark.parametrize("policy", ["fifo", "fifo-skip", "sjf", "drf"])
def test_jobs_of_higher_priority_start_first(policy: str) -> None:
    jobs = [
        make_job("first", at=0, work=10),
        make_job("second", at=1, work=10),
        make_job("urgent", at=2, work=20, priority=1),
        make_job("nice", at=3, work=5, priority=-1),
        make_job("later", at=4, work=10),
    ]
    assert starts(policy, jobs, make_cluster(1)) == [
        (0, "first"),
        (10, "urgent"),
        (30, "second"),
        (40, "later"),
        (50, "nice"),
    ]


@pytest.mark.parametrize("policy", ["srtf", "las"])
def test_jobs_of_higher_priority_preempt_others(policy: str) -> None:
    jobs = [make_job("first", at=0, work=10), make_job("urgent", at=2, work=20, priority=1)]
    assert starts(policy, jobs, make_cluster(1)) == [(0, "first"), (2, "urgent"), (22, "first")]


def test_a_job_of_higher_priority_does_not_wait_behind_a_blocked_one() -> None:
    jobs = [
        make_job("first", at=0, gpus=2, work=10),
        make_job("wide", at=1, gpus=4, work=10),
        make_job("urgent", at=2, gpus=2, work=10, priority=1),
    ]
    assert starts("fifo", jobs, make_cluster(4)) == [(0, "first"), (2, "urgent"), (12, "wide")]


def test_sjf_starts_the_shortest_waiting_job_first() -> None:
    jobs = [make_job("long", work=50), make_job("first", work=5), make_job("mid", work=20)]
    assert starts("sjf", jobs, make_cluster(1)) == [(0, "first"), (5, "mid"), (25, "long")]


def test_srtf_preempts_a_long_job_for_a_short_one_and_resumes_it_with_its_progress() -> None:
    jobs = [make_job("long", at=0, work=100), make_job("short", at=10, work=5)]
    assert starts("srtf", jobs, make_cluster(1)) == [(0, "long"), (10, "short"), (15, "long")]


def test_srtf_is_charged_for_stopping_and_restarting() -> None:
    jobs = [make_job("long", at=0, work=100), make_job("short", at=10, work=5)]
    cluster, journal = make_cluster(1), ListJournal()
    costs = Costs(start=1, stop=2, restart=4)
    simulate(jobs, cluster, make_policy("srtf"), journal=Journals(Audit(cluster), journal), costs=costs)
    # `short` starts when `long` has stopped (12) and computes from 13 to 18; `long` restarts at 18, computes from 22,
    # and had done 9 of its 100 seconds.
    assert [entry.now for entry in journal.entries] == [0, 1, 10, 12, 13, 18, 22, 113]


def test_srtf_does_not_stop_runs_unnecessarily() -> None:
    cluster = make_cluster(2, 2)
    jobs = [
        make_job("left", at=0, gpus=2, work=100),
        make_job("right", at=0, gpus=2, work=90),
        make_job("short", at=10, gpus=2, work=5),
    ]
    journal = ListJournal()
    simulate(jobs, cluster, make_policy("srtf"), journal=journal)
    stopped = [order.job for entry in journal.entries for order in entry.orders if isinstance(order, StopRun)]
    assert stopped == ["left"]


def test_a_job_that_is_not_preemptible_is_not_stopped() -> None:
    jobs = [make_job("long", at=0, work=100, preemptible=False), make_job("short", at=10, work=5)]
    assert starts("srtf", jobs, make_cluster(1)) == [(0, "long"), (100, "short")]


def test_las_runs_new_jobs_before_jobs_with_much_attained_service() -> None:
    jobs = [make_job("old", at=0, gpus=2, work=100), make_job("new", at=70, gpus=2, work=10)]
    # 2 GPUs × 30 s: `old` is demoted to the second queue at 30, so `new` preempts it and `old` restarts after it.
    expected = [(0, "old"), (70, "new"), (80, "old")]
    assert starts("las", jobs, make_cluster(2), threshold_gpu_seconds=60.0) == expected


def test_las_preempts_a_run_as_soon_as_it_is_demoted_if_a_job_waits() -> None:
    jobs = [make_job("old", at=0, gpus=2, work=100), make_job("new", at=10, gpus=2, work=10)]
    expected = [(0, "old"), (30, "new"), (40, "old")]
    assert starts("las", jobs, make_cluster(2), threshold_gpu_seconds=60.0) == expected


def test_a_shorter_new_job_is_considered_although_one_of_the_same_demand_waits() -> None:
    jobs = [make_job("x", at=0, work=50), make_job("slow", at=1, work=100), make_job("quick", at=2, work=5)]
    assert starts("srtf", jobs, make_cluster(1)) == [(0, "x"), (2, "quick"), (7, "x"), (55, "slow")]


def test_many_claims_are_made_in_one_round() -> None:
    jobs = [make_job(f"long{n}", at=0, work=1000) for n in range(8)]
    jobs += [make_job(f"short{n}", at=100, work=10) for n in range(8)]
    started = [at for at, job in starts("srtf", jobs, make_cluster(8), Costs(stop=60)) if job.startswith("short")]
    assert started == [160.0] * 8


def test_claimed_gpus_are_not_given_to_later_jobs() -> None:
    jobs = [
        make_job("x", at=0, work=1000),
        make_job("wide", at=10, gpus=2, work=20),
        make_job("late", at=15, work=500),
    ]
    started = {job: at for at, job in reversed(starts("srtf", jobs, make_cluster(2), Costs(stop=60)))}
    assert (started["wide"], started["late"]) == (70.0, 90.0)


def test_a_job_that_fits_beside_a_claim_starts_at_once() -> None:
    jobs = [
        make_job("x", at=0, gpus=4, work=1000),
        make_job("wide", at=10, gpus=3, instances=2, work=20),
        make_job("small", at=11, work=5),
    ]
    started = {job: at for at, job in reversed(starts("srtf", jobs, make_cluster(4, 4), Costs(stop=60)))}
    assert (started["small"], started["wide"]) == (11.0, 70.0)


def test_jobs_that_are_requeued_together_restart_in_their_order() -> None:
    cluster, audit = make_cluster(3), Audit(make_cluster(3))
    jobs = [make_job(name, at=0, work=50) for name in "abc"]
    simulate(jobs, cluster, make_policy("fifo"), journal=audit, faults=[Fault(0, 10.0, 20.0)])
    assert [job for _, job, _ in audit.starts] == [*"abc", *"abc"]


def test_shares_of_several_gpus_fill_a_node() -> None:
    # Three instances with half of two GPUs each fill three GPUs if they are spread over them.
    for placement in RULES:
        jobs = [make_job("gang", instances=3, gpus=2, share=0.5)]
        assert starts("fifo", jobs, make_cluster(3), placement=placement) == [(0, "gang")], placement


def test_drf_serves_the_tenant_with_the_smallest_share() -> None:
    jobs = [
        *(make_job(f"rich{n}", at=0, work=10, tenant="rich") for n in range(4)),
        *(make_job(f"poor{n}", at=0, work=10, tenant="poor") for n in range(2)),
    ]
    first_four = [job for at, job in starts("drf", jobs, make_cluster(4)) if at == 0]
    assert first_four == ["poor0", "rich0", "poor1", "rich1"]


def test_drf_compares_dominant_shares() -> None:
    # x needs many CPUs: two of its jobs use 3/4 of them; y needs many GPUs: its first job uses half of them.
    jobs = [
        make_job("x0", at=0, gpus=1, cpus=12, work=100, tenant="x"),
        make_job("y0", at=0, gpus=4, cpus=2, work=100, tenant="y"),
        make_job("x1", at=0, gpus=1, cpus=12, work=100, tenant="x"),
        make_job("y1", at=0, gpus=1, cpus=2, work=100, tenant="y"),
    ]
    cluster = make_cluster(8, cpus=32)
    assert [job for _, job in starts("drf", jobs, cluster)] == ["x0", "y0", "x1", "y1"]


def test_fractions_are_per_gpu() -> None:
    # 0.5 + 0.5 free is not 0.8 free.
    jobs = [
        make_job("a", at=0, share=0.5, work=100),
        make_job("b", at=0, share=0.6, work=50),
        make_job("c", at=1, share=0.5, work=10),
        make_job("d", at=2, share=0.8, work=10),
    ]
    assert starts("fifo-skip", jobs, make_cluster(2)) == [(0, "a"), (0, "b"), (1, "c"), (50, "d")]


def test_a_gang_waits_until_all_its_instances_fit() -> None:
    jobs = [make_job("half", at=0, gpus=2, work=50), make_job("gang", at=1, gpus=2, instances=2, work=10)]
    assert starts("fifo", jobs, make_cluster(2, 2)) == [(0, "half"), (50, "gang")]


def test_jobs_run_on_gpu_types_that_they_accept() -> None:
    jobs = [make_job("a", types=["T4"]), make_job("b", types=["T4"]), make_job("c", types=["A100", "T4"])]
    cluster = make_cluster(1, 1, types=["A100", "T4"])
    assert starts("fifo-skip", jobs, cluster) == [(0, "a"), (0, "c"), (100, "b")]


def test_jobs_end_sooner_on_faster_gpus() -> None:
    jobs = [make_job("a", work=100), make_job("b", at=1)]
    cluster = make_cluster(1, types=["H100"], speeds={"H100": 4.0})
    assert starts("fifo", jobs, cluster) == [(0, "a"), (25, "b")]


def test_unknown_names_and_bad_settings_are_rejected() -> None:
    with pytest.raises(UnknownName, match="unknown policy 'fivo'; did you mean 'fifo'"):
        make_policy("fivo")
    with pytest.raises(UnknownName, match="unknown las setting 'treshold_gpu_seconds'; did you mean"):
        make_policy("las", {"treshold_gpu_seconds": 3})
    with pytest.raises(UnknownName, match="unknown placement 'bestfit'"):
        make_policy("fifo", {"placement": "bestfit"})
    with pytest.raises(BadValue, match="threshold_gpu_seconds is -1"):
        make_policy("las", {"threshold_gpu_seconds": -1})
    with pytest.raises(BadInput, match="has no duration"):
        simulate([make_job("a", work=None)], make_cluster(1), make_policy("fifo"))
