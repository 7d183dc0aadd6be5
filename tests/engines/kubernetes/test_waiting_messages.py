"""What pods and `refold why` say while gangs wait, start and stop: a daemon on an API server in memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from fake_api_server import FakeApiServer
from kubernetes_daemon import JOBS, PODS, KubernetesDaemon, daemon_of, job_json, wait_for
from kubernetes_objects import pod_json
from process_kubelet import MISSING_IMAGE

from refold.client.address import read_address

BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


@pytest.fixture
def daemon(fake_server: FakeApiServer, tmp_path: Path) -> Iterator[KubernetesDaemon]:
    with daemon_of(fake_server, tmp_path, "") as found:
        yield found


def message(server: FakeApiServer, name: str) -> str:
    """Return what the first pod of a gang says about why it waits."""
    conditions = [entry for pod in server.pods(f"{name}-")[:1] for entry in pod["status"].get("conditions", [])]
    return " ".join(entry["message"] for entry in conditions)


def test_what_a_pod_says_wrongly_is_refused_on_the_pod(fake_server: FakeApiServer, daemon: KubernetesDaemon) -> None:
    body = job_json("odd", 1, 1, 1000.0)
    body["spec"]["template"]["metadata"]["annotations"] = {"refold.dev/workload": "banana"}
    fake_server.api.create(JOBS, body)
    fake_server.api.create(PODS, pod_json("lonely-0", labels={"refold.dev/gang": "lonely"}))
    wait_for(lambda: "unknown model 'banana'" in message(fake_server, "odd"), "the pod is told")
    wait_for(lambda: "gang-size is '', expected a number of pods" in message(fake_server, "lonely"), "it is told")
    assert not daemon.states()


def test_each_node_is_counted_under_one_cause(fake_server: FakeApiServer, daemon: KubernetesDaemon) -> None:
    fake_server.api.patch("/api/v1/nodes/n0", {"metadata": {"labels": {"pool": "a"}}})
    daemon.create_job("holder", 1, 8, pod={"nodeSelector": {"pool": "a"}})
    daemon.wait_for_state("holder", "running")
    daemon.create_job("picky", 1, 8, pod={"nodeSelector": {"pool": "a"}})
    expected = "0 of 2 nodes fit: 1 has fewer than 8 free GPUs, 1 does not match the node selector"
    wait_for(lambda: expected in message(fake_server, "picky"), "the pod is told")


def test_a_job_that_waits_for_a_preemption_names_the_budget_that_delays_it(
    fake_server: FakeApiServer, daemon: KubernetesDaemon
) -> None:
    budget = {"metadata": {"name": "keep"}, "spec": {"selector": {}}, "status": {"disruptionsAllowed": 0}}
    fake_server.api.create(BUDGETS, budget)
    body = job_json("low", 2, 8, 1000.0, labels={"refold.dev/class": "best-effort", "refold.dev/preemptible": "true"})
    fake_server.api.create(JOBS, body)
    daemon.wait_for_state("low", "running")
    daemon.create_job("high", 2, 8, pod={"priority": 1000})
    daemon.wait_for_state("low", "stopping")
    note = "waits for PodDisruptionBudget default/keep"
    wait_for(lambda: f"Releasing: low-1 {note}" in message(fake_server, "high"), "the pod is told")
    with daemon.client() as client:
        assert next(job.message for job in client.jobs().jobs if job.name == "low") == note
    fake_server.api.patch(f"{BUDGETS}/keep", {"status": {"disruptionsAllowed": 2}})
    daemon.wait_for_state("high", "running")


@pytest.fixture
def impatient(fake_server: FakeApiServer, tmp_path: Path) -> Iterator[KubernetesDaemon]:
    with daemon_of(fake_server, tmp_path, "kubernetes: {start_timeout: 2s}\n") as found:
        yield found


def test_a_gang_whose_image_cannot_be_pulled_ends_and_frees_its_gpus(
    fake_server: FakeApiServer, impatient: KubernetesDaemon
) -> None:
    daemon = impatient
    body = job_json("broken", 2, 8, 1000.0, backoffLimit=0)
    body["spec"]["template"]["spec"]["containers"][0]["image"] = MISSING_IMAGE
    fake_server.api.create(JOBS, body)
    wait_for(lambda: all(daemon.nodes_of("broken")), "it is bound")
    daemon.create_job("next", 2, 8)
    daemon.wait_for_state("broken", "failed")
    with daemon.client() as client:
        (job,) = [job for job in client.jobs(ended=True).jobs if job.name == "broken"]
    assert job.message.startswith("2 of 2 pods have not started within 2 s: pod default/broken-")
    assert job.message.endswith("ImagePullBackOff: Back-off pulling image")
    daemon.wait_for_state("next", "running")


@pytest.mark.parametrize("has_run", [False, True])
def test_a_queued_job_that_is_deleted_leaves_the_queue_soon(
    fake_server: FakeApiServer, daemon: KubernetesDaemon, has_run: bool
) -> None:
    labels = {"refold.dev/class": "best-effort", "refold.dev/preemptible": "true"}
    if has_run:
        daemon.create_job("queued", 2, 8, labels=labels)
        daemon.wait_for_state("queued", "running")
    daemon.create_job("holder", 2, 8, pod={"priority": 1000})
    daemon.wait_for_state("holder", "running")
    if not has_run:
        daemon.create_job("queued", 2, 8, labels=labels)
    daemon.wait_for_state("queued", "waiting")
    began = time.monotonic()
    fake_server.api.delete(f"{JOBS}/queued")
    daemon.wait_for_state("queued", "cancelled")
    print(f"{time.monotonic() - began:.2f} s")


def test_a_gang_is_undone_when_another_scheduler_has_taken_its_gpus(
    fake_server: FakeApiServer, daemon: KubernetesDaemon
) -> None:
    """What pods that have not started hold is given up: a kubelet would refuse some of the pods."""
    body = job_json("both", 1, 8, 1000.0, pod={"nodeSelector": {"kubernetes.io/hostname": "n0"}})
    body["spec"]["template"]["spec"]["containers"][0]["image"] = MISSING_IMAGE
    fake_server.api.create(JOBS, body)
    wait_for(lambda: daemon.nodes_of("both") == ["n0"], "it is bound")
    other = pod_json("other-0", gpus=4, schedulerName="default-scheduler", nodeName="n0")
    other["spec"]["containers"][0]["command"] = ["sleep", "1000"]
    fake_server.api.create(PODS, other)
    why = "another scheduler has bound pods to GPUs of node n0"
    wait_for(lambda: any(why in event for event in daemon.events("both")), "the run has ended")
    wait_for(lambda: "n0" not in daemon.nodes_of("both"), "the node is left")
    address = read_address(daemon.folder)
    assert address is not None
    headers = {"Authorization": f"Bearer {address.token}"}
    with urlopen(Request(f"{address.address}/metrics", headers=headers), timeout=30) as answer:
        metrics = answer.read().decode()
    assert "refold_kubernetes_foreign_gpu_pods 1" in metrics
    assert "refold_kubernetes_undone_bindings_total 1" in metrics
    assert 'refold_kubernetes_requests_total{method="POST",resource="pods/binding",code="200"} 1' in metrics
    assert daemon.has_logged("pod default/other-0, bound by default-scheduler, uses GPUs of node n0")
