"""Every event in every state of a job: the state that follows, the orders, and the changes that the policy sees.

`EFFECTS` and `CHANGES` list the cases in which something happens. In all others the event is late: it is counted, and
changes nothing.
"""

from collections.abc import Callable

import msgspec
import pytest
from scripted_policy import ScriptedPolicy, on

from refold.core import Scheduler, View
from refold.core.events import (
    Event,
    JobCancelled,
    JobContinued,
    JobHeld,
    JobReleased,
    JobSubmitted,
    NodesAllowed,
    RunAdopted,
    RunFailed,
    RunFinished,
    RunProgressed,
    RunRecalled,
    RunStarted,
    RunStopped,
)
from refold.core.orders import Order, StartRun
from refold.model import NO_CHANGE, Cluster, Decision, End, Job, NodeSet, Reason, Reshape, Start, Stop, Tenant, Wait
from refold.testing import make_cluster, make_job

CLUSTER: Cluster = msgspec.structs.replace(make_cluster(4), tenants=(Tenant("capped", limit_gpus=1.0),))
JOB: Job = make_job("j", reshapable=True)
HUGE: Job = make_job("j", gpus=5)
FIRST_OF_TENANT, CAPPED = make_job("first", tenant="capped"), make_job("j", tenant="capped")
RUN = Decision((Start("j", on(0)),))


class RecordingPolicy(ScriptedPolicy):
    """Does what the test says, and records the changes that it sees."""

    def decide(self, view: View) -> Decision:
        changes = view.changes
        self.seen = [
            *(f"submitted {job.id}" for job in changes.submitted),
            *(f"requeued {job.id}" for job in changes.requeued),
            *(f"removed {job_id}" for job_id in changes.removed),
            *(f"started run {run.number}" for run in changes.started),
            *(f"progressed run {run.number}" for run in changes.progressed),
            *(f"ended run {run.number}" for run in changes.ended),
        ]
        return super().decide(view)


class Setup:
    """A scheduler with one step per second."""

    def __init__(self) -> None:
        self.policy = RecordingPolicy()
        self.scheduler = Scheduler(CLUSTER, self.policy)
        self.now = -1.0

    def step(self, *events: Event, then: Decision = NO_CHANGE) -> tuple[Order, ...]:
        self.policy.next = then
        self.now += 1.0
        return self.scheduler.step(self.now, events).orders

    def restore(self) -> None:
        """Replace the scheduler by one that knows only the snapshot."""
        snapshot = self.scheduler.snapshot()
        self.scheduler = Scheduler(CLUSTER, self.policy)
        self.step(*snapshot)

    @property
    def view(self) -> View:
        return self.scheduler.view


def running(setup: Setup) -> None:
    setup.step(JobSubmitted(JOB), then=RUN)


def running_again(setup: Setup) -> None:
    running(setup)
    setup.step(RunFailed("j", 1, retry=True), then=RUN)


def over_the_limit(setup: Setup) -> None:
    setup.step(JobSubmitted(FIRST_OF_TENANT), JobSubmitted(CAPPED), then=Decision((Start("first", on(3)),)))


def ended(setup: Setup) -> None:
    running(setup)
    setup.step(RunFinished("j", 1))


def running_then(*events: Event, then: Decision = NO_CHANGE) -> Callable[[Setup], None]:
    def set_up(setup: Setup) -> None:
        running(setup)
        setup.step(*events, then=then)

    return set_up


def submitted_then(*events: Event, job: Job = JOB) -> Callable[[Setup], None]:
    return lambda setup: void(setup.step(JobSubmitted(job), *events))


def void(_: object) -> None:
    """Discard a result."""


STATES: dict[str, Callable[[Setup], None]] = {
    "unknown": lambda setup: void(setup.step()),
    "waiting": submitted_then(),
    "waiting again": running_then(RunFailed("j", 1, retry=True)),
    "held by a user": submitted_then(JobHeld("j")),
    "held for a dependency": submitted_then(JobHeld("j", Reason.DEPENDENCY)),
    "in back-off": running_then(RunFailed("j", 1, retry=True), JobHeld("j", Reason.BACKOFF)),
    "over the limit": over_the_limit,
    "infeasible": submitted_then(job=HUGE),
    "running": running,
    "running again": running_again,
    "recalled": running_then(RunRecalled("j", 1, "drained")),
    "being held": running_then(JobHeld("j")),
    "being cancelled": running_then(JobCancelled("j")),
    "being preempted": running_then(then=Decision(stops=(Stop("j"),))),
    "being ended": running_then(then=Decision(ends=(End("j", "hung"),))),
    "being reshaped": running_then(then=Decision(reshapes=(Reshape("j", on(1, 2)),))),
    "ended": ended,
}

