"""Run times of jobs as a policy assumes them: known, from time limits, or predicted."""

from math import inf

import msgspec
import numpy as np
import pytest

from refold.core import Scheduler, View
from refold.core.events import (
    Event,
    JobCancelled,
    JobContinued,
    JobHeld,
    JobReleased,
    JobSubmitted,
    PastJob,
    RunAdopted,
    RunFailed,
    RunFinished,
    RunProgressed,
    RunStarted,
    RunStopped,
)
from refold.errors import BadValue
from refold.model import Allocation, Decision, Job, Share, Start
from refold.policies.common.durations import DurationSource, DurationSourceName, ExpectedService
from refold.simulator import Costs, simulate
from refold.simulator.registry import make_policy
from refold.testing import make_cluster, make_job, seeded_workload


class OneGpuPolicy:
    """A policy that starts the job named by the test on the first GPU and observes durations."""

    name = "one-gpu"

    def __init__(self, source: DurationSourceName) -> None:
        self.durations = DurationSource(source)
        self.start = ""

    def decide(self, view: View) -> Decision:
        self.durations.observe(view)
        if self.start not in view.waiting:
            return Decision()
        return Decision(starts=(Start(self.start, Allocation((Share(0, (0,)),))),))


class World:
    """A scheduler with one GPU and a policy that observes durations."""

    def __init__(self, source: DurationSourceName = "predicted") -> None:
        self.policy = OneGpuPolicy(source)
        self.scheduler = Scheduler(make_cluster(1), self.policy)
        self.now = 0.0

    def step(self, now: float, *events: Event, start: str = "") -> None:
        self.now, self.policy.start = now, start
        self.scheduler.step(now, events)

    def run(self, job: Job, seconds: float) -> None:
        """Submit a job that runs for this long and finishes."""
        self.step(self.now + 1, JobSubmitted(job), start=job.id)
        self.step(self.now + seconds, RunFinished(job.id, 1))

    def remaining_time(self, job: Job, quantile: float = 0.5) -> float:
        return self.policy.durations.remaining_time(self.scheduler.view, job).quantile(quantile)

    def remaining_run_time(self, job_id: str, quantile: float = 0.5) -> float:
        view = self.scheduler.view
        return self.policy.durations.remaining_run_time(view, view.runs[job_id], quantile)


def submit(world: World, job: Job) -> Job:
    world.step(world.now + 1, JobSubmitted(job))
    return job


def test_a_known_duration_is_the_remaining_work() -> None:
    world = World("known")
    for job, seconds in (
        (make_job("a", work=500), 500),
        (make_job("b", work=0), 1),
        (make_job("c", work=None, time_limit=50), inf),
    ):
        submit(world, job)
        assert [world.remaining_time(job, quantile) for quantile in (0.1, 0.5, 0.9)] == [seconds] * 3


@pytest.mark.parametrize(
    ("late", "remaining"), [(-30, 30), (0, 1), (1, 1), (2, 2), (8, 8), (60, 60), (61, 60), (1900, 100), (9900, 500)]
)
def test_a_run_that_exceeds_its_known_duration_is_assumed_to_be_as_late_again(late: float, remaining: float) -> None:
    """The bound is that of other sources: a minute, or a twentieth of the run's age."""
    world = World("known")
    world.step(0.0, JobSubmitted(make_job("a", work=100)), start="a")
    world.step(100.0 + late)
    assert world.remaining_run_time("a") == pytest.approx(remaining)


def test_a_known_duration_is_reduced_by_the_work_done() -> None:
    world, job = World("known"), make_job("a", work=500)
    world.step(0, JobSubmitted(job), start="a")
    world.step(0, RunStarted("a", 1))
    world.step(100, RunProgressed("a", 1, 80.0))
    assert world.remaining_run_time("a") == 420
    world.step(150, RunFailed("a", 1, "crashed", 80.0, retry=True))
    assert world.remaining_time(job) == 420


