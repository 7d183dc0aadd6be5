"""Compare our client of API servers with libraries: `python -m benchmarks.kubernetes.clients`.

Each client runs in a process of its own, on the same real API server, in turns. It is imported, lists the pods, binds
all of them with 16 requests at a time, and reads their changes from a watch. Libraries that are not installed are left
out: `pip install lightkube kubernetes_asyncio`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

IN_FLIGHT = 16
NAMESPACE, NODE = "default", "node-0"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


class Clock(NamedTuple):
    """A moment: real time and the CPU time of this process so far."""

    real: float
    cpu: float

    def since(self, before: Clock) -> Clock:
        """Return the time since an earlier moment."""
        return Clock(self.real - before.real, self.cpu - before.cpu)


def now() -> Clock:
    """Return the present moment."""
    return Clock(time.perf_counter(), time.process_time())


def resident_mib() -> float:
    """Return the memory that this process has at present."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


class Measured:
    """What one client needs for each step."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self._before = resident_mib()

    def note(self, step: str, took: Clock) -> None:
        """Note real time, CPU time, and memory since the start."""
        self.values |= {f"{step} s": took.real, f"{step} CPU s": took.cpu}
        self.values[f"{step} MiB"] = resident_mib() - self._before


def measure_refold(kubeconfig: str, measured: Measured) -> None:
    """Our own client."""
    began = now()

    import msgspec

    from refold.engines.kubernetes.access import read_kubeconfig
    from refold.engines.kubernetes.api_server import ApiServer, ObjectList
    from refold.engines.kubernetes.objects import Pod

    measured.note("import", now().since(began))
    api = ApiServer(read_kubeconfig(Path(kubeconfig)))
    began = now()
    found = api.get(PODS, ObjectList[Pod])
    measured.note("list", now().since(began))

    def bind(pod: Pod) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
        metadata = {"name": pod.metadata.name, "uid": pod.metadata.uid, "annotations": {"a": "b"}}
        api.create(
            f"{PODS}/{pod.metadata.name}/binding",
            {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target},
        )

    _bind_in_threads(found.items, bind, measured)
    began, decoder = now(), msgspec.json.Decoder(Pod)
    watch = api.watch(PODS, found.metadata.resource_version)
    for count, event in enumerate(watch, 1):
        assert decoder.decode(event.object).is_bound
        if count == len(found.items):
            break
    measured.note("watch", now().since(began))


def measure_lightkube(kubeconfig: str, measured: Measured) -> None:
    """Lightkube, with its models and one client for all threads."""
    began = now()
    from lightkube import ApiError, Client, KubeConfig
    from lightkube.models.core_v1 import ObjectReference
    from lightkube.models.meta_v1 import ObjectMeta
    from lightkube.resources.core_v1 import Pod, PodBinding

    measured.note("import", now().since(began))
    client = Client(config=KubeConfig.from_file(kubeconfig).get())
    began = now()
    listed = client.list(Pod, namespace=NAMESPACE)
    pods = [pod for pod in listed if pod.metadata.name]
    measured.note("list", now().since(began))

    def bind(pod: Any) -> None:
        metadata = ObjectMeta(name=pod.metadata.name, uid=pod.metadata.uid, annotations={"a": "b"})
        target = ObjectReference(apiVersion="v1", kind="Node", name=NODE)
        try:
            client.create(PodBinding(metadata=metadata, target=target), pod.metadata.name, namespace=NAMESPACE)
        except (ApiError, TypeError, ValueError) as error:  # it decodes the answer, a Status, as a Binding
            if isinstance(error, ApiError):
                raise

    _bind_in_threads(pods, bind, measured)
    began = now()
    watch = client.watch(Pod, namespace=NAMESPACE, resource_version=listed.resourceVersion)
    for count, (_, pod) in enumerate(watch, 1):
        assert pod.spec.nodeName
        if count == len(pods):
            break
    measured.note("watch", now().since(began))


def _bind_in_threads(pods: list[Any], bind: Callable[[Any], None], measured: Measured) -> None:
    began = now()
    with ThreadPoolExecutor(IN_FLIGHT) as threads:
        assert len(list(threads.map(bind, pods))) == len(pods)
    measured.note("bind", now().since(began))


def measure_asyncio(kubeconfig: str, measured: Measured) -> None:
    """kubernetes_asyncio, with its models."""
    began = now()
    from kubernetes_asyncio import client, config, watch

    measured.note("import", now().since(began))

    async def run() -> None:
        await config.load_kube_config(kubeconfig)
        async with client.ApiClient() as connection:
            api = client.CoreV1Api(connection)
            began = now()
            listed = await api.list_namespaced_pod(NAMESPACE)
            measured.note("list", now().since(began))
            limit = asyncio.Semaphore(IN_FLIGHT)

            async def bind(pod: Any) -> None:
                name = pod.metadata.name
                metadata = client.V1ObjectMeta(name=name, uid=pod.metadata.uid, annotations={"a": "b"})
                target = client.V1ObjectReference(api_version="v1", kind="Node", name=NODE)
                body = client.V1Binding(metadata=metadata, target=target)
                async with limit:
                    await api.create_namespaced_pod_binding(name, NAMESPACE, body, _preload_content=False)

            began = now()
            await asyncio.gather(*(bind(pod) for pod in listed.items))
            measured.note("bind", now().since(began))
            began, count = now(), 0
            version = listed.metadata.resource_version
            async with watch.Watch().stream(api.list_namespaced_pod, NAMESPACE, resource_version=version) as stream:
                async for event in stream:
                    assert event["object"].spec.node_name
                    count += 1
                    if count == len(listed.items):
                        break
            measured.note("watch", now().since(began))

    asyncio.run(run())


CLIENTS: dict[str, tuple[str, Callable[[str, Measured], None]]] = {
    "refold": ("refold", measure_refold),
    "lightkube": ("lightkube", measure_lightkube),
    "kubernetes_asyncio": ("kubernetes_asyncio", measure_asyncio),
}


def main() -> None:
    """Measure all clients, and print the medians."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kubernetes.clients", description=__doc__)
    parser.add_argument("--pods", type=int, default=2000, help="pods that are listed and bound (default: 2000)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each client (default: 3)")
    parser.add_argument("--child", nargs=2, metavar=("CLIENT", "KUBECONFIG"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        measured = Measured()
        CLIENTS[options.child[0]][1](options.child[1], measured)
        print(json.dumps(measured.values))
        return
    found = measure_all(options.pods, options.rounds)
    columns = "bindings per second | CPU ms per binding | list, s | watch, s | import, CPU s | memory after list, MiB"
    print(f"| client | {columns} |")
    print("|---|---|---|---|---|---|---|")
    for name, runs in found.items():
        print(f"| {name} | " + " | ".join(_row(runs, options.pods)) + " |")


def _row(runs: list[dict[str, float]], pods: int) -> list[str]:
    columns: list[list[float]] = [
        [pods / run["bind s"] for run in runs],
        [run["bind CPU s"] / pods * 1000 for run in runs],
        *([run[key] for run in runs] for key in ("list s", "watch s", "import CPU s", "list MiB")),
    ]
    return [f"{median(column):.3g} ({min(column):.3g} to {max(column):.3g})" for column in columns]


def measure_all(pods: int, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Measure each client in each round; the order alternates."""
    from benchmarks.kubernetes.__main__ import find_servers
    from benchmarks.kubernetes.placing import make_servers

    names = [name for name, (module, _) in CLIENTS.items() if find_spec(module)]
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    servers = make_servers(find_servers())
    try:
        servers.start(controllers=False)
        for number in range(rounds):
            for name in names if number % 2 == 0 else reversed(names):
                _create_pods(servers.api, pods)
                command = [sys.executable, "-m", "benchmarks.kubernetes.clients", "--child", name]
                done = subprocess.run(
                    [*command, str(servers.kubeconfig)], check=True, stdout=subprocess.PIPE, text=True
                )
                found[name].append(json.loads(done.stdout))
                print(f"round {number + 1}: {name}: {found[name][-1]}", file=sys.stderr)
                servers.api.call("DELETE", PODS, query={"gracePeriodSeconds": "0"})
    finally:
        servers.stop()
    return found


def _create_pods(api: Any, count: int) -> None:
    from kubernetes_objects import pod_json

    template = pod_json("x")
    del template["status"], template["metadata"]["uid"]

    def create(number: int) -> None:
        api.create(PODS, {**template, "metadata": {**template["metadata"], "name": f"pod-{number}"}})

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(create, range(count)))


if __name__ == "__main__":
    main()
