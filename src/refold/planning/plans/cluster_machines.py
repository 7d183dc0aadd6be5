"""The machines of a cluster as the performance model sees them: GPUs, links, network and host memory by GPU type."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from itertools import accumulate, pairwise
from math import ceil

from refold.errors import UnknownName
from refold.model import ETHERNET, PCIE, Cluster, Link
from refold.planning.catalogue import base_gpu_type, find_gpu
from refold.planning.perf import Crossing, GpuSpec, Machines, spread_evenly

Layout = tuple[int, ...]
"""GPUs on each node, in descending order."""

Spread = tuple[tuple[int, ...], ...]
"""GPUs in each domain, in descending order, for each level of the cluster, outermost first; (): as few domains as
possible."""

NVLINK = "nvlink"
"""Links of this kind connect the GPUs of several nodes as those of one node; their bandwidth is that of one GPU."""

MIB_PER_GIB = 1024


class ClusterMachines:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def get(self, gpu_type: str, layout: Layout, cpus: float, spread: Spread = ()) -> Machines:
        """Return the machines of a layout on nodes of one GPU type, with `cpus` in total."""
        gpu, levels = self.gpus[gpu_type], self._cluster.levels
        memory = len(layout) * self._node_memory_gib[gpu_type]
        if not levels:
            return Machines(gpu, layout, self._links[gpu_type], self._network(gpu), cpus, memory)
        spread = spread or self.packed(gpu_type, layout)
        wide, links = self._link_level(gpu_type), self._links_of_levels(gpu)
        inside = (levels[wide].link if wide < len(levels) else None) or self._links[gpu_type]
        crossings = [Crossing(spread[level], links[level]) for level in range(wide) if len(spread[level]) > 1]
        domains = spread[wide] if wide < len(levels) else ()
        return Machines(
            gpu, layout, inside, links[wide], cpus, memory, link_domains=domains, crossings=tuple(reversed(crossings))
        )

    def packed(self, gpu_type: str, layout: Layout) -> Spread:
        """Return the spread over as few domains as possible at each level, evenly."""
        spread: list[tuple[int, ...]] = []
        for largest in self._domain_nodes[gpu_type]:
            counts = spread_evenly(len(layout), ceil(len(layout) / largest))
            domains = [sum(layout[start:end]) for start, end in pairwise(accumulate(counts, initial=0))]
            spread.append(tuple(sorted(domains, reverse=True)))
        return tuple(spread)

    def ring_bandwidth(self, gpu_type: str, layout: Layout, spread: Spread) -> float:
        """Return the bandwidth of a ring over all nodes, in GB/s, which leaves each domain and each node once."""
        gpu, levels = self.gpus.get(gpu_type), self._cluster.levels
        links, wide = self._links_of_levels(gpu), self._link_level(gpu_type)
        if wide < len(levels):
            inside = levels[wide].link or (self._links[gpu_type] if gpu is not None else links[-1])
            bandwidth = inside.gigabytes_per_second * min(layout)
        else:
            bandwidth = links[wide].gigabytes_per_second
        for level in range(min(wide + 1, len(levels))):
            if len(spread[level]) > 1:
                nodes = min(spread[level]) * len(layout) / sum(layout)
                bandwidth = min(bandwidth, links[level].gigabytes_per_second * nodes)
        return bandwidth

    def _links_of_levels(self, gpu: GpuSpec | None) -> list[Link]:
        """Return the link between the domains of each level, and that between the nodes of an innermost domain."""
        links = [self._cluster.network if gpu is None else self._network(gpu)]
        for level in self._cluster.levels:
            links.append(level.link or links[-1])
        return links

    def _link_level(self, gpu_type: str) -> int:
        """Return the outermost level whose domains NVLink connects, as stated or by GPU type; or that of nodes."""
        levels = self._cluster.levels
        connected = self.gpus[gpu_type].link_domain if gpu_type in self.gpus else 0
        for level, described in enumerate(levels):
            most = self._domain_nodes[gpu_type][level] * self._cluster.max_node_gpus
            if described.link.kind == NVLINK if described.link else most <= connected:
                return level
        return len(levels)

    @cached_property
    def _domain_nodes(self) -> dict[str, list[int]]:
        """The number of nodes of the largest domain at each level, by GPU type."""
        cluster = self._cluster
        paths: dict[str, list[tuple[str, ...]]] = {name: [] for name in cluster.type_names}
        for node in cluster.nodes:
            if node.gpus:
                paths[node.gpu_type].append(node.domains)
        return {
            name: [max(Counter(path[: level + 1] for path in of_type).values()) for level in range(len(cluster.levels))]
            for name, of_type in paths.items()
        }

    @cached_property
    def gpus(self) -> dict[str, GpuSpec]:
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
