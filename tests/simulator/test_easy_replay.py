"""EASY in one compiled loop is `easy` in the general simulator, only faster: the same starts and places, to the bit."""

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings as chances, strategies as st

from refold.core import ListJournal
from refold.core.orders import StartRun
from refold.errors import BadInput, UnknownName
from refold.model import Cluster, Demand, Job, Placement
from refold.registry import make_policy
from refold.simulator import simulate
from refold.simulator.easy_replay import PLACEMENTS, Filling, replay_easy
from refold.simulator.replay import tasks_of
from refold.testing import make_cluster, make_job
from refold.traces.formats import read_cluster, read_trace


def starts_of(jobs: list[Job], cluster: Cluster, placement: str, filling: str) -> dict[str, tuple[float, Placement]]:
    """When and where every job started, by the general simulator."""
    settings = {"durations": "known", "placement": placement, "filling": filling}
    journal = ListJournal()
    simulate(jobs, cluster, make_policy("easy", settings), journal=journal)
    return {
        order.job: (entry.now, order.allocation.placement)
        for entry in journal.entries
        for order in entry.orders
        if isinstance(order, StartRun)
    }


def assert_same(jobs: list[Job], cluster: Cluster, placement: str, filling: Filling) -> None:
    replayed = replay_easy(tasks_of(jobs), cluster, placement, filling)
    general = starts_of(jobs, cluster, placement, filling)
    for task, job in enumerate(jobs):
        if job.id in general:
            assert (replayed.started[task], replayed.placement(task)) == general[job.id]
        else:
            assert np.isnan(replayed.started[task])


def crowd(seed: int) -> list[Job]:
    """Jobs of all shapes, more than three nodes can take at once: gangs, parts of GPUs, some that never fit."""
    chance = random.Random(seed)
    now, jobs = 0.0, []
    for number in range(chance.randint(5, 70)):
        now += chance.choice([0, 0, 1, 5, 30])
        demand = Demand(chance.choice([1, 1, 1, 2, 3]), chance.choice([1, 1, 2, 4, 8]))
        if demand.gpus == 1 and chance.random() < 0.4:
            demand = Demand(1, 1, chance.choice([250, 300, 500]))
        if chance.random() < 0.02:
            demand = Demand(4, 8)
        jobs.append(Job(f"j{number}", now, demand, float(chance.choice([0.5, 3, 10, 50, 100, 200]))))
    return jobs


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("filling", ["shortest", "order"])
@chances(max_examples=10)
@given(seed=st.integers(0, 2**32))
def test_on_random_crowds(placement: str, filling: Filling, seed: int) -> None:
    assert_same(crowd(seed), make_cluster(8, 8, 8), placement, filling)


def test_on_a_busy_week_of_philly(shared_data: Path) -> None:
    jobs = list(read_trace(shared_data / "traces" / "jobs_philly.csv.gz").jobs[20_000:21_500])
    assert_same(jobs, read_cluster("24x8"), "best-fit", "shortest")


def test_the_first_is_promised_a_place_and_the_short_fill_the_gap() -> None:
    jobs = [make_job("a", gpus=3, work=10.0), make_job("wide", gpus=4, at=1, work=5.0)]
    jobs += [make_job("short", gpus=1, at=2, work=8.0), make_job("long", gpus=1, at=3, work=9.0)]
    replayed = replay_easy(tasks_of(jobs), make_cluster(4))
    assert replayed.started.tolist() == [0.0, 10.0, 2.0, 15.0]


def test_nothing_takes_no_time() -> None:
    assert replay_easy(tasks_of([]), make_cluster(1)).started.tolist() == []


def test_what_it_cannot_do_it_refuses() -> None:
    with pytest.raises(UnknownName, match="placement of the compiled replay of easy 'genetic'"):
        replay_easy(tasks_of([]), make_cluster(1), "genetic")
    fast = read_cluster("1x2:A100")
    other = Cluster(fast.nodes, (type(fast.gpu_type("A100"))("A100", speed=2.0),))
    with pytest.raises(BadInput, match="GPUs of different speed"):
        replay_easy(tasks_of([]), other)
