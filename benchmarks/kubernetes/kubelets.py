"""What stands for the kubelets of a measurement: KWOK if it was built, else threads of our own.

Both let pods that are bound run, and end those with an annotation after the time that it says. KWOK also makes nodes
ready and renews their leases.
"""

from __future__ import annotations

import heapq
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.kubernetes.processes import Process, run_process
from refold.engines.kubernetes.api_server import ApiError, ApiServer, ObjectList
from refold.engines.kubernetes.mirror import Reflector
from refold.engines.kubernetes.nodes import down_reason
from refold.engines.kubernetes.objects import ApiNode, Pod
from refold.engines.kubernetes.pod_states import pod_path

SECONDS_ANNOTATION = "refold.dev/benchmark-duration"
"""How long a pod runs, such as 1.5s. A pod without it runs for ever."""

STATUS_THREADS = 4
READY_SECONDS = 300.0
KWOK_STAGES = ("node/fast/node-initialize", "node/heartbeat-with-lease/node-heartbeat-with-lease")
KWOK_POD_STAGES = ("pod/fast/pod-ready", "pod/fast/pod-delete")


def has_kwok(assets: Path) -> bool:
    """Whether KWOK was built."""
    return (assets / "kwok").exists()


def describe(assets: Path) -> str:
    """Return what stands for the kubelets."""
    return "KWOK stands for the kubelets" if has_kwok(assets) else "without KWOK (`make engines-kubernetes` builds it)"


@contextmanager
def kwok(kubeconfig: Path, assets: Path, folder: Path) -> Iterator[Process]:
    """Run KWOK inside the context, for all nodes."""
    command = [str(assets / "kwok"), f"--kubeconfig={kubeconfig}", "--manage-all-nodes=true"]
    stages = [assets / "kwok-data" / f"{name}.yaml" for name in KWOK_STAGES + KWOK_POD_STAGES]
    completion = folder / "completion.yaml"
    completion.write_text(json.dumps(completion_stage()))
    command += [f"--config={path}" for path in (*stages, completion)]
    with run_process(command, folder / "kwok.log") as process:
        yield process


def completion_stage() -> dict[str, Any]:
    """Return the stage of KWOK that ends pods after the time of their annotation."""
    annotation = f'.metadata.annotations["{SECONDS_ANNOTATION}"]'
    matches = [
        {"key": ".metadata.deletionTimestamp", "operator": "DoesNotExist"},
        {"key": ".status.phase", "operator": "In", "values": ["Running"]},
        {"key": annotation, "operator": "Exists"},
    ]
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": "benchmark-completion"},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": "Pod"},
            "selector": {"matchExpressions": matches},
            "delay": {"durationMilliseconds": 0, "durationFrom": {"expressionFrom": annotation}},
            "next": {"statusTemplate": "phase: Succeeded\n"},
        },
    }


def wait_until_ready(api: ApiServer, process: Process) -> None:
    """Wait until all nodes are ready, or KWOK has ended."""
    deadline = time.monotonic() + READY_SECONDS
    while process.poll() is None and any(
        down_reason(node) for node in api.get("/api/v1/nodes", ObjectList[ApiNode]).items
    ):
        if time.monotonic() > deadline:
            raise RuntimeError(f"some nodes are not ready after {READY_SECONDS:g} s")
        time.sleep(0.5)


class StandInKubelets:
    """Lets bound pods run, and ends those whose annotation says when."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self._seen: set[str] = set()
        self._due: list[tuple[float, str]] = []
        self._changed = threading.Condition()
        self._stopped = False
        self._threads = ThreadPoolExecutor(STATUS_THREADS)
        self._clock = threading.Thread(target=self._run, daemon=True)
        self._reflector = Reflector(api, "/api/v1/pods", Pod, lambda _: None, self._change)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Do that inside the context."""
        self._reflector.start()
        self._clock.start()
        try:
            yield
        finally:
            self._reflector.stop()
            with self._changed:
                self._stopped = True
                self._changed.notify()
            self._clock.join()
            self._threads.shutdown()

    def _change(self, pod: Pod, deleted: bool) -> None:
        if deleted or not pod.is_bound or pod.metadata.uid in self._seen:
            return
        self._seen.add(pod.metadata.uid)
        duration = pod.metadata.annotations.get(SECONDS_ANNOTATION)
        due = None if duration is None else time.monotonic() + float(duration.removesuffix("s"))
        self._threads.submit(self._start, pod_path(pod), due)

    def _start(self, path: str, due: float | None) -> None:
        self._set_phase(path, "Running")
        if due is not None:
            with self._changed:
                heapq.heappush(self._due, (due, path))
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._stopped:
                    return
                wait = self._due[0][0] - time.monotonic() if self._due else None
                if wait is None or wait > 0:
                    self._changed.wait(wait)
                    continue
                _, path = heapq.heappop(self._due)
            self._threads.submit(self._set_phase, path, "Succeeded")

    def _set_phase(self, path: str, phase: str) -> None:
        with suppress(ApiError):
            self._api.patch(f"{path}/status", {"status": {"phase": phase}})
