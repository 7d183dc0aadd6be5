"""The daemon on a real API server: gangs of pods, restarts, failures. Pods are simulated by a kubelet of our own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
import yaml
from kubernetes_daemon import JOBS, MANIFESTS, PODS, KubernetesDaemon, apply_rights, job_json, wait_for
from kubernetes_objects import node_json, pod_json
from kubernetes_servers import KubernetesServers
from process_kubelet import MISSING_IMAGE, ProcessKubelet, kubelet_nodes

from refold.engines.kubernetes.access import read_kubeconfig
from refold.engines.kubernetes.api_server import ApiError, ApiServer
from refold.engines.kubernetes.nodes import down_reason
from refold.engines.kubernetes.objects import ApiNode, BatchJob


@pytest.fixture(scope="module")
def kubelet(servers: KubernetesServers) -> Iterator[ProcessKubelet]:
    found = ProcessKubelet(servers.api, kubelet_nodes(2), instant=True)
    found.start()
    apply_rights(servers.api)
    yield found
    found.stop()


@pytest.fixture(scope="module")
def served(
    servers: KubernetesServers, kubelet: ProcessKubelet, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KubernetesDaemon]:
    folder = tmp_path_factory.mktemp("daemon")
    (folder / "refold.yaml").write_text("kubernetes: {image: none, start_timeout: 5s}\n")
    options = ("--policy", "fifo", "--config", str(folder / "refold.yaml"))
    with KubernetesDaemon(servers, folder / "state", *options).serving() as found:
        yield found


@pytest.fixture
def daemon(served: KubernetesDaemon) -> Iterator[KubernetesDaemon]:
    yield served
    served.delete_all()


def test_a_gang_is_bound_as_a_whole_and_finishes(daemon: KubernetesDaemon) -> None:
    daemon.create_job("whole", pods=4, gpus=4, seconds=0.5)
    daemon.wait_for_state("whole", "finished")
    assert daemon.nodes_of("whole") == ["n0", "n0", "n1", "n1"]
    instances = {pod.metadata.annotations["refold.dev/instance"] for pod in daemon.pods("whole")}
    assert instances == {"0", "1", "2", "3"}
    (job,) = [pod.metadata.annotations["refold.dev/job"] for pod in daemon.pods("whole")[:1]]
    assert daemon.events(job)[0] == "submitted: 4 × 4 GPUs"
    assert daemon.events(job)[-1] == "finished"


def test_a_gang_that_does_not_fit_is_held_as_a_whole_and_told_why(daemon: KubernetesDaemon) -> None:
    daemon.create_job("first", pods=1, gpus=4)
    daemon.wait_for_state("first", "running")
    daemon.create_job("second", pods=2, gpus=8, seconds=0.5)
    daemon.wait_for_state("second", "waiting")

    def message() -> str:
        conditions = [entry for entry in daemon.pods("second")[0].status.conditions if entry.type == "PodScheduled"]
        return conditions[0].message if conditions else ""

    assert "Resources: 1 of 2 instances fit on 1 of 2 nodes" in wait_for(message, "a pod says why it waits")
    assert daemon.nodes_of("second") == ["", ""]
    events = msgspec.json.decode(daemon.api.call("GET", "/api/v1/namespaces/default/events"))["items"]
    assert any("Resources: 1 of 2 instances fit" in event["message"] for event in events)
    daemon.api.delete(f"{JOBS}/first", {"propagationPolicy": "Background"})
    daemon.wait_for_state("second", "finished")


def test_a_priority_class_decides_who_is_first_and_a_label_who_is_guaranteed(daemon: KubernetesDaemon) -> None:
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "urgent"}}
    daemon.api.create(classes, {**kind, "value": 1000})
    daemon.create_job("holds-all", pods=2, gpus=8)
    daemon.wait_for_state("holds-all", "running")
    daemon.create_job("behind", pods=1, gpus=8, labels={"refold.dev/class": "best-effort"})
    daemon.wait_for_state("behind", "waiting")
    daemon.create_job("urgent", pods=1, gpus=8, pod={"priorityClassName": "urgent"})
    daemon.wait_for_state("urgent", "waiting")
    with daemon.client() as client:
        found = {job.name: (job.priority, job.job_class) for job in client.jobs().jobs if job.state == "waiting"}
    assert found == {"behind": (0, "best-effort"), "urgent": (1000, "guaranteed")}
    daemon.api.delete(f"{classes}/urgent")


def test_pods_of_other_schedulers_are_counted(daemon: KubernetesDaemon) -> None:
    body = pod_json("other", gpus=6, schedulerName="default-scheduler", nodeName="n0")
    body["spec"]["containers"][0]["command"] = ["sleep", "1000"]
    del body["metadata"]["uid"], body["status"]
    daemon.api.create(PODS, body)
    with daemon.client() as client:
        wait_for(lambda: client.info().free_gpus == 10, "the pod is counted")
        daemon.create_job("big", pods=2, gpus=8, seconds=0.5)
        daemon.wait_for_state("big", "waiting")
        daemon.api.delete(f"{PODS}/other", {"gracePeriodSeconds": 1})
        daemon.wait_for_state("big", "finished")
        wait_for(lambda: client.info().free_gpus == 16, "all GPUs are free")


def test_nothing_is_lost_and_nothing_starts_twice_when_the_daemon_is_killed(daemon: KubernetesDaemon) -> None:
    daemon.create_job("going", pods=2, gpus=4, seconds=8)
    daemon.create_job("brief", pods=1, gpus=4, seconds=1.5)
    for name in ("going", "brief"):
        daemon.wait_for_state(name, "running")
    daemon.create_job("waits", pods=2, gpus=8, seconds=0.5)
    daemon.wait_for_state("waits", "waiting")
    bound = {pod.metadata.uid for pod in daemon.pods("going")}
    daemon.kill()
    wait_for(lambda: daemon.pods("brief")[0].status.phase == "Succeeded", "a pod ends without a daemon")
    daemon.create_job("later", pods=1, gpus=1, seconds=0.5)
    daemon.start()
    daemon.wait_for_state("waits", "finished")
    daemon.wait_for_state("later", "finished")
    assert {pod.metadata.uid for pod in daemon.pods("going")} == bound
    with daemon.client() as client:
        jobs = [job for job in client.jobs(ended=True).jobs if job.name in ("going", "brief", "waits", "later")]
    assert sorted((job.name, job.state, job.runs) for job in jobs) == [
        ("brief", "finished", 1),
        ("going", "finished", 1),
        ("later", "finished", 1),
        ("waits", "finished", 1),
    ]


def test_a_gang_of_which_one_pod_cannot_be_bound_is_not_left_half_bound(daemon: KubernetesDaemon) -> None:
    forbid_instance(daemon.api, 2)
    try:
        daemon.create_job("torn", pods=4, gpus=2, seconds=0.5)
        wait_for(lambda: daemon.states().get("torn") == "held", "the run has failed, and is tried again later")
        wait_for(lambda: not any(daemon.nodes_of("torn")), "no pod is bound")
    finally:
        allow_all_instances(daemon.api)
    daemon.wait_for_state("torn", "finished")
    failures = [event for event in daemon.events("torn") if event.startswith("failed")]
    assert failures
    assert all("instance 2 is forbidden" in failure for failure in failures)


POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"


def forbid_instance(api: ApiServer, instance: int) -> None:
    """Let the API server reject the binding of this instance of every gang."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}
    expression = f"object.metadata.annotations['refold.dev/instance'] != '{instance}'"
    policy = {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": expression, "message": f"instance {instance} is forbidden"}],
    }
    kind = "ValidatingAdmissionPolicy"
    version = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": "torn"}}
    try:
        api.create(POLICIES, {"kind": kind, "spec": policy, **version})
    except ApiError as error:
        if error.status == 404:
            pytest.skip("ValidatingAdmissionPolicy needs Kubernetes 1.30 or newer")
        raise
    binding = {"policyName": "torn", "validationActions": ["Deny"]}
    api.create(f"{POLICIES[:-3]}ybindings", {"kind": f"{kind}Binding", "spec": binding, **version})

    def is_active() -> bool:
        probe = {"metadata": {"name": "none", "annotations": {"refold.dev/instance": str(instance)}}}
        body = {"apiVersion": "v1", "kind": "Binding", **probe, "target": {"kind": "Node", "name": "n0"}}
        try:
            api.create(f"{PODS}/none/binding", body)
        except ApiError as error:
            return "is forbidden" in str(error)
        return False

    wait_for(is_active, "the policy is active")


