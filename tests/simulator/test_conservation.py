"""What every simulation conserves, checked from its journal alone: the work of jobs, their costs, and their GPUs."""

from collections import defaultdict
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from refold.core import Entry, ListJournal
from refold.core.events import GpuLost, NodeLost, RunFailed, RunFinished, RunProgressed, RunStarted, RunStopped
from refold.core.orders import StartRun, StopRun
from refold.model import Allocation, Cluster, Job
from refold.planning.plans import Speeds
from refold.simulator import Costs, ModelledSpeeds, RecordedSpeeds, random_faults, simulate
from refold.simulator.registry import make_policy
from refold.simulator.replays import replay_fifo, task_columns
from refold.testing import make_cluster, make_job, reshapable_workload, seeded_workload

POLICIES = ["fifo", "srtf", "las", "easy"]


class PastRun(NamedTuple):
    """A run, as the journal tells it: ordered, stopped and ended at these times."""

    job: str
    number: int
    allocation: Allocation
    ordered: float
    stopped: float
    ended: float
    end: RunFinished | RunStopped | RunFailed


def runs_of(entries: list[Entry]) -> list[PastRun]:
    started: dict[tuple[str, int], tuple[float, Allocation]] = {}
    stopped: dict[tuple[str, int], float] = {}
    found = []
    for entry in entries:
        for event in entry.events:
            if isinstance(event, RunFinished | RunStopped | RunFailed):
                key = (event.job, event.run)
                ordered, allocation = started[key]
                found.append(PastRun(*key, allocation, ordered, stopped.get(key, entry.now), entry.now, event))
        for order in entry.orders:
            if isinstance(order, StartRun):
                started[order.job, order.run] = (entry.now, order.allocation)
            elif isinstance(order, StopRun):
                stopped[order.job, order.run] = entry.now
    return found


def charge_of(cluster: Cluster) -> ModelledSpeeds:
    return ModelledSpeeds(Speeds(cluster), RecordedSpeeds(cluster))


def run_policy(
    policy: str, jobs: list[Job], cluster: Cluster, costs: Costs, *, fault_seed: int | None = None
) -> list[Entry]:
    journal = ListJournal()
    faults = (
        [] if fault_seed is None else random_faults(cluster, between=300.0, repair=50.0, until=1000.0, seed=fault_seed)
    )
    chosen = make_policy(policy, {"threshold_gpu_seconds": 50.0} if policy == "las" else {})
    simulate(jobs, cluster, chosen, journal=journal, charge=charge_of(cluster), costs=costs, faults=faults)
    return journal.entries


COSTS = Costs(start=3.0, stop=5.0, restart=7.0)


def check_work(policy: str, jobs: list[Job], cluster: Cluster) -> int:
    """Check that jobs do their work exactly once, and return the number of runs.

    A run computes from its start, after the cost of starting, to its stop order or end, at its speed.
    """
    charge, by_id = charge_of(cluster), {job.id: job for job in jobs}
    done: dict[str, float] = defaultdict(float)
    runs = runs_of(run_policy(policy, jobs, cluster, COSTS))
    for run in runs:
        begun = run.ordered + (COSTS.start if run.number == 1 else COSTS.restart)
        done[run.job] += max(0.0, run.stopped - begun) * charge.speed(by_id[run.job], run.allocation)
        if isinstance(run.end, RunStopped):
            assert run.ended == pytest.approx(run.stopped + COSTS.stop)
            assert run.end.done == pytest.approx(done[run.job])
    assert done == pytest.approx({job_id: charge.work(by_id[job_id]) for job_id in done})
    return len(runs)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=8)
@given(seed=st.integers(0, 2**32))
def test_every_job_computes_for_its_work_exactly_once(policy: str, seed: int) -> None:
    check_work(policy, *seeded_workload(seed, jobs=25))


def test_reshaped_jobs_compute_for_their_work_exactly_once() -> None:
    jobs, cluster = reshapable_workload(2, jobs=12)
    assert check_work("refold", jobs, cluster) > len(jobs)


@pytest.mark.parametrize("policy", ["fifo", "srtf"])
@settings(max_examples=8)
@given(seed=st.integers(0, 2**32))
def test_a_failed_run_loses_at_most_the_work_since_its_last_checkpoint(policy: str, seed: int) -> None:
    jobs, cluster = seeded_workload(seed, jobs=25)
    costs = Costs(restart=2.0, checkpoint_every=10.0)
    charge, by_id = charge_of(cluster), {job.id: job for job in jobs}
    saved: dict[str, float] = defaultdict(float)
    for run in runs_of(run_policy(policy, jobs, cluster, costs, fault_seed=seed)):
        begun = run.ordered + (costs.restart if run.number > 1 else 0.0)
        computed = max(0.0, run.stopped - begun) * charge.speed(by_id[run.job], run.allocation)
        if isinstance(run.end, RunFailed):
            lost = saved[run.job] + computed - run.end.done
            assert -1e-9 <= lost < 10.0 + 1e-9
        if not isinstance(run.end, RunFinished):
            saved[run.job] = run.end.done


