"""The journal of a compiled replay has the same entries as that of the general simulator."""

from pathlib import Path

import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from refold.core import Entry, Header, ListJournal
from refold.journal import JournalFile
from refold.model import Cluster, Job
from refold.packing import FreeResources
from refold.registry import make_policy
from refold.simulator import (
    Conditions,
    ReplayNotes,
    find_journaled_replay,
    replay_compiled,
    replay_entries,
    simulate,
    task_columns,
)
from refold.simulator.replay import FifoOrder
from refold.testing import make_cluster, make_job, seeded_workload

ORDERS: list[FifoOrder] = ["fifo", "fifo-skip"]


def feasible(jobs: list[Job], cluster: Cluster) -> list[Job]:
    free = FreeResources(cluster)
    return [job for job in jobs if free.fits_when_empty(job.demand)]


def entries_of_replay(jobs: list[Job], cluster: Cluster, order: FifoOrder, rule: str) -> list[Entry]:
    notes = ReplayNotes.allocate(len(jobs))
    replayed = replay_compiled(task_columns(jobs), cluster, rule, order, notes=notes)
    return list(replay_entries(jobs, replayed, notes, len(cluster.nodes)))


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


def test_files_are_equal_to_the_byte(tmp_path: Path) -> None:
    jobs, cluster = seeded_workload(3, jobs=200)
    jobs = feasible(jobs, cluster)
    settings = {"placement": "first-fit"}
    replay = find_journaled_replay("fifo", settings, jobs, cluster, Conditions(), min_jobs=0)
    assert replay is not None
    header = Header(cluster, "fifo", settings)
    with JournalFile(tmp_path / "replayed", header) as file:
        replay(file)
    with JournalFile(tmp_path / "simulated", header) as file:
        simulate(jobs, cluster, make_policy("fifo", settings), journal=file)
    written = (tmp_path / "replayed").read_bytes()
    assert written == (tmp_path / "simulated").read_bytes()
    assert all(f'"reason":"{reason}"'.encode() in written for reason in ("Priority", "Resources"))


def test_what_has_no_journaled_replay() -> None:
    cluster = make_cluster(2)
    jobs = [make_job("a", gpus=1), make_job("b", gpus=2)]
    too_large = [*jobs, make_job("c", gpus=3)]

    def has_replay(policy: str, jobs: list[Job], **settings: str) -> bool:
        return find_journaled_replay(policy, settings, jobs, cluster, Conditions(), min_jobs=0) is not None

    assert has_replay("fifo", jobs)
    assert has_replay("fifo-skip", jobs)
    assert not has_replay("easy", jobs, durations="known")
    assert not has_replay("fifo", jobs, placement="genetic")
    assert not has_replay("fifo", too_large)  # its rejection is part of the journal
    assert find_journaled_replay("fifo", {}, jobs, cluster, Conditions()) is None  # too few to be worth it


def test_no_jobs_have_no_entries() -> None:
    assert entries_of_replay([], make_cluster(1), "fifo", "best-fit") == []
