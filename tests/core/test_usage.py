"""GPU time used by users: decay, precision and memory."""

import pytest
from hypothesis import given, strategies as st
from scripted_policy import ScriptedPolicy, on

from refold.core import Scheduler, TenantUser, decayed_gpu_seconds
from refold.core.events import JobSubmitted, RunFinished
from refold.core.usage import FINEST, MAX_AGE, MAX_AMOUNTS, Usage
from refold.model import DAY, HOUR, Decision, Start
from refold.testing import make_cluster, make_job

ANN, BOB = TenantUser("vision", "ann"), TenantUser("vision", "bob")


def test_gpu_time_counts_half_after_one_half_life() -> None:
    usage = Usage()
    usage.add_run(ANN, 4.0, 0.0, 60.0)
    usage.add_run(BOB, 1.0, 0.0, 60.0)
    now = usage.decayed(30.0, DAY)
    assert now == {ANN: 240.0, BOB: 60.0}
    assert usage.decayed(30.0 + DAY, DAY) == {ANN: 120.0, BOB: 30.0}


def test_gpus_that_are_held_all_the_time_count_as_1_44_half_lives() -> None:
    assert decayed_gpu_seconds(2.0, 100 * HOUR, HOUR) == pytest.approx(2 * HOUR * 1.4427, rel=1e-4)


@given(
    runs=st.lists(st.tuples(st.integers(1, 8), st.floats(1.0, 3 * DAY)), min_size=1, max_size=200),
    half_life=st.sampled_from([4 * FINEST, DAY, 7 * DAY]),
)
def test_usage_is_precise_whatever_the_half_life(runs: list[tuple[int, float]], half_life: float) -> None:
    usage, now, exact = Usage(), 0.0, 0.0
    for gpus, seconds in runs:
        now += seconds
        exact = exact * 0.5 ** (seconds / half_life) + decayed_gpu_seconds(gpus, seconds, half_life)
        usage.add_run(ANN, gpus, now - seconds, now)
    assert usage.decayed(now, half_life)[ANN] == pytest.approx(exact, rel=0.1)
    assert sum(len(amounts) for _, amounts in usage.merged(now)) < 20


def test_memory_is_limited_and_old_usage_is_forgotten() -> None:
    usage = Usage()
    for minute in range(10_000):
        usage.add_run(ANN, 1.0, minute * 60.0, minute * 60.0 + 60.0)
    assert len(usage._amounts[ANN]) <= MAX_AMOUNTS
    assert list(usage.merged(2 * MAX_AGE)) == []


def test_the_view_counts_ended_and_current_runs_of_each_user() -> None:
    policy = ScriptedPolicy()
    scheduler = Scheduler(make_cluster(3), policy)
    policy.next = Decision((Start("a", on(0)), Start("b", on(1)), Start("c", on(2))))
    users = {"a": "ann", "b": "ann", "c": "bob"}
    jobs = [make_job(name, tenant="vision", user=user) for name, user in users.items()]
    scheduler.step(0.0, [*map(JobSubmitted, jobs)])
    scheduler.step(10.0, [RunFinished("b", 1)])
    scheduler.step(20.0, [])
    used = scheduler.view.decayed_usage(1e9)
    assert used == {ANN: pytest.approx(30.0), BOB: pytest.approx(20.0)}
    restarted = Scheduler(make_cluster(3), ScriptedPolicy())
    restarted.step(20.0, scheduler.snapshot())
    assert restarted.view.decayed_usage(1e9) == {ANN: pytest.approx(30.0), BOB: pytest.approx(20.0)}
