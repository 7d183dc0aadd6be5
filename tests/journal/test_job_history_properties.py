"""The one history agrees with the scheduler, and everything that is made from it agrees with itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from hypothesis import given, settings, strategies as st
from random_histories import Grower

from refold.cli.views.job_timeline import JobTimeline
from refold.core import Entry, Scheduler, View
from refold.core.events import (
    Event,
    GpuLost,
    GpuReturned,
    JobCancelled,
    JobContinued,
    JobHeld,
    JobReleased,
    JobSubmitted,
    NodeLost,
    NodeReturned,
    RunAdopted,
    RunFailed,
    RunFinished,
    RunProgressed,
    RunRecalled,
    RunStarted,
    RunStopped,
)
from refold.journal.changes import JobEnded
from refold.journal.history import History, Outcome
from refold.journal.job_history import JobHistories
from refold.journal.records import Ending, JobRecord
from refold.model import NO_CHANGE, Allocation, Cluster, Decision, End, Flag, Job, Reason, Share, Stop, Tenant
from refold.placement import FreeResources
from refold.server.job_table import JobTable, Notice
from refold.testing import make_cluster, make_job

CLUSTER = Cluster(make_cluster(4, 4).nodes, tenants=(Tenant("limited", limit_gpus=3.0),))

JOBS: tuple[dict[str, Any], ...] = (
    {},
    {"gpus": 2, "tenant": "limited"},
    {"gpus": 1, "reshapable": True, "gpu_range": (1, 3)},
    {"gpus": 2, "reshapable": True, "gpu_range": (2, 4)},
    {"gpus": 9},
)
IDS = ("j0", "j1", "j2", "j3")

job_ids = st.sampled_from(IDS)
runs_before_last = st.sampled_from((0, 0, 0, 1))
"""Which run a report is about: 0 is the current or last one."""
done = st.sampled_from((0.0, 7.0))


def build_job(job_id: str, kind: int) -> Job:
    return make_job(job_id, work=None, **JOBS[kind])


def reports(make: Callable[..., Event], *fields: st.SearchStrategy[object]) -> st.SearchStrategy[Event]:
    return st.builds(make, job_ids, runs_before_last, *fields)


submissions = st.builds(JobSubmitted, st.builds(build_job, job_ids, st.integers(0, len(JOBS) - 1)))
events: st.SearchStrategy[Event] = st.one_of(
    submissions,
    submissions,
    st.builds(JobCancelled, job_ids, st.sampled_from(("", "dependency failed"))),
    st.builds(JobHeld, job_ids, st.sampled_from((Reason.HELD, Reason.DEPENDENCY, Reason.BACKOFF))),
    st.builds(JobReleased, job_ids),
    reports(RunRecalled),
    reports(RunStarted),
    reports(RunStarted),
    reports(RunProgressed, done),
    reports(RunStopped, done),
    reports(RunStopped, done),
    reports(RunFinished),
    reports(RunFailed, st.just("exit 1"), done, st.booleans()),
    st.builds(NodeLost, st.integers(0, 1)),
    st.builds(NodeReturned, st.integers(0, 1)),
    st.builds(GpuLost, st.integers(0, 1), st.integers(0, 3)),
    st.builds(GpuReturned, st.integers(0, 1), st.integers(0, 3)),
)
"""Events about a few jobs and runs: many of them are late, duplicate or about jobs that do not exist."""

policy_actions = st.sampled_from(("grow", "grow", "grow", "stop", "end", "flag", "nothing"))
steps = st.lists(st.tuples(st.lists(events, max_size=4), policy_actions), max_size=40)


Report = RunRecalled | RunStarted | RunProgressed | RunStopped | RunFinished | RunFailed


@dataclass
class Puppet:
    """A policy that does what it is told, if it can."""

    name: str = "puppet"
    action: str = "nothing"
    _grower: Grower = field(default_factory=Grower)

    def decide(self, view: View) -> Decision:
        run = next((run.job for run in view.runs.values() if not run.stopping), None)
        match self.action:
            case "grow":
                return self._grower.decide(view)
            case "stop" if run is not None:
                return Decision(stops=(Stop(run, "for others"),))
            case "end" if run is not None:
                return Decision(ends=(End(run, "stuck"),))
            case "flag" if run is not None:
                return Decision(flags=(Flag(run, "silent"),))
            case _:
                return NO_CHANGE


class Setup:
    """A scheduler, and everything that is made from its entries."""

    def __init__(self, cluster: Cluster = CLUSTER) -> None:
        self.cluster = cluster
        self.now = 0.0
        self.begin_epoch(JobTable(cluster))

    def begin_epoch(self, table: JobTable, snapshot: Sequence[Event] = ()) -> None:
        """Start a new scheduler, and new histories from its first entry on; only the job table is continued."""
        self.policy = Puppet()
        self.scheduler = Scheduler(self.cluster, self.policy, on_rejection=lambda _: None)
        self.histories = JobHistories((), FreeResources(self.cluster).fits_when_empty)
        self.table = table
        self.entries: list[Entry] = []
        self.notices: list[Notice] = []
        self.ended: list[JobRecord] = []
        if snapshot:
            self.apply(snapshot)
            self.notices, self.ended = [], []

    def step(self, some: Iterable[Event], action: str) -> None:
        """Apply random events, whose runs are counted backwards from the last one."""
        self.apply([self._with_run_number(event) for event in some], action)

    def apply(self, some: Sequence[Event], action: str = "nothing") -> None:
        self.now += 5.0
        self.policy.action = action
        entry = self.scheduler.step(self.now, some)
        self.entries.append(entry)
        self.histories.apply(entry)
        changes, notices = self.table.apply(entry, self.scheduler.view.infeasible)
        self.notices += notices
        self.ended += [change.record for change in changes if isinstance(change, JobEnded)]

    def _with_run_number(self, event: Event) -> Event:
        """Set the number of the run that a report is about. Only runs that have been ordered report anything."""
        if not isinstance(event, Report):
            return event
        view = self.scheduler.view
        is_known = any(event.job in jobs for jobs in (view.active, view.waiting, view.held))
        runs = view.run_count(event.job) if is_known else 1
        return msgspec.structs.replace(event, run=max(0, runs - event.run))

    def check_agreement(self) -> None:
        for records in (self.histories.records, self.table.records):
            assert states(records.values()) == states_in(self.scheduler)

    def check_outputs(self) -> None:
        """Compare columns, notices and timelines with each other."""
        history = History.from_entries(self.cluster, self.entries)
        placed = [notice for notice in self.notices if notice.kind in ("placed", "reshaped")]
        endings = Counter(Ending(ending) for ending in history.runs.ending)
        adopted = sum(isinstance(event, RunAdopted) for event in self.entries[0].events) if self.entries else 0
        assert len(history.runs) == len(placed) + adopted
        retried = sum(notice.kind == "failed" and notice.text.endswith("retried") for notice in self.notices)
        assert endings[Ending.STOPPED] == sum(notice.kind == "stopped" for notice in self.notices)
        assert endings[Ending.FAILED] == retried + sum(record.state == "failed" for record in self.ended)
        assert endings[Ending.FINISHED] == sum(record.state == "finished" for record in self.ended)
        outcomes = Counter(Outcome(outcome).name.lower() for outcome in history.jobs.outcome)
        for state in ("finished", "failed", "cancelled"):
            assert outcomes[state] == sum(record.state == state for record in self.ended)
        assert outcomes["running"] == endings[Ending.OPEN] == len(self.scheduler.view.runs)
        assert outcomes["infeasible"] == len(self.scheduler.view.infeasible)
        timelines = Counter(event for job_id in IDS for event in self.timeline(job_id))
        assert timelines["started"] == len(history.runs)
        assert timelines["submitted"] == len(history.jobs)
        assert timelines["running"] == sum(notice.kind == "started" for notice in self.notices)
        assert (
            sum(timelines[end] for end in ("stopped", "failed", "finished")) == len(history.runs) - endings[Ending.OPEN]
        )

    def timeline(self, job_id: str) -> list[str]:
        timeline = JobTimeline(self.cluster, job_id)
        for entry in self.entries:
            timeline.read_entry(entry)
        return [one.event for one in timeline.entries]


@dataclass(frozen=True)
class JobSummary:
    """What the scheduler and a record both know of a job."""

    run: tuple[int, float, bool, Allocation] | None
    runs: int
    hold: Reason | None
    cancelled: bool
    saved: float | None


def states(records: Iterable[JobRecord]) -> dict[str, JobSummary]:
    summaries: dict[str, JobSummary] = {}
    for record in records:
        run = record.current
        assert (run is not None) == (record.state == "running")
        summaries[record.job.id] = JobSummary(
            None if run is None else (run.number, run.start, run.stop_ordered is not None, run.allocation),
            record.runs,
            record.hold,
            record.end_reason is not None,
            record.saved if run is None else None,
        )
    return summaries


def states_in(scheduler: Scheduler) -> dict[str, JobSummary]:
    view, snapshot = scheduler.view, scheduler.snapshot()
    holds = {event.job: event.reason for event in snapshot if isinstance(event, JobHeld)}
    cancelled = {event.job for event in snapshot if isinstance(event, JobCancelled)}
    summaries: dict[str, JobSummary] = {}
    for job_id in (*view.waiting, *view.active, *view.held, *view.infeasible):
        run = view.runs.get(job_id)
        summaries[job_id] = JobSummary(
            None if run is None else (run.number, run.since, run.stopping, run.allocation),
            view.run_count(job_id),
            holds.get(job_id),
            job_id in cancelled,
            view.done(job_id) if run is None else None,
        )
    return summaries


@settings(max_examples=300)
@given(some=steps)
def test_records_agree_with_the_scheduler_after_every_step(some: list[tuple[list[Event], str]]) -> None:
    setup = Setup()
    for step_events, action in some:
        setup.step(step_events, action)
        setup.check_agreement()
    setup.check_outputs()


@settings(max_examples=150)
@given(before=steps, after=steps)
def test_records_agree_with_a_scheduler_that_continues_from_a_snapshot(
    before: list[tuple[list[Event], str]], after: list[tuple[list[Event], str]]
) -> None:
    setup = Setup()
    for step_events, action in before:
        setup.step(step_events, action)
    stored = msgspec.json.decode(msgspec.json.encode(list(setup.table.records.values())), type=list[JobRecord])
    setup.begin_epoch(JobTable(CLUSTER, stored), setup.scheduler.snapshot())
    setup.check_agreement()
    for step_events, action in after:
        setup.step(step_events, action)
        setup.check_agreement()
    setup.check_outputs()


def test_runs_that_begin_and_are_cancelled_in_one_step_are_recorded_in_that_order() -> None:
    setup = Setup()
    setup.apply([JobSubmitted(build_job("j0", 2)), JobSubmitted(build_job("j1", 0))], "grow")
    setup.apply([], "grow")  # reshapes j0
    setup.apply([RunStopped("j0", 1, 7.0), JobCancelled("j0"), JobCancelled("j1"), RunStopped("j1", 1)])
    setup.check_agreement()
    assert [(one.kind, one.job and one.job.id, one.run) for one in setup.notices[-6:]] == [
        ("stopping", "j0", 1),
        ("stopped", "j0", 1),
        ("reshaped", "j0", 2),
        ("stopping", "j0", 2),
        ("stopping", "j1", 1),
        ("cancelled", "j1", 1),
    ]
    setup.apply([RunFailed("j0", 2, "killed", retry=True)])
    assert not setup.table.records
    setup.check_outputs()


def test_a_run_of_a_continued_job_counts_from_its_snapshot() -> None:
    setup = Setup()
    allocation = Allocation((Share(0, (0,)),))
    snapshot: list[Event] = [
        JobSubmitted(make_job("j0")),
        JobContinued("j0", 3, done=7.0),
        RunAdopted("j0", 3, allocation, since=-40.0),
    ]
    setup.apply(snapshot)
    setup.check_agreement()
    setup.apply([RunFinished("j0", 3)])
    history = History.from_entries(CLUSTER, setup.entries)
    assert (history.runs.start.tolist(), history.runs.saved_before.tolist()) == ([5.0], [7.0])
    assert (history.jobs.first_start.tolist(), setup.ended[0].run_time) == ([-40.0], 50.0)
    assert setup.timeline("j0") == ["submitted", "started", "finished"]
