"""On which machines curves are computed: GPUs of one type, any number of them, of a cluster or as they usually come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from refold.cli.inputs.plan_request import MOST_UP_TO, network_from_text, usual_network

if TYPE_CHECKING:
    from refold.model import Cluster, Link, Node
    from refold.perf import GpuSpec, Machines

UP_TO = 64
"""GPUs, where nothing was said."""

CPUS_PER_GPU = 32
"""CPU threads per GPU at most, where the machines do not say how many they have."""

FAR_OFF = 1.15
"""Memory as a cluster file has it and as the catalogue has it may differ by this factor: 16 GB are 14.6 GiB to a T4."""


@dataclass(frozen=True, slots=True)
class GpuPool:
    """GPUs of one type: how many there are, and the machines for any number of them.

    `cpus_beside`: how many CPUs a job on so many GPUs could have at most.
    """

    gpu: GpuSpec
    up_to: int
    machines_for: Callable[[int], Machines]
    cpus_beside: Callable[[int], float]


def sources_from(
    cluster: str | None, gpu: str | None, up_to: int | None, network: str | None
) -> tuple[list[GpuPool], list[str]]:
    """The GPUs that the options describe, and what to know about them."""
    from refold.catalogue import find_gpu
    from refold.errors import BadInput
    from refold.traces import read_cluster

    link = None if network is None else network_from_text(network)
    if cluster is None:
        if gpu is None:
            raise BadInput("say which GPUs: --gpu A100-80GB (see 'refold gpus'), or --cluster cluster.yaml")
        return _as_usual(find_gpu(gpu), up_to or UP_TO, link)
    return _of_cluster(read_cluster(cluster), None if gpu is None else find_gpu(gpu), up_to, link)


def with_gpus(sources: Sequence[GpuPool], gpus: int) -> list[GpuPool]:
    """Those that have so many GPUs."""
    from refold.errors import BadInput

    enough = [source for source in sources if source.up_to >= gpus]
    if not enough:
        there = ", ".join(f"{source.up_to:,} {source.gpu.name}" for source in sources)
        raise BadInput(f"--cpus-at {gpus}: more GPUs than there are ({there})")
    return enough


def _as_usual(gpu: GpuSpec, up_to: int, network: Link | None) -> tuple[list[GpuPool], list[str]]:
    from refold.plans import Packed

    notes = usual_network(gpu) if network is None and up_to > gpu.gpus_per_node else []
    return [GpuPool(gpu, up_to, Packed(gpu, network=network), lambda gpus: float(CPUS_PER_GPU * gpus))], notes


def _of_cluster(
    cluster: Cluster, only: GpuSpec | None, up_to: int | None, network: Link | None
) -> tuple[list[GpuPool], list[str]]:
    from refold.errors import BadInput
    from refold.model import ETHERNET, Link

    said = network or (None if cluster.network == ETHERNET else cluster.network)  # a file that says nothing has this
    sources, notes = [], []
    for gpu, nodes in _nodes_by_gpu(cluster, only).items():
        usual = Link("network", gpu.node_network_gigabytes_per_second)
        found = ClusterGpus(gpu, nodes, said or usual, cluster.cpus_known, cluster.memory_known)
        sources.append(GpuPool(gpu, min(found.gpus, up_to or MOST_UP_TO), found, found.cpus_beside))
        notes += usual_network(gpu) if said is None and len(nodes) > 1 else []
        notes += _memory_differs(cluster, nodes[0].gpu_type, gpu)
        if up_to is None and found.gpus > MOST_UP_TO:
            notes.append(f"of the cluster's {found.gpus:,} {gpu.name} only {MOST_UP_TO:,} are looked at")
    if only and not sources:
        raise BadInput(f"cluster {cluster.name!r} has no {only.name}, only {', '.join(cluster.type_names)}")
    return sources, notes


def _nodes_by_gpu(cluster: Cluster, only: GpuSpec | None) -> dict[GpuSpec, tuple[Node, ...]]:
    """The nodes that have GPUs, those with most first, by what the catalogue says of these.

    `only` is a type to look at, and what GPUs are whose type nobody said.
    """
    from refold.catalogue import find_gpu
    from refold.errors import BadInput
    from refold.traces import ANY_TYPE

    if not cluster.gpus:
        raise BadInput(f"cluster {cluster.name!r} has no GPUs")
    if ANY_TYPE in cluster.type_names and only is None:
        raise BadInput(f"cluster {cluster.name!r} does not say of which type its GPUs are; say it with --gpu A100-80GB")
    gpu_of = {name: only if only and name == ANY_TYPE else find_gpu(name) for name in cluster.type_names}
    by_gpu: dict[GpuSpec, list[Node]] = {}
    for node in sorted(cluster.nodes, key=lambda node: -node.gpus):
        if node.gpus and only in (None, gpu_of[node.gpu_type]):
            by_gpu.setdefault(gpu_of[node.gpu_type], []).append(node)
    return {gpu: tuple(nodes) for gpu, nodes in sorted(by_gpu.items(), key=lambda item: item[0].name)}


@dataclass(frozen=True, slots=True)
class ClusterGpus:
    """The GPUs of one type that a cluster has. Called with a number, the machines for so many of them.

    Nodes with most GPUs are filled first; CPUs and memory are shared by the GPUs of a node. Where nodes of the type
    differ in their links, the slowest counts.
    """

    gpu: GpuSpec
    nodes: tuple[Node, ...]
    network: Link
    cpus_known: bool
    memory_known: bool

    @property
    def gpus(self) -> int:
        """How many there are."""
        return sum(node.gpus for node in self.nodes)

    def __call__(self, gpus: int) -> Machines:
        from refold.perf import Machines

        layout, left, cpus, memory = [], gpus, 0.0, 0.0
        for node in self.nodes:
            if not left:
                break
            taken = min(node.gpus, left)
            left -= taken
            layout.append(taken)
            cpus += node.cpu_milli / 1000 * taken / node.gpus
            memory += node.memory_mib / 1024 * taken / node.gpus
        return Machines(
            self.gpu,
            tuple(layout),
            min((self._inside(node) for node in self.nodes[: len(layout)]), key=lambda link: link.gigabytes_per_second),
            self.network,
            cpus if self.cpus_known else 0.0,
            memory if self.memory_known else 0.0,
        )

    def cpus_beside(self, gpus: int) -> float:
        """All CPUs of the nodes that so many GPUs are on."""
        on_nodes = len(self(gpus).gpus_on_node)
        known = sum(node.cpu_milli for node in self.nodes[:on_nodes]) / 1000 if self.cpus_known else 0.0
        return known or float(CPUS_PER_GPU * gpus)

    def _inside(self, node: Node) -> Link:
        from refold.model import PCIE

        return self.gpu.link if node.inside == PCIE else node.inside  # a file that says nothing has PCIE


def _memory_differs(cluster: Cluster, name: str, gpu: GpuSpec) -> list[str]:
    said = cluster.gpu_type(name).memory_gib
    if not said or 1 / FAR_OFF < said / gpu.memory_gib < FAR_OFF:
        return []
    return [f"the cluster's {name} has {said:g} GiB, and is taken for {gpu.name} with {gpu.memory_gib:g} GiB"]
