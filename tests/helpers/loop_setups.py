"""What surrounds a loop in tests: a clock that is moved by hand, a machine that is unreliable, a disk that fails."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from refold.core.events import Event, RunStarted
from refold.core.orders import Order, StartRun, StopRun
from refold.errors import Unavailable
from refold.model import Allocation, Job
from refold.model.units import WHOLE
from refold.server.loop import Loop
from refold.server.store.store import Commit, Store


class HandClock:
    """A clock that the test moves, and that moves by a little whenever it is looked at."""

    def __init__(self) -> None:
        self.time = 0.0
        self.waits = False
        self._moved = asyncio.Event()

    def now(self) -> float:
        self.time += 0.001
        return self.time

    def move(self, seconds: float) -> None:
        self.time += seconds
        self._moved.set()

    async def wait(self, something: asyncio.Event, until: float | None) -> None:
        while not something.is_set() and (until is None or self.time < until):
            self._moved.clear()
            both = [asyncio.ensure_future(something.wait()), asyncio.ensure_future(self._moved.wait())]
            self.waits = True
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self.waits = False
                for one in both:
                    one.cancel()


class UnreliableMachine:
    """The world in which runs run. It outlives daemons, forgets orders if it is told to, and posts reports late."""

    def __init__(self) -> None:
        self.alive: dict[tuple[str, int], Allocation] = {}
        self.stopping: set[tuple[str, int]] = set()
        self.ended: dict[tuple[str, int], Event] = {}
        self.begun: Counter[tuple[str, int]] = Counter()
        self.post: list[Event] = []
        self.forgets = False

    def end(self, run: tuple[str, int], how: Event) -> None:
        del self.alive[run]
        self.stopping.discard(run)
        self.ended[run] = how
        self.post.append(how)

    async def carry_out(self, orders: Sequence[Order], jobs: Mapping[str, Job]) -> None:
        for order in orders:
            if self.forgets:
                self.forgets = False
                continue
            run = (order.job, order.run)
            match order:
                case StartRun():
                    assert order.job in jobs
                    if run in self.ended:
                        self.post.append(self.ended[run])
                    elif run not in self.alive:
                        self.alive[run] = order.allocation
                        self.begun[run] += 1
                        self.post.append(RunStarted(*run))
                case StopRun() if run in self.alive:
                    self.stopping.add(run)

    async def keep_only(self, runs: Collection[tuple[str, int]]) -> None:
        for run in [run for run in self.alive if run not in runs]:
            del self.alive[run]
            self.stopping.discard(run)

    async def close(self) -> None: ...

    async def leave(self) -> None: ...

    def demand_no_gpu_used_twice(self) -> None:
        used: Counter[tuple[int, int]] = Counter()
        for allocation in self.alive.values():
            for share in allocation.placement:
                used.update({(share.node, gpu): share.gpu_milli for gpu in share.gpus})
        assert all(milli <= WHOLE for milli in used.values()), (used, self.alive)
        jobs = Counter(job for job, _ in self.alive)
        assert set(jobs.values()) <= {1}, f"two runs of one job: {jobs}"


Stand = tuple[list[str], list[str], list[tuple[str, int]]]


class FailingStore(Store):
    """A store on a disk that fails when it is told to; knows how things stood at the last commit."""

    fails = False
    watched: Loop | None = None
    last: Stand | None = None

    def commit(self, commit: Commit) -> None:
        if self.fails:
            raise Unavailable("the disk is full")
        super().commit(commit)
        assert self.watched is not None
        self.last = stand_of(self.watched)


def stand_of(state: Any) -> Stand:
    view = state.view
    return list(view.waiting), sorted(view.held), [(run.job, run.number) for run in view.runs.values()]