EVENTS: dict[str, Event] = {
    "JobSubmitted": JobSubmitted(JOB),
    "JobCancelled": JobCancelled("j"),
    "JobHeld": JobHeld("j"),
    "JobHeld for a dependency": JobHeld("j", Reason.DEPENDENCY),
    "JobHeld for back-off": JobHeld("j", Reason.BACKOFF),
    "JobReleased": JobReleased("j"),
    "NodesAllowed": NodesAllowed(("j",), NodeSet.of([0])),
    "NodesAllowed without any": NodesAllowed(("j",), NodeSet()),
    "JobContinued": JobContinued("j", 4, 40.0, 4, 400.0),
    "RunAdopted": RunAdopted("j", 9, on(2), 0.0),
    "RunAdopted on GPUs that do not exist": RunAdopted("j", 9, on(4), 0.0),
    "RunAdopted on a GPU that no node has": RunAdopted("j", 9, on(64), 0.0),
    "RunAdopted on a node that does not exist": RunAdopted("j", 9, on(0, node=1), 0.0),
    "RunRecalled": RunRecalled("j", 1, "drained"),
    "RunStarted": RunStarted("j", 1),
    "RunProgressed": RunProgressed("j", 1, 100.0),
    "RunProgressed without progress": RunProgressed("j", 1, 0.0),
    "RunStopped": RunStopped("j", 1),
    "RunFinished": RunFinished("j", 1),
    "RunFailed": RunFailed("j", 1, "exit 1"),
    "RunFailed, to be retried": RunFailed("j", 1, "exit 1", retry=True),
    "RunFinished of a run to come": RunFinished("j", 3),
}

