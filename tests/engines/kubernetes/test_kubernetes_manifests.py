"""The manifests: the chart and the kustomization have the same objects, and a real API server accepts both."""

from __future__ import annotations

import pytest
import yaml
from kubernetes_manifests import charted, kustomized
from kubernetes_objects import Json
from kubernetes_servers import KubernetesServers

from refold.engines.kubernetes.api_server import ApiServer
from refold.server.config.reader import parse_config

PATHS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "PersistentVolumeClaim": "/api/v1/namespaces/{namespace}/persistentvolumeclaims",
    "ConfigMap": "/api/v1/namespaces/{namespace}/configmaps",
    "Service": "/api/v1/namespaces/{namespace}/services",
    "Deployment": "/apis/apps/v1/namespaces/{namespace}/deployments",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
}

CHART = pytest.param("chart", marks=pytest.mark.kubernetes)  # without Helm, a Go program is compiled to render it


def by_name(objects: list[Json]) -> dict[str, Json]:
    return {f"{body['kind']} {body['metadata']['name']}": body for body in objects}


@pytest.mark.kubernetes
def test_the_chart_has_the_objects_of_the_kustomization() -> None:
    plain, chart = by_name(kustomized()), by_name(charted())
    del plain["Namespace refold"]  # Helm creates it with --create-namespace
    del chart["Deployment refold"]["spec"]["template"]["metadata"]["annotations"]  # kubectl does not know the checksum
    config = [yaml.safe_load(found.pop("ConfigMap refold")["data"]["refold.yaml"]) for found in (plain, chart)]
    assert chart == plain
    assert config[1].pop("policy") == {"name": "refold"}
    assert config[0] == config[1]


@pytest.mark.parametrize("source", ["kustomize", CHART])
def test_the_configuration_is_one_that_the_daemon_accepts(source: str) -> None:
    found = by_name(kustomized() if source == "kustomize" else charted())["ConfigMap refold"]
    config = parse_config(found["data"]["refold.yaml"], "refold.yaml")
    assert config.serve.host == "0.0.0.0"
    assert "refold.refold.svc" in config.serve.allowed_hosts


@pytest.mark.kubernetes
def test_values_of_the_chart() -> None:
    values = {"replicas": 1, "accessMode": "ReadWriteOnce", "storageClass": "fast", "image": "mine:1"}
    chart = by_name(charted({**values, "config": {"policy": {"name": "refold"}}}, namespace="gpu"))
    deployment = chart["Deployment refold"]
    assert deployment["metadata"]["namespace"] == "gpu"
    assert (deployment["spec"]["replicas"], deployment["spec"]["strategy"]) == (1, {"type": "Recreate"})
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "mine:1"
    claim = chart["PersistentVolumeClaim refold"]["spec"]
    assert (claim["accessModes"], claim["storageClassName"]) == (["ReadWriteOnce"], "fast")
    assert chart["ClusterRoleBinding refold"]["subjects"][0]["namespace"] == "gpu"
    config = yaml.safe_load(chart["ConfigMap refold"]["data"]["refold.yaml"])
    assert config["policy"] == {"name": "refold"}
    assert "refold.gpu.svc" in config["serve"]["allowed_hosts"]


@pytest.mark.kubernetes
def test_a_changed_configuration_restarts_the_replicas() -> None:
    def checksum(**config: object) -> object:
        found = by_name(charted({"config": config}))["Deployment refold"]["spec"]["template"]
        return found["metadata"]["annotations"]["refold.dev/config"]

    assert checksum(policy={"name": "easy"}) == checksum(policy={"name": "easy"}) != checksum(policy={"name": "fifo"})


@pytest.mark.kubernetes
def test_prometheus_reads_the_metrics_of_the_replica_that_schedules() -> None:
    assert "ServiceMonitor refold" not in by_name(charted())
    metrics = {"tokenSecret": "reader", "interval": "15s", "labels": {"release": "prometheus"}}
    chart = by_name(charted({"metrics": metrics}, namespace="gpu"))
    monitor, service = chart["ServiceMonitor refold"], chart["Service refold"]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert monitor["metadata"]["labels"] == {"release": "prometheus"}
    assert service["metadata"]["labels"].items() >= monitor["spec"]["selector"]["matchLabels"].items()
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert endpoint["authorization"]["credentials"] == {"name": "reader", "key": "token"}
    ready, address = endpoint["relabelings"]
    assert (ready["action"], address["replacement"]) == ("keep", "refold.gpu.svc:7170")


@pytest.mark.parametrize("source", ["kustomize", "chart"])
def test_an_api_server_accepts_all_objects(servers: KubernetesServers, source: str) -> None:
    if source == "kustomize":
        apply(servers.api, kustomized(), "refold")
    else:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "by-chart"}}
        apply(servers.api, [namespace, *charted(namespace="by-chart")], "by-chart")


def apply(api: ApiServer, objects: list[Json], namespace: str) -> None:
    """Create objects; unknown fields are errors. Other tests create those of the whole cluster under their names."""
    for body in objects:
        path = PATHS[body["kind"]].format(namespace=namespace)
        if body["kind"].startswith("ClusterRole"):
            body["metadata"]["name"] = f"refold-of-{namespace}"
        api.call("POST", path, body, query={"fieldValidation": "Strict"})
    assert len(objects) >= 9