@pytest.mark.parametrize("policy", POLICIES)
def test_no_gpu_is_used_beyond_its_capacity(policy: str) -> None:
    jobs, cluster = seeded_workload(3, jobs=60)
    used: dict[tuple[int, int], list[tuple[float, int]]] = defaultdict(list)
    for run in runs_of(run_policy(policy, jobs, cluster, COSTS, fault_seed=3)):
        for share in run.allocation.placement:
            for gpu in share.gpus:
                used[share.node, gpu] += [(run.ordered, share.gpu_milli), (run.ended, -share.gpu_milli)]
    assert used
    for changes in used.values():
        assert max(np.cumsum([amount for _, amount in sorted(changes)])) <= 1000


def test_runs_fail_at_the_time_of_a_fault_on_their_nodes() -> None:
    jobs, cluster = seeded_workload(5, jobs=60)
    entries = run_policy("fifo", jobs, cluster, COSTS, fault_seed=5)
    losses = {
        (entry.now, event.node) for entry in entries for event in entry.events if isinstance(event, NodeLost | GpuLost)
    }
    failed = [run for run in runs_of(entries) if isinstance(run.end, RunFailed)]
    assert failed
    for run in failed:
        assert any((run.ended, node) in losses for node in run.allocation.nodes)


def test_progress_reports_never_decrease_within_a_run() -> None:
    jobs, cluster = seeded_workload(7, jobs=40)
    entries = run_policy("srtf", jobs, cluster, Costs(start=1.0, restart=2.0, report_every=5.0))
    reports: dict[tuple[str, int], list[float]] = defaultdict(list)
    started = set()
    for entry in entries:
        for event in entry.events:
            if isinstance(event, RunStarted):
                started.add((event.job, event.run))
            elif isinstance(event, RunProgressed):
                assert (event.job, event.run) in started
                reports[event.job, event.run].append(event.done)
    assert reports
    assert all(done == sorted(done) for done in reports.values())


class TestReplaysByHand:
    """Four GPUs on two nodes; a and b fill one node each, then c needs both, and d fits beside a."""

    JOBS = (
        make_job("a", gpus=1, work=10.0),
        make_job("b", at=1.0, gpus=2, work=4.0),
        make_job("c", at=2.0, instances=2, gpus=2, work=3.0),
        make_job("d", at=3.0, gpus=1, work=6.0),
        make_job("e", at=4.0, gpus=1, work=8.0),
    )
    CLUSTER = make_cluster(2, 2)

    def test_fifo(self) -> None:
        replayed = replay_fifo(task_columns(self.JOBS), self.CLUSTER, "first-fit", "fifo")
        assert replayed.started.tolist() == [0.0, 1.0, 10.0, 13.0, 13.0]
        assert replayed.ended.tolist() == [10.0, 5.0, 13.0, 19.0, 21.0]
        assert [[share.node for share in replayed.placement(task)] for task in range(5)] == [[0], [1], [0, 1], [0], [0]]

    def test_fifo_that_skips(self) -> None:
        replayed = replay_fifo(task_columns(self.JOBS), self.CLUSTER, "first-fit", "fifo-skip")
        assert replayed.started.tolist() == [0.0, 1.0, 13.0, 3.0, 5.0]

    def test_easy_backfills_only_what_ends_before_the_reservation(self) -> None:
        journal = ListJournal()
        simulate(self.JOBS, self.CLUSTER, make_policy("easy", {"durations": "known"}), journal=journal)
        started = {order.job: entry.now for entry in journal.entries for order in entry.orders}
        assert started == {"a": 0.0, "b": 1.0, "c": 10.0, "d": 3.0, "e": 13.0}  # d ends at 9, before c; e would at 13

    def test_jobs_that_never_fit_are_passed_over(self) -> None:
        jobs = [make_job("wide", gpus=3), make_job("a", at=1.0, work=5.0)]
        replayed = replay_fifo(task_columns(jobs), self.CLUSTER, "first-fit", "fifo-skip")
        assert np.isnan(replayed.started[0])
        assert replayed.started[1] == 1.0