def test_the_time_limit_is_the_duration_and_without_one_it_is_predicted() -> None:
    world = World("limit")
    assert world.remaining_time(submit(world, make_job("a", work=5, time_limit=3600))) == 3600
    silent = submit(world, make_job("b", work=5))
    assert 1 <= world.remaining_time(silent, 0.1) < world.remaining_time(silent, 0.9) < inf


def test_a_run_beyond_its_limit_is_assumed_to_continue_for_a_minute_or_a_twentieth_of_its_age() -> None:
    world = World("limit")
    world.step(0, JobSubmitted(make_job("a", time_limit=10)), start="a")
    world.step(100)
    assert world.remaining_run_time("a") == 60
    world.step(10_000)
    assert world.remaining_run_time("a") == 500


def test_predictions_are_learned_from_finished_jobs() -> None:
    world = World()
    before = world.remaining_time(submit(world, make_job("before", user="ann")))
    for number in range(60):
        world.run(make_job(f"ann{number}", user="ann", work=None), 100.0)
        world.run(make_job(f"bob{number}", user="bob", work=None), 20_000.0)
    ann, bob = make_job("a", user="ann"), make_job("b", user="bob")
    submit(world, ann), submit(world, bob)
    assert 60 < world.remaining_time(ann) < 170
    assert 12_000 < world.remaining_time(bob) < 34_000
    assert before not in (world.remaining_time(ann), world.remaining_time(bob))
    assert world.remaining_time(ann, 0.1) <= world.remaining_time(ann, 0.5) <= world.remaining_time(ann, 0.95)


def test_predictions_do_not_use_the_work_of_a_job() -> None:
    answers = []
    for work in (10.0, 10_000.0):
        world = World()
        for number in range(10):
            world.run(make_job(f"{number}", work=work), 300.0)
        job = submit(world, make_job("a", work=work))
        answers.append([world.remaining_time(job, quantile) for quantile in (0.1, 0.5, 0.9)])
    assert answers[0] == answers[1]


def test_the_longer_a_run_has_taken_the_longer_it_is_assumed_to_continue() -> None:
    world = World()
    for number in range(60):
        world.run(make_job(f"{number}"), 100.0)
    world.step(world.now, JobSubmitted(make_job("a")), start="a")
    started, remaining = world.now, []
    for age in (100, 1000, 50_000):
        world.step(started + age)
        remaining.append(world.remaining_run_time("a"))
        assert remaining[-1] >= max(60, 0.05 * age)
    assert remaining == sorted(remaining)


def test_earlier_runs_count_towards_the_run_time_of_a_job() -> None:
    world, job = World(), make_job("a", user="ann")
    for number in range(60):
        world.run(make_job(f"{number}", user="ann"), 1000.0)
    world.step(world.now, JobSubmitted(job), start="a")
    whole = DurationSource.remaining_time(world.policy.durations, world.scheduler.view, job).quantile(0.5)
    world.step(world.now + 600, RunFailed("a", 1, "lost", 0.0, retry=True))
    assert world.remaining_time(job) < whole - 300


def test_reported_steps_determine_the_remaining_time() -> None:
    world, job = World(), make_job("a", steps=1000)
    world.step(0, JobSubmitted(job), start="a")
    world.step(0, RunStarted("a", 1))
    world.step(5000, RunProgressed("a", 1, 5000.0, steps=500))
    assert 3000 < world.remaining_run_time("a") < 8000


def test_nothing_is_learned_from_jobs_cancelled_before_they_ran() -> None:
    world, other = World(), World()
    for number in range(20):
        for one in (world, other):
            one.run(make_job(f"{number}"), 300.0)
        submit(world, make_job(f"cancelled{number}"))
        world.step(world.now, JobCancelled(f"cancelled{number}"))
    assert world.policy.durations._predictor.unfinished == 0
    job = make_job("a")
    submit(world, job), submit(other, job)
    assert world.remaining_time(job) == pytest.approx(other.remaining_time(job), rel=0.2)


def test_an_unknown_source_is_rejected() -> None:
    with pytest.raises(BadValue, match="durations is 'guessed', expected one of predicted, limit, known"):
        DurationSource("guessed")  # type: ignore[arg-type]


