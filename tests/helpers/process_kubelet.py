"""A kubelet for tests: the containers of pods are processes of this machine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from container_logs import ContainerLogs
from kubernetes_objects import Json, node_json

from refold.engines.kubernetes.api_server import ApiError, ApiServer
from refold.engines.kubernetes.mirror import Reflector
from refold.engines.kubernetes.nodes import down_reason
from refold.engines.kubernetes.objects import ApiNode, Metadata

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
HEARTBEAT_SECONDS = 2.0
MISSING_IMAGE = "missing"
"""An image that cannot be pulled."""

POLL_SECONDS = 0.02
_ANNOTATION = re.compile(r"metadata\.annotations\['(.+)'\]")


class PodMetadata(Metadata, frozen=True):
    """Also how long a pod that is being deleted has to end."""

    grace: int | None = msgspec.field(default=None, name="deletionGracePeriodSeconds")


class RunnablePod(msgspec.Struct):
    """A pod, with all fields of its spec."""

    metadata: PodMetadata
    spec: Json = {}
    status: Json = {}


class ProcessKubelet:
    """Runs the pods of its nodes. With `instant`, pods run and end without processes: `sleep N` takes that long.

    `volume`: the folder that stands for every volume claim. Paths of a volume in the environment lead there.
    """

    def __init__(
        self, api: ApiServer, nodes: Iterable[Json], *, instant: bool = False, volume: Path | None = None
    ) -> None:
        self._api = api
        self._nodes = {node["metadata"]["name"]: node for node in nodes}
        self._instant = instant
        self._volume = volume
        self.logs: ContainerLogs | None = None if instant else ContainerLogs()
        self._beating = set(self._nodes)
        self._stopped = threading.Event()
        self._pods: dict[str, RunnablePod] = {}
        self._containers: dict[str, threading.Thread] = {}
        self._reflector = Reflector(api, "/api/v1/pods", RunnablePod, self._replace, self._change)
        self._heart = threading.Thread(target=self._beat, name="kubelet-heart", daemon=True)

    def start(self) -> None:
        """Register the nodes and begin to run pods."""
        for name, node in self._nodes.items():
            if self.logs is not None:
                node["status"] |= self.logs.node_status
            self._api.create("/api/v1/nodes", node)
            self._api.patch(f"/api/v1/nodes/{name}/status", {"status": node["status"]})
            lease = {"metadata": {"name": name}, "spec": {"holderIdentity": name, "renewTime": _now()}}
            try:
                self._api.create(LEASES, {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **lease})
            except ApiError:  # an earlier node with this name has a lease, which is too old
                self._api.patch(f"{LEASES}/{name}", lease)
        self._reflector.start()
        self._heart.start()

    def stop(self) -> None:
        """End all containers, and delete all pods and nodes."""
        self._reflector.stop()
        self._stopped.set()
        self._heart.join()
        for thread in list(self._containers.values()):
            thread.join(timeout=10)
        if self.logs is not None:
            self.logs.stop()
        self._api.delete("/api/v1/namespaces/default/pods", {"gracePeriodSeconds": 0})
        for name in self._nodes:
            with suppress(ApiError):
                self._api.delete(f"/api/v1/nodes/{name}")

    def lose(self, *names: str) -> None:
        """Send no more heartbeats for these nodes, and report nothing about their pods any more."""
        self._beating -= set(names)

    def _beat(self) -> None:
        while not self._stopped.wait(HEARTBEAT_SECONDS):
            for name in list(self._beating):
                with suppress(ApiError):
                    self._api.patch(f"{LEASES}/{name}", {"spec": {"renewTime": _now()}})
                    self._report_ready(name)

    def _report_ready(self, name: str) -> None:
        """Set the status of a node again if it was declared lost, as after a long restart of the API server."""
        found = self._api.get(f"/api/v1/nodes/{name}", ApiNode)
        if down_reason(found):
            self._api.patch(f"/api/v1/nodes/{name}/status", {"status": self._nodes[name]["status"]})

    def _replace(self, pods: Sequence[RunnablePod]) -> None:
        for pod in pods:
            self._change(pod, False)

    def _change(self, pod: RunnablePod, deleted: bool) -> None:
        key, uid = _path(pod), pod.metadata.uid
        if pod.spec.get("nodeName") not in self._nodes or pod.spec["nodeName"] not in self._beating:
            return
        self._pods[uid] = pod
        if deleted:
            self._pods.pop(uid)
        elif uid not in self._containers and pod.status.get("phase") == "Pending":
            self._containers[uid] = threading.Thread(target=self._run, args=(uid,), name=f"kubelet {key}", daemon=True)
            self._containers[uid].start()

    def _run(self, uid: str) -> None:
        pod = self._pods[uid]
        with suppress(ApiError, KeyError):
            if pod.metadata.deletion_timestamp is None:
                self._run_container(pod)
            self._wait_for_deletion(pod)

    def _run_container(self, pod: RunnablePod) -> None:
        """Run the first container to its end, and set the status of the pod."""
        container = pod.spec["containers"][0]
        command = [expand(word, {}) for word in (*container.get("command", []), *container.get("args", []))]
        if container.get("image") == MISSING_IMAGE:
            waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
            stuck = {"containerStatuses": [{"name": container["name"], "state": {"waiting": waiting}}]}
            self._api.patch(f"{_path(pod)}/status", {"status": stuck})
            return
        if self._instant:
            self._set_status(pod, "Running")
            if self._sleep(pod, float(command[1]) if command[:1] == ["sleep"] else 0.0):
                self._set_status(pod, "Succeeded", 0)
            else:
                self._set_status(pod, "Failed", 128 + signal.SIGTERM, "Error")
            return
        try:
            process = subprocess.Popen(
                command,
                env={**os.environ, **self._variables(pod, container)},
                cwd=container.get("workingDir"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            self._set_status(pod, "Failed", 128, "StartError", f"cannot start: {error}")
            return
        reader = threading.Thread(target=self._copy_output, args=(pod, process), daemon=True)
        reader.start()
        try:
            self._set_status(pod, "Running")
            status = self._wait_for_process(pod, process)
        finally:
            process.kill()
            process.wait()
            with suppress(ProcessLookupError):
                while True:  # the container ends with its first process
                    os.killpg(process.pid, signal.SIGKILL)
                    time.sleep(POLL_SECONDS)
            reader.join()
        code = 128 - status if status < 0 else status
        self._set_status(pod, "Failed" if code else "Succeeded", code, "Error" if code else "Completed")

    def _copy_output(self, pod: RunnablePod, process: subprocess.Popen[bytes]) -> None:
        assert self.logs is not None and process.stdout is not None
        path = f"{pod.metadata.namespace}/{pod.metadata.name}/{pod.spec['containers'][0]['name']}"
        with process.stdout:
            for line in process.stdout:
                self.logs.add(path, line)

    def _variables(self, pod: RunnablePod, container: Json) -> dict[str, str]:
        found = environment(pod.spec, container, pod.metadata.annotations, self._secret)
        for mount in container.get("volumeMounts", []) if self._volume is not None else []:
            prefix = f"{mount['mountPath']}/"
            found = {
                name: f"{self._volume}/{value.removeprefix(prefix)}" if value.startswith(prefix) else value
                for name, value in found.items()
            }
        return found

    def _wait_for_process(self, pod: RunnablePod, process: subprocess.Popen[bytes]) -> int:
        began: float | None = None
        while (status := process.poll()) is None:
            current = self._pods.get(pod.metadata.uid)
            if current is None or self._stopped.is_set():
                process.kill()
            elif current.metadata.deletion_timestamp is not None and began is None:
                process.terminate()
                began = time.monotonic()
            elif began is not None and time.monotonic() >= began + (current.metadata.grace or 0):
                process.kill()
            time.sleep(POLL_SECONDS)
        return status

    def _sleep(self, pod: RunnablePod, seconds: float) -> bool:
        """Wait; return whether the pod was left alone meanwhile."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._stopped.is_set():
            current = self._pods.get(pod.metadata.uid)
            if current is None or current.metadata.deletion_timestamp is not None:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def _wait_for_deletion(self, pod: RunnablePod) -> None:
        """Delete the pod for good once its deletion was requested; its containers have ended."""
        while not self._stopped.is_set():
            current = self._pods.get(pod.metadata.uid)
            if current is None:
                return
            if current.metadata.deletion_timestamp is not None:
                options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.metadata.uid}}
                self._api.delete(_path(pod), options)
                return
            time.sleep(POLL_SECONDS)

    def _secret(self, name: str) -> dict[str, str]:
        with suppress(ApiError):
            found = self._api.get(f"/api/v1/namespaces/default/secrets/{name}", dict[str, Any])
            return {key: b64decode(value).decode() for key, value in found["data"].items()}
        return {}

    def _set_status(
        self, pod: RunnablePod, phase: str, exit_code: int | None = None, reason: str = "", message: str = ""
    ) -> None:
        if pod.spec["nodeName"] not in self._beating:
            return
        state: Json = {"running": {"startedAt": _now(whole=True)}}
        if exit_code is not None:
            state = {"terminated": {"exitCode": exit_code, "reason": reason, "message": message}}
        container = {"name": pod.spec["containers"][0]["name"], "state": state}
        self._api.patch(f"{_path(pod)}/status", {"status": {"phase": phase, "containerStatuses": [container]}})


