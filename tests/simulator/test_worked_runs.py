"""Simulations of a few jobs, computed by hand: every event and order with its time."""

from math import inf
from typing import Any

import pytest

from refold.core import ListJournal, Scheduler
from refold.core.events import (
    Event,
    GpuLost,
    GpuReturned,
    JobSubmitted,
    NodeLost,
    NodeReturned,
    RunFailed,
    RunFinished,
    RunProgressed,
    RunStarted,
    RunStopped,
    Woke,
)
from refold.core.orders import Order, StartRun, StopRun
from refold.errors import BadInput, BadValue
from refold.model import Allocation, Job, Share
from refold.policies.queueing import Fifo
from refold.simulator import (
    Agenda,
    Costs,
    Fault,
    RecordedSpeeds,
    SimulatedBackend,
    StateAt,
    Stuck,
    schedule_faults,
    simulate,
)
from refold.simulator.registry import make_policy
from refold.testing import make_cluster, make_job


def text_of(item: Event | Order) -> str:
    """An event or order in short."""
    match item:
        case JobSubmitted(job):
            return f"{job.id} submitted"
        case RunFailed(job, number, why, done):
            return f"{job}.{number} failed: {why}, {done:g} s done"
        case RunStopped(job, number, done) | RunProgressed(job, number, done):
            return f"{job}.{number} {type(item).__name__.removeprefix('Run').lower()}, {done:g} s done"
        case RunStarted(job, number) | RunFinished(job, number):
            return f"{job}.{number} {type(item).__name__.removeprefix('Run').lower()}"
        case StartRun(job, number):
            return f"start {job}.{number}"
        case StopRun(job, number):
            return f"stop {job}.{number}"
        case _:
            return type(item).__name__


def story(jobs: list[Job], gpus: int, policy: str = "fifo", **more: Any) -> list[str]:
    """Simulate on one node, and return a line for each step: the time, the events, and the orders."""
    journal = ListJournal()
    simulate(jobs, make_cluster(gpus), make_policy(policy), journal=journal, **more)
    return [
        " | ".join([f"{entry.now:g}", ", ".join(map(text_of, entry.events)), ", ".join(map(text_of, entry.orders))])
        for entry in journal.entries
    ]


def test_first_in_first_out() -> None:
    jobs = [make_job("a", gpus=2, work=10), make_job("b", at=1, gpus=4, work=5), make_job("c", at=2, work=1)]
    assert story(jobs, 4) == [
        "0 | a submitted | start a.1",
        "1 | b submitted | ",
        "2 | c submitted | ",
        "10 | a.1 finished | start b.1",
        "15 | b.1 finished | start c.1",
        "16 | c.1 finished | ",
    ]


def test_a_job_that_fits_is_not_blocked_if_jobs_may_be_skipped() -> None:
    jobs = [make_job("a", gpus=2, work=10), make_job("b", at=1, gpus=4, work=5), make_job("c", at=2, work=1)]
    assert story(jobs, 4, "fifo-skip") == [
        "0 | a submitted | start a.1",
        "1 | b submitted | ",
        "2 | c submitted | start c.1",
        "3 | c.1 finished | ",
        "10 | a.1 finished | start b.1",
        "15 | b.1 finished | ",
    ]


def test_simultaneous_events_are_one_step_and_ends_come_first() -> None:
    jobs = [make_job("a", work=5), make_job("b", work=5), make_job("c", at=5, work=1)]
    assert story(jobs, 2) == [
        "0 | a submitted, b submitted | start a.1, start b.1",
        "5 | a.1 finished, b.1 finished, c submitted | start c.1",
        "6 | c.1 finished | ",
    ]


def test_a_preempted_job_pays_for_its_stop_and_its_restart() -> None:
    jobs = [make_job("long", work=100), make_job("short", at=30, work=5)]
    assert story(jobs, 1, "srtf", costs=Costs(start=2, stop=3, restart=4)) == [
        "0 | long submitted | start long.1",
        "2 | long.1 started | ",
        "30 | short submitted | stop long.1",
        "33 | long.1 stopped, 28 s done | start short.1",
        "35 | short.1 started | ",
        "40 | short.1 finished | start long.2",
        "44 | long.2 started | ",
        "116 | long.2 finished | ",  # 100 - 28 s of work
    ]


