"""Place gangs on nodes of a real API server: Refold, kube-scheduler with and without its gang plug-in, and Kueue.

All pods exist before a scheduler starts. Measured is the time between the first and the last binding, as a watch sees
them, and how many gangs are bound in part at the end. KWOK stands for the kubelets; without it, nodes are objects only.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "tests" / "helpers"))

from kubernetes_objects import node_json, pod_json  # noqa: E402
from kubernetes_servers import KubernetesServers, create  # noqa: E402

from benchmarks.kubernetes.kubelets import SECONDS_ANNOTATION, has_kwok, kwok, wait_until_ready  # noqa: E402
from benchmarks.kubernetes.kueue import group_fields, has_kueue, kueue, release  # noqa: E402
from benchmarks.kubernetes.processes import Process, run_process  # noqa: E402
from refold.engines.kubernetes.mirror import Reflector  # noqa: E402
from refold.engines.kubernetes.objects import Pod  # noqa: E402

RACK_LABEL = "topology.kubernetes.io/rack"
GROUPS = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups"
PODS = "/api/v1/namespaces/default/pods"
CREATING_THREADS = 8
QUIET_SECONDS = 10.0
"""A scheduler that binds nothing for this long after its first binding has finished."""

START_SECONDS = 600.0


class Size(NamedTuple):
    """What is placed: `gangs` of `pods` with one GPU each, on `nodes` of eight GPUs.

    `racks`: in how many racks the nodes are, of which each gang requires one; 0: they have none.
    """

    nodes: int
    gangs: int
    pods: int = 8
    racks: int = 0


class Placed(NamedTuple):
    """What a scheduler has done. `seconds`: from the first to the last binding. `total`: from its start.

    `split`: gangs that are in more than one rack.
    """

    scheduler: str
    bound: int
    seconds: float
    total: float
    whole: int
    partial: int
    split: int = 0

    @property
    def per_second(self) -> float:
        """Bindings per second."""
        return (self.bound - 1) / self.seconds if self.seconds else 0.0


class Bindings:
    """Watches pods: when each was bound."""

    def __init__(self, servers: KubernetesServers) -> None:
        self.at: dict[str, float] = {}
        self.gang_of: dict[str, str] = {}
        self.node_of: dict[str, str] = {}
        self._lock = threading.Lock()
        self._reflector = Reflector(servers.api, "/api/v1/pods", Pod, lambda _: None, self._change)
        self._reflector.start()

    def _change(self, pod: Pod, deleted: bool) -> None:
        with self._lock:
            if pod.is_bound and not deleted:
                self.at.setdefault(pod.key, time.monotonic())
                self.gang_of[pod.key] = pod.metadata.labels["gang"]
                self.node_of[pod.key] = pod.spec.node_name

    def wait(self, wanted: int) -> None:
        """Wait until this number of pods is bound, or no more are."""
        deadline = time.monotonic() + START_SECONDS
        while len(self.at) < wanted:
            last = max(list(self.at.values()), default=deadline - QUIET_SECONDS)
            if time.monotonic() > last + QUIET_SECONDS:
                return
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop watching."""
        self._reflector.stop()


def measure(assets: Path, scheduler: str, size: Size) -> Placed:
    """Place all gangs with one scheduler, on servers of their own."""
    servers = make_servers(assets)
    try:
        servers.start(controllers=False)
        waiting = kueue(servers, assets, size.nodes * 8) if scheduler == KUEUE else nullcontext()
        with simulated_nodes(servers, assets, size.nodes, size.racks), waiting:
            create_gangs(servers, scheduler, size)
            bindings = Bindings(servers)
            began = time.monotonic()
            with (WITH_RACKS if size.racks else SCHEDULERS)[scheduler](servers, assets):
                bindings.wait(min(size.gangs * size.pods, size.nodes * 8))
            bindings.stop()
    finally:
        servers.stop()
    counts = Counter(bindings.gang_of.values())
    times = list(bindings.at.values())
    racks: defaultdict[str, set[int]] = defaultdict(set)
    for pod, gang in bindings.gang_of.items():
        racks[gang].add(_rack(int(bindings.node_of[pod][1:]), size.nodes, size.racks))
    return Placed(
        scheduler,
        len(times),
        max(times) - min(times) if times else 0.0,
        max(times) - began if times else 0.0,
        sum(count == size.pods for count in counts.values()),
        sum(count < size.pods for count in counts.values()),
        sum(len(found) > 1 for found in racks.values()),
    )


def _rack(node: int, nodes: int, racks: int) -> int:
    return node * racks // nodes


def make_servers(assets: Path) -> KubernetesServers:
    """Return servers of their own for a measurement; they are not started."""
    return KubernetesServers(assets)


@contextmanager
def simulated_nodes(servers: KubernetesServers, assets: Path, count: int, racks: int = 0) -> Iterator[None]:
    """Create nodes. Inside the context, KWOK keeps them ready and lets their pods run, if it was built.

    Nodes with racks are objects only: the largest clusters are measured with these.
    """
    if racks or not has_kwok(assets):
        create_nodes(servers, count, racks=racks)
        yield
        return
    create_nodes(servers, count, conditions=[])
    with kwok(servers.kubeconfig, assets, servers.folder) as process:
        wait_until_ready(servers.api, process)
        yield


