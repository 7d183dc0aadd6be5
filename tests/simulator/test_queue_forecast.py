"""The compiled forecast of a queue starts jobs when the general simulator does, and says where it cannot know."""

from math import inf

import numpy as np
import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from refold.core import ListJournal
from refold.core.orders import StartRun
from refold.model import Cluster, Demand, Job, Placement, Share
from refold.placement import FreeResources
from refold.policies import QueueOrder
from refold.policies.registry import make_policy
from refold.simulator import simulate
from refold.simulator.queue_forecast import QueueForecast
from refold.testing import make_cluster, seeded_workload

ONE_GPU = Demand()


def simulated_starts(jobs: list[Job], cluster: Cluster, order: str) -> list[float]:
    journal = ListJournal()
    simulate(jobs, cluster, make_policy(order), journal=journal)
    starts = {
        order.job: entry.now for entry in journal.entries for order in entry.orders if isinstance(order, StartRun)
    }
    return [starts.get(job.id, inf) for job in jobs]


def forecast(
    cluster: Cluster,
    demands: list[Demand],
    durations: list[float],
    order: QueueOrder = "fifo",
    runs: list[tuple[Placement, float]] | None = None,
    now: float = 0.0,
) -> list[float]:
    free = FreeResources(cluster)
    for placement, _ in runs or []:
        assert free.take(placement) is None
    ends = np.array([[end for _, end in runs or []]])
    queue = QueueForecast(free, [placement for placement, _ in runs or []], demands)
    starts: list[float] = queue.starts(order, now, ends, np.array([durations]))[0].tolist()
    return starts


def on_gpus(*gpus: int) -> Placement:
    return (Share(0, gpus),)


@pytest.mark.parametrize("order", ["fifo", "fifo-skip"])
@hypothesis_settings(max_examples=25)
@given(seed=st.integers(0, 2**32))
def test_a_queue_in_the_empty_cluster_starts_as_in_the_general_simulator(order: QueueOrder, seed: int) -> None:
    given, cluster = seeded_workload(seed, jobs=60)
    jobs = [Job(f"j{n}", 0.0, job.demand, job.work) for n, job in enumerate(given)]
    starts = forecast(cluster, [job.demand for job in jobs], [job.work or 0.0 for job in jobs], order)
    assert starts == simulated_starts(jobs, cluster, order)


@pytest.mark.parametrize(
    ("order", "starts"),
    [("fifo", [60.0, 160.0, 160.0]), ("fifo-skip", [61.0, 10.0, 10.0]), ("easy", [60.0, 10.0, 160.0])],
)
def test_jobs_behind_the_first_overtake_it_as_the_order_allows(order: QueueOrder, starts: list[float]) -> None:
    # The first job needs both GPUs, the second ends before it can start, the third does not.
    demands = [Demand(gpus=2), Demand(gpu_milli=500), Demand(gpu_milli=500)]
    runs = [(on_gpus(0), 60.0)]
    assert forecast(make_cluster(2), demands, [100.0, 50.0, 51.0], order, runs, now=10.0) == starts


def test_present_runs_release_what_they_hold_when_they_end() -> None:
    runs = [(on_gpus(0), 30.0), (on_gpus(1), 20.0)]
    assert forecast(make_cluster(2), [ONE_GPU] * 3, [5.0, 50.0, 1.0], runs=runs, now=10.0) == [20.0, 25.0, 30.0]


def test_a_run_that_should_have_ended_ends_now_and_nothing_starts_in_the_past() -> None:
    assert forecast(make_cluster(1), [ONE_GPU] * 2, [5.0, 5.0], runs=[(on_gpus(0), 3.0)], now=10.0) == [10.0, 15.0]


@pytest.mark.parametrize("order", ["fifo", "fifo-skip", "easy"])
def test_a_start_after_a_run_of_unknown_length_is_not_known(order: QueueOrder) -> None:
    runs = [(on_gpus(0), inf), (on_gpus(1), 20.0)]
    # The first job starts after the run whose end is known; it has no known end itself.
    assert forecast(make_cluster(2), [ONE_GPU] * 2, [inf, 5.0], order, runs) == [20.0, inf]


def test_gpus_of_other_types_and_nodes_that_are_down_do_not_help() -> None:
    cluster = make_cluster(1, 1, types=["A100", "V100"])
    free = FreeResources(cluster)
    free.set_node_up(1, False)
    demands = [Demand(gpu_types=("V100",)), ONE_GPU]
    starts = QueueForecast(free, [], demands).starts("fifo-skip", 0.0, np.zeros((1, 0)), np.full((1, 2), 5.0))
    assert starts.tolist() == [[inf, 0.0]]


def test_jobs_that_never_fit_do_not_hold_up_the_others() -> None:
    assert forecast(make_cluster(2), [Demand(gpus=4), ONE_GPU], [5.0, 5.0]) == [inf, 0.0]


def test_futures_do_not_affect_each_other() -> None:
    cluster = make_cluster(1)
    queue = QueueForecast(FreeResources(cluster), [], [ONE_GPU] * 3)
    durations = np.array([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0], [1.0, 2.0, 3.0]])
    starts = queue.starts("fifo", 0.0, np.zeros((3, 0)), durations)
    assert starts.tolist() == [[0.0, 1.0, 3.0], [0.0, 10.0, 30.0], [0.0, 1.0, 3.0]]


@hypothesis_settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.floats(1, 100), st.floats(0, 1)), min_size=1, max_size=12),
    st.lists(st.floats(0, 50), max_size=4),
)
def test_in_strict_order_shorter_runs_never_delay_a_job(
    jobs: list[tuple[int, float, float]], ends: list[float]
) -> None:
    cluster, demands = make_cluster(4), [Demand(gpus=gpus) for gpus, _, _ in jobs]
    runs = [(on_gpus(gpu), end) for gpu, end in enumerate(ends)]
    at_most = forecast(cluster, demands, [limit for _, limit, _ in jobs], runs=runs)
    actual = forecast(cluster, demands, [limit * share for _, limit, share in jobs], runs=runs)
    assert all(start <= bound for start, bound in zip(actual, at_most, strict=True))
