"""Jobs that never end by themselves: their reports and resources, and the end of simulations with such jobs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from refold.core import Journals, ListJournal, View
from refold.core.events import RunFailed, RunProgressed, RunStopped
from refold.core.orders import StartRun
from refold.errors import BadValue
from refold.journal import History
from refold.journal.history import Outcome
from refold.model import End, Job
from refold.simulator import Costs, Endless, Fault, NeverEnds, Stuck, random_never_ending_jobs, simulate
from refold.simulator.registry import make_policy
from refold.testing import Audit, make_cluster, make_job, seeded_workload

REPORTING = Costs(report_every=20.0)
WATCH = {"no_progress": 60.0, "beyond_limit": True, "grace": 30.0}


def simulate_one_gpu(
    jobs: list[Job],
    never_end: list[NeverEnds],
    *,
    policy: str = "fifo",
    watch: dict[str, Any] | None = None,
    **more: Any,
) -> tuple[ListJournal, View]:
    """Simulate jobs on one GPU, some of which never end."""
    journal = ListJournal()
    chosen_policy = make_policy(policy, {"watch": watch} if watch else {})
    view = simulate(jobs, make_cluster(1), chosen_policy, journal=journal, never_end=never_end, **more)
    return journal, view


def reports(journal: ListJournal, job: str) -> list[tuple[float, float]]:
    """Return time and work of each progress report of a job."""
    events = [(entry.now, event) for entry in journal.entries for event in entry.events]
    return [(now, event.done) for now, event in events if isinstance(event, RunProgressed) and event.job == job]


def starts(journal: ListJournal) -> list[tuple[float, str]]:
    return [
        (entry.now, order.job) for entry in journal.entries for order in entry.orders if isinstance(order, StartRun)
    ]


def test_a_hanging_run_holds_its_gpu_and_the_simulation_ends_with_jobs_waiting() -> None:
    jobs = [make_job("a"), make_job("b", at=1.0), make_job("c", at=2.0)]
    journal, view = simulate_one_gpu(jobs, [Stuck("a", 50.0)])
    assert starts(journal) == [(0.0, "a")]
    assert (list(view.runs), list(view.waiting)) == (["a"], ["b", "c"])
    history = History.from_entries(make_cluster(1), journal.entries)
    assert history.jobs.outcome.tolist() == [Outcome.RUNNING, Outcome.WAITING, Outcome.WAITING]


def test_a_hanging_run_stops_reporting_progress() -> None:
    jobs = [make_job("a", work=100.0), make_job("healthy", work=190.0)]
    journal = ListJournal()
    simulate(jobs, make_cluster(2), make_policy("fifo"), journal=journal, costs=REPORTING, never_end=[Stuck("a", 50.0)])
    assert reports(journal, "a") == [(20.0, 20.0), (40.0, 40.0), (60.0, 50.0)]
    assert reports(journal, "healthy")[-1] == (180.0, 180.0)


def test_a_waiting_job_starts_when_the_watch_has_ended_a_hanging_run() -> None:
    jobs = [make_job("a"), make_job("b", at=1.0, work=10.0)]
    journal, view = simulate_one_gpu(jobs, [Stuck("a", 50.0)], watch=WATCH, costs=Costs(stop=5.0, report_every=20.0))
    ends = [(entry.now, end) for entry in journal.entries for end in entry.ends]
    assert ends == [(150.0, End("a", "no progress for 1 min 30 s", "no progress"))]
    assert starts(journal) == [(0.0, "a"), (155.0, "b")]
    assert not view.runs
    history = History.from_entries(make_cluster(1), journal.entries)
    assert history.jobs.outcome.tolist() == [Outcome.CANCELLED, Outcome.FINISHED]


def test_an_endless_run_reports_progress_until_its_time_limit_ends_it() -> None:
    jobs = [make_job("a", work=100.0, time_limit=500.0), make_job("b", at=1.0, work=10.0)]
    journal, view = simulate_one_gpu(jobs, [Endless("a")], watch=WATCH, costs=REPORTING)
    assert reports(journal, "a") == [(20.0 * number, 20.0 * number) for number in range(1, 27)]
    assert starts(journal) == [(0.0, "a"), (530.0, "b")]
    assert not view.runs


@pytest.mark.parametrize("policy", ["fifo", "las", "easy"])
def test_a_simulation_with_an_endless_run_that_is_not_stopped_ends(policy: str) -> None:
    jobs = [make_job("a", work=100.0), make_job("b", at=1.0, work=10.0), make_job("also", at=2.0, work=10.0)]
    _, view = simulate_one_gpu(jobs, [Endless("a"), Endless("also")], policy=policy, costs=Costs(report_every=3600.0))
    assert set(view.runs) | set(view.waiting) >= {"a", "also"}


def test_a_hanging_job_still_hangs_after_a_restart() -> None:
    jobs = [make_job("a", work=1000.0), make_job("short", at=600.0, work=10.0), make_job("last", at=700.0, work=5.0)]
    journal, _ = simulate_one_gpu(jobs, [Stuck("a", 50.0)], policy="srtf", costs=REPORTING)
    stopped = [event for entry in journal.entries for event in entry.events if isinstance(event, RunStopped)]
    assert [(event.job, event.done) for event in stopped] == [("a", 50.0), ("a", 50.0)]
    assert [now for now, _ in reports(journal, "a")] == [20.0, 40.0, 60.0]


def test_a_hanging_run_lost_with_its_node_resumes_from_its_checkpoint() -> None:
    costs = Costs(checkpoint_every=20.0, report_every=20.0)
    journal, view = simulate_one_gpu([make_job("a")], [Stuck("a", 50.0)], costs=costs, faults=[Fault(0, 300.0, 310.0)])
    lost = [event for entry in journal.entries for event in entry.events if isinstance(event, RunFailed)]
    assert [(event.why, event.done) for event in lost] == [("node lost", 40.0)]
    assert (starts(journal), list(view.runs)) == ([(0.0, "a"), (310.0, "a")], ["a"])


def test_the_steps_of_a_hanging_run_do_not_increase() -> None:
    journal, _ = simulate_one_gpu(
        [make_job("a", steps=10), make_job("b", at=1.0)], [Stuck("a", 35.0)], watch=WATCH, costs=REPORTING
    )
    reported_steps = [
        event.steps for entry in journal.entries for event in entry.events if isinstance(event, RunProgressed)
    ]
    assert reported_steps[:2] == [2, 3]


@hypothesis_settings(max_examples=25)
@given(seed=st.integers(0, 2**32), policy=st.sampled_from(["fifo", "fifo-skip", "srtf", "las", "drf"]))
def test_simulations_with_never_ending_jobs_end_and_pass_the_audit(seed: int, policy: str) -> None:
    jobs, cluster = seeded_workload(seed, jobs=30)
    never_ending = random_never_ending_jobs(jobs, stuck=0.1, endless=0.1, seed=seed)
    audit = Audit(cluster)
    costs = Costs(start=2.0, stop=3.0, restart=4.0, checkpoint_every=15.0, report_every=50.0)
    faults = [Fault(0, 40.0, 300.0), Fault(1, 200.0, 500.0)]
    settings: dict[str, Any] = {"threshold_gpu_seconds": 50.0} if policy == "las" else {}
    chosen_policy = make_policy(policy, settings)
    view = simulate(
        jobs, cluster, chosen_policy, journal=Journals(audit), costs=costs, faults=faults, never_end=never_ending
    )
    assert set(audit.ended).isdisjoint(fault.job for fault in never_ending)
    assert set(view.runs) <= {fault.job for fault in never_ending}
    assert len(audit.ended) + len(view.runs) + len(view.waiting) == len(jobs)


def test_never_ending_jobs_are_drawn_by_the_seed() -> None:
    jobs = [make_job(f"j{number}", work=100.0) for number in range(2000)]
    drawn = random_never_ending_jobs(jobs, stuck=0.02, endless=0.01, seed=3)
    assert drawn == random_never_ending_jobs(jobs, stuck=0.02, endless=0.01, seed=3)
    assert drawn != random_never_ending_jobs(jobs, stuck=0.02, endless=0.01, seed=4)
    stuck = [fault for fault in drawn if isinstance(fault, Stuck)]
    assert 20 < len(stuck) < 60
    assert 8 < len(drawn) - len(stuck) < 40
    assert all(0 <= fault.after < 100.0 for fault in stuck)
    assert random_never_ending_jobs(jobs, seed=3) == []
    assert len(random_never_ending_jobs(jobs, stuck=1.0)) == 2000


def test_invalid_shares_and_unknown_jobs_are_rejected() -> None:
    jobs = [make_job("a")]
    for stuck, endless in ((-0.1, 0.0), (0.6, 0.5), (float("nan"), 0.0)):
        with pytest.raises(BadValue, match="expected shares ≥ 0 with a sum of at most 1"):
            random_never_ending_jobs(jobs, stuck=stuck, endless=endless)
    with pytest.raises(BadValue, match="hangs after -1"):
        Stuck("a", -1.0)
    with pytest.raises(BadValue, match="never_end has job 'b', which is not part of the simulation"):
        simulate_one_gpu(jobs, [Endless("b")])
