"""Run watch: runs without progress are flagged, then ended; a policy with healthy runs is not affected."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from refold.core import Journals, ListJournal, Scheduler, View
from refold.core.events import (
    Event,
    JobSubmitted,
    PastJob,
    RunAdopted,
    RunFinished,
    RunProgressed,
    RunStarted,
    RunStopped,
)
from refold.core.orders import Order, StartRun, StopRun
from refold.errors import BadDecision, BadInput, BadValue, UnknownName
from refold.model import NO_CHANGE, Allocation, Decision, End, Flag, Job, Launch, Reshape, Share, Start, Stop
from refold.policies import POLICIES
from refold.policies.common.run_watch import RunWatch, WatchRules
from refold.simulator import Costs, Fault, random_never_ending_jobs, simulate
from refold.simulator.registry import make_policy
from refold.testing import Audit, PolicyContract, make_cluster, make_job, seeded_workload

MINUTE = 60.0
NO_PROGRESS = WatchRules(no_progress=10 * MINUTE, grace=5 * MINUTE)
LIMIT = WatchRules(beyond_limit=True, grace=5 * MINUTE)
FIRST_GPU = Allocation((Share(0, (0,)),))


class _ScriptedPolicy:
    """A policy that returns the decision set by the test, or that of fifo if none is set."""

    name = "scripted"

    def __init__(self, decision: Decision | None) -> None:
        self.decision = decision
        self.rounds: list[tuple[float, list[str]]] = []
        self._fifo = make_policy("fifo")

    def decide(self, view: View) -> Decision:
        self.rounds.append((view.now, [run.job for run in view.changes.started]))
        return self._fifo.decide(view) if self.decision is None else self.decision


def scheduler(rules: WatchRules, *jobs: Job, gpus: int = 1) -> Scheduler:
    """Return a scheduler with a watched fifo on one node, to which the jobs have been submitted."""
    made = Scheduler(make_cluster(gpus), RunWatch(make_policy("fifo"), rules))
    made.step(0.0, [JobSubmitted(job) for job in jobs])
    return made


def watch_result(
    scheduler: Scheduler, now: float, *events: Event
) -> tuple[tuple[Flag, ...], tuple[End, ...], float | None]:
    """Return flags, ends and the next wake-up time of one step."""
    entry = scheduler.step(now, events)
    return entry.flags, entry.ends, entry.wake_at


def orders(scheduler: Scheduler, now: float, *events: Event) -> tuple[Order, ...]:
    return scheduler.step(now, events).orders


# No progress.


def test_a_run_that_stops_reporting_is_flagged_and_ended_after_the_grace_period() -> None:
    watched = scheduler(NO_PROGRESS, make_job("a"))
    assert watch_result(watched, 60.0, RunProgressed("a", 1, 50.0)) == ((), (), 660.0)
    warning = Flag("a", "no progress for 10 min; will be ended in 5 min unless this changes")
    assert watch_result(watched, 660.0) == ((warning,), (), 960.0)
    assert watch_result(watched, 700.0) == ((), (), 960.0)
    flags, ends, _ = watch_result(watched, 960.0)
    assert (flags, ends) == ((), (End("a", "no progress for 15 min", "no progress"),))


def job_with_own_limit(name: str, seconds: float, **more: Any) -> Job:
    return make_job(name, launch=Launch(no_progress=seconds), **more)


def test_a_job_is_checked_against_its_own_time_without_progress_if_per_job_is_set() -> None:
    rules = msgspec.structs.replace(NO_PROGRESS, per_job=True)
    watched = scheduler(rules, job_with_own_limit("a", 60.0), job_with_own_limit("b", 3600.0), make_job("c"), gpus=3)
    reports = [RunProgressed(name, 1, 9.0) for name in "abc"]
    assert watch_result(watched, 10.0, *reports)[2] == 60.0  # the check that was scheduled when 'a' began
    assert watch_result(watched, 60.0) == ((), (), 70.0)
    warning = "no progress for {}; will be ended in 5 min unless this changes"
    assert watch_result(watched, 70.0) == ((Flag("a", warning.format("1 min")),), (), 370.0)
    assert watch_result(watched, 370.0)[1] == (End("a", "no progress for 6 min", "no progress"),)
    assert watch_result(watched, 610.0)[0] == (Flag("c", warning.format("10 min")),)
    assert watch_result(watched, 3610.0)[0] == (Flag("b", warning.format("1 h")),)


def test_a_job_with_its_own_time_is_watched_although_it_never_reports_and_the_rules_set_none() -> None:
    watched = scheduler(WatchRules(per_job=True, grace=0.0), job_with_own_limit("a", 60.0), make_job("b"), gpus=2)
    flags, ends, _ = watch_result(watched, 60.0)
    assert (flags, ends) == (
        (Flag("a", "no progress for 1 min; ended now"),),
        (End("a", "no progress for 1 min", "no progress"),),
    )
    assert watch_result(watched, 1e6)[:2] == ((), ())


def test_the_jobs_own_time_without_progress_is_ignored_unless_per_job_is_set() -> None:
    watched = scheduler(NO_PROGRESS, job_with_own_limit("a", 60.0))
    assert watch_result(watched, 10.0, RunProgressed("a", 1, 9.0)) == ((), (), 610.0)
    assert watch_result(watched, 609.0)[:2] == ((), ())


def test_a_run_that_was_running_when_the_journal_began_is_watched_from_then_on() -> None:
    watched = Scheduler(make_cluster(1), RunWatch(make_policy("fifo"), WatchRules(per_job=True, grace=0.0)))
    snapshot: list[Event] = [JobSubmitted(job_with_own_limit("a", 60.0)), RunAdopted("a", 3, FIRST_GPU, -500.0)]
    assert watch_result(watched, 0.0, *snapshot) == ((), (), 60.0)
    assert watch_result(watched, 60.0)[1] == (End("a", "no progress for 1 min", "no progress"),)


def test_a_watch_learns_run_times_from_jobs_before_the_journal_began() -> None:
    rules = WatchRules(beyond_tail=2.0, tail_at_least=1.0)
    past: list[Event] = [PastJob(make_job(f"p{number}", user="u"), 10.0) for number in range(300)]
    fresh, learned = (Scheduler(make_cluster(1), RunWatch(make_policy("fifo"), rules)) for _ in range(2))
    snapshot: list[Event] = [JobSubmitted(make_job("a", user="u")), RunAdopted("a", 1, FIRST_GPU, 0.0)]
    checks = [watch_result(one, 0.0, *facts, *snapshot)[2] for one, facts in ((fresh, []), (learned, past))]
    assert checks[0] is not None
    assert checks[1] is not None
    assert checks[1] < checks[0] / 10


def test_gpus_of_an_ended_run_are_reused_at_once_and_its_job_is_not_requeued() -> None:
    watched = scheduler(NO_PROGRESS, make_job("a"), make_job("next"))
    for now in (660.0, 960.0):
        last = watch_result(watched, now, RunProgressed("a", 1, 50.0))
    assert last[1] == ()  # the second report has no more work, but the first came at 660
    assert orders(watched, 1260.0) == ()
    assert orders(watched, 1560.0) == (StopRun("a", 1, "no progress for 15 min"),)
    assert orders(watched, 1565.0, RunStopped("a", 1)) == (StartRun("next", 1, FIRST_GPU),)
    assert dict(watched.view.waiting) == {}


def test_progress_withdraws_a_flag_and_it_may_be_raised_again() -> None:
    watched = scheduler(NO_PROGRESS, make_job("a"))
    watch_result(watched, 60.0, RunProgressed("a", 1, 50.0))
    assert len(watch_result(watched, 660.0)[0]) == 1
    assert watch_result(watched, 900.0, RunProgressed("a", 1, 55.0))[:2] == ((), ())
    assert watch_result(watched, 960.0) == ((), (), 1500.0)  # the scheduled end is cancelled
    assert watch_result(watched, 1500.0)[0] == (
        Flag("a", "no progress for 10 min; will be ended in 5 min unless this changes"),
    )


def test_steps_count_as_progress() -> None:
    watched = scheduler(NO_PROGRESS, make_job("a", steps=100))
    watch_result(watched, 60.0, RunProgressed("a", 1, 0.0, 3))
    watch_result(watched, 600.0, RunProgressed("a", 1, 0.0, 4))
    assert watch_result(watched, 660.0) == ((), (), 1200.0)


def test_a_job_that_never_reported_is_not_flagged_unless_silent_too_is_set() -> None:
    lenient = scheduler(NO_PROGRESS, make_job("a"))
    assert watch_result(lenient, 30.0, RunStarted("a", 1)) == ((), (), None)
    assert watch_result(lenient, 1e6) == ((), (), None)
    strict = scheduler(msgspec.structs.replace(NO_PROGRESS, silent_too=True), make_job("a"))
    assert watch_result(strict, 30.0, RunStarted("a", 1)) == ((), (), 600.0)
    assert watch_result(strict, 600.0) == ((), (), 630.0)  # time spent starting up does not count
    assert watch_result(strict, 630.0)[0] == (
        Flag("a", "no progress for 10 min; will be ended in 5 min unless this changes"),
    )


def test_a_job_that_reported_in_an_earlier_run_counts_as_reporting() -> None:
    within = _ScriptedPolicy(None)
    watched = Scheduler(make_cluster(1), RunWatch(within, NO_PROGRESS))
    watched.step(0.0, [JobSubmitted(make_job("a"))])
    watch_result(watched, 60.0, RunProgressed("a", 1, 50.0))
    within.decision = Decision(stops=(Stop("a"),))
    watched.step(100.0, [JobSubmitted(make_job("wide", gpus=9))])
    within.decision = Decision(starts=(Start("a", FIRST_GPU),))
    assert watch_result(watched, 110.0, RunStopped("a", 1, 50.0))[2] is None  # a wake-up at 660 was already requested
    within.decision = NO_CHANGE
    assert watch_result(watched, 660.0) == ((), (), 710.0)
    assert watch_result(watched, 710.0)[0] == (
        Flag("a", "no progress for 10 min; will be ended in 5 min unless this changes"),
    )


# Limits.


def test_a_time_limit_is_enforced_even_for_a_job_that_is_not_preemptible() -> None:
    watched = scheduler(LIMIT, make_job("a", time_limit=3600.0, preemptible=False))
    assert watch_result(watched, 3000.0)[2] == 3600.0
    assert watch_result(watched, 3600.0) == (
        (
            Flag(
                "a",
                "has run for 1 h, beyond its time limit of 1 h; will be ended in 5 min",
                "time limit",
            ),
        ),
        (),
        3900.0,
    )
    assert watch_result(watched, 3900.0)[1] == (
        End("a", "has run for 1 h 5 min, beyond its time limit of 1 h", "time limit"),
    )


def test_a_time_limit_has_a_grace_period_of_its_own() -> None:
    rules = WatchRules(beyond_limit=True, per_job=True, grace=5 * MINUTE, limit_grace=0.0)
    jobs = make_job("a", time_limit=3600.0), job_with_own_limit("b", 3600.0)
    watched = scheduler(rules, *jobs, gpus=2)
    beyond = "has run for 1 h, beyond its time limit of 1 h"
    flags, ends, wake_at = watch_result(watched, 3600.0)
    assert [(flag.job, flag.why) for flag in flags] == [
        ("a", f"{beyond}; ended now"),
        ("b", "no progress for 1 h; will be ended in 5 min unless this changes"),
    ]
    assert (ends, wake_at) == ((End("a", beyond, "time limit"),), 3660.0)


def test_waiting_does_not_count_towards_a_limit_and_earlier_runs_do() -> None:
    within = _ScriptedPolicy(None)
    watched = Scheduler(make_cluster(1), RunWatch(within, LIMIT))
    watched.step(0.0, [JobSubmitted(make_job("a", time_limit=3600.0))])
    within.decision = Decision(stops=(Stop("a"),))
    assert orders(watched, 1000.0, JobSubmitted(make_job("wide", gpus=9))) == (StopRun("a", 1),)
    within.decision = NO_CHANGE
    assert orders(watched, 1000.0, RunStopped("a", 1, 1000.0)) == ()
    within.decision = Decision(starts=(Start("a", FIRST_GPU),))
    assert watch_result(watched, 5000.0, JobSubmitted(make_job("b"))) == ((), (), 5000.0 + 2600.0)
    within.decision = NO_CHANGE
    assert len(watch_result(watched, 7600.0)[0]) == 1


def test_a_job_without_a_time_limit_is_not_flagged() -> None:
    watched = scheduler(LIMIT, make_job("a"))
    assert watch_result(watched, 1e7) == ((), (), None)


def test_a_run_on_fewer_gpus_than_requested_may_exceed_the_limit() -> None:
    job = make_job("a", gpus=2, reshapable=True, time_limit=100.0)
    small = Allocation((Share(0, (0,)),))
    watched = Scheduler(make_cluster(2), RunWatch(_ScriptedPolicy(Decision(starts=(Start("a", small),))), LIMIT))
    assert watched.step(0.0, [JobSubmitted(job)]).wake_at is None


# The tail.


def test_a_run_beyond_the_predicted_tail_is_flagged_and_ended_only_if_configured() -> None:
    for end, ends in ((False, 0), (True, 1)):
        rules = WatchRules(beyond_tail=2.0, tail_at_least=1000.0, end_beyond_tail=end, grace=MINUTE)
        jobs = [make_job(f"j{number}", at=100.0 * number, work=60.0) for number in range(50)]
        jobs.append(make_job("long", at=6000.0, work=1e6))
        journal = ListJournal()
        simulate(jobs, make_cluster(1), RunWatch(make_policy("fifo"), rules), journal=journal)
        flagged = [(entry.now, flag.job) for entry in journal.entries for flag in entry.flags]
        assert [job for _, job in flagged] == ["long"]
        assert 7000.0 <= flagged[0][0] < 1e6
        assert [end.job for entry in journal.entries for end in entry.ends] == ["long"] * ends


def test_the_tail_depends_on_what_was_known_when_the_run_began() -> None:
    rules = WatchRules(beyond_tail=2.0, tail_at_least=1.0)

    def flagged(later_work: float) -> list[float]:
        early = [make_job(f"e{number}", at=100.0 * number, work=60.0) for number in range(50)]
        long = [make_job("long", at=5000.0, work=1e5)]
        later = [make_job(f"l{number}", at=5001.0 + number, work=later_work) for number in range(20)]
        journal = ListJournal()
        simulate(early + long + later, make_cluster(4), RunWatch(make_policy("fifo"), rules), journal=journal)
        return [entry.now for entry in journal.entries for flag in entry.flags if flag.job == "long"]

    assert len(flagged(10.0)) == 1
    assert flagged(10.0) == flagged(90.0)


# Interaction with the policy.


def test_a_run_that_the_policy_stops_is_not_ended_in_the_same_decision() -> None:
    within = _ScriptedPolicy(None)
    watched = Scheduler(make_cluster(1), RunWatch(within, LIMIT))
    watched.step(0.0, [JobSubmitted(make_job("a", time_limit=100.0))])
    assert len(watch_result(watched, 100.0)[0]) == 1
    within.decision = Decision(stops=(Stop("a", "for another"),))
    assert orders(watched, 400.0, JobSubmitted(make_job("b"))) == (StopRun("a", 1, "for another"),)
    within.decision = NO_CHANGE
    assert watch_result(watched, 500.0)[:2] == ((), ())  # while it is stopping


def test_a_run_that_the_policy_reshapes_is_not_ended_in_the_same_decision() -> None:
    within = _ScriptedPolicy(None)
    watched = Scheduler(make_cluster(2), RunWatch(within, LIMIT))
    watched.step(0.0, [JobSubmitted(make_job("a", time_limit=100.0))])
    assert len(watch_result(watched, 100.0)[0]) == 1
    elsewhere = Allocation((Share(0, (0,)),))
    within.decision = Decision(reshapes=(Reshape("a", elsewhere),))
    assert orders(watched, 400.0, JobSubmitted(make_job("b"))) == (StopRun("a", 1, next=elsewhere),)
    within.decision = NO_CHANGE
    assert orders(watched, 405.0, RunStopped("a", 1, 400.0)) == (StartRun("a", 2, elsewhere),)
    assert len(watch_result(watched, 406.0)[0]) == 1  # its new run exceeds the limit from the beginning: a new flag
    assert len(watch_result(watched, 706.0)[1]) == 1


def test_the_policy_does_not_see_rounds_of_the_watch_and_misses_no_events() -> None:
    within = _ScriptedPolicy(None)
    watched = Scheduler(make_cluster(2), RunWatch(within, LIMIT))
    watched.step(0.0, [JobSubmitted(make_job("a", time_limit=100.0)), JobSubmitted(make_job("b"))])
    watched.step(100.0, ())  # the watch flags a
    watched.step(500.0, [RunFinished("b", 1)])
    assert within.rounds == [(0.0, []), (500.0, ["a", "b"])]


def test_the_policy_is_woken_when_it_requested_it() -> None:
    within = _ScriptedPolicy(Decision(wake_at=150.0))
    watched = Scheduler(make_cluster(1), RunWatch(within, LIMIT))
    assert watched.step(0.0, ()).wake_at == 150.0
    within.decision = None
    watched.step(10.0, [JobSubmitted(make_job("a", time_limit=90.0))])
    assert [watched.step(now, ()).wake_at for now in (100.0, 150.0)] == [150.0, 400.0]
    assert [now for now, _ in within.rounds] == [0.0, 10.0, 150.0]


def test_an_end_that_was_rejected_with_its_decision_is_repeated() -> None:
    within, rejected = _ScriptedPolicy(None), list[BadDecision]()
    watched = Scheduler(make_cluster(1), RunWatch(within, LIMIT), on_rejection=rejected.append)
    watched.step(0.0, [JobSubmitted(make_job("a", time_limit=120.0))])
    watched.step(120.0, ())
    within.decision = Decision(starts=(Start("unknown", FIRST_GPU),))
    assert orders(watched, 420.0, JobSubmitted(make_job("b"))) == ()
    assert [rejection.rule for rejection in rejected] == ["waiting"]
    within.decision = NO_CHANGE
    assert watch_result(watched, 500.0, JobSubmitted(make_job("c")))[2] == 720.0
    assert orders(watched, 720.0) == (StopRun("a", 1, "has run for 12 min, beyond its time limit of 2 min"),)


@pytest.mark.parametrize("policy", POLICIES)
@hypothesis_settings(max_examples=3)
@given(seed=st.integers(0, 2**32), report=st.sampled_from([None, 7.0]), stop=st.sampled_from([0.0, 5.0]))
def test_a_watch_that_ends_nothing_does_not_change_the_orders(
    policy: str, seed: int, report: float | None, stop: float
) -> None:
    rng = random.Random(seed)
    jobs, cluster = seeded_workload(seed, jobs=30)
    jobs = [msgspec.structs.replace(job, time_limit=rng.choice([None, 3.3, 47.1, 1e4])) for job in jobs]
    never = {"no_progress": 11.1, "silent_too": True, "beyond_limit": True, "beyond_tail": 0.1, "grace": 1e9}

    def journal(settings: dict[str, Any]) -> list[tuple[float, tuple[Order, ...]]]:
        recorded = ListJournal()
        costs = Costs(start=2.0, stop=stop, restart=3.0, report_every=report)
        made = make_policy(policy, settings)
        simulate(jobs, cluster, made, journal=recorded, costs=costs, faults=[Fault(0, 100.0, 200.0)])
        flag_counts.append(sum(len(entry.flags) for entry in recorded.entries))
        return [(entry.now, entry.orders) for entry in recorded.entries if entry.orders]

    flag_counts: list[int] = []
    assert journal({"watch": never | {"tail_at_least": 13.0}}) == journal({})
    assert flag_counts[0] > 0


@hypothesis_settings(max_examples=15)
@given(seed=st.integers(0, 2**32), policy=st.sampled_from(["fifo", "fifo-skip", "las", "srtf", "drf"]))
def test_every_stuck_job_is_ended_after_a_flag_and_the_journal_replays(seed: int, policy: str) -> None:
    jobs, cluster = seeded_workload(seed, jobs=30)
    stuck = random_never_ending_jobs(jobs, stuck=0.2, seed=seed)
    settings = {"watch": {"no_progress": 25.0, "silent_too": True, "grace": 10.0}}
    audit, journal = Audit(cluster), ListJournal()
    costs = Costs(start=2.0, stop=3.0, restart=4.0, report_every=10.0)
    made = make_policy(policy, settings)
    simulate(jobs, cluster, made, journal=Journals(audit, journal), costs=costs, never_end=stuck)
    assert {job for job, outcome in audit.ended.items() if outcome == "cancelled"} == {one.job for one in stuck}
    assert len(audit.ended) == len(jobs)
    flagged: dict[str, float] = {}
    for entry in journal.entries:
        flagged.update({flag.job: entry.now for flag in entry.flags})
        assert all(entry.now >= flagged[end.job] + 10.0 for end in entry.ends)
    again = Scheduler(cluster, make_policy(policy, settings))
    assert [again.step(entry.now, entry.events) for entry in journal.entries] == journal.entries


class TestWatched(PolicyContract):
    """A watched policy satisfies the policy contract."""

    def make_policy(self) -> RunWatch:
        return RunWatch(make_policy("las"), WatchRules(beyond_limit=True, beyond_tail=3.0))


# As settings.


def test_watch_is_a_setting_of_every_policy() -> None:
    made = make_policy("las", {"placement": "fgd", "watch": {"no_progress": 600}})
    assert isinstance(made, RunWatch)
    assert made.name == "las"


@pytest.mark.parametrize(
    ("rules", "error", "words"),
    [
        ({}, BadValue, "watch has no rule, expected no_progress"),
        ({"no_progres": 3}, UnknownName, "did you mean 'no_progress'"),
        ({"no_progress": "soon"}, BadInput, "no_progress"),
        ({"no_progress": 0}, BadValue, "no_progress of watch is 0.0, expected > 0"),
        ({"no_progress": float("nan")}, BadValue, "no_progress of watch is nan, expected > 0"),
        ({"beyond_limit": True, "grace": -1}, BadValue, "grace of watch is -1.0, expected seconds ≥ 0"),
        ({"beyond_limit": True, "limit_grace": -1}, BadValue, "limit_grace of watch is -1.0, expected seconds ≥ 0"),
        ({"beyond_limit": True, "silent_too": True}, BadValue, "silent_too of watch needs no_progress"),
        ({"beyond_limit": True, "end_beyond_tail": True}, BadValue, "end_beyond_tail of watch needs beyond_tail"),
        (3, BadInput, "watch is 3, expected rules"),
    ],
)
def test_invalid_rules_are_rejected(rules: Any, error: type[Exception], words: str) -> None:
    with pytest.raises((error, BadInput)) as rejected:
        make_policy("fifo", {"watch": rules})
    assert words in str(rejected.value)
