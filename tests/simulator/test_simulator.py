"""The simulator: comparison with SimPy, costs, faults, and properties over random inputs."""

import random
from collections.abc import Generator
from typing import Any

import pytest
import simpy
from hypothesis import given, settings as hypothesis_settings, strategies as st

from refold.core import Journals, ListJournal, View
from refold.core.events import JobSubmitted, NodeLost, RunFailed, RunFinished, RunStarted, RunStopped
from refold.errors import BadDecision, BadValue
from refold.model import NO_CHANGE, Allocation, Decision, Job, Reshape, Share, Start
from refold.policies.queueing import Srtf
from refold.policies.table import POLICIES
from refold.simulator import Costs, Fault, random_faults, simulate
from refold.simulator.agenda import Agenda
from refold.simulator.registry import make_policy
from refold.testing import Audit, make_cluster, make_job, seeded_workload


def finish_times_by_simpy(jobs: list[Job], gpus: int) -> dict[str, float]:
    """Return the finish times of FIFO on one node, simulated with SimPy."""
    environment = simpy.Environment()
    free = simpy.Container(environment, capacity=gpus, init=gpus)
    finished: dict[str, float] = {}

    def job_process(job: Job) -> Generator[Any, Any, None]:
        yield environment.timeout(job.submitted)
        yield free.get(job.demand.gpus)
        yield environment.timeout(job.work or 0.0)
        yield free.put(job.demand.gpus)
        finished[job.id] = environment.now

    for job in jobs:
        environment.process(job_process(job))
    environment.run()
    return finished


def finish_times(journal: ListJournal) -> dict[str, float]:
    """Return the finish time of each job."""
    finished = {}
    for entry in journal.entries:
        finished.update({event.job: entry.now for event in entry.events if isinstance(event, RunFinished)})
    return finished


@hypothesis_settings(max_examples=40)
@given(seed=st.integers(0, 2**32))
def test_fifo_on_one_node_agrees_with_simpy(seed: int) -> None:
    generator = random.Random(seed)
    # All times differ, so that the order of simultaneous events does not matter.
    jobs = sorted(
        (
            make_job(f"j{n}", at=generator.random() * 200, work=generator.random() * 50, gpus=generator.randint(1, 8))
            for n in range(60)
        ),
        key=lambda job: job.submitted,
    )
    journal = ListJournal()
    simulate(jobs, make_cluster(8), make_policy("fifo"), journal=journal)
    assert finish_times(journal) == pytest.approx(finish_times_by_simpy(jobs, 8))


@pytest.mark.parametrize("policy", POLICIES)
@hypothesis_settings(max_examples=3)
@given(
    seed=st.integers(0, 2**32),
    start=st.sampled_from([0.0, 2.0]),
    stop=st.sampled_from([0.0, 7.0]),
    restart=st.sampled_from([0.0, 11.0]),
    checkpoint=st.sampled_from([None, 15.0]),
)
def test_all_jobs_end_with_all_policies_costs_and_faults(
    policy: str, seed: int, start: float, stop: float, restart: float, checkpoint: float | None
) -> None:
    jobs, cluster = seeded_workload(seed, jobs=50)
    faults = random_faults(cluster, between=400.0, repair=60.0, until=1500.0, seed=seed)
    audit, journal = Audit(cluster), ListJournal()
    settings = {"threshold_gpu_seconds": 50.0} if policy == "las" else {}
    view = simulate(
        jobs,
        cluster,
        make_policy(policy, settings),
        journal=Journals(audit, journal),
        costs=Costs(start, stop, restart, checkpoint),
        faults=faults,
    )
    assert {job.id for job in jobs} == set(audit.ended)
    assert not view.waiting
    assert not view.runs
    assert view.free_gpus == sum(node.gpus for n, node in enumerate(cluster.nodes) if view.is_up(n))
    assert_runs_fail_only_with_a_node(journal)


def assert_runs_fail_only_with_a_node(journal: ListJournal) -> None:
    for entry in journal.entries:
        failed = [event for event in entry.events if isinstance(event, RunFailed)]
        assert not failed or any(isinstance(event, NodeLost) for event in entry.events)


def test_costs_are_charged_for_every_change_and_work_is_done_once() -> None:
    """Stop a job repeatedly: its work is done once, and every stop and restart is charged."""
    jobs = [make_job("long", work=1000.0), *(make_job(f"short{n}", at=100.0 * n + 50, work=10.0) for n in range(5))]
    journal = ListJournal()
    simulate(jobs, make_cluster(1), make_policy("srtf"), journal=journal, costs=Costs(start=1, stop=2, restart=4))
    # 1 to start; five times: 2 to stop, 1 + 10 for the short job, 4 to restart.
    assert finish_times(journal)["long"] == 1000 + 1 + 5 * (2 + 1 + 10 + 4)