EFFECTS: dict[str, dict[str, str]] = {
    "JobSubmitted": {
        "unknown": "waiting",
        "ended": "waiting",
    },
    "JobCancelled": {
        "waiting": "unknown",
        "waiting again": "unknown",
        "held by a user": "unknown",
        "held for a dependency": "unknown",
        "in back-off": "unknown",
        "over the limit": "unknown",
        "infeasible": "unknown",
        "running": "stop run 1 (cancelled); stopping, then unknown",
        "running again": "stop run 2 (cancelled); stopping, then unknown",
        "recalled": "stopping, then unknown",
        "being held": "stopping, then unknown",
        "being cancelled": "stopping, then unknown",
        "being preempted": "stopping, then unknown",
        "being ended": "stopping, then unknown",
        "being reshaped": "stopping, then unknown",
    },
    "JobHeld": {
        "waiting": "held (Held)",
        "waiting again": "held (Held)",
        "held by a user": "held (Held)",
        "held for a dependency": "held (Held)",
        "in back-off": "held (Held)",
        "over the limit": "held (Held)",
        "running": "stop run 1 (held); stopping, then held (Held)",
        "running again": "stop run 2 (held); stopping, then held (Held)",
        "recalled": "stopping, then held (Held)",
        "being held": "stopping, then held (Held)",
        "being cancelled": "stopping, then unknown",
        "being preempted": "stopping, then held (Held)",
        "being ended": "stopping, then unknown",
        "being reshaped": "stopping, then held (Held)",
    },
    "JobHeld for a dependency": {
        "waiting": "held (Dependency)",
        "waiting again": "held (Dependency)",
        "held for a dependency": "held (Dependency)",
        "in back-off": "held (Dependency)",
        "over the limit": "held (Dependency)",
        "running": "stop run 1 (held); stopping, then held (Held)",
        "running again": "stop run 2 (held); stopping, then held (Held)",
        "recalled": "stopping, then held (Held)",
        "being held": "stopping, then held (Held)",
        "being cancelled": "stopping, then unknown",
        "being preempted": "stopping, then held (Held)",
        "being ended": "stopping, then unknown",
        "being reshaped": "stopping, then held (Held)",
    },
    "JobHeld for back-off": {
        "waiting": "held (Backoff)",
        "waiting again": "held (Backoff)",
        "held for a dependency": "held (Backoff)",
        "in back-off": "held (Backoff)",
        "over the limit": "held (Backoff)",
    },
    "JobReleased": {
        "held by a user": "waiting",
        "held for a dependency": "waiting",
        "in back-off": "waiting after run 1",
        "being held": "stopping, then waiting after run 1",
    },
    "NodesAllowed": {
        "waiting": "waiting",
        "waiting again": "waiting after run 1",
        "held by a user": "held (Held)",
        "held for a dependency": "held (Dependency)",
        "in back-off": "held (Backoff)",
        "over the limit": "held (Limit)",
        "infeasible": "infeasible",
        "running": "run 1",
        "running again": "run 2",
        "recalled": "stopping, then waiting after run 1",
        "being held": "stopping, then held (Held)",
        "being cancelled": "stopping, then unknown",
        "being preempted": "stopping, then waiting after run 1",
        "being ended": "stopping, then unknown",
        "being reshaped": "stopping, then run 2",
    },
    "NodesAllowed without any": {
        "waiting": "infeasible",
        "waiting again": "infeasible after run 1",
        "held by a user": "held (Held)",
        "held for a dependency": "held (Dependency)",
        "in back-off": "held (Backoff)",
        "over the limit": "held (Limit)",
        "infeasible": "infeasible",
        "running": "run 1",
        "running again": "run 2",
        "recalled": "stopping, then infeasible after run 1",
        "being held": "stopping, then held (Held)",
        "being cancelled": "stopping, then unknown",
        "being preempted": "stopping, then infeasible after run 1",
        "being ended": "stopping, then unknown",
        "being reshaped": "stopping, then run 2",
    },
    "JobContinued": {
        "waiting": "waiting after run 4",
        "held by a user": "held (Held)",
        "held for a dependency": "held (Dependency)",
        "over the limit": "held (Limit)",
        "infeasible": "infeasible after run 4",
    },
    "RunAdopted": {
        "waiting": "run 9",
        "waiting again": "run 9",
        "held by a user": "run 9",
        "held for a dependency": "run 9",
        "in back-off": "run 9",
        "over the limit": "run 9",
        "infeasible": "run 9",
    },
    "RunAdopted on GPUs that do not exist": {},
    "RunAdopted on a GPU that no node has": {},
    "RunAdopted on a node that does not exist": {},
    "RunRecalled": {
        "running": "stop run 1 (drained); stopping, then waiting after run 1",
        "recalled": "stopping, then waiting after run 1",
        "being held": "stopping, then held (Held)",
        "being cancelled": "stopping, then unknown",
        "being preempted": "stopping, then waiting after run 1",
        "being ended": "stopping, then unknown",
        "being reshaped": "stopping, then run 2",
    },
    "RunStarted": {
        "running": "run 1",
        "recalled": "stopping, then waiting after run 1",
        "being held": "stopping, then held (Held)",
        "being cancelled": "stopping, then unknown",
        "being preempted": "stopping, then waiting after run 1",
        "being ended": "stopping, then unknown",
        "being reshaped": "stopping, then run 2",
    },
    "RunProgressed": {
        "running": "run 1",
        "recalled": "stopping, then waiting after run 1",
        "being held": "stopping, then held (Held)",
        "being cancelled": "stopping, then unknown",
        "being preempted": "stopping, then waiting after run 1",
        "being ended": "stopping, then unknown",
        "being reshaped": "stopping, then run 2",
    },
    "RunProgressed without progress": {},
    "RunStopped": {
        "running": "waiting after run 1",
        "recalled": "waiting after run 1",
        "being held": "held (Held)",
        "being cancelled": "unknown",
        "being preempted": "waiting after run 1",
        "being ended": "unknown",
        "being reshaped": "start run 2; run 2",
    },
    "RunFinished": {
        "running": "unknown",
        "recalled": "unknown",
        "being held": "unknown",
        "being cancelled": "unknown",
        "being preempted": "unknown",
        "being ended": "unknown",
        "being reshaped": "unknown",
    },
    "RunFailed": {
        "running": "unknown",
        "recalled": "unknown",
        "being held": "unknown",
        "being cancelled": "unknown",
        "being preempted": "unknown",
        "being ended": "unknown",
        "being reshaped": "unknown",
    },
    "RunFailed, to be retried": {
        "running": "waiting after run 1",
        "recalled": "waiting after run 1",
        "being held": "held (Held)",
        "being cancelled": "unknown",
        "being preempted": "waiting after run 1",
        "being ended": "unknown",
        "being reshaped": "waiting after run 1",
    },
    "RunFinished of a run to come": {},
}
"""By event and state: orders and the following state. "late": the event is counted as late nevertheless."""