def allow_all_instances(api: ApiServer) -> None:
    api.delete(f"{POLICIES[:-3]}ybindings/torn")
    api.delete(f"{POLICIES}/torn")


def test_a_job_moves_when_its_node_is_drained(daemon: KubernetesDaemon) -> None:
    daemon.create_job("moves", pods=2, gpus=2, seconds=3)
    daemon.wait_for_state("moves", "running")
    node = wait_for(lambda: daemon.nodes_of("moves")[0], "all pods are bound")
    with daemon.client() as client:
        client.drain(node, move=True)
        daemon.wait_for_state("moves", "finished")
        assert set(daemon.nodes_of("moves")) == {"n0", "n1"} - {node}
        client.resume(node)

    def conditions() -> set[str]:
        job = daemon.api.get(f"{JOBS}/moves", BatchJob)
        return {entry.type for entry in job.status.conditions if entry.status == "True"}

    wait_for(lambda: "Complete" in conditions(), "the Job is complete")


def test_a_cordoned_node_gets_no_pods(daemon: KubernetesDaemon) -> None:
    daemon.api.patch("/api/v1/nodes/n0", {"spec": {"unschedulable": True}})
    with daemon.client() as client:
        wait_for(lambda: client.info().free_gpus == 8, "the node is out of service")
        daemon.create_job("here", pods=2, gpus=4, seconds=0.5)
        daemon.wait_for_state("here", "finished")
        assert daemon.nodes_of("here") == ["n1", "n1"]
        daemon.api.patch("/api/v1/nodes/n0", {"spec": {"unschedulable": None}})
        wait_for(lambda: client.info().free_gpus == 16, "the node is back")


