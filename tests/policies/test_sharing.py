"""Sharing: a waiting job gets its minimum from jobs that hold more GPUs than they requested."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from refold.core import JobSubmitted, Scheduler
from refold.core.events import Event, NodeLost, RunFinished, RunStarted, RunStopped
from refold.core.orders import StopRun
from refold.model import WHOLE, Job
from refold.planning.plans import Speeds
from refold.simulator import Costs, Fault, ModelledSpeeds, RecordedSpeeds, simulate
from refold.simulator.registry import make_policy
from refold.testing import Audit, make_cluster, make_job, reshapable_workload

NODE = make_cluster(8, types="A800-80GB", cpus=96, memory_gib=1600)
POLICIES = ("refold", "rubick", "rubick-r")


class SharedNode:
    """A node of eight GPUs whose runs start and stop at once, so that every decision is carried out."""

    def __init__(self, policy: str) -> None:
        self._scheduler = Scheduler(NODE, make_policy(policy, {}))
        self.view = self._scheduler.view
        self.stops: list[str] = []
        self.now = 0.0

    def step(self, seconds: float, *events: Event) -> None:
        """Deliver events and the reports of all runs that they start or stop."""
        self.now += seconds
        pending: Sequence[Event] = events
        while True:
            reports: list[Event] = []
            for order in self._scheduler.step(self.now, pending).orders:
                if isinstance(order, StopRun):
                    self.stops.append(f"{order.job}: {order.why}")
                    reports.append(RunStopped(order.job, order.run, 0.0, 0))
                else:
                    reports.append(RunStarted(order.job, order.run))
            if not reports:
                return
            pending = reports
            self.now += 0.1

    def submit(self, *jobs: Job) -> dict[str, int]:
        """Submit jobs a minute apart and return the GPUs of each run."""
        for job in jobs:
            self.step(60.0, JobSubmitted(job))
        return self.gpus()

    def gpus(self) -> dict[str, int]:
        return {run.job: run.allocation.gpu_milli // WHOLE for run in self.view.runs.values()}


def elastic(name: str, minimum: int = 1, maximum: int = 8, **fields: Any) -> Job:
    """Return a job that requests a range of GPUs."""
    defaults: dict[str, Any] = {"gpus": minimum, "workload": "bert", "reshapable": True, "work": None}
    return make_job(name, gpu_range=(minimum, maximum), **defaults | fields)


def rigid(name: str, gpus: int = 1, **fields: Any) -> Job:
    return make_job(name, gpus=gpus, work=None, preemptible=False, **fields)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (elastic("b"), {"a": 4, "b": 4}),
        (elastic("b", steps=100), {"a": 4, "b": 4}),
        (elastic("b", steps=10_000_000), {"a": 4, "b": 4}),
        (elastic("b", 4), {"a": 4, "b": 4}),
        (elastic("b", job_class="best-effort"), {"a": 4, "b": 4}),
        (rigid("b"), {"a": 4, "b": 1}),
        (rigid("b", 4), {"a": 4, "b": 4}),
        (rigid("b", 6), {"a": 2, "b": 6}),
        (rigid("b", 7), {"a": 1, "b": 7}),
        (make_job("b", share=0.5, work=None), {"a": 4, "b": 0}),
    ],
    ids=lambda case: str(case.demand) if isinstance(case, Job) else "",
)
def test_a_job_that_asked_for_1_to_8_gpus_and_holds_8_gives_way(
    policy: str, second: Job, expected: dict[str, int]
) -> None:
    node = SharedNode(policy)
    assert node.submit(elastic("a")) == {"a": 8}
    assert node.submit(second) == expected


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("first", "held"),
    [
        (elastic("a", preemptible=False), 8),
        (elastic("a", gpus=8), 8),
        (elastic("a", 2, 4, gpus=4), 4),
        (elastic("a", 4), 8),
    ],
)
def test_a_job_keeps_what_it_requested_and_one_without_consent_keeps_all(policy: str, first: Job, held: int) -> None:
    """The second job needs more than is left beyond the request of the first."""
    node = SharedNode(policy)
    assert node.submit(first) == {"a": held}
    assert node.submit(rigid("b", 5)) == {"a": held}
    assert node.stops == []


@pytest.mark.parametrize("policy", ["refold"])
def test_the_reason_names_the_job_that_was_waiting(policy: str) -> None:
    node = SharedNode(policy)
    node.submit(elastic("a", steps=100_000), elastic("b", steps=100_000))
    assert node.stops == ["a: gave 4 GPUs beyond its request to b, which was waiting"]


def test_a_run_with_more_work_is_shrunk_and_not_stopped() -> None:
    node = SharedNode("refold")
    node.submit(elastic("long", steps=100_000), elastic("short", steps=100))
    assert node.gpus() == {"long": 4, "short": 4}
    assert node.stops == ["long: shrunk for other jobs"]


@pytest.mark.parametrize("policy", POLICIES)
def test_many_jobs_share_one_node(policy: str) -> None:
    node = SharedNode(policy)
    node.submit(*(elastic(name) for name in "abcdefgh"))
    assert node.gpus() == dict.fromkeys("abcdefgh", 1)
    assert not node.view.waiting
    node.submit(elastic("i"))
    assert len(node.view.waiting) == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_is_lent_on_a_node_that_is_down(policy: str) -> None:
    node = SharedNode(policy)
    node.submit(elastic("a"))
    node.step(1.0, NodeLost(0, "drained"))
    node.submit(rigid("b"))
    assert node.gpus() == {"a": 8}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(6))
def test_no_job_waits_while_others_hold_enough_beyond_their_requests(policy: str, seed: int) -> None:
    """Jobs of random ranges arrive and end. Requests are powers of two: other numbers are not useful for the model."""
    rng, node = random.Random(seed), SharedNode(policy)
    for number in range(30):
        runs = list(node.view.runs.values())
        if runs and rng.random() < 0.4:
            ended = rng.choice(runs)
            node.step(rng.expovariate(1 / 200), RunFinished(ended.job, ended.number))
        else:
            minimum = rng.choice([1, 1, 2, 4])
            job = rigid(f"j{number}", minimum) if rng.random() < 0.3 else elastic(f"j{number}", minimum)
            node.step(rng.expovariate(1 / 200), JobSubmitted(job))
        lent = sum(gpus - int(node.view.active[job_id].demand.total_gpus) for job_id, gpus in node.gpus().items())
        smallest = min((job.demand.total_gpus for job in node.view.waiting.values()), default=9)
        assert lent + node.view.free_gpus < smallest, f"after {number} steps"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(2))
def test_elastic_jobs_on_several_nodes_finish_despite_restarts_and_lost_nodes(policy: str, seed: int) -> None:
    jobs, cluster = reshapable_workload(seed)
    ranged = [
        msgspec.structs.replace(job, gpu_range=(max(1, requested // 2), 2 * requested)) if job.reshapable else job
        for job in jobs
        for requested in [job.demand.instances * job.demand.gpus]
    ]
    audit = Audit(cluster)
    charge = ModelledSpeeds(Speeds(cluster), RecordedSpeeds(cluster))
    costs = Costs(start=10.0, stop=5.0, restart=40.0, checkpoint_every=60.0, report_every=30.0)
    simulate(
        ranged,
        cluster,
        make_policy(policy, {}),
        journal=audit,
        charge=charge,
        costs=costs,
        faults=[Fault(0, 250.0, 900.0)],
    )
    assert set(audit.ended) == {job.id for job in jobs}
