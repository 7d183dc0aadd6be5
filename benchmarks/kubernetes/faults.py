"""Gangs on a real API server while something fails again and again; an observer of its own counts what goes wrong.

Two daemons, of which one schedules, reach the API server through a proxy. Pods are simulated by a kubelet of the tests.
The moments of the failures follow from a seed: each comes after a number of bindings of a new gang was seen.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "tests" / "helpers"))

from faulty_proxy import FaultyProxy  # noqa: E402
from kubernetes_daemon import JOBS, KubernetesDaemon, apply_rights, job_json, wait_for  # noqa: E402
from kubernetes_servers import KubernetesServers  # noqa: E402
from process_kubelet import ProcessKubelet, kubelet_nodes  # noqa: E402

from refold.engines.kubernetes.api_server import ObjectList, as_dict  # noqa: E402
from refold.engines.kubernetes.gang_run import BIND_WAIT  # noqa: E402
from refold.engines.kubernetes.mirror import Reflector  # noqa: E402
from refold.engines.kubernetes.objects import BatchJob, Pod  # noqa: E402
from refold.engines.kubernetes.own_jobs import GPUS_ANNOTATION  # noqa: E402

NODES = 4
PODS, GPUS = 4, 2
"""Pods of a gang, and GPUs of a pod: a node has room for one gang."""

RUN_SECONDS = 1.0
CLEAN_UP_SECONDS = BIND_WAIT + 30.0
"""How long a gang may be bound in part: binding is repeated for a minute, then its pods have 30 s to end."""

FAILING_PART = 0.1
MAX_DELAY_SECONDS = 0.3
"""Bindings of a gang are spread over this time, so that failures come between them."""

TRIGGER_SECONDS = 10.0
SETTLE_SECONDS = 300.0
"""How long gangs may need to finish after the last failure: a gang that fails ten times waits longer each time."""

JOB_LABEL = "batch.kubernetes.io/job-name"


class Outcome(NamedTuple):
    """What was counted. `longest`: seconds that a gang was bound in part. `half_bound`: longer than it may be."""

    fault: str
    times: int
    gangs: int
    half_bound: int
    longest: float
    allocated_twice: int
    forgotten: int


class GangWatch:
    """What changes of pods say: which gangs are bound in part and for how long, and which GPUs have two pods."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.bindings: Counter[str] = Counter()
        """Bindings by Job."""
        self.allocated_twice = 0
        self.pods: dict[str, Pod] = {}
        self._clock = clock
        self._partial_since: dict[str, float] = {}
        self._durations: list[float] = []

    def durations(self) -> list[float]:
        """Return how long gangs were bound in part, each time."""
        now = self._clock()
        return [*self._durations, *(now - since for since in self._partial_since.values())]

    def change(self, pod: Pod, deleted: bool) -> None:
        """Take note of a pod as it is now."""
        before = self.pods.pop(pod.key, None)
        if not deleted:
            self.pods[pod.key] = pod
        job = pod.metadata.labels.get(JOB_LABEL, "")
        if pod.is_bound and not deleted and (before is None or not before.is_bound):
            self.bindings[job] += 1
            self._check_gpus(pod)
        self._check_gang(job)

    def _check_gpus(self, new: Pod) -> None:
        """Count GPUs of a pod that was bound which another pod has that has not ended."""
        others = [pod for pod in self.pods.values() if pod.spec.node_name == new.spec.node_name and pod is not new]
        taken = {gpu for pod in others if not pod.has_ended for gpu in gpus_of(pod)}
        self.allocated_twice += len(taken & gpus_of(new))

    def _check_gang(self, job: str) -> None:
        pods = [pod for pod in self.pods.values() if pod.metadata.labels.get(JOB_LABEL) == job]
        bound = sum(pod.is_bound and not pod.has_ended and not pod.is_deleted for pod in pods)
        done = sum(pod.status.phase == "Succeeded" for pod in pods)
        if bound and bound + done < PODS:
            self._partial_since.setdefault(job, self._clock())
        elif (since := self._partial_since.pop(job, None)) is not None:
            self._durations.append(self._clock() - since)


class Observer:
    """Tells a `GangWatch` every change of a pod, with a watch of its own."""

    def __init__(self, servers: KubernetesServers) -> None:
        self.seen = GangWatch()
        self._reflector = Reflector(servers.api, "/api/v1/pods", Pod, self._replace, self.seen.change)
        self._reflector.start()

    def stop(self) -> None:
        """Stop watching."""
        self._reflector.stop()

    def _replace(self, pods: Sequence[Pod]) -> None:
        found = {pod.key for pod in pods}
        for pod in [pod for key, pod in self.seen.pods.items() if key not in found]:
            self.seen.change(pod, True)
        for pod in pods:
            self.seen.change(pod, False)


def gpus_of(pod: Pod) -> set[str]:
    """Return the GPUs that a pod was bound to."""
    return set(filter(None, pod.metadata.annotations.get(GPUS_ANNOTATION, "").split(",")))


