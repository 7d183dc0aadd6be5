"""State machine test of the loop: no job is lost or run twice.

Requests, reports, drains, crashes, dropped orders and disk failures happen in any order.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import time
from typing import Any, TypeVar

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from loop_setups import FailingStore, ManualClock, UnreliableBackend, queue_state

from refold.client.api import DrainQuery, GpuQuery, JobsQuery
from refold.client.api.calls import ENDED_STATES
from refold.client.api.queries import Caller
from refold.client.api.submissions import Submission
from refold.core import Header
from refold.core.events import Event, JobHeld, RunFailed, RunFinished, RunStopped
from refold.errors import BadDecision, BadInput, Conflict, Unavailable
from refold.model import Cluster, Node, PreemptionRules, Reason, Tenant
from refold.model.units import HOUR
from refold.server import inbox, loop, recovery, writer
from refold.server.admission import AdmissionRules
from refold.server.config.limits import LimitsConfig
from refold.server.config.settings import NotifyConfig, WatchConfig
from refold.server.drain import DrainManager
from refold.server.environments import Environments
from refold.server.forked_work import WorkHere
from refold.server.http.event_stream import EventStream
from refold.server.job_limits import JobLimits
from refold.server.job_queries import JobQueries
from refold.server.live_state import LiveState
from refold.server.loop import Loop
from refold.server.monitor.gpu_poller import GpuPoller
from refold.server.monitor.machine import Layout, SlotsMachine
from refold.server.notify.messages import JobMessages
from refold.server.notify.notifier import Notifier
from refold.server.retries import Backoff
from refold.server.service import SchedulerService
from refold.server.start_conditions import StartConditions
from refold.server.start_forecasts import StartForecasts
from refold.server.tokens import TokenStore
from refold.simulator.registry import make_policy
from refold.testing import Audit

CLUSTER = Cluster(
    (Node("a", 4, "slot"), Node("b", 2, "slot")),
    cpus_known=False,
    memory_known=False,
    tenants=(Tenant("default"), Tenant("small", limit_gpus=2.0)),
)
OWNER = Caller("owner", "owner", "default", "owner")
RULES = {"beyond_limit": True, "grace": 60.0}
POLICIES = ("fifo", "easy", "srtf")
MEMORY_FOLDER = Path("/dev/shm")
"""Preferred place for files: the speed of the disk is not tested here."""

MAX_FINAL_ROUNDS = 300
"""Rounds within which all remaining jobs must end."""

Result = TypeVar("Result")


class LiveLoop(RuleBasedStateMachine):
    """Loop, store, service and start conditions are real; backend and clock are fakes."""

    def __init__(self) -> None:
        super().__init__()
        self.saved_constants = (
            loop.CHECKPOINT_INTERVAL_ENTRIES,
            writer.RETRY_INTERVAL_SECONDS,
            inbox.COMMIT_TIMEOUT_SECONDS,
            recovery.MAX_REPLAYED_ENTRIES,
        )
        (
            loop.CHECKPOINT_INTERVAL_ENTRIES,
            writer.RETRY_INTERVAL_SECONDS,
            inbox.COMMIT_TIMEOUT_SECONDS,
            recovery.MAX_REPLAYED_ENTRIES,
        ) = 5, 0.0005, 0.005, 12
        self.folder = Path(
            tempfile.mkdtemp(prefix="refold-loop-", dir=MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None)
        )
        self.events = asyncio.new_event_loop()
        self.backend = UnreliableBackend()
        self.time = 0.0
        self.acknowledged: set[str] = set()
        self.requests = 0
        self.cancelled: set[str] = set()
        self.rejections: list[str] = []
        self.audit = Audit(CLUSTER)
        self.audited = 0
        self.policy = "fifo"

    @initialize(policy=st.sampled_from(POLICIES))
    def start_daemon(self, policy: str) -> None:
        self.policy = policy
        self.do(self._start())

    # Start and stop.

    async def _start(self) -> None:
        header = Header(CLUSTER, self.policy, {"watch": RULES})
        self.store = FailingStore(self.folder)
        recovered = recovery.recover(
            self.store.reader, header, lambda: make_policy(header.policy, header.settings), self._record_rejection
        )
        self.clock = ManualClock()
        self.clock.time = max(self.time, recovered.now)
        self.state = self.store.state = LiveState(recovered, header, self.clock)
        commits = writer.Writer(self.store)
        self.inbox = inbox.Inbox(commits, recovered.wakes)
        event_stream = EventStream(self.store.reader.last_numbers()[1])
        messages = JobMessages(self.state, commits, self.store, Notifier(NotifyConfig()), HOUR, self.folder / "logs")
        drains = DrainManager(self.state, self.inbox)
        conditions = StartConditions(self.state, self.inbox, self.store.reader)
        self.forecasts = StartForecasts(self.state, work=WorkHere(), visits=1)
        self.service = SchedulerService(
            self.state,
            self.inbox,
            self.store,
            JobQueries(self.state, commits, self.store.reader, self.folder / "logs", self.forecasts),
            environments=Environments(self.state, commits, self.store),
            rules=AdmissionRules(PreemptionRules(), JobLimits(LimitsConfig())),
            conditions=conditions,
            drains=drains,
            gpus=GpuPoller(self.state, self.inbox, SlotsMachine(0), Layout(CLUSTER, ()), WatchConfig(), messages),
            use_of=lambda _: [],
            forecasts=self.forecasts,
            tokens=TokenStore(commits, self.store, {}),
            event_stream=event_stream,
            kill=lambda _: None,
        )
        subscribers = [
            drains,
            Backoff(self.state),
            conditions,
            self.forecasts,
        ]
        self.loop = Loop(self.state, self.inbox, commits, event_stream, subscribers)
        self.recovered = None if recovered.snapshot is not None else queue_state(self.state)
        self.running = asyncio.create_task(self.loop.run(self.backend))

    def _record_rejection(self, rejection: BadDecision) -> None:
        self.rejections.append(str(rejection))

    async def _kill(self) -> None:
        self.running.cancel()
        with suppress(asyncio.CancelledError):
            await self.running
        self.store.close()

    def do(self, work: Awaitable[Result]) -> Result:
        """Run a coroutine and let the loop settle."""

        async def work_and_settle() -> Result:
            result = await asyncio.wait_for(work, 20)
            await asyncio.wait_for(self._settle(), 20)
            return result

        return self.events.run_until_complete(work_and_settle())

    async def _settle(self) -> None:
        while True:
            if self.running.done():
                self.running.result()
            idle = self.clock.is_waiting and not self.inbox.arrived.is_set() and self.inbox.is_empty
            if idle or (self.store.fails and self.inbox.problem):
                return
            await asyncio.sleep(0)

    def call(self, work: Awaitable[Result]) -> Result | None:
        """Call the service; None if it refused the call."""

        async def without_expected_errors() -> Result | None:
            with suppress(Conflict, BadInput, Unavailable):
                return await work
            return None

        return self.do(without_expected_errors())

    def teardown(self) -> None:
        try:
            if hasattr(self, "running"):
                self._finish_all_jobs()
        finally:
            if hasattr(self, "running"):
                self.events.run_until_complete(self._kill())
            self.events.run_until_complete(self.events.shutdown_default_executor())
            self.events.close()
            (
                loop.CHECKPOINT_INTERVAL_ENTRIES,
                writer.RETRY_INTERVAL_SECONDS,
                inbox.COMMIT_TIMEOUT_SECONDS,
                recovery.MAX_REPLAYED_ENTRIES,
            ) = self.saved_constants
            shutil.rmtree(self.folder)

    def _finish_all_jobs(self) -> None:
        """Repair everything and check that every job ends."""
        self.repair_the_disk()
        for node in CLUSTER.nodes:
            for gpu in (None, *range(node.gpus)):
                self.call(self.service.resume(OWNER, node.name, GpuQuery(gpu=gpu)))
        for _ in range(MAX_FINAL_ROUNDS):
            for job in [job for job in self.state.view.held if self.state.view.hold_reason(job) is Reason.HELD]:
                self.call(self.service.release(OWNER, job))
            for job in list(self.state.view.infeasible):
                self._cancel(job)
            for run in list(self.backend.alive):
                stopped = run in self.backend.stopping
                self.backend.end(run, RunStopped(*run) if stopped else RunFinished(*run))
            self.deliver_everything()
            if not self.state.job_table.records:
                break
            self.advance_time(61.0)
        assert not self.state.job_table.records, (
            f"jobs that never end: {list(self.state.job_table.records)}, {queue_state(self.state)}"
        )
        self.all_invariants_hold()
        assert not self.backend.alive

    # User actions.

    @rule(
        gpus=st.sampled_from([0, 1, 1, 2, 3]),
        instances=st.sampled_from([1, 1, 1, 2]),
        share=st.sampled_from([1.0, 1.0, 0.5, 0.3]),
        tenant=st.sampled_from(["default", "default", "small"]),
        hold=st.booleans(),
        limit=st.sampled_from([None, None, 30.0]),
        estimate=st.sampled_from([None, 10.0, 100.0]),
        after=st.sampled_from(["", "", "{}", "{}", "afterany:{}", "afternotok:{}", "singleton"]),
        array=st.sampled_from(["", "", "", "0-2", "0-2%1"]),
        delay=st.sampled_from([None, None, None, 30.5]),
        priority=st.integers(0, 2),
        preemptible=st.booleans(),
        choice=st.integers(0, 1000),
    )
    def submit(
        self,
        gpus: int,
        instances: int,
        share: float,
        tenant: str,
        hold: bool,
        limit: float | None,
        estimate: float | None,
        after: str,
        array: str,
        delay: float | None,
        priority: int,
        preemptible: bool,
        choice: int,
    ) -> None:
        self.requests += 1
        submission = Submission(
            name="job",
            command=["true"],
            gpus=gpus,
            instances=instances,
            gpu_share=share if gpus == 1 else 1.0,
            tenant=tenant,
            hold=hold and not after,
            array=array,
            begin=None if delay is None else time() + delay,
            time_limit=limit,
            estimate=estimate,
            priority=priority,
            preemptible=preemptible,
            after=[after.format(_pick(sorted(self.acknowledged), choice))] if after and self.acknowledged else [],
            request=str(self.requests),
        )
        self._accept(submission)

    def _accept(self, submission: Submission) -> None:
        page = self.call(self.service.submit_all(OWNER, [submission]))
        if page is None:
            return
        ids = [job.id for job in page.jobs]
        assert self.acknowledged.isdisjoint(ids)
        self.acknowledged.update(ids)
        again = self.call(self.service.submit_all(OWNER, [submission]))
        assert again is None or [job.id for job in again.jobs] == ids, "the same request created two jobs"

    @precondition(lambda self: self.acknowledged)
    @rule(choice=st.integers(0, 1000), action=st.sampled_from(["cancel", "hold", "hold", "release", "release"]))
    def change(self, choice: int, action: str) -> None:
        job = _pick(sorted(self.acknowledged), choice)
        if action == "cancel":
            self._cancel(job)
        else:
            self.call(getattr(self.service, action)(OWNER, job))

    def _cancel(self, job: str) -> None:
        self.cancelled.add(job)  # even without an answer the request may be committed later
        self.call(self.service.cancel(OWNER, job))

    @rule(node=st.sampled_from(["a", "b"]), gpu=st.sampled_from([None, 0, 1]), move=st.booleans())
    def drain(self, node: str, gpu: int | None, move: bool) -> None:
        self.call(self.service.drain(OWNER, node, DrainQuery(reason="for a test", gpu=gpu, move=move)))

    @rule(node=st.sampled_from(["a", "b"]), gpu=st.sampled_from([None, 0, 1]))
    def resume(self, node: str, gpu: int | None) -> None:
        self.call(self.service.resume(OWNER, node, GpuQuery(gpu=gpu)))

    # Runs and reports.

    @precondition(lambda self: self.backend.alive)
    @rule(choice=st.integers(0, 1000), how=st.sampled_from(["finished", "finished", "failed", "retried"]))
    def end_a_run(self, choice: int, how: str) -> None:
        run = _pick(list(self.backend.alive), choice)
        if run in self.backend.stopping:
            self.backend.end(run, RunStopped(*run))
        elif how == "finished":
            self.backend.end(run, RunFinished(*run))
        else:
            self.backend.end(run, RunFailed(run[0], run[1], "exit 1", retry=how == "retried"))

    @precondition(lambda self: self.backend.undelivered)
    @rule(choice=st.integers(0, 1000), copies=st.sampled_from([0, 1, 1, 1, 2]))
    def deliver_a_report(self, choice: int, copies: int) -> None:
        """Deliver any pending report zero, one or two times."""
        report = self.backend.undelivered.pop(choice % len(self.backend.undelivered))
        self.do(self._report([report] * copies))

    @precondition(lambda self: self.backend.undelivered)
    @rule()
    def deliver_everything(self) -> None:
        while self.backend.undelivered:
            reports, self.backend.undelivered = self.backend.undelivered, []
            self.do(self._report(reports))

    async def _report(self, reports: Sequence[Event]) -> None:
        for report in reports:
            self.inbox.report(report)
            if isinstance(report, RunFailed) and report.retry:
                self.inbox.report(JobHeld(report.job, Reason.BACKOFF))
        await asyncio.sleep(0)

    @rule()
    def drop_the_next_order(self) -> None:
        self.backend.drops_next_order = True

    # Time, crashes and disk failures.

    @rule(seconds=st.sampled_from([0.5, 5.0, 61.0, 3600.0]))
    def advance_time(self, seconds: float) -> None:
        async def advance() -> None:
            self.clock.advance(seconds)
            self.time = self.clock.time
            await asyncio.sleep(0)

        self.do(advance())

    @rule(policy=st.sampled_from([None, None, None, *POLICIES]), drop_reports=st.booleans())
    def crash(self, policy: str | None, drop_reports: bool) -> None:
        """Kill the daemon, perhaps with undelivered reports, and start another, perhaps with another policy."""
        self.events.run_until_complete(self._kill())
        before = self.store.last  # a commit that was under way may have succeeded
        if drop_reports:
            self.backend.undelivered.clear()
        self.policy = policy or self.policy
        self.do(self._start())
        assert before is not None
        self.store.last = self.store.last or before
        if self.recovered is not None:
            assert self.recovered == before
        else:
            started = {job for job, _ in set(queue_state(self.state)[2]) - set(before[2])}
            assert queue_state(self.state)[0][: len(before[0])] == [job for job in before[0] if job not in started]

    @rule()
    def fill_the_disk(self) -> None:
        self.store.fails = True

    @precondition(lambda self: hasattr(self, "store") and self.store.fails)
    @rule()
    def repair_the_disk(self) -> None:
        async def repair() -> None:
            self.store.fails = False
            await asyncio.sleep(0.001)

        self.do(repair())

    # Invariants.

    @invariant()
    def all_invariants_hold(self) -> None:
        if not hasattr(self, "running"):
            return
        assert not self.rejections
        self.backend.assert_no_gpu_used_twice()
        self._check_limits_of_arrays()
        assert set(self.backend.starts.values()) <= {1}
        self._check_journal()
        if not self.store.fails:
            self._check_all_jobs_are_known()
            self._check_drained_gpus_are_left()
            self.events.run_until_complete(self._check_start_estimates())

    async def _check_start_estimates(self) -> None:
        """Check the estimates. In the loop: a query may begin to renew them."""
        for job_id in self.state.view.waiting:
            now, estimate = self.clock.time, self.forecasts.estimate(job_id)
            if estimate is not None and self.policy != "srtf":
                latest = float("inf") if estimate.latest is None else estimate.latest
                assert estimate.soonest is not None
                assert now <= estimate.soonest <= estimate.at <= latest

    def _check_limits_of_arrays(self) -> None:
        places = [self.state.view.active[job].launch.array for job in self.state.view.runs]
        running = Counter((place.array, place.limit) for place in places if place is not None and place.limit)
        assert all(count <= limit for (_, limit), count in running.items())

    def _check_journal(self) -> None:
        epoch = self.store.reader.journal.last_epoch()
        if epoch is not None and epoch.first_entry > self.audited:
            self.audit, self.audited = Audit(CLUSTER), epoch.first_entry - 1
        for entry in self.store.reader.journal.entries(self.audited + 1):
            self.audit.write(entry)
            self.audited += 1

    def _check_drained_gpus_are_left(self) -> None:
        view = self.state.view
        for run in view.runs.values():
            gpus = [(share.node, gpu) for share in run.allocation.placement for gpu in share.gpus]
            on_drained = any(gpu in view.down_gpus for gpu in gpus)
            assert run.stopping or not on_drained, f"{run.job} was not recalled from a drained GPU"

    def _check_all_jobs_are_known(self) -> None:
        view = self.state.view
        found = self.store.reader.ended_jobs(JobsQuery(limit=10_000))
        ended_jobs = found.jobs
        assert found.total == len(ended_jobs)
        job_ids = [*view.waiting, *view.held, *view.infeasible, *view.runs, *(job.id for job in ended_jobs)]
        counts = Counter(job_ids)
        assert set(counts.values()) <= {1}, counts
        assert counts.keys() >= self.acknowledged, f"lost: {self.acknowledged - counts.keys()}"
        assert view.runs.keys() == view.active.keys()
        assert sorted(self.state.job_table.records) == sorted(counts.keys() - {job.id for job in ended_jobs})
        for job in ended_jobs:
            assert job.state in ENDED_STATES
            assert job.state != "cancelled" or job.id in self.cancelled or job.message, job


def _pick(some: Sequence[Any], choice: int) -> Any:
    return some[choice % len(some)]


LiveLoop.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
TestLoopStateful: Callable[..., Any] = LiveLoop.TestCase
