"""A daemon on Kubernetes for tests: `refold serve --on kubernetes` in a process of its own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import yaml
from fake_api_server import FakeApiServer
from kubernetes_objects import Json
from kubernetes_servers import KubernetesServers
from served_daemon import ServedDaemon

from refold.engines.kubernetes.api_server import ApiError, ApiServer, ObjectList
from refold.engines.kubernetes.objects import Pod

WAIT_SECONDS = 120.0
"""How long a test waits at most: much longer than on a machine that is not busy."""

JOBS = "/apis/batch/v1/namespaces/default/jobs"
PODS = "/api/v1/namespaces/default/pods"
MANIFESTS = Path(__file__).parents[2] / "deploy" / "kubernetes"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
T = TypeVar("T")


def wait_for(look: Callable[[], T], what: str, seconds: float = WAIT_SECONDS) -> T:
    """Wait until a function returns something true, and return that."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what}: still {found!r} after {seconds:g} s"
        time.sleep(0.1)
    return found


class KubernetesDaemon(ServedDaemon):
    """The daemon, and shortcuts to see what it does. It has the rights of the manifests, and no others."""

    def __init__(
        self,
        servers: KubernetesServers | FakeApiServer,
        folder: Path,
        *options: str,
        host: str = "daemon",
        log: str = "",
        kubeconfig: Path | None = None,
    ) -> None:
        """`host`: the machine that it seems to run on. Daemons on different machines may share a folder.

        `log`: the name of its log, if several daemons are on one host. `kubeconfig`: how it reaches the API server.
        """
        self.api: ApiServer = servers.api
        if kubeconfig is None:
            assert isinstance(servers, KubernetesServers)
            kubeconfig = servers.write_kubeconfig("refold", "refold-token")
        words = ["--kubeconfig", str(kubeconfig), *options]
        super().__init__(folder, folder.parent / f"{log or host}.log", words, {**os.environ, "HOSTNAME": host})

    @contextmanager
    def serving(self) -> Iterator[KubernetesDaemon]:
        """Run it inside the context."""
        try:
            self.start()
            yield self
        finally:
            self.kill(signal.SIGTERM)

    def start(self) -> None:
        """Start it; return when it answers."""
        self.launch()
        self.wait_until_serving()

    def wait_until_serving(self) -> None:
        """Wait until it schedules the cluster."""
        wait_for(lambda: self.is_serving or self.has_ended, "the daemon serves")
        assert not self.has_ended, self.log()

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for another daemon to end."""
        return not self.is_serving and self.has_logged("waiting to take over")

    def states(self) -> dict[str, str]:
        """Return the states of all jobs by name; none while the daemon changes to another cluster."""
        return {job.name: job.state for job in reversed(self.jobs())}

    def wait_for_state(self, name: str, state: str) -> None:
        """Wait until a job is in a state."""
        try:
            wait_for(lambda: self.states().get(name) == state, f"{name} is {state}")
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.states()} {self.events(name)} {self.log()[-1000:]}") from None

    # What is in Kubernetes.

    def create_job(self, name: str, pods: int, gpus: int, seconds: float = 1000.0, **fields: Any) -> None:
        """Create a Job whose pods run together; `fields` are those of its spec."""
        self.api.create(JOBS, job_json(name, pods, gpus, seconds, **fields))

    def pods(self, name: str) -> list[Pod]:
        """Return the pods of a Job, or with a name that begins so."""
        found = self.api.get(PODS, ObjectList[Pod]).items
        return [pod for pod in found if pod.metadata.name.startswith(f"{name}-")]

    def nodes_of(self, name: str) -> list[str]:
        """Return the nodes of the pods of a Job; '' for those that are not bound."""
        return sorted(pod.spec.node_name for pod in self.pods(name))

    def delete_all(self) -> None:
        """Delete all Jobs and pods, and wait until nothing is in the queue."""
        self.api.delete(JOBS, {"propagationPolicy": "Background"})
        self.api.delete(PODS, {"gracePeriodSeconds": 1})
        with self.client() as client:
            wait_for(lambda: not client.jobs().jobs, "the queue is empty")


@contextmanager
def daemon_of(server: FakeApiServer, folder: Path, config: str) -> Iterator[KubernetesDaemon]:
    """Run a daemon on an API server in memory. `config`: the text of its refold.yaml."""
    (folder / "refold.yaml").write_text(config)
    options = ("--config", str(folder / "refold.yaml"))
    kubeconfig = server.write_kubeconfig(folder)
    with KubernetesDaemon(server, folder / "state", *options, kubeconfig=kubeconfig).serving() as daemon:
        yield daemon


def apply_rights(api: ApiServer) -> None:
    """Give the user `refold` the rights that the manifests give to the service account, and no others."""
    for document in yaml.safe_load_all((MANIFESTS / "rbac.yaml").read_text()):
        kind = document["kind"]
        if kind.endswith("Binding"):
            document["subjects"] = [{"kind": "User", "name": "refold", "apiGroup": "rbac.authorization.k8s.io"}]
        if kind in ("Role", "RoleBinding"):  # the Lease of a daemon outside the cluster is in another namespace
            document["metadata"]["namespace"] = "default"
        scope = "" if kind.startswith("Cluster") else "/namespaces/default"
        if kind != "ServiceAccount":
            with suppress(ApiError):  # an earlier test has created it
                api.create(f"{RBAC}{scope}/{kind.lower()}s", document)


def job_json(
    name: str, pods: int, gpus: int, seconds: float, pod: Json | None = None, labels: Json | None = None, **fields: Any
) -> Json:
    """Return a Job. `pod`: fields of the spec of its pods."""
    container = {
        "name": "main",
        "image": "none",
        "command": ["sleep", f"{seconds:g}"],
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)} if gpus else {}},
    }
    spec = {"schedulerName": "refold", "restartPolicy": "Never", "containers": [container], **(pod or {})}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "completionMode": "Indexed",
            "template": {"metadata": {"labels": labels or {}}, "spec": spec},
            **fields,
        },
    }