def test_a_job_that_is_deleted_leaves_the_queue(daemon: KubernetesDaemon) -> None:
    daemon.create_job("holder", pods=2, gpus=8)
    daemon.wait_for_state("holder", "running")
    daemon.create_job("unwanted", pods=1, gpus=1)
    daemon.wait_for_state("unwanted", "waiting")
    for name in ("unwanted", "holder"):
        daemon.api.delete(f"{JOBS}/{name}", {"propagationPolicy": "Background"})
    daemon.wait_for_state("unwanted", "cancelled")
    daemon.wait_for_state("holder", "cancelled")


def test_plain_pods_with_a_label_are_a_gang(daemon: KubernetesDaemon) -> None:
    labels = {"refold.dev/gang": "plain", "refold.dev/gang-size": "3"}
    for number in range(3):
        body = pod_json(f"plain-{number}", gpus=1, labels=labels, restartPolicy="Never")
        body["spec"]["containers"][0]["command"] = ["sleep", "0.5"]
        del body["metadata"]["uid"], body["status"]
        daemon.api.create(PODS, body)
        assert number == 2 or daemon.nodes_of("plain") == [""] * (number + 1)
    daemon.wait_for_state("plain", "finished")


POD_GROUPS = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups"


@pytest.fixture
def pod_groups(servers: KubernetesServers) -> None:
    if not servers.has_pod_groups:
        pytest.skip("this version of Kubernetes has no PodGroups of the version that is tested")


