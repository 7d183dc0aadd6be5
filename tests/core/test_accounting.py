"""What the view says about the progress of a job: work, steps, GPU-seconds and runs, by worked examples."""

from math import inf

import msgspec
import pytest
from scripted_policy import ScriptedPolicy, on

from refold.core import Scheduler, View
from refold.core.events import (
    Event,
    JobContinued,
    JobHeld,
    JobReleased,
    JobSubmitted,
    NodeLost,
    NodeReturned,
    RunAdopted,
    RunFailed,
    RunProgressed,
    RunRecalled,
    RunStarted,
    RunStopped,
)
from refold.model import (
    NO_CHANGE,
    Allocation,
    Decision,
    Demand,
    Reason,
    Reshape,
    Share,
    Start,
    StartEstimate,
    Stop,
    Wait,
)
from refold.testing import make_cluster, make_job


class Timeline:
    """A scheduler to which the test says what happens when: `timeline.at(5.0, RunStarted("a", 1))`."""

    def __init__(self, *sizes: int) -> None:
        self._policy = ScriptedPolicy()
        self.scheduler = Scheduler(make_cluster(*sizes), self._policy)

    def at(self, now: float, *events: Event, then: Decision = NO_CHANGE) -> View:
        self._policy.next = then
        self.scheduler.step(now, events)
        return self.scheduler.view


def start(job: str, *gpus: int, node: int = 0) -> Decision:
    return Decision((Start(job, on(*gpus, node=node)),))


def started(*gpus: int, steps: int | None = None) -> Timeline:
    """Return a timeline on which job a was started at 100 s on these GPUs."""
    timeline = Timeline(4)
    timeline.at(100.0, JobSubmitted(make_job("a", gpus=len(gpus), steps=steps, reshapable=True)))
    timeline.at(100.0, then=start("a", *gpus))
    return timeline


class TestWorkDone:
    def test_a_waiting_job_has_done_nothing(self) -> None:
        view = Timeline(1).at(5.0, JobSubmitted(make_job("a")))
        assert (view.done("a"), view.computing_since("a"), view.run_count("a")) == (0.0, None, 0)

    def test_a_run_is_assumed_to_compute_from_its_start(self) -> None:
        view = started(0).at(130.0)
        assert (view.done("a"), view.computing_since("a")) == (30.0, 100.0)

    def test_start_up_time_is_no_work_once_it_is_known(self) -> None:
        timeline = started(0)
        assert timeline.at(112.0, RunStarted("a", 1)).done("a") == 0.0
        view = timeline.at(130.0)
        assert (view.done("a"), view.computing_since("a")) == (18.0, 112.0)

    def test_a_second_report_of_the_start_is_late_once(self) -> None:
        timeline = started(0)
        timeline.at(112.0, RunStarted("a", 1))
        view = timeline.at(120.0, RunStarted("a", 1))
        assert (view.done("a"), timeline.scheduler.late_reports) == (8.0, 1)

    def test_reported_work_replaces_the_estimate(self) -> None:
        timeline = started(0)
        assert timeline.at(130.0, RunProgressed("a", 1, 20.0)).done("a") == 20.0
        view = timeline.at(135.0)
        assert (view.done("a"), view.computing_since("a")) == (25.0, 130.0)

    def test_reported_work_may_exceed_the_time_of_the_run(self) -> None:
        assert started(0).at(110.0, RunProgressed("a", 1, 500.0)).done("a") == 500.0

    @pytest.mark.parametrize("done", [0.0, 19.9, 20.0])
    def test_a_report_of_no_more_work_than_before_is_late(self, done: float) -> None:
        timeline = started(0)
        timeline.at(130.0, RunProgressed("a", 1, 20.0))
        view = timeline.at(140.0, RunProgressed("a", 1, done))
        assert (view.done("a"), view.computing_since("a"), timeline.scheduler.late_reports) == (30.0, 130.0, 1)

    def test_a_report_of_a_little_more_work_is_not_late(self) -> None:
        timeline = started(0)
        timeline.at(130.0, RunProgressed("a", 1, 20.0))
        view = timeline.at(140.0, RunProgressed("a", 1, 20.5))
        assert (view.done("a"), view.computing_since("a"), timeline.scheduler.late_reports) == (20.5, 140.0, 0)

    def test_a_report_of_steps_keeps_the_estimated_work(self) -> None:
        timeline = started(0, steps=10)
        view = timeline.at(130.0, RunProgressed("a", 1, steps=1))
        assert (view.done("a"), view.computing_since("a")) == (30.0, 130.0)
        assert timeline.at(131.0).done("a") == 31.0

    def test_work_stops_when_the_stop_is_ordered_and_the_saved_work_counts(self) -> None:
        timeline = started(0)
        view = timeline.at(150.0, then=Decision(stops=(Stop("a"),)))
        assert (view.done("a"), view.computing_since("a")) == (50.0, None)
        assert timeline.at(170.0).done("a") == 50.0
        view = timeline.at(180.0, RunStopped("a", 1, 42.0))
        assert (view.done("a"), view.computing_since("a")) == (42.0, None)
        assert timeline.at(200.0).done("a") == 42.0

    def test_the_next_run_continues_from_the_saved_work(self) -> None:
        timeline = started(0)
        timeline.at(150.0, RunFailed("a", 1, retry=True, done=42.0))
        timeline.at(160.0, then=start("a", 0))
        view = timeline.at(170.0)
        assert (view.done("a"), view.run_count("a"), view.runs["a"].since) == (52.0, 2, 160.0)

    def test_the_report_of_steps_after_a_stop_order_does_not_resume_the_count(self) -> None:
        timeline = started(0, steps=10)
        timeline.at(150.0, RunRecalled("a", 1))
        timeline.at(155.0, RunProgressed("a", 1, steps=3))
        view = timeline.at(160.0)
        assert (view.done("a"), view.computing_since("a"), view.steps_done("a")) == (50.0, None, (3, 155.0))