CHANGES: dict[str, dict[str, list[str]]] = {
    "JobSubmitted": {
        "unknown": ["submitted j"],
        "ended": ["submitted j"],
    },
    "JobCancelled": {
        "waiting": ["removed j"],
        "waiting again": ["removed j"],
    },
    "JobHeld": {
        "waiting": ["removed j"],
        "waiting again": ["removed j"],
    },
    "JobHeld for a dependency": {
        "waiting": ["removed j"],
        "waiting again": ["removed j"],
    },
    "JobHeld for back-off": {
        "waiting": ["removed j"],
        "waiting again": ["removed j"],
    },
    "JobReleased": {
        "held by a user": ["submitted j"],
        "held for a dependency": ["submitted j"],
        "in back-off": ["submitted j"],
    },
    "NodesAllowed": {
        "waiting": ["submitted j", "removed j"],
        "waiting again": ["submitted j", "removed j"],
        **{key: ["progressed run 1"] for key in ("running", "recalled", "being held", "being cancelled")},
        **{key: ["progressed run 1"] for key in ("being preempted", "being ended", "being reshaped")},
        "running again": ["progressed run 2"],
    },
    "NodesAllowed without any": {
        "waiting": ["removed j"],
        "waiting again": ["removed j"],
        **{key: ["progressed run 1"] for key in ("running", "recalled", "being held", "being cancelled")},
        **{key: ["progressed run 1"] for key in ("being preempted", "being ended", "being reshaped")},
        "running again": ["progressed run 2"],
    },
    "RunAdopted": {
        "waiting": ["removed j", "started run 9"],
        "waiting again": ["removed j", "started run 9"],
        "held by a user": ["started run 9"],
        "held for a dependency": ["started run 9"],
        "in back-off": ["started run 9"],
        "over the limit": ["started run 9"],
        "infeasible": ["started run 9"],
    },
    "RunStarted": {
        "running": ["progressed run 1"],
    },
    "RunProgressed": {
        "running": ["progressed run 1"],
    },
    "RunStopped": {
        "running": ["requeued j", "ended run 1"],
        "recalled": ["requeued j", "ended run 1"],
        "being held": ["ended run 1"],
        "being cancelled": ["ended run 1"],
        "being preempted": ["requeued j", "ended run 1"],
        "being ended": ["ended run 1"],
        "being reshaped": ["started run 2", "ended run 1"],
    },
    "RunFinished": {
        "running": ["ended run 1"],
        "recalled": ["ended run 1"],
        "being held": ["ended run 1"],
        "being cancelled": ["ended run 1"],
        "being preempted": ["ended run 1"],
        "being ended": ["ended run 1"],
        "being reshaped": ["ended run 1"],
    },
    "RunFailed": {
        "running": ["ended run 1"],
        "recalled": ["ended run 1"],
        "being held": ["ended run 1"],
        "being cancelled": ["ended run 1"],
        "being preempted": ["ended run 1"],
        "being ended": ["ended run 1"],
        "being reshaped": ["ended run 1"],
    },
    "RunFailed, to be retried": {
        "running": ["requeued j", "ended run 1"],
        "recalled": ["requeued j", "ended run 1"],
        "being held": ["ended run 1"],
        "being cancelled": ["ended run 1"],
        "being preempted": ["requeued j", "ended run 1"],
        "being ended": ["ended run 1"],
        "being reshaped": ["requeued j", "ended run 1"],
    },
}
"""By event and state: the changes that the policy sees."""