def create_pod_group(api: ApiServer, name: str, minimum: int) -> None:
    group = {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": {"name": name}}
    api.create(POD_GROUPS, {**group, "spec": {"schedulingPolicy": {"gang": {"minCount": minimum}}}})


def create_grouped_pod(api: ApiServer, group: str, number: int, seconds: float = 0.5) -> None:
    body = pod_json(f"{group}-{number}", gpus=1, schedulingGroup={"podGroupName": group}, restartPolicy="Never")
    body["spec"]["containers"][0]["command"] = ["sleep", f"{seconds:g}"]
    del body["metadata"]["uid"], body["status"]
    api.create(PODS, body)


@pytest.mark.usefixtures("pod_groups")
def test_native_pod_groups_are_gangs(daemon: KubernetesDaemon) -> None:
    create_pod_group(daemon.api, "native", 2)
    for number in range(2):
        create_grouped_pod(daemon.api, "native", number)
    daemon.wait_for_state("native", "finished")


@pytest.mark.usefixtures("pod_groups")
def test_a_pod_group_may_be_created_after_its_pods(daemon: KubernetesDaemon) -> None:
    for number in range(2):
        create_grouped_pod(daemon.api, "early", number)
    wait_for(lambda: "PodGroup default/early does not exist" in why_waiting(daemon, "early"), "the pods say so")
    create_pod_group(daemon.api, "early", 2)
    daemon.wait_for_state("early", "finished")


@pytest.mark.usefixtures("pod_groups")
def test_pods_beyond_the_minimum_of_a_pod_group_start_when_they_fit(daemon: KubernetesDaemon) -> None:
    create_pod_group(daemon.api, "more", 2)
    for number in range(4):
        create_grouped_pod(daemon.api, "more", number, seconds=3)
    daemon.wait_for_state("more", "running")
    for number in (2, 3):
        daemon.wait_for_state(f"more-{number}", "finished")
    daemon.wait_for_state("more", "finished")


def why_waiting(daemon: KubernetesDaemon, name: str) -> str:
    """Return what the pods of a gang say about why they wait."""
    return " ".join(
        entry.message
        for pod in daemon.pods(name)
        for entry in pod.status.conditions
        if entry.type == "PodScheduled" and entry.status == "False"
    )


def test_a_job_that_its_user_suspends_is_cancelled_and_queued_again_when_it_is_resumed(
    daemon: KubernetesDaemon,
) -> None:
    daemon.create_job("paused", pods=2, gpus=1, seconds=2)
    daemon.wait_for_state("paused", "running")
    daemon.api.patch(f"{JOBS}/paused", {"spec": {"suspend": True}})
    daemon.wait_for_state("paused", "cancelled")
    daemon.api.patch(f"{JOBS}/paused", {"spec": {"suspend": False}})
    daemon.wait_for_state("paused", "finished")


CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"


def test_a_gang_waits_for_its_volume_claim_and_runs_where_its_volume_is(daemon: KubernetesDaemon) -> None:
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    daemon.create_job("stored", pods=2, gpus=1, seconds=0.5, pod={"volumes": volumes})
    wait_for(lambda: 'persistentvolumeclaim "data" not found' in why_waiting(daemon, "stored"), "the pods say so")
    on_n1 = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"]}]}
    amounts = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {
        **amounts,
        "capacity": {"storage": "1Gi"},
        "csi": {"driver": "example.com", "volumeHandle": "data"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [on_n1]}},
    }
    daemon.api.create("/api/v1/persistentvolumes", {"metadata": {"name": "pv"}, "spec": volume})
    spec = {**amounts, "volumeName": "pv", "resources": {"requests": {"storage": "1Gi"}}}
    daemon.api.create(CLAIMS, {"metadata": {"name": "data"}, "spec": spec})
    daemon.api.patch(f"{CLAIMS}/data/status", {"status": {"phase": "Bound"}})
    daemon.wait_for_state("stored", "finished")
    assert daemon.nodes_of("stored") == ["n1", "n1"]
    assert not daemon.has_logged("cannot watch"), "the manifests give the rights"


def test_a_gang_whose_pods_do_not_start_ends_with_the_reason_of_the_kubelet(daemon: KubernetesDaemon) -> None:
    body = job_json("late", 1, 1, 1000.0, backoffLimit=0)
    body["spec"]["template"]["spec"]["containers"][0]["image"] = MISSING_IMAGE
    daemon.api.create(JOBS, body)
    daemon.wait_for_state("late", "failed")
    assert any("ImagePullBackOff: Back-off pulling image" in event for event in daemon.events("late"))


def test_pods_of_a_job_that_was_cancelled_say_so(daemon: KubernetesDaemon) -> None:
    daemon.create_job("keeper", pods=2, gpus=8)
    daemon.wait_for_state("keeper", "running")
    daemon.create_job("rejected", pods=1, gpus=1)
    daemon.wait_for_state("rejected", "waiting")
    with daemon.client() as client:
        client.cancel("rejected")
    daemon.wait_for_state("rejected", "cancelled")
    wait_for(lambda: "has ended (cancelled)" in why_waiting(daemon, "rejected"), "the pod says so")


def test_nodes_that_are_added_and_labels_that_pods_select_by_are_used(
    daemon: KubernetesDaemon, servers: KubernetesServers
) -> None:
    daemon.create_job("picky", pods=1, gpus=2, seconds=0.5, pod={"nodeSelector": {"pool": "new"}})
    wait_for(
        lambda: any(
            "the node selector" in entry.message for pod in daemon.pods("picky") for entry in pod.status.conditions
        ),
        "the pod says that no node matches",
    )
    kubelet = ProcessKubelet(servers.api, [node_json("n2", 4, labels={"pool": "new"})], instant=True)
    kubelet.start()
    try:
        daemon.wait_for_state("picky", "finished")
        assert daemon.nodes_of("picky") == ["n2"]
    finally:
        kubelet.stop()


