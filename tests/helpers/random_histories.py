"""Random histories of a scheduler: user actions and backend reports in any possible order."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st

from refold.core import Journal, Journals, ListJournal, Policy, Scheduler, View
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
from refold.core.orders import StartRun, StopRun
from refold.core.scheduler import raise_rejection
from refold.model import NO_CHANGE, Allocation, Cluster, Decision, Job, Reason, Reshape, Share, Start
from refold.placement import Placer
from refold.policies.queueing.fifo import Fifo
from refold.testing import Audit, make_cluster, make_job
from refold.testing.disturbances import unfinished_jobs

Move = tuple[str, int]
T = TypeVar("T")

JOB_KINDS: list[dict[str, Any]] = [
    {},
    {"gpus": 2, "priority": 1},
    {"gpus": 4, "priority": 2},
    {"share": 0.5},
    {"gpus": 2, "preemptible": False},
    {"gpus": 2, "reshapable": True},
    {"gpus": 1, "reshapable": True, "gpu_range": (1, 3)},
    {"gpus": 2, "reshapable": True, "gpu_range": (2, 8), "priority": 3},
    {"gpus": 9},
]

ACTIONS = (
    *("submit", "submit", "submit", "hold", "hold run", "release", "depend", "recall", "cancel", "cancel run"),
    *(
        "finish",
        "fail",
        "retry",
        "stop",
        "stop",
        "stop",
        "start",
        "progress",
        "lose",
        "return",
        "lose GPU",
        "return GPU",
    ),
)

moves = st.lists(
    st.tuples(
        st.sampled_from(ACTIONS),
        st.integers(0, 8),
    ),
    max_size=50,
)
"""Actions in order; the number selects the job, run or node."""


class History:
    """A scheduler under audit to which events are applied."""

    def __init__(
        self, cluster: Cluster, policy: Policy, on_rejection: Callable[[Exception], None] | None = None
    ) -> None:
        self.cluster = cluster
        self.audit, self.entries = Audit(cluster), ListJournal()
        journal: Journal = Journals(self.audit, self.entries)
        self.scheduler = Scheduler(cluster, policy, journal, on_rejection or raise_rejection)
        self.now = 0.0
        self.submitted = 0

    @property
    def view(self) -> View:
        return self.scheduler.view

    def play(self, some: Sequence[Move]) -> Iterator[None]:
        """Apply actions one by one; yields after each so that the caller can check the state."""
        for kind, number in some:
            self.step(*self._events(kind, number))
            yield

    def step(self, *events: Event) -> None:
        self.now += 5.0
        self.scheduler.step(self.now, events)

    def _gpu(self, number: int) -> tuple[int, int]:
        gpus = [(node, gpu) for node, kind in enumerate(self.cluster.nodes) for gpu in range(kind.gpus)]
        return gpus[number % len(gpus)]

    def _events(self, kind: str, number: int) -> list[Event]:
        view = self.view
        run = _pick(list(view.runs.values()), number)
        waiting, held = _pick(list(view.waiting), number), _pick(list(view.held), number)
        stopping = _pick([run for run in view.runs.values() if run.stopping], number)
        match kind:
            case "submit":
                self.submitted += 1
                tenant = "abc"[number % 3]
                job = make_job(f"j{self.submitted}", at=self.now, work=None, tenant=tenant, **JOB_KINDS[number])
                return [JobSubmitted(job)]
            case "hold":
                return [JobHeld(waiting)] if waiting else []
            case "depend":
                return [JobHeld(waiting, Reason.DEPENDENCY)] if waiting else []
            case "hold run":
                return [JobHeld(run.job)] if run else []
            case "release":
                return [JobReleased(held)] if held else []
            case "cancel":
                return [JobCancelled(waiting)] if waiting else []
            case "lose":
                return [NodeLost(number % len(self.cluster.nodes))]
            case "return":
                return [NodeReturned(number % len(self.cluster.nodes))]
            case "lose GPU":
                return [GpuLost(*self._gpu(number), "fan")]
            case "return GPU":
                return [GpuReturned(*self._gpu(number))]
            case "stop":
                return [RunStopped(stopping.job, stopping.number, view.done(stopping.job))] if stopping else []
        return _run_events(kind, run.job, run.number, view.done(run.job)) if run else []


def fifo_history(*sizes: int) -> History:
    """Return a history of `fifo` on nodes with these numbers of GPUs."""
    return History(make_cluster(*sizes), Fifo())


def orders_of(history: History, *events: Event) -> tuple[StartRun | StopRun, ...]:
    """Apply the events and return the orders that they cause."""
    history.step(*events)
    return history.entries.entries[-1].orders


def _run_events(kind: str, job: str, run: int, done: float) -> list[Event]:
    events: dict[str, Event] = {
        "recall": RunRecalled(job, run, "drained"),
        "cancel run": JobCancelled(job),
        "finish": RunFinished(job, run),
        "fail": RunFailed(job, run, "exit 1"),
        "retry": RunFailed(job, run, "exit 1", done / 2, retry=True, steps=3),
        "start": RunStarted(job, run),
        "progress": RunProgressed(job, run, done + 1.0, steps=run + 7),
    }
    return [events[kind]]


def _pick(some: list[T], number: int) -> T | None:
    return some[number % len(some)] if some else None


def finish_all_jobs(scheduler: Scheduler, now: float, nodes: int) -> None:
    """Bring nodes and GPUs up, release held jobs and end runs until no job is left that can run."""
    view = scheduler.view
    up: list[Event] = [NodeReturned(node) for node in range(nodes) if not view.is_up(node)]
    scheduler.step(now, [*up, *(GpuReturned(*gpu) for gpu in view.down_gpus)])
    for _ in range(500):
        now += 5.0
        events: list[Event] = [JobReleased(job) for job in view.held if view.reason(job).reason is not Reason.LIMIT]
        for run in view.runs.values():
            events.append(RunStopped(run.job, run.number, 1.0) if run.stopping else RunFinished(run.job, run.number))
        if not events and not view.waiting:
            return
        scheduler.step(now, events)
    raise AssertionError(f"jobs that have not ended: {sorted(unfinished_jobs(view))}")


class Grower:
    """Starts jobs that fit and grows every reshapable run to all free GPUs of its node, beyond its allowed range."""

    name = "grower"

    def __init__(self) -> None:
        self._placer = Placer("best-fit", 0)

    def decide(self, view: View) -> Decision:
        starts = [
            Start(job.id, Allocation(placement))
            for job in view.waiting.values()
            if (placement := view.trial().place(self._placer, job.demand)) is not None
        ]
        if starts:
            return Decision(tuple(starts))
        return next(self._growths(view), NO_CHANGE)

    def _growths(self, view: View) -> Iterator[Decision]:
        for run in view.runs.values():
            job = view.active[run.job]
            node = run.allocation.placement[0].node
            free = view.trial().free.gpu_milli_of(node)
            more = tuple(gpu for gpu, milli in enumerate(free) if milli == 1000)
            if more and _may_grow(job) and not run.stopping and view.is_up(node):
                gpus = tuple(sorted({*run.allocation.placement[0].gpus, *more}))
                yield Decision(reshapes=(Reshape(job.id, Allocation((Share(node, gpus),)), "all it can get"),))


def _may_grow(job: Job) -> bool:
    return job.reshapable and job.preemptible and job.demand.instances == 1
