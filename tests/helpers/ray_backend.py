"""A back end on a real Ray cluster, in the harness of the contract suite."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ray_cluster import RayCluster

from refold.engines.ray import RayBackend, RayNodes, map_nodes, read_nodes
from refold.server import Report
from refold.testing.backend_contract import BackendContract


class OnRay(BackendContract):
    """Makes back ends on a cluster that Ray is connected to. The id of the daemon is that of its folder."""

    cluster: RayCluster

    def nodes(self) -> RayNodes:
        """Return the nodes as they are now."""
        return map_nodes(read_nodes(self.cluster.ray.nodes()))

    def make_backend(self, report: Report, folder: Path, grace: float) -> RayBackend:
        """Return a back end, or its successor, for the same folder."""
        daemon = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
        return RayBackend(report, self.cluster.ray, self.nodes(), folder / "out", daemon, grace=grace)
