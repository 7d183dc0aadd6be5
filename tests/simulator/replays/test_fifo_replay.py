"""The compiled replay gives the same starts, ends and placements as the general simulator, to the bit."""

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from refold.core import ListJournal
from refold.core.events import RunFinished
from refold.core.orders import StartRun
from refold.errors import BadInput, UnknownName
from refold.model import Cluster, Demand, Job, Placement
from refold.placement import GENETIC, RULES
from refold.simulator import simulate
from refold.simulator.registry import make_policy
from refold.simulator.replays.columns import task_columns
from refold.simulator.replays.fifo import FifoOrder, replay_fifo
from refold.simulator.traces.formats import read_cluster, read_trace
from refold.testing import make_cluster, make_job, seeded_workload

ORDERS: list[FifoOrder] = ["fifo", "fifo-skip"]


def simulated_outcome(
    jobs: list[Job], cluster: Cluster, order: FifoOrder, rule: str, seed: int
) -> dict[str, tuple[float, float, Placement]]:
    """Return start, end and placement of every job that ran in the general simulator."""
    journal = ListJournal()
    simulate(jobs, cluster, make_policy(order, {"placement": rule, "seed": seed}), journal=journal)
    started: dict[str, tuple[float, Placement]] = {}
    outcome = {}
    for entry in journal.entries:
        for event in entry.events:
            if isinstance(event, RunFinished):
                outcome[event.job] = (started[event.job][0], entry.now, started[event.job][1])
        for placed in entry.orders:
            assert isinstance(placed, StartRun)
            started[placed.job] = (entry.now, placed.allocation.placement)
    return outcome


def assert_same(jobs: list[Job], cluster: Cluster, order: FifoOrder, rule: str, seed: int = 0) -> None:
    replayed = replay_fifo(task_columns(jobs), cluster, rule, order, seed)
    general = simulated_outcome(jobs, cluster, order, rule, seed)
    for task, job in enumerate(jobs):
        if job.id in general:
            result = (replayed.started[task], replayed.ended[task], replayed.placement(task))
            assert result == general[job.id]
        else:
            assert np.isnan(replayed.started[task])
            assert replayed.placement(task) == ()


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in GENETIC])
@pytest.mark.parametrize("order", ORDERS)
@hypothesis_settings(max_examples=12)
@given(seed=st.integers(0, 2**32))
def test_random_traces_give_the_same_result(order: FifoOrder, rule: str, seed: int) -> None:
    jobs, cluster = seeded_workload(seed, jobs=80)
    assert_same(jobs, cluster, order, rule, seed % 100)


@pytest.mark.parametrize("order", ORDERS)
def test_gpus_of_different_speed_and_infeasible_jobs_give_the_same_result(order: FifoOrder) -> None:
    draw = random.Random(4)
    cluster = make_cluster(2, 4, types=["T4", "H100"], speeds={"T4": 0.5, "H100": 3.0})
    jobs = [make_job(f"j{n}", at=n // 3, work=draw.random() * 20, gpus=draw.choice([1, 2, 4, 8])) for n in range(90)]
    assert_same(jobs, cluster, order, "best-fit")


OPENB_RULES = ["first-fit", "best-fit", "tetris", "fgd"]


@pytest.mark.parametrize(
    ("order", "rule"),
    [
        pytest.param(order, rule, marks=() if (number + first) % len(OPENB_RULES) == 0 else pytest.mark.long)
        for number, order in enumerate(ORDERS)
        for first, rule in enumerate(OPENB_RULES)
    ],
)
def test_openb_gives_the_same_result(order: FifoOrder, rule: str, shared_data: Path) -> None:
    trace = read_trace(shared_data / "openb" / "openb_pod_list_default.csv.gz")
    cluster = read_cluster(shared_data / "openb" / "openb_node_list_all_node.csv.gz")
    assert_same(list(trace.jobs), cluster, order, rule)


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in GENETIC])
def test_overloaded_openb_gives_the_same_result(rule: str, shared_data: Path) -> None:
    """Test 1500 pods on a tenth of the nodes: long queues, fractions, GPU types and CPU limits."""
    trace = read_trace(shared_data / "openb" / "openb_pod_list_gpuspec33.csv.gz")
    cluster = read_cluster(shared_data / "openb" / "openb_node_list_all_node.csv.gz")
    tenth = Cluster(cluster.nodes[::10])
    jobs = [make_job(job.id, at=n // 5, work=(job.work or 0) % 500) for n, job in enumerate(trace.jobs[:1500])]
    jobs = [
        Job(job.id, job.submitted, original.demand, job.work) for job, original in zip(jobs, trace.jobs, strict=False)
    ]
    assert_same(jobs, tenth, "fifo-skip", rule)


def test_an_empty_trace_gives_an_empty_result() -> None:
    replayed = replay_fifo(task_columns([]), make_cluster(1))
    assert len(replayed.started) == 0


def test_unsupported_inputs_are_rejected() -> None:
    with pytest.raises(BadInput, match="'a' has no duration"):
        task_columns([make_job("a", work=None)])
    with pytest.raises(UnknownName, match="unknown placement 'nowhere'"):
        replay_fifo(task_columns([]), make_cluster(1), "nowhere")
    with pytest.raises(UnknownName, match="order of the compiled replay"):
        replay_fifo(task_columns([]), make_cluster(1), order="las")  # type: ignore[arg-type]


def test_demands_are_numbered_in_order_of_occurrence() -> None:
    tasks = task_columns([make_job("b", at=5, gpus=2), make_job("a", at=1), make_job("c", at=9)])
    assert tasks.demands == (Demand(), Demand(1, 2))
    assert tasks.demand_of.tolist() == [0, 1, 0]