def test_a_run_lost_with_its_node_resumes_from_its_checkpoint() -> None:
    def end(checkpoint: float | None) -> float:
        journal = ListJournal()
        costs = Costs(checkpoint_every=checkpoint)
        jobs, faults = [make_job("a", work=100.0)], [Fault(0, 70.0, 80.0)]
        simulate(jobs, make_cluster(1), make_policy("fifo"), journal=journal, costs=costs, faults=faults)
        return journal.entries[-1].now

    assert end(None) == 80 + 100
    assert end(30.0) == 80 + 100 - 60


def test_a_reshapable_run_on_several_nodes_loses_a_node_but_no_work() -> None:
    def end(live: float | None, *, reshapable: bool = True, nodes: int = 3) -> float:
        journal = ListJournal()
        jobs, faults = [make_job("a", instances=2, work=100.0, reshapable=reshapable)], [Fault(0, 70.0, 80.0)]
        cluster = make_cluster(*[1] * nodes)
        costs = Costs(restart=9.0, live=live)
        simulate(jobs, cluster, make_policy("fifo"), journal=journal, costs=costs, faults=faults)
        return finish_times(journal)["a"]

    assert end(None) == 70 + 9 + 100
    assert end(2.0) == 70 + 2 + 30
    assert end(2.0, reshapable=False) == 70 + 9 + 100
    assert end(2.0, nodes=2) == 80 + 9 + 30, "it waits for the node, and memory is not kept meanwhile"


def test_only_the_runs_of_a_lost_gpu_fail_and_the_gpu_is_used_again_when_it_returns() -> None:
    journal = ListJournal()
    jobs = [make_job("a", work=100.0), make_job("b", work=100.0), make_job("c", at=1.0, work=5.0)]
    faults = [Fault(0, 70.0, 90.0, gpu=0)]
    simulate(jobs, make_cluster(2), make_policy("fifo-skip"), journal=journal, faults=faults)
    failed = [event for entry in journal.entries for event in entry.events if isinstance(event, RunFailed)]
    assert failed == [RunFailed("a", 1, "GPU lost", 0.0, retry=True)]
    assert finish_times(journal) == {"b": 100.0, "c": 105.0, "a": 190.0}


def test_a_start_is_reported_only_if_starting_takes_time() -> None:
    def events(costs: Costs) -> list[type]:
        journal = ListJournal()
        simulate([make_job("a")], make_cluster(1), make_policy("fifo"), journal=journal, costs=costs)
        return [type(event) for entry in journal.entries for event in entry.events]

    assert events(Costs()) == [JobSubmitted, RunFinished]
    assert events(Costs(start=5.0)) == [JobSubmitted, RunStarted, RunFinished]


def test_withdrawn_events_do_not_happen() -> None:
    agenda = Agenda([])
    agenda.add(3.0, RunFinished("a", 1))
    agenda.withdraw(agenda.add(2.0, RunFinished("b", 1)))
    agenda.withdraw(agenda.add(3.0, RunFinished("c", 1)))
    agenda.wake(5.0)
    agenda.wake(5.0)
    assert agenda.next() == (3.0, [RunFinished("a", 1)])
    upcoming = agenda.next()
    assert upcoming is not None and len(upcoming[1]) == 1
    assert agenda.next() is None


def test_a_stopped_run_reports_its_work() -> None:
    jobs = [make_job("long", work=100.0), make_job("short", at=30.0, work=5.0)]
    journal = ListJournal()
    simulate(jobs, make_cluster(1), make_policy("srtf"), journal=journal)
    stops = [event for entry in journal.entries for event in entry.events if isinstance(event, RunStopped)]
    assert stops == [RunStopped("long", 1, 30.0)]


