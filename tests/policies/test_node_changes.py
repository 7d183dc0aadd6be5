"""Jobs that may be placed on other nodes from time to time: no decision breaks a rule, and no job is forgotten."""

from __future__ import annotations

from random import Random

import pytest

from refold.core import Event, JobSubmitted, NodesAllowed, RunFinished, RunStarted, RunStopped, Scheduler, StopRun
from refold.model import Cluster, Demand, Job, Node, NodeSet
from refold.policies import POLICIES
from refold.simulator.registry import make_policy

NODES = 6
JOBS = 60
CLUSTER = Cluster(tuple(Node(f"n{node}", 4, ("A", "B")[node % 2], cpu_milli=16_000) for node in range(NODES)))


class Play:
    """A scheduler whose check raises, and the runs that it has ordered: by job, their number and whether they stop."""

    def __init__(self, policy: str, seed: int) -> None:
        self.scheduler = Scheduler(CLUSTER, make_policy(policy))
        self.random = Random(seed)
        self.now = 0.0
        self.runs: dict[str, tuple[int, bool]] = {}
        self.unfinished: set[str] = set()
        self.events: list[Event] = []

    def submit(self, number: int) -> None:
        demand = Demand(self.random.choice([1, 1, 2]), self.random.choice([0, 1, 2, 4]), cpu_milli=1000)
        job = Job(f"j{number}", submitted=self.now, demand=demand, work=self.random.uniform(50, 500))
        self.events.append(JobSubmitted(job))
        self.unfinished.add(job.id)

    def change_nodes(self) -> None:
        jobs = sorted(self.unfinished)
        some = self.random.sample(jobs, min(len(jobs), 3))
        nodes = NodeSet.of(self.random.sample(range(NODES), self.random.randint(0, NODES)))
        self.events.append(NodesAllowed(tuple(some), self.random.choice([None, nodes, nodes])))

    def step(self) -> None:
        """End some runs that were ordered to stop and another one; carry out the orders."""
        self.now += self.random.choice([1.0, 60.0])
        finished = self.random.choice(sorted(self.runs)) if self.runs else None
        for job, (run, is_stopping) in list(self.runs.items()):
            if self.random.random() < 0.5 if is_stopping else job == finished:
                self.events.append(RunStopped(job, run) if is_stopping else RunFinished(job, run))
                self.unfinished -= set() if is_stopping else {job}
                del self.runs[job]
        events, self.events = tuple(self.events), []
        for order in self.scheduler.step(self.now, events).orders:
            self.runs[order.job] = order.run, isinstance(order, StopRun)
            self.events += [] if isinstance(order, StopRun) else [RunStarted(order.job, order.run)]


@pytest.mark.parametrize("seed", [0, 8])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_job_ends_on_nodes_that_it_was_allowed_on(policy: str, seed: int) -> None:
    play = Play(policy, seed)
    for number in range(JOBS):
        play.submit(number)
        play.change_nodes()
        play.step()
    play.events.append(NodesAllowed(tuple(sorted(play.unfinished)), None))
    for _ in range(8 * JOBS):
        play.step()
    assert not play.unfinished