class TestSteps:
    def test_before_the_first_report_there_are_none(self) -> None:
        view = started(0, steps=200).at(150.0)
        assert (view.steps_done("a"), view.share_done(view.active["a"])) == ((0, -inf), None)

    @pytest.mark.parametrize(("steps", "share"), [(1, 0.005), (50, 0.25), (200, 1.0), (300, 1.0)])
    def test_the_share_done_is_the_share_of_the_declared_steps(self, steps: int, share: float) -> None:
        view = started(0, steps=200).at(150.0, RunProgressed("a", 1, steps=steps))
        assert (view.steps_done("a"), view.share_done(view.active["a"])) == ((steps, 150.0), share)

    def test_without_declared_steps_there_is_no_share(self) -> None:
        view = started(0).at(150.0, RunProgressed("a", 1, steps=7))
        assert (view.steps_done("a"), view.share_done(view.active["a"])) == ((7, 150.0), None)

    @pytest.mark.parametrize("steps", [49, 50])
    def test_a_report_of_no_more_steps_and_no_more_work_is_late(self, steps: int) -> None:
        timeline = started(0, steps=200)
        timeline.at(150.0, RunProgressed("a", 1, 20.0, steps=50))
        view = timeline.at(160.0, RunProgressed("a", 1, 20.0, steps=steps))
        assert (view.steps_done("a"), timeline.scheduler.late_reports) == ((50, 150.0), 1)

    def test_more_work_with_fewer_steps_is_taken_as_reported(self) -> None:
        timeline = started(0, steps=200)
        timeline.at(150.0, RunProgressed("a", 1, 20.0, steps=50))
        view = timeline.at(160.0, RunProgressed("a", 1, 25.0, steps=40))
        assert (view.steps_done("a"), view.done("a"), timeline.scheduler.late_reports) == ((40, 160.0), 25.0, 0)

    def test_a_stop_without_steps_keeps_the_last_report(self) -> None:
        timeline = started(0, steps=200)
        timeline.at(150.0, RunProgressed("a", 1, 20.0, steps=50))
        assert timeline.at(160.0, RunStopped("a", 1, 20.0)).steps_done("a") == (50, 150.0)

    def test_zero_saved_steps_replace_the_last_report(self) -> None:
        timeline = started(0, steps=200)
        timeline.at(150.0, RunProgressed("a", 1, 20.0, steps=50))
        assert timeline.at(160.0, RunStopped("a", 1, 0.0, steps=0)).steps_done("a") == (0, 160.0)


