"""Nodes are reserved for starving jobs, so that they start although nothing may be preempted."""

from __future__ import annotations

from random import Random

import pytest
from scripted_policy import ScriptedPolicy

from refold.core import JobSubmitted, Journals, ListJournal, Scheduler
from refold.core.events import RunStarted
from refold.core.orders import StartRun
from refold.model import Allocation, Decision, Job, Reason, Share, Start
from refold.placement import Placer
from refold.policies.common import Draft
from refold.policies.refold.policy import Refold
from refold.simulator import simulate
from refold.testing import Audit, make_cluster, make_job

HOUR = 3600.0
NEVER = 1e9
TWO_NODES = make_cluster(4, 4)


def fixed(name: str, gpus: int, at: float, work: float) -> Job:
    return make_job(name, gpus=gpus, at=at, work=work, preemptible=False)


def crowd(work: float, gap: float, count: int) -> list[Job]:
    """Return jobs with one GPU, of which about `work / gap` run at any time."""
    return [fixed(f"n{number:03}", 1, number * gap, work) for number in range(count)]


class Result:
    """When each job started in a simulation, and the reasons why it waited."""

    def __init__(self, jobs: list[Job], starvation_seconds: float = 4 * HOUR, goal: str = "time") -> None:
        journal = ListJournal()
        ordered = sorted(jobs, key=lambda job: job.submitted)
        policy = Refold(starvation_seconds=starvation_seconds, goal=goal)
        simulate(ordered, TWO_NODES, policy, journal=Journals(Audit(TWO_NODES), journal))
        orders = [(entry.now, order) for entry in journal.entries for order in entry.orders]
        self.starts = {order.job: now for now, order in orders if isinstance(order, StartRun)}
        self.waits = {(wait.job, wait.reason) for entry in journal.entries for wait in entry.waits}


@pytest.mark.parametrize(("gpus", "instances"), [(4, 1), (4, 2)])
def test_a_job_that_needs_whole_nodes_starts_soon_after_it_is_starving(gpus: int, instances: int) -> None:
    wide = make_job("wide", gpus=gpus, instances=instances, at=3 * HOUR, work=600.0, preemptible=False)
    jobs = [*crowd(work=2 * HOUR, gap=HOUR / 4, count=120), wide]
    assert Result(jobs, starvation_seconds=NEVER).starts["wide"] > 25 * HOUR
    starving = 7 * HOUR
    assert starving < Result(jobs).starts["wide"] <= starving + 2 * HOUR


def test_nodes_stay_reserved_until_the_job_starts_whatever_the_goal() -> None:
    """Lengths are such that other nodes would be chosen in some rounds."""
    rng = Random(6)
    jobs = [
        fixed(f"n{number:03}", 1, number * HOUR / 4, rng.choice((0.4, 0.8, 2.4, 4.8)) * HOUR) for number in range(100)
    ]
    jobs.append(fixed("wide", 4, 3 * HOUR, 600.0))
    assert Result(jobs, goal="throughput").starts == Result(jobs, goal="time").starts


def test_a_smaller_job_waits_because_the_free_gpus_are_reserved() -> None:
    result = Result([*crowd(work=2 * HOUR, gap=HOUR / 4, count=60), fixed("wide", 4, 3 * HOUR, 600.0)])
    kept_off = {name for name, reason in result.waits if reason is Reason.RESERVED}
    assert kept_off and "wide" not in kept_off
    assert all(result.starts[name] > 7 * HOUR for name in kept_off)


def test_jobs_that_end_before_the_nodes_are_free_may_start_there() -> None:
    long = [fixed(f"l{number}", 1, 0.0, 40 * HOUR) for number in range(7)]
    short = [fixed(f"s{number:03}", 1, 60.0 * number, 30.0) for number in range(1000)]
    result = Result([*long, *short, fixed("wide", 4, 1.0, 600.0)])
    reserved = range(4, 16)  # hours in which the job is starving and short ones arrive
    delays = [result.starts[job.id] - job.submitted for job in short if job.submitted // HOUR in reserved]
    assert delays and max(delays) <= 60.0
    assert result.starts["wide"] == pytest.approx(40 * HOUR, abs=1.0)


def test_runs_on_closed_nodes_may_stay_but_no_other_job_starts_there() -> None:
    policy = ScriptedPolicy()
    scheduler = Scheduler(TWO_NODES, policy)
    held = Allocation((Share(0, (0,)),))
    policy.next = Decision((Start("a", held),))
    scheduler.step(0.0, [JobSubmitted(fixed("a", 1, 0.0, HOUR)), JobSubmitted(fixed("b", 1, 0.0, HOUR))])
    scheduler.step(0.0, [RunStarted("a", 1)])
    draft, job = Draft(scheduler.view), scheduler.view.waiting["b"]
    draft.close_nodes([0])
    assert not draft.assign("b", Allocation((Share(0, (1,)),)))
    draft.release("a")
    assert draft.assign("a", held) and draft.allocation_of("a") == held and not draft.changed
    assert draft.place("b", Placer(), job.demand, None)
    placed = draft.allocation_of("b")
    assert placed is not None and placed.nodes == {1}
    draft.open_nodes()
    assert draft.free.whole_gpus == 6