def test_a_run_that_is_stopped_while_it_starts_has_done_nothing() -> None:
    jobs = [make_job("long", work=100), make_job("short", at=10, work=5)]
    assert story(jobs, 1, "srtf", costs=Costs(start=20, stop=3)) == [
        "0 | long submitted | start long.1",
        "10 | short submitted | stop long.1",
        "13 | long.1 stopped, 0 s done | start short.1",
        "33 | short.1 started | ",
        "38 | short.1 finished | start long.2",
        "138 | long.2 finished | ",
    ]


def test_a_run_that_ends_when_its_stop_would_be_ordered_is_not_stopped() -> None:
    jobs = [make_job("a", work=30), make_job("b", at=30, work=5)]
    assert story(jobs, 1, "srtf") == [
        "0 | a submitted | start a.1",
        "30 | a.1 finished, b submitted | start b.1",
        "35 | b.1 finished | ",
    ]


def test_a_node_takes_its_runs_with_it_and_checkpoints_save_whole_intervals() -> None:
    faults = [Fault(0, 25, 40), Fault(0, 62, 70)]
    assert story([make_job("a", work=50)], 1, costs=Costs(restart=1, checkpoint_every=10), faults=faults) == [
        "0 | a submitted | start a.1",
        "25 | NodeLost, a.1 failed: node lost, 20 s done | ",
        "40 | NodeReturned | start a.2",
        "41 | a.2 started | ",
        "62 | NodeLost, a.2 failed: node lost, 40 s done | ",  # 20 s before, and 20 of the 21 s since
        "70 | NodeReturned | start a.3",
        "71 | a.3 started | ",
        "81 | a.3 finished | ",
    ]


def test_without_checkpoints_a_lost_run_starts_again_from_its_last_stop() -> None:
    jobs = [make_job("long", work=100), make_job("short", at=30, work=5)]
    assert story(jobs, 1, "srtf", faults=[Fault(0, 50, 60)]) == [
        "0 | long submitted | start long.1",
        "30 | short submitted | stop long.1",
        "30 | long.1 stopped, 30 s done | start short.1",
        "35 | short.1 finished | start long.2",
        "50 | NodeLost, long.2 failed: node lost, 30 s done | ",
        "60 | NodeReturned | start long.3",
        "130 | long.3 finished | ",
    ]


def test_a_run_that_finishes_as_its_node_goes_down_has_finished() -> None:
    lines = story([make_job("a", work=50)], 1, faults=[Fault(0, 50, 60)])
    assert lines == ["0 | a submitted | start a.1", "50 | NodeLost, a.1 finished | "]


def test_runs_report_their_progress_at_intervals() -> None:
    assert story([make_job("a", work=25, steps=50)], 1, costs=Costs(start=5, report_every=10)) == [
        "0 | a submitted | start a.1",
        "5 | a.1 started | ",
        "15 | a.1 progressed, 10 s done | ",
        "25 | a.1 progressed, 20 s done | ",
        "30 | a.1 finished | ",
    ]


def test_reports_count_steps_in_proportion_to_the_work_done() -> None:
    journal = ListJournal()
    simulate([make_job("a", work=30, steps=10)], make_cluster(1), Fifo(), journal=journal, costs=Costs(report_every=8))
    reported = [event for entry in journal.entries for event in entry.events if isinstance(event, RunProgressed)]
    assert reported == [RunProgressed("a", 1, 8.0, 2), RunProgressed("a", 1, 16.0, 5), RunProgressed("a", 1, 24.0, 8)]


def test_a_job_without_work_ends_at_once() -> None:
    assert story([make_job("a", work=0), make_job("b", work=1)], 1) == [
        "0 | a submitted, b submitted | start a.1",
        "0 | a.1 finished | start b.1",
        "1 | b.1 finished | ",
    ]


def test_progress_of_a_long_simulation_is_reported() -> None:
    jobs = [make_job(f"j{number}", at=2.0 * number, work=1.0) for number in range(600)]
    finished: list[int] = []
    simulate(jobs, make_cluster(1), Fifo(), progress=finished.append)
    assert finished == [128, 256, 384, 512]  # every 256 steps, of which each job has two