def create_nodes(servers: KubernetesServers, count: int, gpus: int = 8, racks: int = 0, **status: Any) -> None:
    """Create nodes, ready unless their status says otherwise. No controller removes the taint of new nodes."""

    def create_node(number: int) -> None:
        labels = {RACK_LABEL: f"rack-{_rack(number, count, racks)}"} if racks else {}
        create(servers.api, "/api/v1/nodes", node_json(f"n{number}", gpus, labels, **status))
        servers.api.patch(f"/api/v1/nodes/n{number}", {"spec": {"taints": None}})

    in_threads(create_node, range(count))


def create_gangs(servers: KubernetesServers, scheduler: str, size: Size) -> None:
    """Create the pods of all gangs, and the objects that make them gangs for this scheduler."""

    def create_one(number: int) -> None:
        create_gang(servers, scheduler, f"g{number}", size.pods, in_one_rack=size.racks > 0)

    in_threads(create_one, range(size.gangs))


def create_gang(
    servers: KubernetesServers,
    scheduler: str,
    name: str,
    pods: int,
    gpus: int = 1,
    seconds: float | None = None,
    in_one_rack: bool = False,
) -> None:
    """Create the pods of a gang, each with this number of GPUs, that run for ever or for some time.

    A gang that requires one rack is a PodGroup of Kubernetes, for all schedulers.
    """
    labels = {"gang": name}
    if not in_one_rack:
        labels |= {"refold.dev/gang": name, "refold.dev/gang-size": str(pods)}
    annotations = {} if seconds is None else {SECONDS_ANNOTATION: f"{seconds:.3f}s"}
    if scheduler == KUEUE:
        group_labels, group_annotations = group_fields(name, pods)
        labels, annotations = labels | group_labels, annotations | group_annotations
    fields: dict[str, Any] = {
        "labels": labels,
        "schedulerName": "refold" if scheduler == "refold" else "default-scheduler",
        "annotations": annotations,
    }
    if in_one_rack or scheduler == "kube-scheduler, gangs":
        group = {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": {"name": name}}
        spec: dict[str, Any] = {"schedulingPolicy": {"gang": {"minCount": pods}}}
        if in_one_rack:
            spec["schedulingConstraints"] = {"topology": [{"key": RACK_LABEL}]}
        servers.api.create(GROUPS, {**group, "spec": spec})
        fields["schedulingGroup"] = {"podGroupName": name}
    for index in range(pods):
        body = pod_json(f"{name}-{index}", gpus, **fields)
        del body["metadata"]["uid"], body["status"]
        servers.api.create(PODS, body)


def in_threads(work: Callable[[int], None], numbers: range) -> None:
    """Do work for all numbers."""
    with ThreadPoolExecutor(CREATING_THREADS) as threads:
        for _ in threads.map(work, numbers):
            pass


@contextmanager
def refold(servers: KubernetesServers, _: Path) -> Iterator[Process]:
    """Run Refold, first come first served; it knows racks, if nodes have the label."""
    config = servers.folder / "refold.yaml"
    config.write_text(f"kubernetes: {{levels: [{RACK_LABEL}]}}\n")
    command = [sys.executable, "-m", "refold", "serve", "--kubeconfig", str(servers.kubeconfig), "--port", "0"]
    command += ["--config", str(config)]
    state = servers.folder / "state"
    with run_process([*command, "--policy", "fifo", "--state", str(state)], servers.folder / "refold.log") as found:
        yield found


@contextmanager
def kube_scheduler(servers: KubernetesServers, assets: Path, gates: str = "") -> Iterator[Process]:
    """Run kube-scheduler, without a limit on its requests."""
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(servers.kubeconfig), "qps": 5000, "burst": 10000},
        "parallelism": os.cpu_count() or 1,
    }
    path = servers.folder / "scheduler.json"
    path.write_text(json.dumps(config))
    command = [str(assets / "kube-scheduler"), f"--config={path}", "--secure-port=0"]
    command += [f"--feature-gates={gates}"] if gates else []
    with run_process(command, servers.folder / "scheduler.log") as found:
        yield found


@contextmanager
def released_kueue(servers: KubernetesServers, assets: Path) -> Iterator[Process]:
    """Run kube-scheduler, and let Kueue, which runs already, admit gangs."""
    with kube_scheduler(servers, assets) as found:
        release(servers.api)
        yield found


def available(assets: Path) -> list[str]:
    """Return the schedulers that can be measured here."""
    return [name for name in SCHEDULERS if name != KUEUE or has_kueue(assets)]


KUEUE = "kube-scheduler, Kueue"
GANG_GATES = "GenericWorkload=true,GangScheduling=true"
RACK_GATES = f"{GANG_GATES},TopologyAwareWorkloadScheduling=true"
SCHEDULERS: dict[str, Callable[[KubernetesServers, Path], Any]] = {
    "refold": refold,
    "kube-scheduler": kube_scheduler,
    "kube-scheduler, gangs": lambda servers, assets: kube_scheduler(servers, assets, GANG_GATES),
    KUEUE: released_kueue,
}
WITH_RACKS: dict[str, Callable[[KubernetesServers, Path], Any]] = {
    "refold": refold,
    "kube-scheduler, gangs": lambda servers, assets: kube_scheduler(servers, assets, RACK_GATES),
}
"""The schedulers that place gangs in one rack by the constraints of their PodGroups."""