def test_past_jobs_are_learned_like_observed_ones() -> None:
    observed, restored = World(), World()
    for number in range(40):
        observed.run(make_job(f"p{number}", user="u"), 300.0)
    restored.step(observed.now, *(PastJob(make_job(f"p{number}", user="u"), 300.0) for number in range(40)))
    times = [world.remaining_time(submit(world, make_job("a", user="u"))) for world in (observed, restored)]
    assert times[1] == pytest.approx(times[0], rel=0.1)
    assert times[1] == pytest.approx(300.0, rel=0.1)


def test_run_time_before_a_hold_or_before_the_journal_began_is_counted() -> None:
    job = make_job("a", user="u")
    stopped, held, restored, adopted = World(), World(), World(), World()
    for world in (stopped, held):
        world.step(0.0, JobSubmitted(job), start="a")
        world.step(3600.0, *([JobHeld("a")] if world is held else []))
        world.step(3600.0, RunStopped("a", 1, 3600.0) if world is held else RunFailed("a", 1, retry=True))
    held.step(3600.0, JobReleased("a"))
    restored.step(3600.0, *stopped.scheduler.snapshot())
    times = [world.remaining_time(job) for world in (stopped, held, restored)]
    assert times == pytest.approx([times[0]] * 3)
    allocation = Allocation((Share(0, (0,)),))
    adopted.step(
        3600.0, JobSubmitted(job), JobContinued("a", 2, gpu_seconds=3600.0), RunAdopted("a", 2, allocation, 3600.0)
    )
    stopped.step(3600.0, start="a")
    assert adopted.remaining_run_time("a") == pytest.approx(stopped.remaining_run_time("a"))


def test_thousands_of_new_jobs_are_recorded_over_several_decisions_and_can_be_predicted_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("refold.policies.common.durations.MAX_RECORDED", 2)
    world = World()
    for number in range(5):
        world.run(make_job(f"before-{number}", user="u"), 1000)
    jobs = [make_job(f"new-{number}", user="u") for number in range(5)]
    world.step(world.now + 1, *map(JobSubmitted, jobs))
    predicted = [world.remaining_time(job) for job in jobs]
    assert predicted == pytest.approx([predicted[0]] * 5, rel=0.2)
    predictor = world.policy.durations._predictor
    assert predictor.unfinished == 2
    world.step(world.now + 1, JobCancelled("new-4"))
    assert predictor.unfinished == 4
    world.step(world.now + 1, JobCancelled("new-0"))
    assert predictor.unfinished == 3  # the cancelled job that was not recorded is not recorded any more


class ComparedServices:
    """`fifo`, which compares at each decision what is predicted for all jobs in one call and for each of them."""

    name = "compared-services"

    def __init__(self) -> None:
        self._policy = make_policy("fifo", {})
        self._together, self._alone = ExpectedService({}, 78.0), ExpectedService({}, 78.0)
        self.compared = 0

    def decide(self, view: View) -> Decision:
        jobs = [*view.waiting.values(), *view.active.values()]
        for service in (self._together, self._alone):
            service.observe(view)
            for job in jobs:
                service.forget(job.id)
        found = self._together.renew(view, jobs, np.array([view.done(job.id) for job in jobs]))
        assert found.tolist() == [self._alone.seconds(view, job) for job in jobs]
        assert [self._together.basis(job.id) for job in jobs] == [self._alone.basis(job.id) for job in jobs]
        self.compared += len(jobs)
        return self._policy.decide(view)


def test_the_service_of_many_jobs_is_that_of_each() -> None:
    jobs, cluster = seeded_workload(1, jobs=80)
    changed = [
        msgspec.structs.replace(
            job,
            preemptible=number % 3 > 0,
            time_limit=[None, 30.0, 300.0][number % 3],
            steps=100 if number % 5 == 0 else None,
        )
        for number, job in enumerate(jobs)
    ]
    policy = ComparedServices()
    simulate(changed, cluster, policy, costs=Costs(start=3.0, report_every=7.0))
    assert policy.compared > 1000