REPEATABLE = ("JobCancelled", "JobHeld", "JobHeld for a dependency", "JobHeld for back-off", "RunRecalled")
"""Events that are not counted as late if they are repeated while they are taking effect."""


def state_of_job(setup: Setup) -> str:
    """Return the state of job j; of a run that is stopping, also the state that follows when it has stopped."""
    view = setup.view
    if (hold := view.hold_reason("j")) is not None:
        assert "j" in view.held
        return f"held ({hold.value})"
    for name, jobs in (("waiting", view.waiting), ("infeasible", view.infeasible)):
        if "j" in jobs:
            return f"{name} after run {runs}" if (runs := view.run_count("j")) else name
    run = view.runs.get("j")
    if run is None:
        return "unknown"
    if not run.stopping:
        return f"run {run.number}"
    setup.step(RunStopped("j", run.number))
    return f"stopping, then {state_of_job(setup)}"


def gpus_in_use(view: View) -> float:
    """Return the GPUs that all runs hold."""
    return sum(len(share.gpus) for job_id in view.runs for share in view.held_by(job_id))


def text_of(order: Order) -> str:
    if isinstance(order, StartRun):
        return f"start run {order.run}; "
    return f"stop run {order.run} ({order.why}); "


def state_after(set_up: Callable[[Setup], None], *events: Event, restore: bool = False) -> tuple[str, int, list[str]]:
    """Return orders and state of job j after events, the number of late ones, and the changes that the policy saw.

    With `restore`, the events happen to a scheduler that was restored from a snapshot.
    """
    setup = Setup()
    set_up(setup)
    if restore:
        setup.restore()
    setup.step()  # the policy has seen all changes
    late = setup.scheduler.late_reports
    orders = "".join(map(text_of, setup.step(*events)))
    late, seen = setup.scheduler.late_reports - late, setup.policy.seen
    assert setup.view.free_gpus == 4 - gpus_in_use(setup.view)
    return orders + state_of_job(setup), late, seen


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", STATES)
def test_every_event_in_every_state(state: str, event: str) -> None:
    unchanged, _, _ = state_after(STATES[state])
    expected = EFFECTS[event].get(state)
    counted = 1 if expected is None or expected.startswith("late; ") else 0
    after = unchanged if expected is None else expected.removeprefix("late; ")
    changes = CHANGES.get(event, {}).get(state, [])
    assert state_after(STATES[state], EVENTS[event]) == (after, counted, changes)


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", STATES)
def test_every_event_that_is_reported_twice_has_the_effect_of_one(state: str, event: str) -> None:
    once, _, _ = state_after(STATES[state], EVENTS[event])
    twice, late, _ = state_after(STATES[state], EVENTS[event], EVENTS[event])
    assert (twice, late > 0 or event in REPEATABLE) == (once, True)


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", STATES)
def test_a_scheduler_restored_from_a_snapshot_reacts_like_the_old_one(state: str, event: str) -> None:
    # The target of a reshape is not part of a snapshot: such a run is one that stops, and its job is queued.
    like = "being preempted" if state == "being reshaped" else state
    assert state_after(STATES[state], EVENTS[event], restore=True) == state_after(STATES[like], EVENTS[event])


@pytest.mark.parametrize("state", STATES)
def test_a_cancelled_job_leaves_nothing_behind(state: str) -> None:
    setup = Setup()
    STATES[state](setup)
    setup.step(JobCancelled("j"))
    if "j" in setup.view.runs:
        setup.step(RunStopped("j", setup.view.runs["j"].number))
    assert setup.view.free_gpus == 4 - gpus_in_use(setup.view)
    before = setup.scheduler.late_reports
    setup.step(JobSubmitted(JOB), then=RUN)
    assert (state_of_job(setup), setup.scheduler.late_reports) == ("run 1", before)
    assert (setup.view.done("j"), setup.view.gpu_seconds("j"), setup.view.start_estimate("j")) == (0.0, 0.0, None)
    setup.step(RunStopped("j", 1))
    assert setup.view.reason("j") == Wait("j", Reason.NOT_CONSIDERED, ahead=0)
