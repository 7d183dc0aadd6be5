"""The connection of a daemon to a Ray cluster, which it may lose and make again.

Ray ends a process that has lost the head node: after a minute, or at once when another one has its address. So the
daemon looks for itself whether the head node can be reached, and disconnects before that.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from refold.engines.ray.tasks import connect_ray
from refold.model import Seconds

PROBE_TIMEOUT: Seconds = 2.0


class RayConnection:
    """A connection to the cluster that Ray is connected to."""

    def __init__(self, ray: Any) -> None:
        self.ray = ray
        self.address: str = ray.get_runtime_context().gcs_address

    def is_reachable(self) -> bool:
        """Whether something answers at the address of the head node."""
        host, _, port = self.address.rpartition(":")
        with suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), PROBE_TIMEOUT):
            return True
        return False

    def disconnect(self) -> None:
        """Give the connection up."""
        self.ray.shutdown()

    def connect(self) -> None:
        """Connect to the cluster at the same address. Raises RefoldError."""
        connect_ray(self.ray, self.address)

    def free_resources(self) -> Mapping[str, Mapping[str, float]]:
        """Return what is not reserved on each node, by the id of the node."""
        found: Mapping[str, Mapping[str, float]] = self.ray._private.state.available_resources_per_node()
        return found