class TestGpuSeconds:
    def test_a_run_attains_its_gpus_times_its_time(self) -> None:
        timeline = started(0, 1)
        assert timeline.at(100.0).gpu_seconds("a") == 0.0
        assert timeline.at(130.0).gpu_seconds("a") == 60.0

    def test_a_fraction_of_a_gpu_counts_as_a_fraction(self) -> None:
        timeline = Timeline(1)
        quarter = Allocation((Share(0, (0,), 250),))
        timeline.at(0.0, JobSubmitted(make_job("a", share=0.25)), then=Decision((Start("a", quarter),)))
        assert timeline.at(40.0).gpu_seconds("a") == 10.0

    def test_a_job_without_gpus_attains_none(self) -> None:
        timeline = Timeline(1)
        cpus = Allocation((Share(0, cpu_milli=2000),))
        timeline.at(0.0, JobSubmitted(make_job("a", gpus=0, cpus=2)), then=Decision((Start("a", cpus),)))
        assert timeline.at(40.0).gpu_seconds("a") == 0.0

    def test_a_stopping_run_attains_until_it_has_stopped(self) -> None:
        timeline = started(0, 1)
        timeline.at(110.0, RunRecalled("a", 1))
        assert timeline.at(120.0).gpu_seconds("a") == 40.0
        assert timeline.at(125.0, RunStopped("a", 1)).gpu_seconds("a") == 50.0
        assert timeline.at(500.0).gpu_seconds("a") == 50.0

    def test_earlier_runs_count_during_and_after_later_ones(self) -> None:
        timeline = started(0, 1)
        timeline.at(110.0, RunFailed("a", 1, retry=True))  # 2 GPUs for 10 s
        timeline.at(200.0, then=start("a", 0, 1, 2))
        assert timeline.at(200.0).gpu_seconds("a") == 20.0
        assert timeline.at(205.0).gpu_seconds("a") == 35.0
        timeline.at(210.0, RunStopped("a", 2))  # 3 GPUs for 10 s
        timeline.at(300.0, then=start("a", 3))
        view = timeline.at(304.0, RunFailed("a", 3, retry=True))  # 1 GPU for 4 s
        assert (view.gpu_seconds("a"), view.run_count("a")) == (54.0, 3)

    def test_a_reshaped_run_attains_with_its_old_allocation_until_it_has_stopped(self) -> None:
        timeline = started(0, 1)
        timeline.at(110.0, then=Decision(reshapes=(Reshape("a", on(0, 1, 2, 3)),)))
        assert timeline.at(120.0, RunStopped("a", 1)).gpu_seconds("a") == 40.0
        assert timeline.at(121.0).gpu_seconds("a") == 44.0

    def test_an_adopted_run_attains_since_its_own_start(self) -> None:
        timeline = Timeline(4)
        view = timeline.at(100.0, JobSubmitted(make_job("a", gpus=2)), RunAdopted("a", 3, on(0, 1), 60.0))
        assert (view.gpu_seconds("a"), view.run_count("a"), view.runs["a"].since) == (80.0, 3, 60.0)
        assert view.done("a") == 0.0  # unknown until it reports
        assert timeline.at(110.0, RunStopped("a", 3)).gpu_seconds("a") == 100.0

    def test_progress_from_before_the_journal_counts(self) -> None:
        timeline = Timeline(4)
        timeline.at(100.0, JobSubmitted(make_job("a", steps=80)), JobContinued("a", 2, 30.0, 20, 500.0))
        view = timeline.at(110.0, then=start("a", 0))
        assert (view.done("a"), view.run_count("a"), view.runs["a"].number) == (30.0, 3, 3)
        view = timeline.at(120.0)
        assert (view.done("a"), view.gpu_seconds("a"), view.steps_done("a")) == (40.0, 510.0, (20, 100.0))
        assert view.share_done(view.active["a"]) == 0.25

    def test_progress_without_steps_leaves_the_steps_unreported(self) -> None:
        view = Timeline(4).at(100.0, JobSubmitted(make_job("a", steps=80)), JobContinued("a", 2, 30.0))
        assert (view.steps_done("a"), view.gpu_seconds("a")) == ((0, -inf), 0.0)

    def test_progress_from_before_the_journal_is_accepted_once(self) -> None:
        timeline = Timeline(4)
        view = timeline.at(
            100.0, JobSubmitted(make_job("a")), JobContinued("a", 2, 30.0, 5, 7.0), JobContinued("a", 3, 60.0, 9, 9.0)
        )
        assert (view.done("a"), view.run_count("a"), view.gpu_seconds("a")) == (30.0, 2, 7.0)
        assert timeline.scheduler.late_reports == 1


