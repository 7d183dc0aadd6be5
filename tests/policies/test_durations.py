"""How long jobs will last, as a policy believes it."""

from math import inf

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
from refold.policies.common.durations import DurationSource, Source
from refold.testing import make_cluster, make_job


class Looking:
    """A policy that starts whoever it is told to on the first GPU, and has durations."""

    name = "looking"

    def __init__(self, source: Source) -> None:
        self.durations = DurationSource(source)
        self.start = ""

    def decide(self, view: View) -> Decision:
        self.durations.observe(view)
        if self.start not in view.waiting:
            return Decision()
        return Decision(starts=(Start(self.start, Allocation((Share(0, (0,)),))),))


class World:
    """One GPU, and somebody who has durations."""

    def __init__(self, source: Source = "predicted") -> None:
        self.policy = Looking(source)
        self.scheduler = Scheduler(make_cluster(1), self.policy)
        self.now = 0.0

    def step(self, now: float, *events: Event, start: str = "") -> None:
        self.now, self.policy.start = now, start
        self.scheduler.step(now, events)

    def run(self, job: Job, seconds: float) -> None:
        """A job comes, runs for so long, and is over."""
        self.step(self.now + 1, JobSubmitted(job), start=job.id)
        self.step(self.now + seconds, RunFinished(job.id, 1))

    def life(self, job: Job, quantile: float = 0.5) -> float:
        return self.policy.durations.life(self.scheduler.view, job).quantile(quantile)

    def left(self, job_id: str, quantile: float = 0.5) -> float:
        view = self.scheduler.view
        return self.policy.durations.left(view, view.runs[job_id], quantile)


def waiting(world: World, job: Job) -> Job:
    world.step(world.now + 1, JobSubmitted(job))
    return job


def test_what_is_known_is_the_work_that_is_left() -> None:
    world = World("known")
    for job, seconds in (
        (make_job("a", work=500), 500),
        (make_job("b", work=0), 1),
        (make_job("c", work=None, time_limit=50), inf),
    ):
        waiting(world, job)
        assert [world.life(job, quantile) for quantile in (0.1, 0.5, 0.9)] == [seconds] * 3


def test_what_is_known_of_a_job_that_has_done_some_of_its_work_is_the_rest() -> None:
    world, job = World("known"), make_job("a", work=500)
    world.step(0, JobSubmitted(job), start="a")
    world.step(0, RunStarted("a", 1))
    world.step(100, RunProgressed("a", 1, 80.0))
    assert world.left("a") == 420
    world.step(150, RunFailed("a", 1, "crashed", 80.0, retry=True))
    assert world.life(job) == 420


def test_what_users_say_is_taken_for_the_truth_and_without_it_there_is_a_prediction() -> None:
    world = World("limit")
    assert world.life(waiting(world, make_job("a", work=5, time_limit=3600))) == 3600
    silent = waiting(world, make_job("b", work=5))
    assert 1 <= world.life(silent, 0.1) < world.life(silent, 0.9) < inf


def test_who_outlives_its_limit_is_believed_to_go_on_for_a_minute_or_a_twentieth_of_its_age() -> None:
    world = World("limit")
    world.step(0, JobSubmitted(make_job("a", time_limit=10)), start="a")
    world.step(100)
    assert world.left("a") == 60
    world.step(10_000)
    assert world.left("a") == 500


def test_predictions_come_from_jobs_that_are_over() -> None:
    world = World()
    before = world.life(waiting(world, make_job("before", user="ann")))
    for number in range(60):
        world.run(make_job(f"ann{number}", user="ann", work=None), 100.0)
        world.run(make_job(f"bob{number}", user="bob", work=None), 20_000.0)
    ann, bob = make_job("a", user="ann"), make_job("b", user="bob")
    waiting(world, ann), waiting(world, bob)
    assert 60 < world.life(ann) < 170
    assert 12_000 < world.life(bob) < 34_000
    assert before not in (world.life(ann), world.life(bob))
    assert world.life(ann, 0.1) <= world.life(ann, 0.5) <= world.life(ann, 0.95)