class TestAgenda:
    def test_added_events_come_before_submissions_at_the_same_time(self) -> None:
        jobs = [make_job("a", at=5.0), make_job("b", at=5.0)]
        agenda = Agenda(jobs)
        agenda.add(5.0, RunFinished("x", 1))
        agenda.add(5.0, RunFinished("y", 1))
        before = agenda.all_arrived
        expected = [RunFinished("x", 1), RunFinished("y", 1), *map(JobSubmitted, jobs)]
        assert agenda.next() == (5.0, expected)
        assert (before, agenda.all_arrived) == (False, True)
        assert agenda.next() is None

    def test_times_are_in_order_however_they_are_added(self) -> None:
        agenda = Agenda([make_job("a", at=2.0), make_job("b", at=4.0)])
        for at in (5.0, 1.0, 3.0):
            agenda.add(at, NodeLost(int(at)))
        times = []
        while (upcoming := agenda.next()) is not None:
            times.append(upcoming[0])
        assert times == [1.0, 2.0, 3.0, 4.0, 5.0]

    def test_a_wake_up_can_be_set_again_after_it_has_happened(self) -> None:
        agenda = Agenda([])
        agenda.wake(1.0)
        agenda.wake(1.0)
        assert agenda.next() == (1.0, [Woke()])
        agenda.wake(1.0)
        assert agenda.next() == (1.0, [Woke()])
        assert agenda.next() is None

    def test_the_events_of_faults_are_added_once_each(self) -> None:
        agenda = Agenda([])
        schedule_faults(agenda, [Fault(1, 5.0, 9.0), Fault(0, 5.0, inf, gpu=2), Fault(2, 9.0, 10.0, gpu=0)])
        assert agenda.next() == (5.0, [NodeLost(1), GpuLost(0, 2)])
        assert agenda.next() == (9.0, [NodeReturned(1), GpuLost(2, 0)])
        assert agenda.next() == (10.0, [GpuReturned(2, 0)])
        assert agenda.next() is None


class TestRecordedSpeeds:
    CLUSTER = make_cluster(4, 4, 0, types=["V100", "H100", ""], speeds={"V100": 0.5, "H100": 3.0})
    SPEEDS = RecordedSpeeds(CLUSTER)

    def on(self, *nodes: int, gpus: int = 2) -> Allocation:
        return Allocation(tuple(Share(node, tuple(range(gpus))) for node in nodes))

    def test_a_gang_is_as_fast_as_its_slowest_node(self) -> None:
        job = make_job(instances=2, gpus=2)
        assert [self.SPEEDS.speed(job, self.on(*nodes)) for nodes in ((0, 0), (1, 1), (0, 1))] == [0.5, 3.0, 0.5]

    def test_a_reshapable_job_scales_with_its_gpus(self) -> None:
        job = make_job(gpus=4, reshapable=True)
        assert [self.SPEEDS.speed(job, self.on(1, gpus=gpus)) for gpus in (1, 2, 4)] == [0.75, 1.5, 3.0]
        assert RecordedSpeeds(make_cluster(4)).speed(job, self.on(0, gpus=1)) == 0.25

    def test_a_job_that_cannot_be_reshaped_does_not_scale(self) -> None:
        assert self.SPEEDS.speed(make_job(gpus=4), self.on(1, gpus=1)) == 3.0

    def test_nodes_without_gpus_have_the_default_speed(self) -> None:
        assert self.SPEEDS.speed_of_node.tolist() == [0.5, 3.0, 1.0]

    def test_a_job_without_a_duration_cannot_be_simulated(self) -> None:
        with pytest.raises(BadInput) as raised:
            self.SPEEDS.work(make_job("a", work=None))
        assert str(raised.value) == "job 'a' has no duration, so it cannot be simulated as recorded"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Costs(checkpoint_every=0.0), "checkpoint_every is 0.0, expected seconds > 0"),
        (lambda: Costs(checkpoint_every=inf), "checkpoint_every is inf, expected seconds > 0"),
        (lambda: Costs(report_every=-1.0), "report_every is -1.0, expected seconds > 0"),
        (lambda: Stuck("a", inf), "job 'a' hangs after inf, expected seconds ≥ 0"),
        (lambda: Fault(3, 5.0, 4.0), "node 3 comes up at 4.0, expected a time after 5.0"),
        (lambda: Fault(3, -inf, 4.0, gpu=1), "GPU 1 of node 3 comes up at 4.0, expected a time after -inf"),
    ],
)
def test_impossible_costs_and_faults_are_rejected(build: Any, message: str) -> None:
    with pytest.raises(BadValue) as raised:
        build()
    assert str(raised.value) == message