class TestFreeGpus:
    def test_runs_and_nodes_that_are_down_reduce_the_free_gpus(self) -> None:
        timeline = Timeline(4, 2)
        view = timeline.at(0.0, JobSubmitted(make_job("a", share=0.25)))
        assert view.free_gpus == 6.0
        timeline.at(1.0, then=Decision((Start("a", Allocation((Share(0, (0,), 250),))),)))
        assert view.free_gpus == 5.75
        timeline.at(2.0, NodeLost(1))
        assert (view.free_gpus, view.is_up(0), view.is_up(1)) == (3.75, True, False)
        timeline.at(3.0, RunStopped("a", 1))
        assert view.free_gpus == 4.0
        timeline.at(4.0, NodeReturned(1))
        assert (view.free_gpus, view.is_up(1)) == (6.0, True)

    def test_a_run_that_ends_on_a_node_that_is_down_frees_its_gpus_when_the_node_returns(self) -> None:
        timeline = started(0, 1)
        timeline.at(110.0, NodeLost(0))
        view = timeline.at(120.0, RunFailed("a", 1))
        assert view.free_gpus == 0.0
        assert timeline.at(130.0, NodeReturned(0)).free_gpus == 4.0

    @pytest.mark.parametrize("node", [-1, 1, 99])
    def test_a_node_that_does_not_exist_is_late(self, node: int) -> None:
        timeline = Timeline(4)
        view = timeline.at(0.0, NodeLost(node), NodeReturned(node))
        assert (view.free_gpus, timeline.scheduler.late_reports) == (4.0, 2)

    def test_the_shortage_counts_nodes_by_what_they_lack(self) -> None:
        timeline = Timeline(2, 1)
        timeline.at(0.0, JobSubmitted(make_job("a")), then=start("a", 0))
        shortage = timeline.scheduler.view.shortage(Demand(gpus=2))
        assert shortage.text(Demand(gpus=2)) == (
            "0 of 2 nodes fit: 1 has fewer than 2 free GPUs, 1 has fewer than 2 GPUs in total"
        )


class TestReshapes:
    def reshaped(self) -> Timeline:
        """Return a timeline on which job a is being moved from GPU 0 to GPUs 1 and 2."""
        timeline = started(0)
        timeline.at(110.0, then=Decision(reshapes=(Reshape("a", on(1, 2)),)))
        return timeline

    def test_the_next_allocation_is_held_and_used(self) -> None:
        timeline = self.reshaped()
        view = timeline.scheduler.view
        assert (view.next_allocation("a"), view.free_gpus) == (on(1, 2), 1.0)
        timeline.at(120.0, RunStopped("a", 1))
        assert (view.runs["a"].allocation, view.next_allocation("a"), view.free_gpus) == (on(1, 2), None, 2.0)

    def test_the_next_allocation_is_dropped_if_the_run_fails(self) -> None:
        timeline = self.reshaped()
        view = timeline.at(120.0, RunFailed("a", 1, retry=True))
        assert (view.next_allocation("a"), view.free_gpus) == (None, 4.0)
        timeline.at(130.0, then=start("a", 3))
        timeline.at(140.0, RunRecalled("a", 2))
        assert (list(timeline.at(150.0, RunStopped("a", 2)).waiting), view.free_gpus) == (["a"], 4.0)

    def test_a_later_stop_does_not_repeat_the_reshape(self) -> None:
        timeline = self.reshaped()
        timeline.at(120.0, RunStopped("a", 1))
        timeline.at(130.0, RunRecalled("a", 2))
        view = timeline.at(140.0, RunStopped("a", 2))
        assert (list(view.waiting), view.free_gpus) == (["a"], 4.0)


