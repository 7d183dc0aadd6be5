"""Kueue in front of kube-scheduler, for comparison.

Kueue admits a group of pods when its queue has the quota for all of them, and then removes their scheduling gates;
kube-scheduler binds them. Its webhooks are served with a certificate of our own: the API server is told their addresses
as URLs of this machine. Kueue reads another certificate from a fixed folder below /etc, so it gets an /etc of its own,
in a mount namespace.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import yaml

from benchmarks.kubernetes.processes import Process, run_process
from refold.engines.kubernetes.api_server import ApiError, ApiServer, as_dict

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "tests" / "helpers"))

from kubernetes_servers import KubernetesServers, free_port  # noqa: E402

QUEUE = "gangs"
LABELS = {"queue": "kueue.x-k8s.io/queue-name", "group": "kueue.x-k8s.io/pod-group-name"}
TOTAL_ANNOTATION = "kueue.x-k8s.io/pod-group-total-count"
START_SECONDS = 120.0
KUEUE_API = "/apis/kueue.x-k8s.io/v1beta2"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1"
IN_OWN_ETC = ["unshare", "--mount", "--map-root-user", "sh", "-c", 'mount --bind "$0" /etc && exec "$@"']


def has_kueue(assets: Path) -> bool:
    """Whether Kueue was built, and can be run here."""
    if not (assets / "kueue").exists() or not (assets / "kueue-data" / "webhook").is_dir():
        return False
    tried = subprocess.run([*IN_OWN_ETC, str(assets), "true"], capture_output=True, check=False)
    return tried.returncode == 0


def group_fields(name: str, pods: int) -> tuple[dict[str, str], dict[str, str]]:
    """Return the labels and annotations that make pods a group of Kueue."""
    return {LABELS["queue"]: QUEUE, LABELS["group"]: name}, {TOTAL_ANNOTATION: str(pods)}


@contextmanager
def kueue(servers: KubernetesServers, assets: Path, gpus: int) -> Iterator[None]:
    """Run Kueue inside the context, with one queue for this number of GPUs that is held until it is released."""
    webhook_port, health_port, metrics_port = free_port(), free_port(), free_port()
    certificate = _write_certificate(servers.folder / "kueue")
    data, bundle = assets / "kueue-data", base64.b64encode(certificate.read_bytes()).decode()
    kinds = _create_definitions(servers.api, data, webhook_port, bundle)
    _wait_until("its resources are served", lambda: kinds <= _served(servers.api))
    command, log = _command(servers, assets, webhook_port, health_port, metrics_port), servers.folder / "kueue.log"
    with run_process(command, log) as process:
        _wait_until("it is ready", lambda: _runs(process, log) and _is_ready(health_port))
        for body in yaml.safe_load_all((data / "webhook" / "manifests.yaml").read_text()):
            kind = "mutating" if body["kind"].startswith("Mutating") else "validating"
            servers.api.create(f"{WEBHOOKS}/{kind}webhookconfigurations", _with_urls(body, webhook_port, bundle))
        _wait_until("its queue is accepted", lambda: _runs(process, log) and _has_queue(servers.api, gpus))
        yield


def release(api: ApiServer) -> None:
    """Let Kueue admit what waits in the queue."""
    api.patch(f"{KUEUE_API}/clusterqueues/{QUEUE}", {"spec": {"stopPolicy": "None"}})


def _command(
    servers: KubernetesServers, assets: Path, webhook_port: int, health_port: int, metrics_port: int
) -> list[str]:
    folder, kubeconfig = servers.folder / "kueue", servers.kubeconfig
    config = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health_port}"},
        "metrics": {"bindAddress": f"127.0.0.1:{metrics_port}"},
        "webhook": {"host": "127.0.0.1", "port": webhook_port, "certDir": str(folder)},
        "leaderElection": {"leaderElect": False},
        "controller": {"groupKindConcurrency": {"Pod": 5, "Workload.kueue.x-k8s.io": 5}},  # as Kueue's own manifests
        "clientConnection": {"qps": 5000, "burst": 10000},
        "internalCertManagement": {"enable": False},
        "featureGates": {"VisibilityOnDemand": False},
        "integrations": {"frameworks": ["pod"]},
    }
    (folder / "config.json").write_text(json.dumps(config))
    own_etc = folder / "etc"
    shutil.copytree(folder, own_etc / "kueue" / "metrics" / "certs", ignore=shutil.ignore_patterns("etc", "*.json"))
    program = [str(assets / "kueue"), f"--config={folder / 'config.json'}", f"--kubeconfig={kubeconfig}"]
    return [*IN_OWN_ETC, str(own_etc), *program]


def _write_certificate(folder: Path) -> Path:
    folder.mkdir()
    key, certificate = folder / "tls.key", folder / "tls.crt"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return certificate


def _create_definitions(api: ApiServer, data: Path, port: int, bundle: str) -> set[str]:
    """Create the definitions of Kueue's kinds; return these, in the plural."""
    definitions = [_read(path) for path in sorted((data / "crd" / "bases").glob("*.yaml"))]
    by_kind = {definition["spec"]["names"]["plural"]: definition for definition in definitions}
    for kind in _converted(data):
        _add_conversion(by_kind[kind], port, bundle)
    for definition in definitions:
        api.create(DEFINITIONS, definition)
    return set(by_kind)


