"""Jobs with a GPU range get the size at which they end soonest, given rough starts of a queue."""

from math import inf

import pytest
from hypothesis import given, settings, strategies as st

from refold.core import ListJournal
from refold.core.orders import StartRun
from refold.errors import BadValue
from refold.model import Cluster, Job
from refold.planning.plans import CATALOGUE_ONLY
from refold.policies.backfill.forecast import PooledQueue
from refold.policies.backfill.sizing import Sizes
from refold.policies.common.durations import DurationSource
from refold.simulator import simulate
from refold.simulator.registry import make_policy
from refold.simulator.traces.formats import read_cluster
from refold.testing import make_cluster, make_job


def started(jobs: list[Job], cluster: Cluster, **settings: object) -> dict[str, tuple[float, int]]:
    """Return job -> (start, GPUs)."""
    journal = ListJournal()
    simulate(jobs, cluster, make_policy("easy", {"durations": "known", **settings}), journal=journal)
    return {
        order.job: (entry.now, sum(len(share.gpus) for share in order.allocation.placement))
        for entry in journal.entries
        for order in entry.orders
        if isinstance(order, StartRun)
    }


def sizes(cluster: Cluster, job: Job) -> list[tuple[int, int, float]]:
    """Return (instances, GPUs of each, speed relative to the request) of all sizes."""
    found = Sizes(cluster, CATALOGUE_ONLY).for_job(job)
    return [(size.demand.instances, size.demand.gpus, size.speedup) for size in found]


def test_a_job_without_a_range_has_one_size() -> None:
    assert sizes(make_cluster(8), make_job("a", gpus=2, instances=2)) == [(2, 2, 1.0)]


def test_sizes_of_a_job_with_unknown_speed_are_doubled_and_linear() -> None:
    job = make_job("a", gpus=2, reshapable=True, gpu_range=(1, 6))
    assert sizes(make_cluster(8), job) == [(1, 1, 0.5), (1, 2, 1.0), (1, 4, 2.0), (1, 6, 3.0), (1, 2, 1.0)]
    assert sizes(make_cluster(4), job) == [(1, 1, 0.5), (1, 2, 1.0), (1, 4, 2.0), (1, 2, 1.0)]  # 6 do not fit
    assert sizes(make_cluster(4, 4), job) == [(1, 1, 0.5), (1, 2, 1.0), (1, 4, 2.0), (2, 3, 3.0), (1, 2, 1.0)]


def test_cpus_and_memory_are_those_requested_per_gpu() -> None:
    job = make_job("a", gpus=2, cpus=6, memory_gib=4, reshapable=True, gpu_range=(1, 4))
    found = Sizes(make_cluster(8), CATALOGUE_ONLY).for_job(job)
    assert [(size.demand.cpu_milli, size.demand.memory_mib) for size in found[:3]] == [
        (3000, 2048),
        (6000, 4096),
        (12000, 8192),
    ]


def test_on_an_empty_cluster_a_job_gets_the_most_gpus_of_its_range() -> None:
    job = make_job("open", gpus=2, work=800.0, reshapable=True, gpu_range=(1, 8))
    assert started([job], make_cluster(8)) == {"open": (0.0, 8)}


def test_a_job_takes_fewer_gpus_now_rather_than_more_much_later() -> None:
    busy = make_job("busy", gpus=6, work=1000.0)
    job = make_job("open", gpus=2, at=1, work=100.0, reshapable=True, gpu_range=(1, 8))
    assert started([busy, job], make_cluster(8))["open"] == (1.0, 2)


def test_a_job_waits_for_more_gpus_if_it_ends_sooner_with_them() -> None:
    busy = make_job("busy", gpus=6, work=10.0)
    job = make_job("open", gpus=2, at=1, work=400.0, reshapable=True, gpu_range=(1, 8))
    assert started([busy, job], make_cluster(8))["open"] == (10.0, 8)


def test_a_job_does_not_wait_indefinitely_for_an_overdue_run() -> None:
    late = make_job("late", gpus=6, work=10_000.0, time_limit=10.0, preemptible=False)
    job = make_job("open", gpus=2, at=100, work=100.0, reshapable=True, gpu_range=(2, 8), time_limit=100.0)
    start, gpus = started([late, job], make_cluster(8), durations="limit")["open"]
    assert start < 2_000
    assert gpus == 2