def test_a_gang_moves_when_one_of_its_nodes_is_lost(daemon: KubernetesDaemon, servers: KubernetesServers) -> None:
    nodes = [node_json(f"lost{number}", 4, labels={"pool": "lost"}) for number in range(3)]
    kubelet = ProcessKubelet(servers.api, nodes, instant=True)
    kubelet.start()
    try:
        daemon.create_job("strays", pods=2, gpus=4, seconds=15, pod={"nodeSelector": {"pool": "lost"}})
        daemon.wait_for_state("strays", "running")
        lost = wait_for(lambda: daemon.nodes_of("strays")[0], "all pods are bound")
        kubelet.lose(lost)
        wait_for(lambda: down_reason(daemon.api.get(f"/api/v1/nodes/{lost}", ApiNode)), "the node is NotReady")
        (pod,) = [pod for pod in daemon.pods("strays") if pod.spec.node_name == lost]
        daemon.api.delete(f"{PODS}/{pod.metadata.name}")  # as Kubernetes does some time later
        daemon.wait_for_state("strays", "finished")
        assert {pod.spec.node_name for pod in daemon.pods("strays") if pod.has_ended} == {
            node["metadata"]["name"] for node in nodes
        } - {lost}
        assert any("was deleted" in event for event in daemon.events("strays"))
    finally:
        kubelet.stop()


def test_the_api_server_may_restart(daemon: KubernetesDaemon, servers: KubernetesServers) -> None:
    daemon.create_job("steady", pods=2, gpus=4, seconds=6)
    daemon.wait_for_state("steady", "running")
    servers.kill("kube-apiserver")
    servers.start_api_server()
    daemon.create_job("after", pods=1, gpus=1, seconds=0.5)
    daemon.wait_for_state("after", "finished")
    daemon.wait_for_state("steady", "finished")
    with daemon.client() as client:
        runs = {job.name: job.runs for job in client.jobs(ended=True).jobs if job.name in ("steady", "after")}
    assert runs == {"steady": 1, "after": 1}, (daemon.events("steady"), daemon.log()[-3000:])


def test_a_user_who_may_only_read_can_save_the_state_of_the_cluster(
    daemon: KubernetesDaemon, servers: KubernetesServers, tmp_path: Path
) -> None:
    role, rbac = "refold-reader", "/apis/rbac.authorization.k8s.io/v1"
    daemon.api.create(f"{rbac}/clusterroles", yaml.safe_load((MANIFESTS / "read-only.yaml").read_text()))
    group = "rbac.authorization.k8s.io"
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": role},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "User", "name": "reader", "apiGroup": group}],
    }
    daemon.api.create(f"{rbac}/clusterrolebindings", binding)
    daemon.create_job("seen", pods=2, gpus=8)
    daemon.wait_for_state("seen", "running")
    daemon.create_job("queued", pods=1, gpus=2, activeDeadlineSeconds=7200)
    daemon.wait_for_state("queued", "waiting")
    out, kubeconfig = tmp_path / "now.jsonl", servers.write_kubeconfig("reader", "reader-token")
    command = [sys.executable, "-m", "refold", "snapshot", "--kubeconfig", str(kubeconfig), "-o", str(out)]
    saved = wait_for(lambda: _try(command), "the rights are in effect")
    assert "2 nodes, 16 GPUs: 1 running, 1 waiting" in saved
    text = out.read_text()
    assert '"seen"' in text
    assert '"time_limit":7200' in text
    with closing(ApiServer(read_kubeconfig(kubeconfig))) as reader, pytest.raises(ApiError, match="forbidden"):
        reader.delete(f"{JOBS}/seen")


def _try(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr if done.returncode == 0 else ""


def test_a_submitted_command_becomes_a_job(daemon: KubernetesDaemon) -> None:
    environment = {**os.environ, "REFOLD_HOME": str(daemon.folder)}
    command = [sys.executable, "-m", "refold", "submit", "--name", "own", "--gpus", "2", "--", "sleep", "0.5"]
    subprocess.run(command, check=True, env=environment, capture_output=True)
    daemon.wait_for_state("own", "finished")
    (pod,) = daemon.pods("own")
    assert pod.spec.containers[0].resources.limits == {"nvidia.com/gpu": "2"}
    assert pod.metadata.annotations["refold.dev/instances"] == "1"
