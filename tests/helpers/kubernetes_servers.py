"""Real Kubernetes servers for tests: etcd, kube-apiserver and kube-controller-manager as processes of this machine."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from http_answers import write_kubeconfig

from refold.engines.kubernetes.access import read_kubeconfig
from refold.engines.kubernetes.api_server import ApiError, ApiServer

ADMIN_TOKEN = "admin-token"
READY_SECONDS = 90.0

CONTROLLERS = (
    "job-controller",
    "node-lifecycle-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "pod-garbage-collector-controller",
    "disruption-controller",
    "ttl-after-finished-controller",
)

POD_GROUP_FLAGS = (
    "--feature-gates=GenericWorkload=true,TopologyAwareWorkloadScheduling=true",
    "--runtime-config=scheduling.k8s.io/v1alpha2=true",
)


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class KubernetesServers:
    """The servers, and an administrator's access to them. `binaries`: the folder with their programs."""

    def __init__(self, binaries: Path) -> None:
        self._binaries = binaries
        memory = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(prefix="refold-k8s-", dir=memory if memory.is_dir() else None))
        self.port = free_port()
        self._etcd_port = free_port()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.kubeconfig = self.write_kubeconfig("admin", ADMIN_TOKEN)
        self.api = ApiServer(read_kubeconfig(self.kubeconfig))

    @cached_property
    def has_pod_groups(self) -> bool:
        """Whether the API server has `scheduling.k8s.io/v1alpha2`: 1.36."""
        command = [str(self._binaries / "kube-apiserver"), "--version"]
        version = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return version.startswith("Kubernetes v1.36.")

    def start(self, *, controllers: bool = True) -> None:
        """Start all servers, or all but the controllers; return when they answer."""
        self._write_keys()
        self._start_etcd()
        self.start_api_server()
        if controllers:
            self._start_controllers()

    def stop(self) -> None:
        """End all servers and delete their data."""
        self.api.close()
        for name in reversed(list(self._processes)):
            self.kill(name)
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self, name: str) -> None:
        """Kill a server."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def write_kubeconfig(self, user: str, token: str) -> Path:
        """Write a kubeconfig file for a user."""
        path, server = self.folder / f"{user}.kubeconfig", f"https://127.0.0.1:{self.port}"
        return write_kubeconfig(path, server, user, token, insecure_skip_tls_verify=True)

    def start_api_server(self) -> None:
        """Start the API server, possibly again; return when it is ready."""
        key = self.folder / "sa.key"
        self._start(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--cert-dir={self.folder / 'certificates'}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--disable-admission-plugins=ServiceAccount",
            *(POD_GROUP_FLAGS if self.has_pod_groups else ()),
        )
        self._wait_until_ready()

    def log_of(self, name: str) -> str:
        """Return the last lines that a server has written."""
        return "\n".join((self.folder / f"{name}.log").read_text(errors="replace").splitlines()[-15:])

    def _start_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{free_port()}"
        self._start(
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        )

    def _start_controllers(self) -> None:
        self._start(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig}",
            f"--controllers={','.join(CONTROLLERS)}",
            "--leader-elect=false",
            "--secure-port=0",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
            "--concurrent-job-syncs=10",
            "--node-monitor-period=1s",
            "--node-monitor-grace-period=8s",
        )

    def _start(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [str(self._binaries / name), *arguments], stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def _write_keys(self) -> None:
        (self.folder / "tokens.csv").write_text(
            f"{ADMIN_TOKEN},admin,admin,system:masters\nrefold-token,refold,refold\nreader-token,reader,reader\n"
        )
        command = ["openssl", "genrsa", "-out", str(self.folder / "sa.key"), "2048"]
        subprocess.run(command, check=True, capture_output=True)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                self.api.call("GET", "/readyz")
                return
            except ApiError as error:
                if time.monotonic() > deadline or self._processes["kube-apiserver"].poll() is not None:
                    raise AssertionError(f"{error}\n{self.log_of('kube-apiserver')}") from None
            time.sleep(0.1)


def create(api: ApiServer, path: str, *objects: dict[str, Any]) -> None:
    """Create objects, and set the status of those that have one."""
    for body in objects:
        api.create(path, body)
        if "status" in body and body["kind"] == "Node":
            api.patch(f"{path}/{body['metadata']['name']}/status", {"status": body["status"]})


@contextmanager
def started_servers(programs: Path) -> Iterator[KubernetesServers]:
    """Start servers; stop them at the end, also if they have not all started."""
    servers = KubernetesServers(programs)
    try:
        servers.start()
        yield servers
    finally:
        servers.stop()