def test_a_job_with_a_known_model_gets_a_plan_for_its_size() -> None:
    job = make_job(
        "open", gpus=2, work=3600.0, reshapable=True, gpu_range=(2, 8), workload="llama-2-7b", steps=100, batch=64
    )
    journal = ListJournal()
    simulate([job], read_cluster("1x8:A100-80GB"), make_policy("easy"), journal=journal)
    [order] = [order for entry in journal.entries for order in entry.orders]
    assert isinstance(order, StartRun)
    assert order.allocation.plan is not None
    assert order.allocation.plan.gpus == sum(len(share.gpus) for share in order.allocation.placement)


def test_a_job_does_not_wait_for_sizes_that_fit_no_node() -> None:
    cluster = make_cluster(8, 4, 4, types=["A100", "V100", "V100"])
    job = make_job("open", instances=2, gpus=4, types=("V100",), work=8.0, reshapable=True, gpu_range=(8, 8))
    assert started([job], cluster) == {"open": (0.0, 8)}


def test_run_times_are_learned_at_the_requested_size() -> None:
    jobs = [
        make_job(f"j{number}", gpus=1, at=1000.0 * number, work=800.0, reshapable=True, gpu_range=(1, 8))
        for number in range(40)
    ]
    cluster = make_cluster(8)
    policy = make_policy("easy")
    simulate(jobs, cluster, policy)
    durations: DurationSource = policy._durations  # type: ignore[attr-defined]
    median = durations._predictor.expect(jobs[0], 41_000.0).quantile(0.5)
    assert 600.0 < median < 1100.0


@pytest.mark.parametrize("gpu_range", [(0, 4), (8, 4), (4, 8), (1, 1)])
def test_a_gpu_range_must_contain_the_requested_gpus(gpu_range: tuple[int, int]) -> None:
    with pytest.raises(BadValue, match="gpu_range is"):
        make_job("open", gpus=2, reshapable=True, gpu_range=gpu_range)


def test_a_gpu_range_requires_a_reshapable_job() -> None:
    with pytest.raises(BadValue, match="gpu_range needs a reshapable job"):
        make_job("open", gpus=2, gpu_range=(1, 4))


Rows = list[tuple[float, float]]
"""Running jobs by end and GPUs, or queued jobs by GPUs and duration."""


def estimate(now: float, free: float, running: Rows, queued: Rows) -> list[float]:
    queue, starts = PooledQueue(now, free, running), []
    for gpus, duration in queued:
        starts.append(queue.next_start(gpus))
        queue.add(gpus, duration)
    return starts


def starts_by_definition(now: float, free: float, running: Rows, queue: Rows) -> list[float]:
    """A job starts, not before the job ahead of it, at the first time when enough GPUs are free."""
    capacity, held, starts = free + sum(gpus for _, gpus in running), list(running), [now]
    for gpus, duration in queue:
        times = sorted({starts[-1], *(end for end, _ in held if end > starts[-1])})
        enough = [time for time in times if capacity - sum(used for end, used in held if end > time) >= gpus]
        starts.append(enough[0] if enough and starts[-1] < inf else inf)
        held.append((starts[-1] + duration, gpus))
    return starts[1:]


@pytest.mark.parametrize(
    ("free", "running", "queue", "starts"),
    [
        (2.0, [], [(1.0, 5.0), (1.0, 5.0), (2.0, 1.0)], [10.0, 10.0, 15.0]),
        (0.0, [(12.0, 1.0), (20.0, 3.0)], [(1.0, 100.0), (3.0, 1.0)], [12.0, 20.0]),
        (0.0, [(5.0, 1.0)], [(1.0, 1.0)], [10.0]),  # an end that is overdue counts as now
        (1.0, [(20.0, 1.0)], [(3.0, 1.0), (1.0, 1.0)], [inf, inf]),  # strictly in order
        (1.0, [], [], []),
    ],
)
def test_a_queue_on_pooled_gpus(free: float, running: Rows, queue: Rows, starts: list[float]) -> None:
    assert estimate(10.0, free, running, queue) == starts


jobs = st.tuples(st.integers(0, 30).map(float), st.integers(1, 4).map(float))


@settings(max_examples=60)
@given(st.integers(0, 4).map(float), st.lists(jobs, max_size=5), st.lists(jobs, max_size=6))
def test_starts_on_pooled_gpus_follow_their_definition(free: float, running: Rows, queued: Rows) -> None:
    queue = [(gpus, duration + 1.0) for duration, gpus in queued]
    assert estimate(10.0, free, running, queue) == starts_by_definition(10.0, free, running, queue)
