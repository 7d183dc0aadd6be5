"""The paper's simulator: SimPy's processes bring tasks and end them, PyGAD's search decides who goes where.

Whenever a task arrives or ends, pairs of a waiting task and a machine are looked for until a search finds none.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from benchmarks.peers.pairwise import placed_on
from benchmarks.peers.pygad_placement import MISFIT, Pairs, gains
from refold.model import Cluster, Job, Share
from refold.packing import Free


class Outcome(NamedTuple):
    """What came of it."""

    cpu_seconds: float
    started: int
    finished: int
    decisions: int


class _World:
    """What all processes share."""

    def __init__(self, environment: Any, cluster: Cluster, pairs: Pairs, seed: int) -> None:
        self.environment = environment
        self.free = Free(cluster)
        self.waiting: list[Job] = []
        self.pairs = pairs
        self.seed = seed
        self.started = self.finished = self.decisions = 0

    def arrivals(self, jobs: Sequence[Job]) -> Generator[Any, None, None]:
        """Tasks come at their times."""
        for job in jobs:
            yield self.environment.timeout(max(0.0, job.submitted - self.environment.now))
            self.waiting.append(job)
            self.decide()

    def decide(self) -> None:
        """Place pair by pair until nobody who fits is found."""
        while self.waiting:
            demands = [job.demand for job in self.waiting]
            found = self.pairs.search(gains(self.free, demands), self.seed + self.decisions)
            self.decisions += 1
            if found.fitness == MISFIT:
                return
            job = self.waiting.pop(found.task)
            share = placed_on(self.free, found.machine, job.demand)
            self.started += 1
            self.environment.process(self.running(job, share))

    def running(self, job: Job, share: Share) -> Generator[Any, None, None]:
        """A task runs, and leaves."""
        yield self.environment.timeout(job.work or 0.0)
        self.free.give_back((share,))
        self.finished += 1
        self.decide()


def run(jobs: Sequence[Job], cluster: Cluster, seed: int = 0, pairs: Pairs | None = None) -> Outcome:
    """Simulate tasks of one instance each to their end."""
    import simpy  # only who measures it needs it

    assert all(job.demand.instances == 1 for job in jobs), "this simulator knows no gangs"
    world = _World(simpy.Environment(), cluster, pairs or Pairs(), seed)
    before = time.process_time()
    world.environment.process(world.arrivals(jobs))
    world.environment.run()
    return Outcome(time.process_time() - before, world.started, world.finished, world.decisions)
