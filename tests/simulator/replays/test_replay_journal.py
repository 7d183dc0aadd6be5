"""The journal of a compiled replay has the same entries as that of the general simulator."""

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from refold.core import Entry, Header, ListJournal, Woke
from refold.journal import JournalFile
from refold.model import Cluster, Demand, Job, Reason
from refold.placement import FreeResources
from refold.policies.registry import make_policy
from refold.simulator import simulate
from refold.simulator.replays import (
    Experiment,
    JournalNotes,
    find_journaled_replay,
    journal_entries,
    replay_fifo,
    task_columns,
)
from refold.simulator.replays.easy import PLACEMENTS
from refold.simulator.replays.fifo import FifoOrder
from refold.simulator.traces import read_cluster, read_trace
from refold.testing import make_cluster, make_job, seeded_workload

ORDERS: list[FifoOrder] = ["fifo", "fifo-skip"]


def feasible(jobs: list[Job], cluster: Cluster) -> list[Job]:
    free = FreeResources(cluster)
    return [job for job in jobs if free.fits_when_empty(job.demand)]


def entries_of_replay(jobs: list[Job], cluster: Cluster, order: FifoOrder, rule: str) -> list[Entry]:
    notes = JournalNotes(len(jobs))
    replayed = replay_fifo(task_columns(jobs), cluster, rule, order, notes=notes)
    return list(journal_entries(jobs, replayed, notes, len(cluster.nodes)))


def entries_of_simulation(jobs: list[Job], cluster: Cluster, order: FifoOrder, rule: str) -> list[Entry]:
    journal = ListJournal()
    simulate(jobs, cluster, make_policy(order, {"placement": rule}), journal=journal)
    return journal.entries


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("rule", ["best-fit", "first-fit", "fgd"])
@hypothesis_settings(max_examples=25)
@given(seed=st.integers(0, 2**32))
def test_random_traces_give_the_same_entries(order: FifoOrder, rule: str, seed: int) -> None:
    jobs, cluster = seeded_workload(seed, jobs=80)
    jobs = feasible(jobs, cluster)
    assert entries_of_replay(jobs, cluster, order, rule) == entries_of_simulation(jobs, cluster, order, rule)


@pytest.mark.parametrize("order", ORDERS)
def test_jobs_that_take_no_time_end_in_a_step_of_their_own(order: FifoOrder) -> None:
    jobs = [make_job("a", gpus=2, work=0.0), make_job("b", gpus=2, work=5.0), make_job("c", gpus=1, work=0.0)]
    cluster = make_cluster(2)
    found = entries_of_replay(jobs, cluster, order, "best-fit")
    assert found == entries_of_simulation(jobs, cluster, order, "best-fit")
    assert [entry.now for entry in found] == [0.0, 0.0, 5.0, 5.0]


@pytest.mark.parametrize(
    ("policy", "settings"), [("fifo", {}), ("easy", {"durations": "known", "start_estimates": False})]
)
def test_files_are_equal_to_the_byte(policy: str, settings: dict[str, Any], tmp_path: Path) -> None:
    jobs, cluster = seeded_workload(3, jobs=200)
    jobs = feasible(jobs, cluster)
    settings = {"placement": "first-fit", **settings}
    replay = find_journaled_replay(Experiment(policy, settings, jobs, cluster))
    assert replay is not None
    header = Header(cluster, policy, settings)
    with JournalFile(tmp_path / "replayed", header) as file:
        replay.run(file)
    with JournalFile(tmp_path / "simulated", header) as file:
        simulate(jobs, cluster, make_policy(policy, settings), journal=file)
    written = (tmp_path / "replayed").read_bytes()
    assert written == (tmp_path / "simulated").read_bytes()
    assert all(f'"reason":"{reason}"'.encode() in written for reason in ("Priority", "Resources"))


