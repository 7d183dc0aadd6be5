"""The paper's simulator: SimPy processes submit and end tasks, a PyGAD search places them.

Whenever a task arrives or ends, searches place one pair of waiting task and machine at a time until none is found.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from benchmarks.peers.pairwise import place_on
from benchmarks.peers.pygad_placement import MISFIT, PairSearch, gains
from refold.model import Cluster, Job, Share
from refold.placement import FreeResources


class Result(NamedTuple):
    """Result of a simulation."""

    cpu_seconds: float
    started: int
    finished: int
    decisions: int


class _Simulation:
    """State shared by all SimPy processes."""

    def __init__(self, environment: Any, cluster: Cluster, pairs: PairSearch, seed: int) -> None:
        self.environment = environment
        self.free = FreeResources(cluster)
        self.waiting: list[Job] = []
        self.pairs = pairs
        self.seed = seed
        self.started = self.finished = self.decisions = 0

    def arrivals(self, jobs: Sequence[Job]) -> Generator[Any, None, None]:
        """Submit tasks at their submission times."""
        for job in jobs:
            yield self.environment.timeout(max(0.0, job.submitted - self.environment.now))
            self.waiting.append(job)
            self.decide()

    def decide(self) -> None:
        """Place one pair of task and machine after another until a search finds no task that fits."""
        while self.waiting:
            demands = [job.demand for job in self.waiting]
            found = self.pairs.search(gains(self.free, demands), self.seed + self.decisions)
            self.decisions += 1
            if found.fitness == MISFIT:
                return
            job = self.waiting.pop(found.task)
            share = place_on(self.free, found.machine, job.demand)
            assert share is not None, "the search finds only tasks that fit"
            self.started += 1
            self.environment.process(self.running(job, share))

    def running(self, job: Job, share: Share) -> Generator[Any, None, None]:
        """Run a task and release its resources."""
        yield self.environment.timeout(job.work or 0.0)
        self.free.release((share,))
        self.finished += 1
        self.decide()


def run(jobs: Sequence[Job], cluster: Cluster, seed: int = 0, pairs: PairSearch | None = None) -> Result:
    """Simulate single-instance tasks until all have ended."""
    import simpy  # optional dependency

    assert all(job.demand.instances == 1 for job in jobs), "this simulator does not support gangs"
    state = _Simulation(simpy.Environment(), cluster, pairs or PairSearch(), seed)
    before = time.process_time()
    state.environment.process(state.arrivals(jobs))
    state.environment.run()
    return Result(time.process_time() - before, state.started, state.finished, state.decisions)