class TestReasons:
    JOBS = tuple(JobSubmitted(make_job(name)) for name in "abc")

    def test_a_job_that_the_policy_has_not_considered_says_so(self) -> None:
        view = Timeline(1).at(0.0, *self.JOBS)
        assert [view.reason(name) for name in "abc"] == [
            Wait("a", Reason.NOT_CONSIDERED, ahead=0),
            Wait("b", Reason.NOT_CONSIDERED, ahead=1),
            Wait("c", Reason.NOT_CONSIDERED, ahead=2),
        ]

    def test_the_number_of_jobs_ahead_can_be_passed_in(self) -> None:
        view = Timeline(1).at(0.0, *self.JOBS)
        assert view.reason("c", ahead=0) == Wait("c", Reason.NOT_CONSIDERED, ahead=0)
        assert view.reason("c", ahead=7) == Wait("c", Reason.NOT_CONSIDERED, ahead=7)

    def test_a_reason_stands_until_the_policy_gives_another(self) -> None:
        timeline = Timeline(1)
        timeline.at(0.0, *self.JOBS, then=Decision(waits=(Wait("b", Reason.PRIORITY),)))
        view = timeline.at(5.0)
        assert view.reason("b") == Wait("b", Reason.PRIORITY, ahead=1)
        timeline.at(6.0, then=Decision(waits=(Wait("b", Reason.RESOURCES),)))
        assert view.reason("b") == Wait("b", Reason.RESOURCES, shortage=view.shortage(Demand()))

    def test_a_shortage_of_power_is_returned_as_the_policy_counted_it(self) -> None:
        timeline = Timeline(1)
        view = timeline.at(0.0, *self.JOBS)
        given = Wait("b", Reason.RESOURCES, shortage=msgspec.structs.replace(view.shortage(Demand()), at_power_limit=1))
        timeline.at(1.0, then=Decision(waits=(given,)))
        assert view.reason("b") == given

    def test_a_job_loses_its_reason_and_estimate_when_it_starts(self) -> None:
        timeline = Timeline(1)
        explain = Decision(waits=(Wait("a", Reason.PRIORITY),), start_estimates=(StartEstimate("a", 50.0),))
        view = timeline.at(0.0, *self.JOBS, then=explain)
        assert (view.reason("a").reason, view.start_estimate("a")) == (Reason.PRIORITY, StartEstimate("a", 50.0))
        timeline.at(1.0, then=start("a", 0))
        timeline.at(2.0, RunFailed("a", 1, retry=True))
        assert (view.reason("a").reason, view.start_estimate("a")) == (Reason.NOT_CONSIDERED, None)

    def test_a_job_loses_its_reason_and_estimate_when_it_is_held(self) -> None:
        timeline = Timeline(1)
        explain = Decision(waits=(Wait("a", Reason.PRIORITY),), start_estimates=(StartEstimate("a", 50.0),))
        view = timeline.at(0.0, *self.JOBS, then=explain)
        timeline.at(1.0, JobHeld("a"))
        assert (view.reason("a"), view.start_estimate("a")) == (Wait("a", Reason.HELD), None)
        timeline.at(2.0, JobReleased("a"))
        assert view.reason("a") == Wait("a", Reason.NOT_CONSIDERED, ahead=2)

    def test_the_jobs_ahead_are_those_queued_before(self) -> None:
        timeline = Timeline(1)
        view = timeline.at(0.0, *self.JOBS)
        assert [view.jobs_ahead(name) for name in view.waiting] == [0, 1, 2]
        timeline.at(1.0, then=start("a", 0))
        assert [view.jobs_ahead(name) for name in "bc"] == [0, 1]
        timeline.at(2.0, RunStopped("a", 1))
        assert [view.jobs_ahead(name) for name in "bca"] == [0, 1, 2]
