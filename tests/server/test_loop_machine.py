"""Whatever is asked, reported, lost, doubled or delayed, whenever the daemon dies: nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from loop_setups import FailingStore, HandClock, UnreliableMachine, stand_of

from refold.api.calls import OVER
from refold.api.event_stream import EventStream
from refold.api.roles import Caller
from refold.api.wire import Submission
from refold.core import Header
from refold.core.events import Event, JobHeld, RunFailed, RunFinished, RunStopped
from refold.errors import BadDecision, BadInput, Conflict, Unavailable
from refold.model import Cluster, Node, Reason, Tenant
from refold.registry import make_policy
from refold.server import drained_gpus, loop, recovery, writer
from refold.server.backoff import Backoff
from refold.server.dependencies import Dependencies
from refold.server.drain import DrainManager
from refold.server.loop import Loop
from refold.server.service import SchedulerService
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
IN_MEMORY = Path("/dev/shm")
"""Where files are if they can be: what a disk takes its time for is not what is tested here."""

ROUNDS = 60
"""Rounds in which everything that is left has to come to its end."""

Answer = TypeVar("Answer")


class LiveLoop(RuleBasedStateMachine):
    """Loop, store, service and dependencies are real; the back end and the clock are not."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = (loop.CHECKPOINT_EVERY, writer.TRY_AGAIN_AFTER, loop.PATIENCE, recovery.MOST_REPLAYED)
        loop.CHECKPOINT_EVERY, writer.TRY_AGAIN_AFTER, loop.PATIENCE, recovery.MOST_REPLAYED = 5, 0.0005, 0.005, 12
        self.folder = Path(tempfile.mkdtemp(prefix="refold-loop-", dir=IN_MEMORY if IN_MEMORY.is_dir() else None))
        self.events = asyncio.new_event_loop()
        self.machine = UnreliableMachine()
        self.time = 0.0
        self.acknowledged: set[str] = set()
        self.requests = 0
        self.cancelled: set[str] = set()
        self.refusals: list[str] = []
        self.audit = Audit(CLUSTER)
        self.audited = 0
        self.policy = "fifo"

    @initialize(policy=st.sampled_from(POLICIES))
    def begin(self, policy: str) -> None:
        self.policy = policy
        self.do(self._start())

    # Its life.

    async def _start(self) -> None:
        header = Header(CLUSTER, self.policy, {"watch": RULES})
        self.store = FailingStore(self.folder)
        stand = recovery.recover(
            self.store.reading, header, lambda: make_policy(header.policy, header.settings), self._refused
        )
        self.clock = HandClock()
        self.clock.time = max(self.time, stand.now)
        feed = EventStream()
        self.loop = self.store.watched = Loop(self.store, stand, header, self.clock, feed)
        self.service = SchedulerService(
            self.loop, self.store, feed, DrainManager(self.loop, self.store), {}, self.folder / "logs", 0.0
        )
        self.loop.gathers.append(drained_gpus.take_what_is_free)
        Backoff(self.loop).attend()
        self.loop.watches.append(Dependencies(self.loop, self.store.reading).watch)
        self.recovered = None if stand.snapshot is not None else stand_of(self.loop)
        self.running = asyncio.create_task(self.loop.run(self.machine))

    def _refused(self, refusal: BadDecision) -> None:
        self.refusals.append(str(refusal))

    async def _die(self) -> None:
        self.running.cancel()
        with suppress(asyncio.CancelledError):
            await self.running
        self.store.close()

    def do(self, work: Awaitable[Answer]) -> Answer:
        """Do something, and let the loop come to rest."""

        async def all_of_it() -> Answer:
            answer = await asyncio.wait_for(work, 2)
            await asyncio.wait_for(self._rest(), 2)
            return answer

        return self.events.run_until_complete(all_of_it())

    async def _rest(self) -> None:
        inbox = self.loop._inbox
        while True:
            if self.running.done():
                self.running.result()
            idle = self.clock.waits and not inbox.something.is_set() and not inbox._reports
            if idle or (self.store.fails and self.loop.problem):
                return
            await asyncio.sleep(0)

    def ask(self, work: Awaitable[Answer]) -> Answer | None:
        """Ask the service; None: it refused for a reason."""

        async def patiently() -> Answer | None:
            with suppress(Conflict, BadInput, Unavailable):
                return await work
            return None

        return self.do(patiently())

    def teardown(self) -> None:
        try:
            if hasattr(self, "running"):
                self._come_to_an_end()
        finally:
            if hasattr(self, "running"):
                self.events.run_until_complete(self._die())
            self.events.run_until_complete(self.events.shutdown_default_executor())
            self.events.close()
            loop.CHECKPOINT_EVERY, writer.TRY_AGAIN_AFTER, loop.PATIENCE, recovery.MOST_REPLAYED = self.kept
            shutil.rmtree(self.folder)

    def _come_to_an_end(self) -> None:
        """With everything well again, every job comes to its end."""
        self.mend_the_disk()
        for node in CLUSTER.nodes:
            for gpu in (None, *range(node.gpus)):
                self.ask(self.service.resume(OWNER, node.name, gpu=gpu))
        for _ in range(ROUNDS):
            for job in [job for job in self.loop.view.held if self.loop.view.held_for(job) is Reason.HELD]:
                self.ask(self.service.release(OWNER, job))
            for job in list(self.loop.view.infeasible):
                self._cancel(job)
            for run in list(self.machine.alive):
                stopped = run in self.machine.stopping
                self.machine.end(run, RunStopped(*run) if stopped else RunFinished(*run))
            self.deliver_everything()
            if not self.loop.job_table.of:
                break
            self.time_passes(61.0)
        assert not self.loop.job_table.of, f"some never end: {list(self.loop.job_table.of)}, {stand_of(self.loop)}"
        self.everything_holds()
        assert not self.machine.alive

    # What people do.

    @rule(
        gpus=st.sampled_from([0, 1, 1, 2, 3]),
        instances=st.sampled_from([1, 1, 1, 2]),
        share=st.sampled_from([1.0, 1.0, 0.5, 0.3]),
        tenant=st.sampled_from(["default", "default", "small"]),
        hold=st.booleans(),
        limit=st.sampled_from([None, None, 30.0]),
        estimate=st.sampled_from([None, 10.0, 100.0]),
        after=st.booleans(),
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
        after: bool,
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
            time_limit=limit,
            estimate=estimate,
            priority=priority,
            preemptible=preemptible,
            after=[_chosen(sorted(self.acknowledged), choice)] if after and self.acknowledged else [],
            request=str(self.requests),
        )
        self._accept(submission)

    def _accept(self, submission: Submission) -> None:
        status = self.ask(self.service.submit(OWNER, submission))
        if status is None:
            return
        assert status.id not in self.acknowledged
        self.acknowledged.add(status.id)
        again = self.ask(self.service.submit(OWNER, submission))
        assert again is None or again.id == status.id, "asking twice is not the same as asking once"

    @precondition(lambda self: self.acknowledged)
    @rule(choice=st.integers(0, 1000), what=st.sampled_from(["cancel", "hold", "hold", "release", "release"]))
    def change(self, choice: int, what: str) -> None:
        job = _chosen(sorted(self.acknowledged), choice)
        if what == "cancel":
            self._cancel(job)
        else:
            self.ask(getattr(self.service, what)(OWNER, job))

    def _cancel(self, job: str) -> None:
        self.cancelled.add(job)  # even if there is no answer: it may come to that yet
        self.ask(self.service.cancel(OWNER, job))

    @rule(node=st.sampled_from(["a", "b"]), gpu=st.sampled_from([None, 0, 1]), move=st.booleans())
    def drain(self, node: str, gpu: int | None, move: bool) -> None:
        self.ask(self.service.drain(OWNER, node, why="for a test", gpu=gpu, move=move))

    @rule(node=st.sampled_from(["a", "b"]), gpu=st.sampled_from([None, 0, 1]))
    def resume(self, node: str, gpu: int | None) -> None:
        self.ask(self.service.resume(OWNER, node, gpu=gpu))

    # What runs do, and what is heard of it.

    @precondition(lambda self: self.machine.alive)
    @rule(choice=st.integers(0, 1000), how=st.sampled_from(["well", "well", "badly", "again"]))
    def a_run_ends(self, choice: int, how: str) -> None:
        run = _chosen(list(self.machine.alive), choice)
        if run in self.machine.stopping:
            self.machine.end(run, RunStopped(*run))
        elif how == "well":
            self.machine.end(run, RunFinished(*run))
        else:
            self.machine.end(run, RunFailed(run[0], run[1], "exit 1", retry=how == "again"))

    @precondition(lambda self: self.machine.post)
    @rule(choice=st.integers(0, 1000), copies=st.sampled_from([0, 1, 1, 1, 2]))
    def a_report_comes(self, choice: int, copies: int) -> None:
        """Any of them, never, once or twice."""
        report = self.machine.post.pop(choice % len(self.machine.post))
        self.do(self._report([report] * copies))

    @precondition(lambda self: self.machine.post)
    @rule()
    def deliver_everything(self) -> None:
        while self.machine.post:
            reports, self.machine.post = self.machine.post, []
            self.do(self._report(reports))

    async def _report(self, reports: Sequence[Event]) -> None:
        for report in reports:
            self.loop.report(report)
            if isinstance(report, RunFailed) and report.retry:
                self.loop.report(JobHeld(report.job, Reason.BACKOFF))
        await asyncio.sleep(0)

    @rule()
    def the_next_order_is_forgotten(self) -> None:
        self.machine.forgets = True

    # What befalls the daemon.

    @rule(seconds=st.sampled_from([0.5, 5.0, 61.0, 3600.0]))
    def time_passes(self, seconds: float) -> None:
        async def pass_() -> None:
            self.clock.move(seconds)
            self.time = self.clock.time
            await asyncio.sleep(0)

        self.do(pass_())

    @rule(policy=st.sampled_from([None, None, None, *POLICIES]), lost=st.booleans())
    def crash(self, policy: str | None, lost: bool) -> None:
        """The daemon dies, perhaps with reports that nobody has heard; another takes over, perhaps another policy."""
        before = self.store.last
        self.events.run_until_complete(self._die())
        if lost:
            self.machine.post.clear()
        self.policy = policy or self.policy
        self.do(self._start())
        assert before is not None
        self.store.last = self.store.last or before
        if self.recovered is not None:
            assert self.recovered == before
        else:
            started = {job for job, _ in set(stand_of(self.loop)[2]) - set(before[2])}
            assert stand_of(self.loop)[0][: len(before[0])] == [job for job in before[0] if job not in started]

    @rule()
    def the_disk_is_full(self) -> None:
        self.store.fails = True

    @precondition(lambda self: hasattr(self, "store") and self.store.fails)
    @rule()
    def mend_the_disk(self) -> None:
        async def mend() -> None:
            self.store.fails = False
            await asyncio.sleep(0.001)

        self.do(mend())

    # What always holds.

    @invariant()
    def everything_holds(self) -> None:
        if not hasattr(self, "running"):
            return
        assert not self.refusals
        self.machine.demand_no_gpu_used_twice()
        assert set(self.machine.begun.values()) <= {1}
        self._demand_the_books_are_right()
        if not self.store.fails:
            self._demand_everybody_is_somewhere()

    def _demand_the_books_are_right(self) -> None:
        epoch = self.store.reading.last_epoch()
        if epoch is not None and epoch.first > self.audited:
            self.audit, self.audited = Audit(CLUSTER), epoch.first - 1
        for entry in self.store.reading.entries(self.audited + 1):
            self.audit.write(entry)
            self.audited += 1

    def _demand_everybody_is_somewhere(self) -> None:
        view = self.loop.view
        found = self.store.reading.ended(states=[], tenant="", user="", name="", limit=10_000, after=0)
        over = found.jobs
        assert found.total == len(over)
        people = [*view.waiting, *view.held, *view.infeasible, *view.runs, *(job.id for job in over)]
        everybody = Counter(job for job in people if not job.startswith("drained:"))
        assert set(everybody.values()) <= {1}, everybody
        assert everybody.keys() >= self.acknowledged, f"lost: {self.acknowledged - everybody.keys()}"
        assert view.runs.keys() == view.active.keys()
        here = [job for job in self.loop.job_table.of if not job.startswith("drained:")]
        assert sorted(here) == sorted(everybody.keys() - {job.id for job in over})
        for job in over:
            assert job.state in OVER
            assert job.state != "cancelled" or job.id in self.cancelled or job.why, job


def _chosen(some: Sequence[Any], choice: int) -> Any:
    return some[choice % len(some)]


LiveLoop.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
TestNothingIsLostOrDoneTwice: Callable[..., Any] = LiveLoop.TestCase
