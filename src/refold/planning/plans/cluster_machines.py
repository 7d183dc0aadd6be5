"""The machines of a cluster as the performance model sees them: GPUs, links, network and host memory by GPU type."""

from __future__ import annotations

from functools import cached_property

from refold.errors import UnknownName
from refold.model import ETHERNET, PCIE, Cluster, Link
from refold.planning.catalogue import base_gpu_type, find_gpu
from refold.planning.perf import GpuSpec, Machines

Layout = tuple[int, ...]
"""GPUs on each node, in descending order."""

MIB_PER_GIB = 1024


class ClusterMachines:
    """Machines of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def get(self, gpu_type: str, layout: Layout, cpus: float) -> Machines:
        """Return the machines of a layout on nodes of one GPU type, with `cpus` in total."""
        gpu = self.gpus[gpu_type]
        memory = len(layout) * self._node_memory_gib[gpu_type]
        return Machines(gpu, layout, self._links[gpu_type], self._network(gpu), cpus, memory)

    @cached_property
    def gpus(self) -> dict[str, GpuSpec]:
        """The GPU types of the cluster that the catalogue has."""
        specs = {}
        for name in self._cluster.type_names:
            try:
                specs[name] = find_gpu(base_gpu_type(name))
            except UnknownName:
                continue
        return specs

    @cached_property
    def _links(self) -> dict[str, Link]:
        """Links between the GPUs of a node, by GPU type; the default of the type if the cluster specifies none."""
        specified = {node.gpu_type: node.inside for node in self._cluster.nodes if node.gpus and node.inside != PCIE}
        return {name: specified.get(name, gpu.link) for name, gpu in self.gpus.items()}

    @cached_property
    def _node_memory_gib(self) -> dict[str, float]:
        """Memory of the largest node of each GPU type; 0 (unlimited) if unknown."""
        largest: dict[str, float] = dict.fromkeys(self.gpus, 0.0)
        for node in self._cluster.nodes if self._cluster.memory_known else ():
            if node.gpus and node.gpu_type in largest:
                largest[node.gpu_type] = max(largest[node.gpu_type], node.memory_mib / MIB_PER_GIB)
        return largest

    def _network(self, gpu: GpuSpec) -> Link:
        specified = self._cluster.network
        return specified if specified != ETHERNET else Link("network", gpu.node_network_gigabytes_per_second)
