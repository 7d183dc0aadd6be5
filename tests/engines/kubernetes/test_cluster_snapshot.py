"""Snapshots of clusters that others schedule: what they contain, what they are for, and that nothing changes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fake_api_server import FakeApiServer, Refusal
from kubernetes_objects import DAEMON, Json, binding_of, node_json, pod_json
from typer.testing import CliRunner

from refold.cli.lazy_group import app
from refold.core import Event, JobSubmitted, NodeDrained, NodeLost, NodeUsed, PastJob, RunAdopted
from refold.engines.kubernetes.access import Access
from refold.engines.kubernetes.api_server import ApiError, ApiServer
from refold.engines.kubernetes.engine import KubernetesEngine
from refold.engines.kubernetes.job_objects import OwnJobs
from refold.engines.kubernetes.observation import observe
from refold.engines.kubernetes.snapshot_events import Observation
from refold.model import Allocation, Share

NODES = "/api/v1/nodes"
PODS = "/api/v1/namespaces/default/pods"
NOW = datetime.now(UTC)


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    found = FakeApiServer()
    yield found
    found.stop()


def add_pod(server: FakeApiServer, name: str, gpus: int = 1, age: float = 3600.0, **fields: Any) -> None:
    """Store a pod as an existing cluster has it."""
    body = pod_json(name, gpus, **{"schedulerName": "default-scheduler", **fields})
    body["metadata"]["creationTimestamp"] = ago(age)
    store(server, f"{PODS}/{name}", body)


def store(server: FakeApiServer, path: str, body: Json) -> None:
    body["metadata"]["resourceVersion"] = "1"
    server.objects[path] = body


def ago(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def running(node: str, seconds: float = 600.0) -> dict[str, Any]:
    return {"nodeName": node, "status": {"phase": "Running", "startTime": ago(seconds)}}


def look(server: FakeApiServer) -> Observation:
    return observe(server.api, "easy")


def of(found: Observation, kind: type[Event]) -> list[Any]:
    return [event for event in found.events if isinstance(event, kind)]


def test_pods_with_gpus_of_any_scheduler_are_jobs(server: FakeApiServer) -> None:
    for name in ("n0", "n1"):
        store(server, f"{NODES}/{name}", node_json(name))
    owner = ("Job", "train", "u1")
    add_pod(server, "train-0", 4, owner=owner, **running("n0"))
    add_pod(server, "train-1", 4, owner=owner, **running("n1", 500))
    add_pod(server, "next-0", 8, age=60, labels={"kueue.x-k8s.io/queue-name": "lab"}, owner=("Job", "next", "u2"))
    add_pod(server, "web", 0, nodeName="n1", status={"phase": "Running"})
    server.objects[f"{PODS}/web"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "2500m"}}
    found = look(server)
    jobs = {event.job.id: event.job for event in of(found, JobSubmitted)}
    assert {name: (str(job.demand), job.tenant) for name, job in jobs.items()} == {
        "train": ("2 × 4 GPUs", "default"),
        "next": ("8 GPUs", "lab"),
    }
    placement = (Share(0, (0, 1, 2, 3)), Share(1, (0, 1, 2, 3)))
    assert of(found, RunAdopted) == [RunAdopted("train", 1, Allocation(placement), 3000.0)]
    assert of(found, NodeUsed) == [NodeUsed(1, cpu_milli=2500)]
    assert jobs["next"].submitted == 3540.0


def test_a_gang_of_which_a_part_runs_is_two_jobs(server: FakeApiServer) -> None:
    store(server, f"{NODES}/n0", node_json("n0"))
    for number in range(4):
        fields = running("n0") if number < 3 else {}
        add_pod(server, f"part-{number}", 2, owner=("Job", "part", "u"), **fields)
    found = look(server)
    assert {event.job.id: event.job.demand.instances for event in of(found, JobSubmitted)} == {"part": 3, "part-2": 1}


def test_jobs_that_have_finished_are_the_history(server: FakeApiServer) -> None:
    store(server, f"{NODES}/n0", node_json("n0"))
    state = {"name": "main", "state": {"terminated": {"exitCode": 0, "finishedAt": ago(100)}}}
    status = {"phase": "Succeeded", "startTime": ago(1100), "containerStatuses": [state]}
    add_pod(server, "done-0", owner=("Job", "done", "u"), nodeName="n0", status=status)
    ((past),) = of(look(server), PastJob)
    assert (past.job.id, past.run_time) == ("done", 1000.0)


def test_a_daemon_learns_from_pods_that_others_have_run_and_not_twice_from_its_own(server: FakeApiServer) -> None:
    store(server, f"{NODES}/n0", node_json("n0"))
    state = {"name": "main", "state": {"terminated": {"exitCode": 0, "finishedAt": ago(100)}}}
    status = {"phase": "Succeeded", "startTime": ago(1100), "containerStatuses": [state]}
    add_pod(server, "theirs-0", gpus=2, owner=("Job", "theirs", "u"), nodeName="n0", status=status)
    known = binding_of("uid-ours-0", "ours-1", 1, 0)
    add_pod(server, "ours-0", owner=("Job", "ours", "v"), nodeName="n0", status=status, annotations=known)
    add_pod(server, "failed-0", owner=("Job", "f", "w"), nodeName="n0", status={**status, "phase": "Failed"})

    async def history() -> list[PastJob]:
        engine = KubernetesEngine(Access(server.address, None), DAEMON, OwnJobs())
        await engine.connect()
        found = engine.history()
        await engine.close()
        return found

    (past,) = asyncio.run(history())
    assert (past.job.id, past.job.demand.gpus, past.run_time) == ("theirs", 2, 1000.0)


def test_nodes_that_are_down_or_cordoned_and_pods_on_unknown_nodes(server: FakeApiServer) -> None:
    store(server, f"{NODES}/n0", node_json("n0", conditions=[{"type": "Ready", "status": "False", "reason": "x"}]))
    cordoned = node_json("n1")
    cordoned["spec"]["unschedulable"] = True
    store(server, f"{NODES}/n1", cordoned)
    add_pod(server, "lost", **running("gone"))
    found = look(server)
    assert [event for event in found.events if isinstance(event, NodeLost)] == [
        NodeLost(0, "NotReady: x"),
        NodeDrained(1, "cordoned"),
    ]
    assert of(found, RunAdopted) == []


def test_owners_that_may_not_be_read_are_done_without(server: FakeApiServer) -> None:
    store(server, f"{NODES}/n0", node_json("n0"))
    add_pod(server, "a", labels={"jobset.sigs.k8s.io/jobset-name": "set"})
    server.refuse = lambda _, path: None if path in (NODES, "/api/v1/pods") else Refusal(403)
    assert [event.job.id for event in of(look(server), JobSubmitted)] == ["set"]


def test_a_snapshot_can_be_compared_and_nothing_is_changed(server: FakeApiServer, tmp_path: Path) -> None:
    for name in ("n0", "n1"):
        store(server, f"{NODES}/{name}", node_json(name))
    add_pod(server, "train-0", 8, annotations={"refold.dev/estimate": "1h"}, **running("n0"))
    add_pod(server, "big", 8, age=60, annotations={"refold.dev/estimate": "2h"})
    add_pod(server, "small", 2, age=30, annotations={"refold.dev/estimate": "10m"})
    before = {path: body["metadata"]["resourceVersion"] for path, body in server.objects.items()}
    out = tmp_path / "now.jsonl"
    options = ["--from", "kubernetes", "--kubeconfig", str(server.write_kubeconfig(tmp_path)), "-o", str(out)]
    saved = CliRunner().invoke(app, ["snapshot", *options])
    assert saved.exit_code == 0, saved.output
    assert "2 nodes, 16 GPUs: 1 running, 2 waiting" in saved.output
    assert server.requests == []
    assert {path: body["metadata"]["resourceVersion"] for path, body in server.objects.items()} == before
    listed = CliRunner().invoke(app, ["queue", str(out)])
    assert listed.exit_code == 0, listed.output
    assert all(name in listed.output for name in ("1 running", "big", "small")), listed.output
    (tmp_path / "job.yaml").write_text("name: mine\ngpus: 4\nestimate: 1h\nrun: python train.py\n")
    asked = CliRunner().invoke(app, ["whatif", str(out), str(tmp_path / "job.yaml"), "--futures", "2"])
    assert asked.exit_code == 0, asked.output
    compared = CliRunner().invoke(app, ["compare", str(out), "--policies", "fifo,sjf", "--out", str(tmp_path)])
    assert compared.exit_code == 0, compared.output


def test_a_client_with_the_read_only_guard_sends_no_changes(server: FakeApiServer) -> None:
    from refold.engines.kubernetes.access import Access
    from refold.engines.kubernetes.observation import read_only

    api = ApiServer(Access(server.address, None), guard=read_only)
    with pytest.raises(ApiError, match="nothing may be changed"):
        api.delete(f"{PODS}/train-0")
    assert server.requests == []
