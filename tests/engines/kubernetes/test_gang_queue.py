"""The queue of gangs: what it does before the state of the previous daemon is restored."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from kubernetes_objects import make_node, make_pod

from refold.core import NodesAllowed
from refold.engines.kubernetes.gang_queue import GangQueue
from refold.engines.kubernetes.gangs import GangName
from refold.engines.kubernetes.nodes import map_nodes
from refold.engines.kubernetes.objects import Pod
from refold.engines.kubernetes.volumes import PodVolumes
from refold.model import Demand, Job, Launch, NodeSet


def test_no_gang_is_examined_before_it_is_known_which_gangs_have_a_job() -> None:
    """A gang that another daemon has bound in part would be submitted again, without the pods that are bound."""
    examined = asyncio.Event()

    def gangs() -> list[Any]:
        examined.set()
        return []

    async def work() -> None:
        mirror = SimpleNamespace(follow=asyncio.Queue, unfollow=lambda _: None, gangs=gangs)
        state = SimpleNamespace(job_table=SimpleNamespace(records={}), now=lambda: 0.0)
        none = cast(Any, None)
        queue = GangQueue(cast(Any, state), none, none, cast(Any, mirror), none, none, none, none)
        running = asyncio.create_task(queue.run())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not examined.is_set()
        queue.started()
        async with asyncio.timeout(10):
            await examined.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(work())


GANG = GangName("Job", "default", "train", "u")


def make_queue(pods: Sequence[Pod], *jobs: Job) -> tuple[GangQueue, list[Any]]:
    """Return a queue after a restart of the daemon, and what it reports. The cluster has the nodes `a` and `b`."""
    reports: list[Any] = []
    by_key = {pod.key: pod for pod in pods}
    mirror = SimpleNamespace(
        follow=asyncio.Queue, pods_of_gang=lambda _: by_key, run_of=lambda _: None, volumes=PodVolumes()
    )
    records = {job.id: SimpleNamespace(job=job, runs=1) for job in jobs}
    view = SimpleNamespace(runs={}, infeasible={job.id: job for job in jobs})
    state = SimpleNamespace(job_table=SimpleNamespace(records=records), view=view, now=lambda: 0.0)
    nodes = map_nodes([make_node("a", labels={"pool": "x"}), make_node("b")])
    none, inbox = cast(Any, None), cast(Any, SimpleNamespace(report=reports.append))
    return GangQueue(cast(Any, state), inbox, none, cast(Any, mirror), none, none, nodes, none), reports


def make_gang(allowed: NodeSet | None) -> Job:
    return Job("train-1", demand=Demand(gpus=1, allowed_nodes=allowed), launch=Launch(gang=GANG.text()))


def test_the_nodes_of_jobs_are_reported_after_a_restart_even_if_their_numbers_are_as_before() -> None:
    """The number 0 may have been that of another node."""
    queue, reports = make_queue([make_pod("train-0", nodeSelector={"pool": "x"})], make_gang(NodeSet.of([0])))
    queue.started()
    assert reports == [NodesAllowed(("train-1",), NodeSet.of([0]))]
    queue.nodes_changed()
    assert len(reports) == 1


def test_a_gang_without_pods_whose_nodes_are_gone_is_placed_where_its_pods_can_say_what_they_need() -> None:
    """A gang that was preempted has no pods."""
    queue, reports = make_queue([], make_gang(NodeSet()))
    queue.started()
    queue._facts(GANG)
    assert reports == [NodesAllowed(("train-1",), None)]