def test_predictions_do_not_look_at_the_work_of_a_job() -> None:
    answers = []
    for work in (10.0, 10_000.0):
        world = World()
        for number in range(10):
            world.run(make_job(f"{number}", work=work), 300.0)
        job = waiting(world, make_job("a", work=work))
        answers.append([world.life(job, quantile) for quantile in (0.1, 0.5, 0.9)])
    assert answers[0] == answers[1]


def test_a_run_that_has_gone_on_for_long_is_believed_to_go_on_for_longer() -> None:
    world = World()
    for number in range(60):
        world.run(make_job(f"{number}"), 100.0)
    world.step(world.now, JobSubmitted(make_job("a")), start="a")
    begun, left = world.now, []
    for age in (100, 1000, 50_000):
        world.step(begun + age)
        left.append(world.left("a"))
        assert left[-1] >= max(60, 0.05 * age)
    assert left == sorted(left)


def test_what_a_job_has_run_before_it_was_stopped_is_part_of_its_life() -> None:
    world, job = World(), make_job("a", user="ann")
    for number in range(60):
        world.run(make_job(f"{number}", user="ann"), 1000.0)
    world.step(world.now, JobSubmitted(job), start="a")
    whole = DurationSource.life(world.policy.durations, world.scheduler.view, job).quantile(0.5)
    world.step(world.now + 600, RunFailed("a", 1, "lost", 0.0, retry=True))
    assert world.life(job) < whole - 300


def test_steps_that_are_reported_say_how_much_is_left() -> None:
    world, job = World(), make_job("a", steps=1000)
    world.step(0, JobSubmitted(job), start="a")
    world.step(0, RunStarted("a", 1))
    world.step(5000, RunProgressed("a", 1, 5000.0, steps=500))
    assert 3000 < world.left("a") < 8000


def test_jobs_that_are_gone_without_a_run_teach_nothing() -> None:
    world, other = World(), World()
    for number in range(20):
        for one in (world, other):
            one.run(make_job(f"{number}"), 300.0)
        waiting(world, make_job(f"gone{number}"))
        world.step(world.now, JobCancelled(f"gone{number}"))
    assert world.policy.durations._predictor.unfinished == 0
    job = make_job("a")
    waiting(world, job), waiting(other, job)
    assert world.life(job) == pytest.approx(other.life(job), rel=0.2)


def test_a_source_that_is_not_known_is_refused() -> None:
    with pytest.raises(BadValue, match="durations is 'guessed', expected one of predicted, limit, known"):
        DurationSource("guessed")  # type: ignore[arg-type]


def test_what_is_remembered_is_known_as_if_it_had_been_seen() -> None:
    seen, told = World(), World()
    for number in range(40):
        seen.run(make_job(f"p{number}", user="u"), 300.0)
    told.step(seen.now, *(PastJob(make_job(f"p{number}", user="u"), 300.0) for number in range(40)))
    lives = [world.life(waiting(world, make_job("a", user="u"))) for world in (seen, told)]
    assert lives[1] == pytest.approx(lives[0], rel=0.1)
    assert lives[1] == pytest.approx(300.0, rel=0.1)


def test_a_job_that_ran_before_it_was_held_or_the_journal_began_is_as_old_as_that() -> None:
    job = make_job("a", user="u")
    stopped, held, opened, adopted = World(), World(), World(), World()
    for world in (stopped, held):
        world.step(0.0, JobSubmitted(job), start="a")
        world.step(3600.0, *([JobHeld("a")] if world is held else []))
        world.step(3600.0, RunStopped("a", 1, 3600.0) if world is held else RunFailed("a", 1, retry=True))
    held.step(3600.0, JobReleased("a"))
    opened.step(3600.0, *stopped.scheduler.snapshot())
    lives = [world.life(job) for world in (stopped, held, opened)]
    assert lives == pytest.approx([lives[0]] * 3)
    place = Allocation((Share(0, (0,)),))
    adopted.step(3600.0, JobSubmitted(job), JobContinued("a", 2, gpu_seconds=3600.0), RunAdopted("a", 2, place, 3600.0))
    stopped.step(3600.0, start="a")
    assert adopted.left("a") == pytest.approx(stopped.left("a"))
