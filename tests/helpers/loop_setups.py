"""Surroundings of a loop in tests: a manual clock, an unreliable backend, a failing store."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from refold.core.events import Event, RunStarted
from refold.core.orders import Order, StartRun, StopRun
from refold.errors import Unavailable
from refold.model import Allocation, Job
from refold.model.units import WHOLE
from refold.server.live_state import LiveState
from refold.server.store.store import Commit, Store


class ManualClock:
    """A clock that the test advances; every call of `now` advances it by a millisecond."""

    def __init__(self) -> None:
        self.time = 0.0
        self.is_waiting = False
        self._moved = asyncio.Event()

    def now(self) -> float:
        self.time += 0.001
        return self.time

    def advance(self, seconds: float) -> None:
        self.time += seconds
        self._moved.set()

    async def wait(self, event: asyncio.Event, until: float | None) -> None:
        while not event.is_set() and (until is None or self.time < until):
            self._moved.clear()
            both = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(self._moved.wait())]
            self.is_waiting = True
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self.is_waiting = False
                for one in both:
                    one.cancel()


class UnreliableBackend:
    """A backend that outlives daemons, can drop an order, and leaves its reports to the test to deliver."""

    def __init__(self) -> None:
        self.alive: dict[tuple[str, int], Allocation] = {}
        self.stopping: set[tuple[str, int]] = set()
        self.ended: dict[tuple[str, int], Event] = {}
        self.starts: Counter[tuple[str, int]] = Counter()
        self.undelivered: list[Event] = []
        self.drops_next_order = False

    def end(self, run: tuple[str, int], report: Event) -> None:
        del self.alive[run]
        self.stopping.discard(run)
        self.ended[run] = report
        self.undelivered.append(report)

    async def carry_out(self, orders: Sequence[Order], jobs: Mapping[str, Job]) -> None:
        for order in orders:
            if self.drops_next_order:
                self.drops_next_order = False
                continue
            run = (order.job, order.run)
            match order:
                case StartRun():
                    assert order.job in jobs
                    if run in self.ended:
                        self.undelivered.append(self.ended[run])
                    elif run not in self.alive:
                        self.alive[run] = order.allocation
                        self.starts[run] += 1
                        self.undelivered.append(RunStarted(*run))
                case StopRun() if run in self.alive:
                    self.stopping.add(run)

    async def stop_all_except(self, runs: Collection[tuple[str, int]]) -> None:
        for run in [run for run in self.alive if run not in runs]:
            del self.alive[run]
            self.stopping.discard(run)

    async def close(self) -> None: ...

    async def detach(self) -> None: ...

    def assert_no_gpu_used_twice(self) -> None:
        used: Counter[tuple[int, int]] = Counter()
        for allocation in self.alive.values():
            for share in allocation.placement:
                used.update({(share.node, gpu): share.gpu_milli for gpu in share.gpus})
        assert all(milli <= WHOLE for milli in used.values()), (used, self.alive)
        jobs = Counter(job for job, _ in self.alive)
        assert set(jobs.values()) <= {1}, f"two runs of one job: {jobs}"


QueueState = tuple[list[str], list[str], list[tuple[str, int]]]


class FailingStore(Store):
    """A store that fails on demand and records the queue state at the last commit."""

    fails = False
    state: LiveState | None = None
    last: QueueState | None = None

    def commit(self, commit: Commit) -> None:
        if self.fails:
            raise Unavailable("the disk is full")
        super().commit(commit)
        assert self.state is not None
        self.last = queue_state(self.state)


def queue_state(state: LiveState) -> QueueState:
    view = state.view
    return list(view.waiting), sorted(view.held), [(run.job, run.number) for run in view.runs.values()]
