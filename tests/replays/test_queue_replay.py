"""The compiled replays of sjf, srtf and las give the same runs as the general simulator, to the bit."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from histories import assert_same_history, simulated_history
from hypothesis import given, settings as hypothesis_settings, strategies as st
from msgspec.structs import replace

from refold.errors import UnknownName
from refold.journal import RunColumns
from refold.model import Cluster, GpuType, Job
from refold.replays import replay_queue
from refold.replays.queues import PLACEMENTS, QueueOrder
from refold.results import replayed_history
from refold.simulator import NO_COSTS, Costs
from refold.testing import make_cluster, make_job, seeded_workload
from refold.traces import read_cluster, read_trace

ORDERS: list[QueueOrder] = ["sjf", "srtf", "las"]
THRESHOLD = "threshold_gpu_seconds"
COSTS = [NO_COSTS, Costs(start=3.25), Costs(stop=2.75), Costs(start=1.5, stop=0.75, restart=7.1), Costs(restart=40.0)]


def assert_same(
    jobs: Sequence[Job], cluster: Cluster, order: QueueOrder, settings: dict[str, Any], costs: Costs = NO_COSTS
) -> RunColumns:
    """Compare a replay with the general simulator; return its runs."""
    ours = replayed_history(jobs, cluster, replay_queue(jobs, cluster, order, costs=costs, **settings))
    assert_same_history(ours, simulated_history(jobs, cluster, order, settings, costs))
    return ours.runs


def mixed_workload(seed: int) -> tuple[list[Job], Cluster]:
    """Return gangs, fractions, CPU jobs and infeasible jobs, some urgent, some not preemptible, some very short."""
    draw = random.Random(seed)
    jobs, cluster = seeded_workload(seed, jobs=draw.randint(5, 80))
    changed = [
        replace(
            job,
            id=f"{draw.randrange(1_000_000):06}-{job.id}",
            priority=draw.choice([0, 0, 0, 0, 1]),
            preemptible=draw.random() < 0.9,
            work=(job.work or 0.0) * draw.choice([1.0, 1.0, 0.1, 3.7]),
        )
        for job in jobs
    ]
    last = changed[-1].submitted
    return [*changed, make_job("too-large", gpus=64, at=last), make_job("instant", at=last, work=0.0)], cluster


def settings_of(order: str, seed: int) -> dict[str, Any]:
    return {THRESHOLD: float(10 ** (seed % 4))} if order == "las" else {}


@pytest.mark.parametrize("order", ORDERS)
@hypothesis_settings(max_examples=40)
@given(seed=st.integers(0, 2**32), costs=st.sampled_from(COSTS))
def test_random_workloads_give_the_same_runs(order: QueueOrder, seed: int, costs: Costs) -> None:
    assert_same(*mixed_workload(seed), order, settings_of(order, seed), costs)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("order", ORDERS)
@hypothesis_settings(max_examples=4)
@given(seed=st.integers(0, 2**32))
def test_all_placement_rules_give_the_same_runs(order: QueueOrder, placement: str, seed: int) -> None:
    settings = {"placement": placement, "seed": seed % 100} | settings_of(order, seed)
    assert_same(*mixed_workload(seed), order, settings)


@pytest.mark.parametrize("order", ["srtf", "las"])
@hypothesis_settings(max_examples=10)
@given(seed=st.integers(0, 2**32), costs=st.sampled_from(COSTS))
def test_gpus_of_different_speed_give_the_same_runs(order: QueueOrder, seed: int, costs: Costs) -> None:
    jobs, cluster = mixed_workload(seed)
    fast = replace(cluster, gpu_types=(GpuType("A100", speed=1.7), GpuType("T4", speed=0.3)))
    assert_same(jobs, fast, order, settings_of(order, seed), costs)


@pytest.mark.parametrize("order", ["srtf", "las"])
def test_many_preemptions_outgrow_the_first_log(order: QueueOrder) -> None:
    """Test short jobs that arrive one by one while a long one runs, which is stopped for each."""
    jobs = [make_job("long", gpus=4, work=1000.0)]
    jobs += [make_job(f"j{number}", gpus=4, at=5.0 * number + 1.0, work=1.0) for number in range(20)]
    runs = assert_same(jobs, make_cluster(4), order, {THRESHOLD: 2.0} if order == "las" else {})
    assert len(runs) > 2 * len(jobs) - 5


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("file", "cluster"), [("jobs_philly.csv.gz", "24x8"), ("jobs_helios_venus.csv.gz", "20x8")])
def test_a_published_trace_gives_the_same_runs(order: QueueOrder, file: str, cluster: str, shared_data: Path) -> None:
    jobs = read_trace(shared_data / "traces" / file).jobs[20_000:21_000]
    assert_same(jobs, read_cluster(cluster), order, {})


@pytest.mark.parametrize("order", ORDERS)
def test_an_empty_trace_gives_no_runs(order: QueueOrder) -> None:
    assert len(replay_queue([], make_cluster(1), order).task) == 0


def test_placement_rules_that_learn_are_rejected() -> None:
    with pytest.raises(UnknownName, match="placement of the compiled replay of queues 'worth'"):
        replay_queue([], make_cluster(1), "las", "worth")
