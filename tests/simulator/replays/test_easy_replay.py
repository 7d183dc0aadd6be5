"""The compiled EASY replay gives the same starts and placements as policy `easy` in the simulator, to the bit."""

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from refold.core import ListJournal
from refold.core.orders import StartRun
from refold.errors import BadInput, UnknownName
from refold.model import Cluster, Demand, Job, Placement
from refold.policies.registry import make_policy
from refold.simulator import simulate
from refold.simulator.replays.columns import task_columns
from refold.simulator.replays.easy import PLACEMENTS, BackfillOrder, replay_easy
from refold.simulator.traces.formats import read_cluster, read_trace
from refold.testing import make_cluster, make_job


def simulated_starts(
    jobs: list[Job], cluster: Cluster, placement: str, backfill_order: str
) -> dict[str, tuple[float, Placement]]:
    """Return the start time and the placement of every job in the general simulator."""
    settings = {"durations": "known", "placement": placement, "backfill_order": backfill_order}
    journal = ListJournal()
    simulate(jobs, cluster, make_policy("easy", settings), journal=journal)
    return {
        order.job: (entry.now, order.allocation.placement)
        for entry in journal.entries
        for order in entry.orders
        if isinstance(order, StartRun)
    }


def assert_same(jobs: list[Job], cluster: Cluster, placement: str, backfill_order: BackfillOrder) -> None:
    replayed = replay_easy(task_columns(jobs), cluster, placement, backfill_order)
    general = simulated_starts(jobs, cluster, placement, backfill_order)
    for task, job in enumerate(jobs):
        if job.id in general:
            assert (replayed.started[task], replayed.placement(task)) == general[job.id]
        else:
            assert np.isnan(replayed.started[task])


def random_jobs(seed: int) -> list[Job]:
    """Return random jobs, more than three nodes can run at once: gangs, fractions of GPUs, some that never fit."""
    generator = random.Random(seed)
    now, jobs = 0.0, []
    for number in range(generator.randint(5, 70)):
        now += generator.choice([0, 0, 1, 5, 30])
        demand = Demand(generator.choice([1, 1, 1, 2, 3]), generator.choice([1, 1, 2, 4, 8]))
        if demand.gpus == 1 and generator.random() < 0.4:
            demand = Demand(1, 1, generator.choice([250, 300, 500]))
        if generator.random() < 0.02:
            demand = Demand(4, 8)
        jobs.append(Job(f"j{number}", now, demand, float(generator.choice([0.5, 3, 10, 50, 100, 200]))))
    return jobs


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("backfill_order", ["shortest", "queue"])
@hypothesis_settings(max_examples=10)
@given(seed=st.integers(0, 2**32))
def test_random_jobs_start_as_in_the_simulator(placement: str, backfill_order: BackfillOrder, seed: int) -> None:
    assert_same(random_jobs(seed), make_cluster(8, 8, 8), placement, backfill_order)


def test_philly_jobs_start_as_in_the_simulator(shared_data: Path) -> None:
    jobs = list(read_trace(shared_data / "traces" / "jobs_philly.csv.gz").jobs[20_000:21_500])
    assert_same(jobs, read_cluster("24x8"), "best-fit", "shortest")


def test_the_first_job_gets_a_reservation_and_short_jobs_are_backfilled() -> None:
    jobs = [make_job("a", gpus=3, work=10.0), make_job("wide", gpus=4, at=1, work=5.0)]
    jobs += [make_job("short", gpus=1, at=2, work=8.0), make_job("long", gpus=1, at=3, work=9.0)]
    replayed = replay_easy(task_columns(jobs), make_cluster(4))
    assert replayed.started.tolist() == [0.0, 10.0, 2.0, 15.0]


def test_an_empty_trace_gives_an_empty_result() -> None:
    assert replay_easy(task_columns([]), make_cluster(1)).started.tolist() == []


def test_unsupported_inputs_are_rejected() -> None:
    with pytest.raises(UnknownName, match="placement of the compiled EASY replay 'genetic'"):
        replay_easy(task_columns([]), make_cluster(1), "genetic")
    fast = read_cluster("1x2:A100")
    other = Cluster(fast.nodes, (type(fast.gpu_type("A100"))("A100", speed=2.0),))
    with pytest.raises(BadInput, match="GPUs of different speed"):
        replay_easy(task_columns([]), other)