def test_random_faults_depend_on_the_seed_and_have_the_given_mean_times() -> None:
    cluster = make_cluster(*[8] * 50)

    def faults(seed: int) -> list[Fault]:
        return random_faults(cluster, between=1000.0, repair=100.0, until=100_000.0, seed=seed)

    assert faults(1) == faults(1)
    assert faults(1) != faults(2)
    assert len(faults(1)) == pytest.approx(50 * 100_000 / 1100, rel=0.1)
    with pytest.raises(BadValue, match=r"between is 0\.0 and repair is 1\.0, expected seconds > 0"):
        random_faults(cluster, between=0.0, repair=1.0, until=1.0, seed=1)
    with pytest.raises(BadValue, match=r"comes up at .*, expected a time after"):
        Fault(0, 5.0, 5.0)
    for cost in (-1.0, float("nan"), float("inf")):
        with pytest.raises(BadValue, match="expected seconds ≥ 0"):
            Costs(start=cost)


class GrowsAtTen:
    """A policy that starts a job on one GPU, and reshapes it to four at 10 s."""

    name = "grows"

    def decide(self, view: View) -> Decision:
        if view.waiting:
            start = Start("a", Allocation((Share(0, (0,)),)))
            return Decision((start,), wake_at=10.0)
        if view.now == 10.0 and not view.runs["a"].stopping:
            return Decision(reshapes=(Reshape("a", Allocation((Share(0, (0, 1, 2, 3)),)), "four GPUs are free"),))
        return NO_CHANGE


def test_a_reshaped_job_continues_at_its_new_speed_after_the_restart_cost() -> None:
    cluster, journal = make_cluster(4), ListJournal()
    job = make_job("a", gpus=2, work=100.0, reshapable=True)
    costs = Costs(start=0.0, stop=3.0, restart=7.0)
    simulate([job], cluster, GrowsAtTen(), journal=Journals(Audit(cluster), journal), costs=costs)
    # Half of the requested GPUs until 10: 5 s of work done. From 20 on twice as many: 95 s of work in 47.5 s.
    assert finish_times(journal) == {"a": 67.5}


def test_unsorted_or_duplicate_jobs_are_rejected() -> None:
    with pytest.raises(BadValue, match="same id"):
        simulate([make_job("a"), make_job("a")], make_cluster(1), make_policy("fifo"))
    with pytest.raises(BadValue, match="sorted by submission"):
        simulate([make_job("a", at=5), make_job("b", at=1)], make_cluster(1), make_policy("fifo"))


def test_a_node_may_stay_down_and_the_simulation_ends_with_the_last_job() -> None:
    journal = ListJournal()
    faults = [Fault(0, 50.0, float("inf")), Fault(1, 5000.0, 6000.0)]
    jobs = [make_job("a"), make_job("b", at=60)]
    simulate(jobs, make_cluster(1, 1), make_policy("las"), journal=journal, faults=faults)
    assert [entry.now for entry in journal.entries] == [0.0, 50.0, 60.0, 150.0, 250.0]


def test_a_run_lost_while_it_stops_has_saved_nothing() -> None:
    journal = ListJournal()
    jobs = [make_job("long", work=100.0), make_job("short", at=30.0, work=5.0)]
    costs, faults = Costs(stop=20.0), [Fault(0, 40.0, 41.0)]
    simulate(jobs, make_cluster(1), make_policy("srtf"), journal=journal, costs=costs, faults=faults)
    assert finish_times(journal) == {"short": 46.0, "long": 146.0}


def test_the_speed_of_gpus_does_not_affect_jobs_without_gpus() -> None:
    journal = ListJournal()
    cluster = make_cluster(1, types=["H100"], speeds={"H100": 2.0})
    simulate([make_job("a", gpus=0, cpus=1)], cluster, make_policy("fifo"), journal=journal)
    assert finish_times(journal) == {"a": 100.0}


def test_endless_wake_ups_without_a_start_are_rejected() -> None:
    class Restless:
        name = "restless"

        def decide(self, view: View) -> Decision:
            return Decision(wake_at=view.now + 1.0)

    with pytest.raises(BadDecision, match="restless set wake_at 10001 times in a row"):
        simulate([make_job("a")], make_cluster(1), Restless())


def test_a_run_that_starts_again_has_done_exactly_what_was_saved() -> None:
    """Jobs with equal remaining work preempted each other forever, since that of a run was rounded differently."""
    saved: list[float] = []

    class Recorder(Srtf):
        def decide(self, view: View) -> Decision:
            saved.extend(view.done(run.job) for run in view.runs.values() if run.number > 1 and run.since == view.now)
            return super().decide(view)

    jobs = [make_job("long", work=100.0), make_job("short", at=0.1, work=50.0)]
    jobs.append(make_job("instant", at=0.1 + 50.0, gpus=0, work=0.0))  # causes another round when `long` starts again
    simulate(jobs, make_cluster(1), Recorder())
    assert saved == [0.1]
