"""The scheduler agrees with a simple reference model of itself, under random events and decisions."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import example, given, settings, strategies as st
from reference_scheduler import BACKOFF, DEPENDENCY, HELD, RUNNING, STOPPING, USER, Gpus, ReferenceScheduler
from scripted_policy import ScriptedPolicy

from refold.core import Scheduler, View
from refold.core.events import (
    Event,
    GpuLost,
    GpuReturned,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobSubmitted,
    NodeLost,
    NodeReturned,
    RunFailed,
    RunFinished,
    RunProgressed,
    RunRecalled,
    RunStarted,
    RunStopped,
)
from refold.core.orders import Order, StartRun
from refold.model import NO_CHANGE, Allocation, Decision, End, Reason, Reshape, Share, Start, Stop, Tenant
from refold.testing import make_cluster, make_job

SIZES = (4, 3)
LIMITS = {"a": 3, "b": 1}
CLUSTER = msgspec.structs.replace(
    make_cluster(*SIZES), tenants=tuple(Tenant(name, limit_gpus=limit) for name, limit in LIMITS.items())
)
REASONS = {USER: Reason.HELD, DEPENDENCY: Reason.DEPENDENCY, BACKOFF: Reason.BACKOFF}

Action = tuple[str, int, int]
"""What happens, to which job or node, and a number that selects among variants."""

ACTIONS = (
    *("submit", "submit", "submit", "cancel", "hold", "depend", "back off", "release", "release"),
    *("recall", "started", "progressed", "stopped", "stopped", "stopped", "failed", "retried", "finished"),
    *("lose", "return", "lose GPU", "return GPU", "start", "start", "start", "start", "stop", "end", "reshape", "late"),
)

actions = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 6), st.integers(0, 5)), max_size=60)


class Comparison:
    """A scheduler and the model, to which the same things happen, one per second or more."""

    def __init__(self) -> None:
        self.model = ReferenceScheduler(SIZES, LIMITS)
        self.policy = ScriptedPolicy()
        self.scheduler = Scheduler(CLUSTER, self.policy)

    @property
    def view(self) -> View:
        return self.scheduler.view

    def do(self, action: Action) -> None:
        """Let one thing happen to both, and compare them."""
        kind, number, variant = action
        self.model.now += 1.0 + variant
        self.model.orders.clear()
        name = f"j{number}"
        decision = self._decision(kind, name, variant)
        events = [] if decision is not None else [self._event(kind, name, number, variant)]
        self.policy.next = decision or NO_CHANGE
        entry = self.scheduler.step(self.model.now, events)
        assert [text_of(order) for order in entry.orders] == self.model.orders
        self.compare()

    def _event(self, kind: str, name: str, number: int, variant: int) -> Event:
        model = self.model
        job = model.jobs.get(name)
        run, done = (job.runs, job.done(model.now)) if job is not None else (1, 0.0)
        match kind:
            case "submit":
                gpus, tenant, priority = (1, 1, 2, 2, 3, 5)[variant], "abc"[number % 3], variant % 2
                model.submit(name, gpus, tenant, priority)
                reshapable = tenant not in LIMITS
                return JobSubmitted(make_job(name, gpus=gpus, tenant=tenant, priority=priority, reshapable=reshapable))
            case "cancel":
                model.cancel(name)
                return JobCancelled(name)
            case "hold" | "depend" | "back off":
                reason = {"hold": USER, "depend": DEPENDENCY, "back off": BACKOFF}[kind]
                model.hold(name, reason)
                return JobHeld(name, REASONS[reason])
            case "release":
                model.release(name)
                return JobReleased(name)
            case "lose" | "return":
                model.set_up(number % 4 - 1, kind == "return")
                return NodeReturned(number % 4 - 1) if kind == "return" else NodeLost(number % 4 - 1)
            case "lose GPU" | "return GPU":
                node, gpu = number % 4 - 1, variant - 1
                model.set_gpu_up(node, gpu, kind == "return GPU")
                return GpuReturned(node, gpu) if kind == "return GPU" else GpuLost(node, gpu)
        return self._report(kind, name, run - 1 if kind == "late" else run, done, variant)

    def _report(self, kind: str, name: str, run: int, done: float, variant: int) -> Event:
        model = self.model
        match kind:
            case "recall":
                model.recall(name, run)
                return RunRecalled(name, run)
            case "started":
                model.started(name, run)
                return RunStarted(name, run)
            case "progressed":
                reported = done - 2.0 + variant
                model.progressed(name, run, reported)
                return RunProgressed(name, run, reported)
            case "stopped":
                model.stopped(name, run, done / 2)
                return RunStopped(name, run, done / 2)
            case "failed" | "retried":
                model.failed(name, run, done / 2, kind == "retried")
                return RunFailed(name, run, "exit 1", done / 2, retry=kind == "retried")
        model.finished(name, run)
        return RunFinished(name, run)

    def _decision(self, kind: str, name: str, variant: int) -> Decision | None:
        """Make a decision that is possible in the state of the model, or none."""
        job = self.model.jobs.get(name)
        if kind not in ("start", "stop", "end", "reshape"):
            return None
        if kind == "start" and job is not None and name in self.model.queue:
            place = self._place(job.gpus, variant)
            if place is not None:
                self.model.start(name, place)
                return Decision((Start(name, allocation(place)),))
        if job is not None and job.state == RUNNING and kind != "start":
            return self._change(kind, name, variant)
        return NO_CHANGE

    def _change(self, kind: str, name: str, variant: int) -> Decision:
        if kind == "stop":
            self.model.stop(name)
            return Decision(stops=(Stop(name),))
        if kind == "end":
            self.model.end(name)
            return Decision(ends=(End(name, "hung"),))
        job = self.model.jobs[name]
        gpus = job.gpus if job.tenant in LIMITS else 1 + variant % 3
        place = self._place(gpus, variant)
        if place is None:
            return NO_CHANGE
        self.model.reshape(name, place)
        return Decision(reshapes=(Reshape(name, allocation(place)),))

    def _place(self, gpus: int, variant: int) -> Gpus | None:
        for node in (variant % 2, 1 - variant % 2):
            free = self.model.free_gpus(node)
            if len(free) >= gpus:
                return node, tuple(free[-gpus:] if variant > 3 else free[:gpus])
        return None

    def compare(self) -> None:
        model, view, now = self.model, self.view, self.model.now
        jobs = model.jobs.values()
        assert list(view.waiting) == model.queue
        assert {name: view.hold_reason(name) for name in view.held} == {
            job.name: Reason(job.hold_reason) for job in jobs if job.state == HELD
        }
        assert set(view.infeasible) == {job.name for job in jobs if job.state == "infeasible"}
        assert {run.job: (run.number, run.allocation, run.since, run.stopping) for run in view.runs.values()} == {
            job.name: (job.runs, allocation(job.held_gpus), job.since, job.state == STOPPING)
            for job in jobs
            if job.held_gpus is not None
        }
        assert set(view.active) == set(view.runs)
        assert view.free_gpus == sum(len(model.free_gpus(node)) for node in range(len(SIZES)))
        assert [view.is_up(node) for node in range(len(SIZES))] == [
            node not in model.down for node in range(len(SIZES))
        ]
        assert set(view.down_gpus) == model.down_gpus
        for job in jobs:
            assert view.run_count(job.name) == job.runs
            assert view.done(job.name) == pytest.approx(job.done(now))
            assert view.gpu_seconds(job.name) == pytest.approx(job.attained(now))
        assert self.scheduler.late_reports == model.late


def allocation(place: Gpus) -> Allocation:
    return Allocation((Share(*place),))


def text_of(order: Order) -> tuple[str, str, int]:
    return "start" if isinstance(order, StartRun) else "stop", order.job, order.run


SUBMIT_TWO_OF_A_TENANT_WITH_LIMIT_3: list[Action] = [("submit", 0, 2), ("submit", 3, 2)]
RESHAPE: list[Action] = [("submit", 2, 0), ("start", 2, 0), ("reshape", 2, 1)]


@settings(max_examples=300)
@given(actions)
@example([*SUBMIT_TWO_OF_A_TENANT_WITH_LIMIT_3, ("submit", 6, 1), ("cancel", 0, 0)])
@example([*SUBMIT_TWO_OF_A_TENANT_WITH_LIMIT_3, ("hold", 3, 0), ("submit", 6, 0), ("release", 3, 0)])
@example([*SUBMIT_TWO_OF_A_TENANT_WITH_LIMIT_3, ("start", 0, 0), ("hold", 0, 0), ("stopped", 0, 0)])
@example([*RESHAPE, ("lose", 2, 0), ("stopped", 2, 0)])
@example([*RESHAPE, ("lose GPU", 2, 1), ("stopped", 2, 0)])
@example([("submit", 2, 0), ("start", 2, 0), ("lose GPU", 1, 1), ("finished", 2, 0), ("return GPU", 1, 1)])
@example([*RESHAPE, ("hold", 2, 0), ("release", 2, 0), ("stopped", 2, 0)])
@example([*RESHAPE, ("retried", 2, 3), ("start", 2, 0), ("recall", 2, 0), ("stopped", 2, 0)])
@example([*RESHAPE, ("stopped", 2, 0), ("recall", 2, 0), ("stopped", 2, 0)])
@example([("submit", 2, 0), ("start", 2, 0), ("hold", 2, 0), ("stopped", 2, 0), ("release", 2, 0), ("start", 2, 0)])
@example([("submit", 2, 0), ("start", 2, 0), ("end", 2, 0), ("hold", 2, 0), ("retried", 2, 0)])
def test_the_scheduler_agrees_with_the_model_after_every_step(to_do: Sequence[Action]) -> None:
    comparison = Comparison()
    for action in to_do:
        comparison.do(action)


@settings(max_examples=100)
@given(actions, actions)
def test_a_scheduler_restored_from_a_snapshot_agrees_with_the_model(
    before: Sequence[Action], after: Sequence[Action]
) -> None:
    comparison = Comparison()
    for action in before:
        comparison.do(action)
    snapshot = comparison.scheduler.snapshot()
    comparison.scheduler = Scheduler(CLUSTER, comparison.policy)
    comparison.policy.next = NO_CHANGE
    comparison.scheduler.step(comparison.model.now, snapshot)
    model = comparison.model
    model.late = comparison.scheduler.late_reports
    for job in model.jobs.values():
        job.target = None  # not part of a snapshot
        job.reported_start = False
        if job.held_gpus is not None:
            job.saved, job.computing_since = job.done(model.now), model.now if job.state == RUNNING else None
    comparison.compare()
    for action in after:
        comparison.do(action)