def no_secret(name: str) -> dict[str, str]:
    """Return nothing: there is no such Secret."""
    del name
    return {}


def environment(
    spec: Json, container: Json, annotations: Mapping[str, str], secret: Callable[[str], dict[str, str]] = no_secret
) -> dict[str, str]:
    """Return the environment of a container. There is no DNS: all pods of a Service are on this machine."""
    variables: dict[str, str] = {}
    for entry in container.get("env", []):
        if reference := entry.get("valueFrom", {}).get("secretKeyRef"):
            if reference["key"] in (found := secret(reference["name"])):
                variables[entry["name"]] = found[reference["key"]]
        elif "valueFrom" in entry:
            match = _ANNOTATION.fullmatch(entry["valueFrom"]["fieldRef"]["fieldPath"])
            variables[entry["name"]] = annotations.get(match[1], "") if match else ""
        else:
            variables[entry["name"]] = expand(entry.get("value", ""), variables)
    if service := spec.get("subdomain"):
        pattern = re.compile(rf"[\w-]+\.{re.escape(service)}")
        variables = {name: pattern.sub("127.0.0.1", value) for name, value in variables.items()}
    return variables


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace $(NAME) by variables that are known, and $$( by $(."""
    return re.sub(
        r"\$\$\(|\$\((\w+)\)",
        lambda match: "$(" if match[1] is None else variables.get(match[1], match[0]),
        text,
    )


def _path(pod: RunnablePod) -> str:
    return f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"


def _now(*, whole: bool = False) -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ" if whole else "%Y-%m-%dT%H:%M:%S.%fZ")


def kubelet_nodes(count: int, gpus: int = 8, **fields: Any) -> list[Json]:
    """Return nodes named n0, n1, …"""
    return [node_json(f"n{number}", gpus, **fields) for number in range(count)]