def test_what_has_no_journaled_replay() -> None:
    cluster = make_cluster(2)
    jobs = [make_job("a", gpus=1), make_job("b", gpus=2)]
    too_large = [*jobs, make_job("c", gpus=3)]

    def has_replay(policy: str, jobs: list[Job], **settings: Any) -> bool:
        return find_journaled_replay(Experiment(policy, settings, jobs, cluster)) is not None

    assert has_replay("fifo", jobs)
    assert has_replay("fifo-skip", jobs)
    assert has_replay("easy", jobs, durations="known", start_estimates=False)
    assert not has_replay("easy", jobs, durations="known", start_estimates=True)  # it makes start estimates
    assert not has_replay("easy", jobs, start_estimates=False)  # it predicts run times
    assert not has_replay("easy", too_large, durations="known", start_estimates=False)
    assert not has_replay("fifo", jobs, placement="genetic")
    assert not has_replay("fifo", too_large)  # its rejection is part of the journal


def easy_entries_of_both(
    jobs: list[Job], cluster: Cluster, rule: str, backfill_order: str
) -> tuple[list[Entry], list[Entry]]:
    """Return the entries of the compiled EASY replay, and those of the general simulator."""
    settings = {"durations": "known", "start_estimates": False, "placement": rule, "backfill_order": backfill_order}
    replayed, simulated = ListJournal(), ListJournal()
    replay = find_journaled_replay(Experiment("easy", settings, jobs, cluster))
    assert replay is not None
    replay.run(replayed)
    simulate(jobs, cluster, make_policy("easy", settings), journal=simulated)
    return replayed.entries, simulated.entries


def short_and_long_jobs(seed: int) -> list[Job]:
    """Return jobs that wait on three nodes; many end before the second for which they are booked."""
    rng = random.Random(seed)
    now, jobs = 0.0, list[Job]()
    for number in range(rng.randint(5, 80)):
        now += rng.choice([0.0, 0.0, 0.1, 1.0, 5 * rng.random(), 30.0])
        demand = Demand(rng.choice([1, 1, 1, 2, 3]), rng.choice([1, 1, 2, 4, 8]))
        if demand.gpus < 3 and rng.random() < 0.3:
            demand = Demand(demand.instances, demand.gpus, rng.choice([250, 300, 500]))
        jobs.append(Job(f"j{number}", now, demand, rng.choice([0.0, 0.3, 0.5, 3.0, 10.0, 100 * rng.random(), 200.0])))
    return jobs


@pytest.mark.parametrize("rule", PLACEMENTS)
@pytest.mark.parametrize("backfill_order", ["shortest", "queue"])
@hypothesis_settings(max_examples=10)
@given(seed=st.integers(0, 2**32))
def test_random_traces_give_the_same_entries_under_easy(rule: str, backfill_order: str, seed: int) -> None:
    jobs, cluster = seeded_workload(seed, jobs=80)
    replayed, simulated = easy_entries_of_both(feasible(jobs, cluster), cluster, rule, backfill_order)
    assert replayed == simulated
    replayed, simulated = easy_entries_of_both(short_and_long_jobs(seed), make_cluster(8, 8, 8), rule, backfill_order)
    assert replayed == simulated


def test_a_wake_up_for_a_reservation_that_has_moved_has_an_entry() -> None:
    jobs = [make_job("a", gpus=1, work=0.5), make_job("b", gpus=1, work=0.25)]  # both are booked until 1.0
    jobs.append(make_job("wide", gpus=2, at=0.125, work=3.0))
    replayed, simulated = easy_entries_of_both(jobs, make_cluster(2), "best-fit", "shortest")
    assert replayed == simulated
    assert [(entry.now, entry.wake_at) for entry in replayed] == [
        (0.0, None),
        (0.125, 1.0),
        (0.25, 1.0),
        (0.5, None),
        (1.0, None),
        (3.5, None),
    ]
    assert replayed[4].events == (Woke(),)


def test_philly_jobs_have_the_same_entries_under_easy(shared_data: Path) -> None:
    jobs = list(read_trace(shared_data / "traces" / "jobs_philly.csv.gz").jobs[20_000:21_500])
    replayed, simulated = easy_entries_of_both(jobs, read_cluster("24x8"), "best-fit", "shortest")
    assert replayed == simulated
    assert {wait.reason for entry in replayed for wait in entry.waits} == {
        Reason.PRIORITY,
        Reason.RESERVED,
        Reason.RESOURCES,
    }


def test_no_jobs_have_no_entries() -> None:
    assert entries_of_replay([], make_cluster(1), "fifo", "best-fit") == []
