"""A packed history, as it is read from files, equals one of records; it keeps records of open jobs only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from math import inf

import numpy as np
import pytest
from journals import start, step, submitted

from refold.core import Entry, JobHeld, JobReleased, Journal, RunFinished
from refold.errors import BadJournal
from refold.journal import History, PackedHistoryJournal
from refold.model import Cluster, StartEstimate
from refold.planning.plans import Speeds
from refold.simulator import Costs, Fault, ModelledSpeeds, RecordedSpeeds, simulate
from refold.simulator.registry import make_policy
from refold.simulator.results import measure
from refold.testing import make_cluster, make_job, reshapable_workload, seeded_workload


class Entries(Journal):
    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def write(self, entry: Entry) -> None:
        self.entries.append(entry)


def pack(cluster: Cluster, entries: Iterable[Entry], every: int) -> History:
    journal = PackedHistoryJournal(cluster, every)
    for entry in entries:
        journal.write(entry)
    return journal.packed_history()


def simulated_entries(policy: str, seed: int) -> tuple[Cluster, list[Entry]]:
    make = reshapable_workload if policy == "refold" else seeded_workload
    jobs, cluster = make(seed)
    journal, faults = Entries(), [Fault(0, 100.0, 150.0)]
    charge = ModelledSpeeds(Speeds(cluster), RecordedSpeeds(cluster))
    costs = Costs(1.0, 1.0, 2.0)
    simulate(jobs, cluster, make_policy(policy), journal=journal, charge=charge, costs=costs, faults=faults)
    return cluster, journal.entries[: -(len(journal.entries) // 5)]  # some jobs are still waiting or running


def assert_columns_equal(packed: object, plain: object, but: tuple[str, ...] = ()) -> None:
    for field in fields(plain):  # type: ignore[arg-type]
        if field.name not in but:
            ours, expected = getattr(packed, field.name), getattr(plain, field.name)
            assert len(ours) == len(expected), field.name
            if isinstance(expected, np.ndarray):
                np.testing.assert_array_equal(ours, expected, err_msg=field.name)
            else:
                assert list(ours) == list(expected), field.name


@pytest.mark.parametrize("every", [1, 7, 10**6])
@pytest.mark.parametrize(("policy", "seed"), [("easy", 1), ("srtf", 2), ("refold", 3), ("conservative", 4)])
def test_a_packed_history_equals_one_of_records(policy: str, seed: int, every: int) -> None:
    cluster, entries = simulated_entries(policy, seed)
    packed, plain = pack(cluster, entries, every), History.from_entries(cluster, entries)
    assert_columns_equal(packed.jobs, plain.jobs)
    assert_columns_equal(packed.runs, plain.runs)
    assert (packed.tenants, packed.until, packed.node_changes) == (plain.tenants, plain.until, plain.node_changes)
    assert measure(packed) == measure(plain)


@pytest.mark.parametrize("every", [1, 2, 10**6])
def test_holds_are_kept_until_the_end_of_the_history(every: int) -> None:
    entries = [step(0, submitted(make_job("a")), submitted(make_job("b")), JobHeld("b"))]
    entries += [step(1, JobHeld("a")), step(2, JobReleased("a"), start("a")), step(3, RunFinished("a", 1)), step(4)]
    packed, plain = pack(make_cluster(2), entries, every), History.from_entries(make_cluster(2), entries)
    assert_columns_equal(packed.holds, plain.holds)
    rows = zip(plain.holds.job.tolist(), plain.holds.at.tolist(), plain.holds.held.tolist(), strict=True)
    assert list(rows) == [(1, 0.0, 1), (0, 1.0, 1), (0, 2.0, 0)]


def test_of_the_start_estimates_before_the_first_start_the_first_and_last_are_kept() -> None:
    def estimates(now: float, *latest: float) -> Entry:
        return Entry(now, start_estimates=tuple(StartEstimate("a", bound - 1, None, bound) for bound in latest))

    entries = [step(0, submitted(make_job("a", work=9))), estimates(1, 10), estimates(2, 20, 15), estimates(3, 30)]
    entries += [step(4, start("a")), estimates(5, 99), step(13, RunFinished("a", 1))]
    cluster = make_cluster(2)
    found = pack(cluster, entries, 2).start_estimates
    assert found.latest.tolist() == [10.0, 30.0]
    assert found.postponed.tolist() == [0, 2]
    assert measure(pack(cluster, entries, 2)) == measure(History.from_entries(cluster, entries))


def test_records_of_ended_jobs_and_runs_are_not_kept() -> None:
    journal = PackedHistoryJournal(make_cluster(4), 10)
    for number in range(1000):
        journal.write(step(number, submitted(make_job(f"j{number}", at=number)), start(f"j{number}")))
        journal.write(step(number + 0.5, RunFinished(f"j{number}", 1)))
    assert (len(journal.jobs), len(journal.runs), len(journal.records)) == (0, 0, 0)
    assert [job.id for job in journal.packed_history().jobs.jobs][-2:] == ["j998", "j999"]


def test_entries_about_known_jobs_need_no_memory() -> None:
    journal = PackedHistoryJournal(make_cluster(4), 10)
    journal.write(step(0, submitted(make_job("a", work=9))))
    for number in range(1, 1001):
        journal.write(Entry(float(number), start_estimates=(StartEstimate("a", number + 5.0, None, inf),)))
    assert len(journal.start_estimates) < 10
    assert len(journal.packed_history().start_estimates) == 2


def test_a_run_on_a_node_that_does_not_exist_is_reported() -> None:
    journal = PackedHistoryJournal(make_cluster(2), 1)
    with pytest.raises(BadJournal, match="run 1 of job 'a' is on node 3, but the cluster has 1 node"):
        for entry in (step(0, submitted(make_job("a")), start("a", node=3)), step(1, RunFinished("a", 1))):
            journal.write(entry)


def test_jobs_and_allocations_can_be_read_by_index_and_slice() -> None:
    cluster, entries = simulated_entries("srtf", 5)
    packed, plain = pack(cluster, entries, 5), History.from_entries(cluster, entries)
    assert packed.jobs.jobs[-1] == plain.jobs.jobs[-1]
    assert list(packed.jobs.jobs[3:6]) == list(plain.jobs.jobs[3:6])
    assert packed.runs.allocations[2] == plain.runs.allocations[2]
    with pytest.raises(IndexError):
        packed.jobs.jobs[len(plain.jobs)]
