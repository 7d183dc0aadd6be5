"""Measures of small histories, calculated by hand, and of random histories, counted second by second."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings, strategies as some
from journals import start, step, submitted

from refold.core import Entry, ListJournal
from refold.core.events import (
    GpuLost,
    GpuReturned,
    JobCancelled,
    JobSubmitted,
    NodeLost,
    NodeReturned,
    RunFailed,
    RunFinished,
    RunStarted,
    RunStopped,
)
from refold.core.orders import StartRun, StopRun
from refold.journal.history import History, Outcome
from refold.model import Cluster, Job
from refold.model.units import HOUR, WHOLE
from refold.policies.queueing.drf import Drf
from refold.policies.queueing.fifo import FifoSkip
from refold.policies.queueing.srtf import Srtf
from refold.simulator import simulate
from refold.simulator.costs import Costs
from refold.simulator.faults import Fault
from refold.simulator.results.measures import (
    SIZES,
    AllocationAtStart,
    Measures,
    OutcomeCounts,
    Spread,
    compute_spread,
    jain,
    measure,
    size_of,
)
from refold.simulator.results.time_series import fragmentation, jobs_waiting
from refold.testing import make_cluster, make_job


def measure_entries(cluster: Cluster, *entries: Entry) -> Measures:
    return measure(History.from_entries(cluster, entries))


TWO_JOBS = (
    step(0, submitted(make_job("a", at=0, work=100, gpus=2, tenant="one")), start("a", gpus=(0, 1))),
    step(50, submitted(make_job("b", at=50, work=100, gpus=1, tenant="two"))),
    step(100, RunFinished("a", 1), start("b")),
    step(200, RunFinished("b", 1)),
)
"""Two GPUs: `a` holds both from 0 to 100; `b` is submitted at 50 and runs on one from 100 to 200."""


def test_measures_of_two_jobs_equal_a_calculation_by_hand() -> None:
    found = measure_entries(make_cluster(2), *TWO_JOBS)
    assert found.outcomes == OutcomeCounts(finished=2)
    assert found.completion == Spread(2, 125.0, 125.0, 145.0, 149.5, 150.0)
    assert found.waiting == Spread(2, 25.0, 25.0, 45.0, 49.5, 50.0)
    assert found.to_first_start == found.waiting
    assert found.makespan == 200.0
    assert found.submission_window == (0.0, 50.0)
    assert found.allocation == 1.0
    assert found.allocation_overall == (2 * 100 + 1 * 100) / (2 * 200)
    assert found.allocation_at_start == (AllocationAtStart(1, 1.0), AllocationAtStart(2, 0.5))
    assert found.gpu_hours == pytest.approx(300 / HOUR)
    assert found.slowdown.mean == pytest.approx((1.0 + 1.5) / 2)
    assert found.utilisation is None


def test_finish_time_fairness_compares_with_an_equal_share() -> None:
    found = measure_entries(make_cluster(2), *TWO_JOBS)
    # During `a` there are 1.5 jobs on average, and it requests 2 of 2 GPUs: 150 s would be fair, it took 100 s.
    # During `b` there are (50·2 + 100·1)/150 = 4/3 jobs, and it requests 1 of 2 GPUs, less than an equal share:
    # 100 s would be fair, it took 150 s.
    assert found.finish_time_fairness.mean == pytest.approx((100 / 150 + 150 / 100) / 2)


def test_jain_over_tenants_compares_gpu_time_received_until_the_last_submission() -> None:
    more = (*TWO_JOBS[:2], step(75, submitted(make_job("c", at=75, tenant="one", gpus=2))), *TWO_JOBS[2:])
    found = measure_entries(make_cluster(2), *more)
    # Until 75, tenant one received all of its 150 GPU-seconds, and tenant two none of its 25.
    assert found.jain_tenants == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("shares", "index"), [([], None), ([0.0, 0.0], None), ([3.0, 3.0, 3.0], 1.0), ([1.0, 0.0, 0.0, 0.0], 0.25)]
)
def test_jain_is_1_for_equal_shares_and_1_nth_if_one_has_everything(shares: list[float], index: float | None) -> None:
    assert jain(np.array(shares)) == index


def test_measures_of_an_empty_history_are_undefined() -> None:
    found = measure_entries(make_cluster(2))
    assert found.jobs == 0
    assert found.completion == found.waiting == found.slowdown == Spread()
    undefined = (found.makespan, found.allocation, found.fragmentation, found.jain_tenants, found.jain_jobs)
    assert undefined == (None,) * 5
    assert (found.gpu_hours, found.tenants, found.allocation_at_start) == (0.0, (), ())


def test_a_single_job_has_all_measures_except_those_of_the_submission_window() -> None:
    found = measure_entries(
        make_cluster(2), step(0, submitted(make_job("a")), start("a")), step(100, RunFinished("a", 1))
    )
    assert found.submission_window is None and found.allocation is None
    assert found.allocation_overall == 0.5
    assert found.completion == Spread(1, 100.0, 100.0, 100.0, 100.0, 100.0)
    assert found.fragmentation == 0.0
    assert found.jain_jobs == 1.0


def test_a_cluster_without_gpus_has_no_allocation() -> None:
    job = make_job("a", gpus=0, cpus=1)
    found = measure_entries(make_cluster(0), step(0, submitted(job), start("a", gpus=())), step(9, RunFinished("a", 1)))
    assert (found.allocation_overall, found.fragmentation, found.gpu_hours) == (None, None, 0.0)
    assert [group.name for group in found.sizes] == ["CPU only"]


def test_measures_can_be_encoded_as_json() -> None:
    for entries in ((), TWO_JOBS, TWO_JOBS[:1], TWO_JOBS[:2]):
        found = measure_entries(make_cluster(2), *entries)
        assert msgspec.json.decode(msgspec.json.encode(found), type=Measures) == found


def test_stopped_runs_are_preemptions_unless_the_job_was_cancelled() -> None:
    found = measure_entries(
        make_cluster(2),
        step(0, submitted(make_job("a")), submitted(make_job("b")), start("a"), start("b", gpus=(1,))),
        step(10, StopRun("a", 1), JobCancelled("b"), StopRun("b", 1)),
        step(13, RunStopped("a", 1, done=10), RunStopped("b", 1, done=10)),
        step(20, start("a", 2)),
        step(22, RunStarted("a", 2)),
        step(112, RunFinished("a", 2)),
    )
    assert (found.preemptions, found.reshapes, found.failures) == (1, 0, 0)
    assert found.overhead_gpu_hours == pytest.approx((3 + 3 + 2) / HOUR)
    assert found.completion.count == 1
    assert found.waiting.mean == 7.0


def test_a_reshape_is_a_stop_and_a_start_in_one_step() -> None:
    job = make_job("a", gpus=2, reshapable=True)
    found = measure_entries(
        make_cluster(4),
        step(0, submitted(job), start("a", gpus=(0, 1))),
        step(50, StopRun("a", 1)),
        step(50, RunStopped("a", 1, done=50), start("a", 2, gpus=(0, 1, 2, 3))),
        step(75, RunFinished("a", 2)),
    )
    assert (found.preemptions, found.reshapes, found.runs) == (1, 1, 2)
    assert found.gpu_hours == pytest.approx((2 * 50 + 4 * 25) / HOUR)


def test_reshapes_per_job_counts_started_reshapable_jobs() -> None:
    jobs = [make_job(id, reshapable=id != "rigid") for id in ("a", "b", "late", "rigid")]
    found = measure_entries(
        make_cluster(4),
        step(0, *map(submitted, jobs), start("a"), start("b", gpus=(1,)), start("rigid", gpus=(2,))),
        step(50, RunStopped("a", 1), start("a", 2)),
    )
    assert (found.reshapes, found.reshapes_per_job) == (1, 0.5)
    assert measure_entries(make_cluster(2), *TWO_JOBS).reshapes_per_job is None


def test_overhead_is_a_share_of_the_allocated_gpu_time() -> None:
    """`a` holds 2 GPUs for 50 s, of which 10 s starting and 5 s stopping; `b` holds 1 GPU for 100 s, all computing."""
    found = measure_entries(
        make_cluster(4),
        step(0, submitted(make_job("a", gpus=2)), submitted(make_job("b")), start("a", gpus=(0, 1))),
        step(0, start("b", gpus=(2,))),
        step(10, RunStarted("a", 1)),
        step(45, StopRun("a", 1)),
        step(50, RunStopped("a", 1)),
        step(100, RunFinished("b", 1)),
    )
    assert found.overhead_share == pytest.approx(2 * 15 / (2 * 50 + 100))
    assert found.goodput == pytest.approx(1 - (found.overhead_gpu_hours + found.lost_gpu_hours) / found.gpu_hours)
    assert measure_entries(make_cluster(4)).overhead_share is None


def test_classes_are_measured_separately() -> None:
    """TWO_JOBS, of which the second is best-effort."""
    jobs = make_job("a", gpus=2), make_job("b", at=50, job_class="best-effort")
    found = measure_entries(
        make_cluster(2),
        step(0, submitted(jobs[0]), start("a", gpus=(0, 1))),
        step(50, submitted(jobs[1])),
        step(100, RunFinished("a", 1), start("b")),
        step(200, RunFinished("b", 1)),
    )
    groups = [(group.name, group.jobs, group.completion.mean, group.waiting.mean) for group in found.classes]
    assert groups == [("guaranteed", 1, 100.0, 0.0), ("best-effort", 1, 150.0, 50.0)]
    assert [group.name for group in measure_entries(make_cluster(2), *TWO_JOBS).classes] == ["guaranteed"]


def test_a_failed_run_loses_the_work_it_did_not_save() -> None:
    found = measure_entries(
        make_cluster(2),
        step(0, submitted(make_job("a", gpus=2)), start("a", gpus=(0, 1))),
        step(70, NodeLost(0), RunFailed("a", 1, "node lost", done=60, retry=True)),
        step(80, NodeReturned(0), start("a", 2, gpus=(0, 1))),
        step(120, RunFinished("a", 2)),
    )
    assert (found.failures, found.lost_seconds) == (1, 10.0)
    assert found.lost_gpu_hours == pytest.approx(20 / HOUR)


def test_a_run_stopped_or_failed_while_starting_loses_all_its_time() -> None:
    found = measure_entries(
        make_cluster(2),
        step(0, submitted(make_job("a", gpus=2)), submitted(make_job("b")), start("a", gpus=(0, 1))),
        step(30, StopRun("a", 1)),
        step(40, RunStopped("a", 1, done=0), start("b")),
        step(45, RunFailed("b", 1, done=0, retry=True), start("a", 2, gpus=(0, 1))),
        step(55, RunStarted("a", 2)),
        step(155, RunFinished("a", 2)),
    )
    assert found.lost_seconds == 40 + 5
    assert found.lost_gpu_hours == pytest.approx((2 * 40 + 5) / HOUR)
    assert found.overhead_gpu_hours == pytest.approx(2 * 10 / HOUR)  # only the second start of a, which went on


def test_lost_time_accounts_for_the_speed_of_the_gpus() -> None:
    cluster = make_cluster(2, types="H100", speeds={"H100": 2.0})
    found = measure_entries(
        cluster,
        step(0, submitted(make_job("a", work=1000)), start("a")),
        step(100, RunFailed("a", 1, done=150, retry=True)),
    )
    assert found.lost_seconds == 25.0


@pytest.mark.parametrize(
    ("job", "size"),
    [
        (make_job(gpus=0, cpus=2), "CPU only"),
        (make_job(share=0.5), "fraction"),
        (make_job(gpus=1), "1 GPU"),
        (make_job(gpus=2), "2–4 GPUs"),
        (make_job(gpus=2, instances=2), "2–4 GPUs"),
        (make_job(gpus=8), "5–8 GPUs"),
        (make_job(gpus=8, instances=4), "9–32 GPUs"),
        (make_job(gpus=8, instances=5), "> 32 GPUs"),
    ],
)
def test_jobs_are_grouped_into_size_classes_by_their_request(job: Job, size: str) -> None:
    assert SIZES[size_of(job)] == size


def test_groups_partition_the_jobs() -> None:
    found = measure_entries(make_cluster(2), *TWO_JOBS)
    assert [(group.name, group.jobs, group.completion.mean) for group in found.tenants] == [
        ("one", 1, 100.0),
        ("two", 1, 150.0),
    ]
    assert [(group.name, group.waiting.mean) for group in found.sizes] == [("1 GPU", 50.0), ("2–4 GPUs", 0.0)]
    assert sum(group.gpu_hours for group in found.sizes) == pytest.approx(found.gpu_hours)


def test_nan_values_are_ignored() -> None:
    assert compute_spread(np.array([1.0, np.nan, 3.0])) == Spread(2, 2.0, 2.0, 2.8, 2.98, 3.0)


def test_fragments_are_free_gpus_that_typical_jobs_cannot_use() -> None:
    entries = (
        step(0, submitted(make_job("a", gpus=1)), start("a")),
        step(0, submitted(make_job("b", gpus=2))),
        step(100, RunFinished("a", 1)),
    )
    history = History.from_entries(make_cluster(2), entries)
    # While `a` runs, one GPU of two is free: jobs like `a` can use it and jobs like `b` cannot, each half of all jobs.
    assert fragmentation(history, np.array([50.0, 150.0])).tolist() == [0.25, 0.0]


def test_nodes_that_are_down_have_no_fragments() -> None:
    entries = (
        step(0, submitted(make_job("a", gpus=2))),
        step(10, NodeLost(0)),
        step(20, NodeLost(0)),
        step(30, NodeReturned(0)),
    )
    history = History.from_entries(make_cluster(1, 1), entries)
    assert fragmentation(history, np.array([5.0, 15.0, 25.0, 35.0])).tolist() == [1.0, 0.5, 0.5, 1.0]


def test_gpus_that_are_down_have_no_fragments() -> None:
    entries = (
        step(0, submitted(make_job("a", gpus=3))),
        step(10, GpuLost(0, 0)),
        step(20, GpuLost(0, 0)),
        step(30, GpuReturned(0, 0)),
    )
    history = History.from_entries(make_cluster(2), entries)
    assert fragmentation(history, np.array([5.0, 15.0, 25.0, 35.0])).tolist() == [1.0, 0.5, 0.5, 1.0]


# Random journals, counted second by second. Times are whole seconds, so the count is the exact integral.

POLICIES: tuple[type[FifoSkip] | type[Srtf] | type[Drf], ...] = (FifoSkip, Srtf, Drf)


@some.composite
def journals(draw: some.DrawFn, max_faults: int = 1) -> tuple[Cluster, list[Entry]]:
    cluster = make_cluster(*draw(some.lists(some.integers(1, 4), min_size=1, max_size=3)))
    drawn = some.tuples(
        some.integers(0, 40),
        some.integers(0, 25),
        some.integers(0, 5),
        some.sampled_from((0.25, 0.5, 1.0)),
        some.sampled_from("xyz"),
    )
    jobs = [
        make_job(f"j{n}", at=at, work=work, gpus=gpus, share=share, cpus=1, tenant=tenant)
        for n, (at, work, gpus, share, tenant) in enumerate(sorted(draw(some.lists(drawn, max_size=9))))
    ]
    costs = Costs(
        draw(some.integers(0, 3)),
        draw(some.integers(0, 2)),
        draw(some.integers(0, 3)),
        draw(some.sampled_from((None, 2))),
    )
    lost_and_downtime = some.tuples(some.integers(1, 40), some.integers(1, 9))
    faults = [
        Fault(0, lost, lost + downtime) for lost, downtime in draw(some.lists(lost_and_downtime, max_size=max_faults))
    ]
    journal = ListJournal()
    policy = draw(some.sampled_from(POLICIES))(placement="best-fit")
    simulate(jobs, cluster, policy, journal=journal, costs=costs, faults=faults)
    return cluster, journal.entries


class _Second:
    """State during one second: the jobs in the system, the GPUs that each holds, and the jobs that do not compute."""

    def __init__(self, present: set[str], runs: dict[str, StartRun], idle: set[str], in_vain: set[str]) -> None:
        self.present = present
        self.held = {job: run.allocation.gpu_milli / WHOLE for job, run in runs.items()}
        self.idle = idle - in_vain
        self.in_vain = in_vain & runs.keys()


def seconds_of(entries: list[Entry]) -> list[_Second]:
    """Reconstruct the state of every second from the journal."""
    in_vain = never_computing(entries)
    started = {(event.job, event.run) for entry in entries for event in entry.events if isinstance(event, RunStarted)}
    present: set[str] = set()
    runs: dict[str, StartRun] = {}
    idle: set[str] = set()
    seconds: list[_Second] = []
    pending = list(entries)
    for now in range(int(entries[-1].now) if entries else 0):
        while pending and pending[0].now <= now:
            entry = pending.pop(0)
            for event in entry.events:
                match event:
                    case JobSubmitted(job):
                        present.add(job.id)
                    case RunFinished(job_id, number) | RunStopped(job_id, number) | RunFailed(job_id, number):
                        if job_id not in runs or runs[job_id].run != number:
                            continue  # a stale report: the run finished when its node was lost
                        del runs[job_id]
                        idle.discard(job_id)
                        if isinstance(event, RunFinished):
                            present.discard(job_id)
                    case RunStarted(job_id):
                        idle.discard(job_id)
                    case _:
                        pass
            for order in entry.orders:
                if isinstance(order, StartRun):
                    runs[order.job] = order
                    if (order.job, order.run) in started:
                        idle.add(order.job)
                else:
                    idle.add(order.job)
        lost = {job for job, run in runs.items() if (job, run.run) in in_vain}
        seconds.append(_Second(set(present), dict(runs), set(idle), lost))
    return seconds


def never_computing(entries: list[Entry]) -> set[tuple[str, int]]:
    """Return the runs that were stopped or failed before they reported their start or saved any work."""
    found: set[tuple[str, int]] = set()
    started: set[tuple[str, int]] = set()
    ended: set[tuple[str, int]] = set()
    saved: dict[str, float] = {}
    for event in (event for entry in entries for event in entry.events):
        match event:
            case RunStarted(job, run):
                started.add((job, run))
            case RunStopped(job, run, done) | RunFailed(job, run, done=done) if (job, run) not in ended:
                ended.add((job, run))
                if (job, run) not in started and done <= saved.get(job, 0.0):
                    found.add((job, run))
                saved[job] = max(done, saved.get(job, 0.0))
            case RunFinished(job, run):
                ended.add((job, run))
            case _:
                pass
    return found


@settings(max_examples=150, deadline=None)
@given(journals())
def test_measures_equal_a_count_by_seconds(journal: tuple[Cluster, list[Entry]]) -> None:
    cluster, entries = journal
    history = History.from_entries(cluster, entries)
    found, seconds = measure(history), seconds_of(entries)
    jobs = [event.job for entry in entries for event in entry.events if isinstance(event, JobSubmitted)]
    infeasible = {
        job.id for job, outcome in zip(jobs, history.jobs.outcome, strict=True) if outcome == Outcome.INFEASIBLE
    }
    held = [sum(second.held.values()) for second in seconds]

    assert found.gpu_hours == pytest.approx(sum(held) / HOUR)
    idle = sum(second.held[job] for second in seconds for job in second.idle)
    assert found.overhead_gpu_hours == pytest.approx(idle / HOUR)
    in_vain = sum(second.held[job] for second in seconds for job in second.in_vain)
    assert found.lost_gpu_hours >= in_vain / HOUR - 1e-9
    if not found.failures:
        assert found.lost_gpu_hours == pytest.approx(in_vain / HOUR)
    if found.submission_window is not None:
        first, last = map(int, found.submission_window)
        assert found.allocation == pytest.approx(sum(held[first:last]) / (cluster.gpus * (last - first)))
        assert found.jain_tenants == pytest.approx(_jain_by_seconds(jobs, infeasible, seconds[first:last], first, last))

    ended = {event.job for entry in entries for event in entry.events if isinstance(event, RunFinished)}
    finished = [job for job in jobs if job.id in ended]
    completions = {job.id: sum(job.id in second.present for second in seconds) for job in finished}
    waits = {job.id: sum(job.id in s.present and job.id not in s.held for s in seconds) for job in finished}
    assert found.completion.mean == pytest.approx(_mean(list(completions.values())))
    assert found.waiting.mean == pytest.approx(_mean(list(waits.values())))
    assert found.finish_time_fairness.mean == pytest.approx(
        _mean([_fairness(job, completions[job.id], seconds, jobs, infeasible, cluster.gpus) for job in finished])
    )
    queue = [sum(job not in second.held and job not in infeasible for job in second.present) for second in seconds]
    if seconds:
        assert jobs_waiting(history).means(np.arange(len(seconds) + 1.0)).tolist() == pytest.approx(queue)


def _mean(values: list[float] | list[int]) -> float | None:
    return sum(values) / len(values) if values else None


def _fairness(
    job: Job, completion: int, seconds: list[_Second], jobs: list[Job], infeasible: set[str], gpus: int
) -> float:
    competing = {other.id for other in jobs if other.demand.gpus and other.id not in infeasible}
    present = [len(second.present & competing) for second in seconds if job.id in second.present]
    share = job.demand.total_gpus * (sum(present) / len(present) if present else 1.0) / gpus
    return max(completion, 10.0) / max((job.work or 0.0) * max(1.0, share), 10.0)


def _jain_by_seconds(jobs: list[Job], infeasible: set[str], busy: list[_Second], first: int, last: int) -> float | None:
    received: dict[str, float] = {}
    requested: dict[str, float] = {}
    for job in jobs:
        if job.id not in infeasible:
            seconds = sum(job.submitted <= now < job.submitted + (job.work or 0.0) for now in range(first, last))
            requested[job.tenant] = requested.get(job.tenant, 0.0) + seconds * job.demand.total_gpus
        gpu_seconds = sum(second.held.get(job.id, 0.0) for second in busy)
        received[job.tenant] = received.get(job.tenant, 0.0) + gpu_seconds
    ratios = [received[tenant] / amount for tenant, amount in requested.items() if amount > 0]
    squares = sum(ratio**2 for ratio in ratios)
    return sum(ratios) ** 2 / (len(ratios) * squares) if squares else None


@settings(max_examples=80, deadline=None)
@given(journals(max_faults=0))
def test_fragmentation_equals_its_definition(journal: tuple[Cluster, list[Entry]]) -> None:
    cluster, entries = journal
    history = History.from_entries(cluster, entries)
    demands = [job.demand for job in history.jobs.jobs if job.demand.gpus]
    for now in range(0, int(history.until), 7):
        free = [[WHOLE] * node.gpus for node in cluster.nodes]
        cpus = [node.cpu_milli for node in cluster.nodes]
        for run in np.flatnonzero((history.runs.start <= now) & (now < history.run_end)).tolist():
            for share in history.runs.allocations[run].placement:
                cpus[share.node] -= share.cpu_milli
                for gpu in share.gpus:
                    free[share.node][gpu] -= share.gpu_milli
        expected = 0.0
        for demand in demands:
            for node, gpus in enumerate(free):
                fits = (
                    sum(milli >= demand.gpu_milli for milli in gpus) >= demand.gpus and cpus[node] >= demand.cpu_milli
                )
                expected += sum(milli for milli in gpus if not fits or milli < demand.gpu_milli) / len(demands)
        found = fragmentation(history, np.array([float(now)]))[0]
        assert found == pytest.approx(expected / (cluster.gpus * WHOLE))
