"""A real Ray cluster for tests: nodes with fake GPUs, as processes of this machine, with a folder of their own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from refold.engines.ray.tasks import load_ray

GPUS = 8
CPUS = 4
HELPERS = Path(__file__).parent
"""Workers import what they do from here."""

OBJECT_STORE_BYTES = 80_000_000


class RayCluster:
    """The cluster. The first node has its controller, the GCS."""

    def __init__(self, nodes: int, cpus: int = CPUS, gpus: int = GPUS, dashboard_port: int = 0) -> None:
        """`dashboard_port`: that of the dashboard, which has the API of Ray's own jobs; 0: without one."""
        self.ray = load_ray("this test")
        from ray.cluster_utils import Cluster

        self._folder = Path(tempfile.mkdtemp(prefix="refold-ray-"))  # sockets need a short path
        (self._folder / "ray").mkdir()
        self._before = {name: os.environ.get(name) for name in ("RAY_TMPDIR", "PYTHONPATH")}
        os.environ["RAY_TMPDIR"] = str(self._folder)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HELPERS), self._before["PYTHONPATH"]]))
        self._options = {"num_cpus": cpus, "num_gpus": gpus, "object_store_memory": OBJECT_STORE_BYTES}
        dashboard = {"include_dashboard": bool(dashboard_port), "dashboard_port": dashboard_port or None}
        self._cluster: Any = Cluster(initialize_head=True, head_node_args={**self._options, **dashboard})
        for _ in range(nodes - 1):
            self.add_node()
        self.address = str(self._cluster.address)

    @property
    def environment(self) -> dict[str, str]:
        """The variables of programs that use the cluster."""
        return {**os.environ, "RAY_ADDRESS": self.address}

    def add_node(self, **options: Any) -> Any:
        """Start one more node."""
        return self._cluster.add_node(**self._options, **options)

    def kill_node(self, node: Any) -> None:
        """Kill a node, without a warning."""
        self._cluster.remove_node(node, allow_graceful=False)

    def kill_head(self) -> None:
        """Kill the node that has the controller. The cluster ends with it."""
        self._cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False)

    def replace_head(self) -> None:
        """Start a head node at the address of one that was killed: another cluster."""
        from ray.cluster_utils import Cluster

        self._cluster.shutdown()
        port = int(self.address.rpartition(":")[2])
        self._cluster = Cluster(initialize_head=True, head_node_args={**self._options, "gcs_server_port": port})
        assert self._cluster.address == self.address

    def clear(self) -> None:
        """Remove the runs that a detached back end has left."""
        util = self.ray.util
        for name in util.list_named_actors():
            self.ray.kill(self.ray.get_actor(name))
        for entry in util.placement_group_table().values():
            if entry["state"] != "REMOVED":
                util.remove_placement_group(util.get_placement_group(entry["name"]))

    def stop(self) -> None:
        """End all nodes, and delete their data."""
        self.ray.shutdown()
        self._cluster.shutdown()
        for name, value in self._before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        shutil.rmtree(self._folder, ignore_errors=True)


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


# What workers do. They import it by name.


def double(_: None, item: int, advance: Callable[[float], None]) -> int:
    """Return twice the item."""
    advance(1.0)
    return 2 * item


def die_first(folder: str, item: int, advance: Callable[[float], None]) -> int:
    """Kill the worker at the first attempt; return the item at the second one."""
    marker = Path(folder) / str(item)
    advance(1.0)
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def die(_: None, item: int, advance: Callable[[float], None]) -> int:
    """Kill the worker."""
    os.kill(os.getpid(), signal.SIGKILL)
    return item


def fail(_: None, item: int, advance: Callable[[float], None]) -> int:
    """Raise an error."""
    raise ValueError(f"{item} is bad")


def fail_beside(folder: str, item: int, advance: Callable[[float], None]) -> int:
    """Fail for item 0 when another one has written its process id; never end for others."""
    if item:
        (Path(folder) / str(os.getpid())).touch()
        threading.Event().wait()
    while not any(Path(folder).iterdir()):
        time.sleep(0.02)
    raise ValueError("0 is bad")