class Cluster:
    """Servers, a kubelet, a proxy, and two daemons of which the first schedules."""

    def __init__(self, assets: Path, seed: int) -> None:
        self.servers = KubernetesServers(assets)
        self.proxy = FaultyProxy(self.servers.port, seed)
        self.proxy.delay = MAX_DELAY_SECONDS
        self._kubelet = ProcessKubelet(self.servers.api, kubelet_nodes(NODES), instant=True)
        folder = Path(mkdtemp(prefix="state-", dir=self.servers.folder))
        kubeconfig = self.proxy.write_kubeconfig(folder / "proxy.kubeconfig", "refold", "refold-token")
        self._daemons = [
            KubernetesDaemon(
                self.servers, folder / "state", "--policy", "fifo", "--standby", log=name, kubeconfig=kubeconfig
            )
            for name in ("first", "second")
        ]

    def start(self, ending: ExitStack) -> None:
        """Start everything; what was started is stopped by `ending`."""
        ending.callback(self.servers.stop)
        ending.callback(self.proxy.stop)
        self.servers.start()
        ending.callback(self._kubelet.stop)
        self._kubelet.start()
        apply_rights(self.servers.api)
        for daemon in self._daemons:
            ending.callback(daemon.kill)
        self._daemons[0].start()
        self._daemons[1].launch()

    def wait_for_standby(self) -> None:
        """Wait until the second daemon waits for the first one to end."""
        wait_for(lambda: self._daemons[1].is_waiting, "the second daemon waits")

    def kill_leader(self) -> None:
        """Kill the daemon that schedules; return when the other one does."""
        self._daemons[0].kill()
        self._daemons.reverse()
        self._daemons[0].wait_until_serving()
        self._daemons[1].launch()

    def restart_api_server(self) -> None:
        """Kill the API server, and start it again."""
        self.servers.kill("kube-apiserver")
        self.servers.start_api_server()

    def unfinished(self) -> set[str]:
        """Return the Jobs that are not complete."""
        jobs = self.servers.api.get(JOBS, ObjectList[BatchJob]).items
        return {
            job.metadata.name
            for job in jobs
            if not any(entry.type == "Complete" and entry.status == "True" for entry in job.status.conditions)
        }

    def forgotten(self) -> int:
        """Wait until all Jobs are complete; return the number of pods of those that are not."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while (left := self.unfinished()) and time.monotonic() < deadline:
            time.sleep(0.5)
        for job in sorted(left):
            events = "; ".join(self._daemons[0].events(job))
            found = as_dict(self.servers.api.call("GET", f"{JOBS}/{job}"))
            state = {"suspend": found["spec"].get("suspend"), "status": found.get("status")}
            state["annotations"] = found["metadata"].get("annotations")
            print(f"unfinished: {job}: {state}\n{events}\n{self._daemons[0].log()[-3000:]}", file=sys.stderr)
        for pod in self.servers.api.get("/api/v1/pods", ObjectList[Pod]).items if left else ():
            if pod.metadata.labels.get(JOB_LABEL) in left:
                print(f"forgotten: {pod.key} on {pod.spec.node_name!r}, {pod.status.phase}", file=sys.stderr)
        return len(left) * PODS


def fail_bindings(cluster: Cluster) -> None:
    """Bindings fail all the time."""
    cluster.proxy.failing = FAILING_PART


def everything(cluster: Cluster) -> None:
    """Drop the watches, then kill the leader, while bindings fail."""
    fail_bindings(cluster)
    cluster.proxy.drop_watches()
    cluster.kill_leader()


FAULTS: dict[str, Callable[[Cluster], None]] = {
    "leader killed": Cluster.kill_leader,
    "API server killed": Cluster.restart_api_server,
    "watches dropped": lambda cluster: cluster.proxy.drop_watches(),
    "10 % of bindings fail": fail_bindings,
    "bindings fail, watches dropped, leader killed": everything,
}


def measure(assets: Path, fault: str, times: int, seed: int = 0) -> Outcome:
    """Create a gang and let something fail while it is being bound, again and again; count what is wrong."""
    draw = random.Random(seed)
    cluster = Cluster(assets, seed)
    with ExitStack() as ending:
        cluster.start(ending)
        observer = Observer(cluster.servers)
        for number in range(times):
            name = f"gang{number}"
            cluster.wait_for_standby()
            cluster.servers.api.create(JOBS, job_json(name, PODS, GPUS, RUN_SECONDS, backoffLimit=0))
            wait_for_bindings(observer, name, draw.randrange(PODS + 1))
            FAULTS[fault](cluster)
        cluster.proxy.failing = 0.0
        forgotten = cluster.forgotten()
        observer.stop()
    durations = observer.seen.durations()
    late = sum(duration > CLEAN_UP_SECONDS for duration in durations)
    return Outcome(fault, times, times, late, max(durations, default=0.0), observer.seen.allocated_twice, forgotten)


def measure_takeovers(assets: Path, times: int) -> list[float]:
    """Kill the daemon that schedules; return the seconds until the other one, as on another machine, serves."""
    servers, found = KubernetesServers(assets), []
    with ExitStack() as ending:
        ending.callback(servers.stop)
        servers.start()
        kubelet = ProcessKubelet(servers.api, kubelet_nodes(NODES), instant=True)
        ending.callback(kubelet.stop)
        kubelet.start()
        apply_rights(servers.api)
        folder = Path(mkdtemp(prefix="state-", dir=servers.folder))
        leader, other = (KubernetesDaemon(servers, folder, "--standby", host=name) for name in ("a", "b"))
        for daemon in (leader, other):
            ending.callback(daemon.kill)
        leader.start()
        for _ in range(times):
            other.launch()
            wait_for(lambda: other.is_waiting, "the other daemon waits")  # noqa: B023
            leader.kill()
            killed = time.monotonic()
            other.wait_until_serving()
            found.append(time.monotonic() - killed)
            leader, other = other, leader
    return found


def wait_for_bindings(observer: Observer, job: str, count: int) -> None:
    """Wait until this number of pods of a gang was bound, or for a while if it does not fit now."""
    deadline = time.monotonic() + TRIGGER_SECONDS
    while observer.seen.bindings[job] < count and time.monotonic() < deadline:
        time.sleep(0.001)