def _add_conversion(definition: dict[str, Any], port: int, bundle: str) -> None:
    client = {"url": f"https://127.0.0.1:{port}/convert", "caBundle": bundle}
    webhook = {"clientConfig": client, "conversionReviewVersions": ["v1"]}
    definition["spec"]["conversion"] = {"strategy": "Webhook", "webhook": webhook}


def _converted(data: Path) -> set[str]:
    """Return the kinds, in the plural, that have a conversion webhook in Kueue's own manifests."""
    patches = _read(data / "crd" / "kustomization.yaml")["patches"]
    names = {Path(patch["path"]).stem for patch in patches}
    return {name.removeprefix("webhook_in_") for name in names if name.startswith("webhook_in_")}


def _with_urls(configuration: dict[str, Any], port: int, bundle: str) -> dict[str, Any]:
    for webhook in configuration["webhooks"]:
        path = webhook["clientConfig"]["service"]["path"]
        webhook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": bundle}
    return configuration


def _has_queue(api: ApiServer, gpus: int) -> bool:
    """Create the queue, unless there is one; False while the API server does not reach the webhooks yet."""
    quota = {"name": "nvidia.com/gpu", "nominalQuota": str(gpus)}
    group = {"coveredResources": ["nvidia.com/gpu"], "flavors": [{"name": "default", "resources": [quota]}]}
    spec = {"namespaceSelector": {}, "stopPolicy": "Hold", "resourceGroups": [group]}
    version = {"apiVersion": "kueue.x-k8s.io/v1beta2"}
    objects = {
        "resourceflavors": {**version, "kind": "ResourceFlavor", "metadata": {"name": "default"}},
        "clusterqueues": {**version, "kind": "ClusterQueue", "metadata": {"name": QUEUE}, "spec": spec},
        "namespaces/default/localqueues": {
            **version,
            "kind": "LocalQueue",
            "metadata": {"name": QUEUE},
            "spec": {"clusterQueue": QUEUE},
        },
    }
    for path, body in objects.items():
        try:
            api.create(f"{KUEUE_API}/{path}", body)
        except ApiError as error:
            if error.reason == "AlreadyExists":
                continue
            if "webhook" not in str(error):
                raise
            return False
    return True


def _served(api: ApiServer) -> set[str]:
    try:
        return {found["name"] for found in as_dict(api.call("GET", KUEUE_API))["resources"]}
    except ApiError:
        return set()


def _runs(process: Process, log: Path) -> bool:
    """Whether Kueue runs; raises if it has ended."""
    if process.poll() is not None:
        raise RuntimeError(f"Kueue has ended:\n{log.read_text()[-2000:]}")
    return True


def _is_ready(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
            return True
    except OSError:
        return False


def _wait_until(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"Kueue: waited {START_SECONDS:g} s until {what}")
        time.sleep(0.2)


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return found
