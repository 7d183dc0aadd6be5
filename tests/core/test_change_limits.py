"""Jobs limit how often policies stop or reshape them."""

from math import inf

import pytest
from scripted_policy import ScriptedPolicy, on

from refold.core import Scheduler
from refold.core.events import JobHeld, JobReleased, JobSubmitted, RunStopped
from refold.errors import BadDecision
from refold.model import ChangeLimit, Decision, End, Reshape, Start, Stop, consent_of
from refold.testing import make_cluster, make_job

TO = {0: on(0), 1: on(1)}


class Limited:
    """A job with a limit, which a scripted policy moves to and fro."""

    def __init__(self, limit: ChangeLimit) -> None:
        self.policy = ScriptedPolicy()
        self.scheduler = Scheduler(make_cluster(4), self.policy)
        self.policy.next = Decision((Start("a", on(0)),))
        self.scheduler.step(0.0, [JobSubmitted(make_job("a", reshapable=True, change_limit=limit))])

    def reshape(self, now: float) -> None:
        """Let the policy reshape the job."""
        run = self.scheduler.view.runs["a"]
        gpu = run.allocation.placement[0].gpus[0]
        self.policy.next = Decision(reshapes=(Reshape("a", TO[1 - gpu]),))
        self.scheduler.step(now, ())
        self.scheduler.step(now + 1, [RunStopped("a", run.number)])

    def is_preemptible(self, now: float) -> bool:
        self.scheduler.step(now, ())
        return self.scheduler.view.is_preemptible("a")


def test_a_job_is_changed_at_most_so_many_times() -> None:
    limited = Limited(ChangeLimit(at_most=2))
    for now in (10.0, 20.0):
        assert limited.is_preemptible(now)
        limited.reshape(now)
    assert not limited.is_preemptible(1e6)
    with pytest.raises(BadDecision, match="changed job 'a', which was changed as often as it allows"):
        limited.reshape(1e6)
    limited.policy.next = Decision(stops=(Stop("a"),))
    with pytest.raises(BadDecision, match="as often as it allows"):
        limited.scheduler.step(1e6, ())
    limited.policy.next = Decision(ends=(End("a", "hung"),))
    assert limited.scheduler.step(1e6, ()).orders


def test_a_job_that_allows_no_change_is_never_preemptible() -> None:
    assert not Limited(ChangeLimit(at_most=0)).is_preemptible(10.0)


def test_the_time_between_two_changes_is_limited() -> None:
    limited = Limited(ChangeLimit(every=600.0))
    assert limited.scheduler.view.next_preemptible_at() == inf
    limited.reshape(10.0)
    assert limited.scheduler.view.next_preemptible_at() == 610.0
    assert not limited.is_preemptible(609.0)
    assert limited.is_preemptible(610.0)


def test_only_changes_by_the_policy_count() -> None:
    limited = Limited(ChangeLimit(at_most=1))
    limited.scheduler.step(1.0, [JobHeld("a")])
    limited.policy.next = Decision((Start("a", on(0)),))
    limited.scheduler.step(2.0, [RunStopped("a", 1), JobReleased("a")])
    assert limited.is_preemptible(3.0)


def test_a_snapshot_keeps_the_number_and_time_of_changes() -> None:
    for limit in (ChangeLimit(at_most=1), ChangeLimit(every=600.0)):
        limited = Limited(limit)
        limited.reshape(10.0)
        again = Scheduler(make_cluster(4), ScriptedPolicy())
        again.step(20.0, limited.scheduler.snapshot())
        assert not again.view.is_preemptible("a")
        assert again.view.next_preemptible_at() == limited.scheduler.view.next_preemptible_at()


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (None, "yes, it is reshapable"),
        (ChangeLimit(1), "yes, it is reshapable, at most 1 time"),
        (ChangeLimit(5, 600.0), "yes, it is reshapable, at most 5 times, 10 min apart"),
    ],
)
def test_the_consent_of_a_job_has_its_limits(limit: ChangeLimit | None, text: str) -> None:
    assert str(consent_of(make_job("a", reshapable=True, change_limit=limit))) == text