def test_an_order_to_stop_an_earlier_run_has_no_effect() -> None:
    job, agenda = make_job("a", work=10), Agenda([])
    backend = SimulatedBackend([job], agenda, RecordedSpeeds(make_cluster(1)))
    backend.carry_out(0.0, [StartRun("a", 2, Allocation((Share(0, (0,)),))), StopRun("a", 1), StopRun("unknown", 1)])
    assert agenda.next() == (10.0, [RunFinished("a", 2)])
    assert agenda.next() is None


class TestStateAt:
    """Jobs a (0 to 10 s) and b (submitted at 2, runs 10 to 30 s) on one GPU."""

    CLUSTER = make_cluster(1)

    def state(self, at: float | None = None) -> StateAt:
        journal = ListJournal()
        simulate([make_job("a", work=10), make_job("b", at=2, work=20)], self.CLUSTER, Fifo(), journal=journal)
        return StateAt.from_entries(self.CLUSTER, journal.entries, at)

    @pytest.mark.parametrize(
        ("at", "running", "waiting_since", "elapsed"),
        [
            (1.0, ["a"], {}, {"a": 1.0, "b": 0.0}),
            (2.0, ["a"], {"b": 2.0}, {"a": 2.0, "b": 0.0}),
            (15.0, ["b"], {}, {"a": 0.0, "b": 5.0}),
            (99.0, [], {}, {"a": 0.0, "b": 0.0}),
        ],
    )
    def test_the_state_is_that_of_the_requested_time(
        self, at: float, running: list[str], waiting_since: dict[str, float], elapsed: dict[str, float]
    ) -> None:
        state = self.state(at)
        assert (state.now, list(state.view.runs), state.waiting_since) == (at, running, waiting_since)
        assert {job: state.elapsed(job) for job in ("a", "b")} == elapsed

    def test_ids_are_used_once_submitted_even_after_the_job_has_ended(self) -> None:
        assert (self.state(1.0).used_ids, self.state().used_ids) == ({"a"}, {"a", "b"})

    def test_before_the_first_entry_nothing_has_happened(self) -> None:
        empty = StateAt.from_entries(self.CLUSTER, [], 5.0)
        assert (empty.entries, empty.now, empty.used_ids, list(empty.view.runs)) == (0, 0.0, set(), [])

    def test_a_running_job_is_predicted_to_last_longer_than_it_has(self) -> None:
        state = self.state(10.5)
        assert state.predicted_duration(make_job("b", at=2, work=20)).floor == 0.5

    def test_finished_jobs_train_the_predictor(self) -> None:
        assert self.state(9.0).predictor.unfinished == 2
        assert self.state(10.0).predictor.unfinished == 1
        assert self.state().predictor.unfinished == 0

    def test_the_end_of_a_run_is_not_expected_before_now(self) -> None:
        state = self.state(15.0)
        found = state.end_estimate(state.view.runs["b"])
        assert found.soonest is not None
        assert found.latest is not None
        assert 15.0 <= found.soonest <= found.at <= found.latest

    def test_wake_ups_that_are_past_are_no_longer_pending(self) -> None:
        state = StateAt(self.CLUSTER)
        scheduler = Scheduler(self.CLUSTER, make_policy("las", {"threshold_gpu_seconds": 50.0}))
        for at, job in ((0.0, "a"), (1.0, "b")):
            state.apply(scheduler.step(at, [JobSubmitted(make_job(job, at=at))]))
        (wake,) = state.pending_wakes
        assert wake > 1.0
        state.now = wake
        assert state.pending_wakes == []
