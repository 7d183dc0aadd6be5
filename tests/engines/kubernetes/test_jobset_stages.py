"""JobSets that create their pods one Job after the other: no stage waits for pods that come only after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fake_api_server import FakeApiServer
from kubernetes_daemon import PODS, daemon_of, wait_for
from kubernetes_objects import Json, pod_json
from training_operators import JOBSETS


def create_jobset(server: FakeApiServer, *jobs: Json, **spec: Any) -> Json:
    body = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "set"}}
    server.api.create(JOBSETS, {**body, "spec": {"replicatedJobs": jobs, **spec}})
    return server.objects[f"{JOBSETS}/set"]


def create_pods(server: FakeApiServer, jobset: Json, name: str, count: int, seconds: float) -> None:
    labels = {"jobset.sigs.k8s.io/jobset-name": "set", "jobset.sigs.k8s.io/jobset-uid": jobset["metadata"]["uid"]}
    for number in range(count):
        body = pod_json(f"set-{name}-{number}", labels=labels, owner=("Job", f"set-{name}", "u"))
        body["spec"]["containers"][0]["command"] = ["sleep", f"{seconds:g}"]
        server.api.create(PODS, body)


def replicated(name: str, pods: int, **fields: Any) -> Json:
    return {"name": name, "replicas": 1, "template": {"spec": {"parallelism": pods}}, **fields}


def set_status(server: FakeApiServer, **counts: Json) -> None:
    status = [{"name": name, **fields} for name, fields in counts.items()]
    server.api.patch(f"{JOBSETS}/set", {"status": {"replicatedJobsStatus": status}})


def test_jobs_that_depend_on_the_end_of_others_are_a_gang_of_their_own(
    fake_server: FakeApiServer, tmp_path: Path
) -> None:
    after = [{"name": "data", "status": "Complete"}]
    with daemon_of(fake_server, tmp_path, "policy: {name: fifo}") as daemon:
        jobset = create_jobset(fake_server, replicated("data", 1), replicated("node", 2, dependsOn=after))
        create_pods(fake_server, jobset, "data", 1, seconds=0.1)
        daemon.wait_for_state("set", "finished")
        set_status(fake_server, data={"succeeded": 1})
        create_pods(fake_server, jobset, "node", 2, seconds=1000)
        daemon.wait_for_state("set", "running")
        wait_for(
            lambda: all(pod["spec"].get("nodeName") for pod in fake_server.pods("set-node-")), "both pods are bound"
        )


def test_pods_that_come_when_others_are_ready_start_beside_these(fake_server: FakeApiServer, tmp_path: Path) -> None:
    order = {"startupPolicyOrder": "InOrder"}
    with daemon_of(fake_server, tmp_path, "policy: {name: fifo}") as daemon:
        jobset = create_jobset(fake_server, replicated("head", 1), replicated("node", 2), startupPolicy=order)
        create_pods(fake_server, jobset, "head", 1, seconds=1000)
        daemon.wait_for_state("set", "running")
        set_status(fake_server, head={"ready": 1})
        create_pods(fake_server, jobset, "node", 2, seconds=1000)
        for name in ("set", "set-node-0", "set-node-1"):
            daemon.wait_for_state(name, "running")
