"""The machines of a throughput curve: any number of GPUs of one type, of a cluster or in default nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from refold.cli.inputs.plan_request import MAX_CURVE_GPUS, default_network_note
from refold.cli.inputs.plan_values import parse_network
from refold.errors import BadInput

if TYPE_CHECKING:
    from refold.model import Cluster, Link, Node
    from refold.planning.perf import GpuSpec, Machines

DEFAULT_MAX_GPUS = 64
"""Largest number of GPUs of a curve without --gpus-up-to."""

MAX_CPUS_PER_GPU = 32
"""CPU threads per GPU if the number of CPUs of the machines is unknown."""

MEMORY_TOLERANCE = 1.15
"""Factor by which the GPU memory of a cluster file may differ from the catalogue: a T4 of 16 GB has 14.6 GiB."""


@dataclass(frozen=True, slots=True)
class GpuPool:
    """Up to `up_to` GPUs of one type. `machines_for` returns the machines for a number of GPUs.

    `cpus_beside`: the maximum number of CPUs that a job on that many GPUs can have.
    """

    gpu: GpuSpec
    up_to: int
    machines_for: Callable[[int], Machines]
    cpus_beside: Callable[[int], float]


def parse_gpu_pools(
    cluster: str | None, gpu: str | None, up_to: int | None, network: str | None
) -> tuple[list[GpuPool], list[str]]:
    """Return the GPUs that the options describe, and notes on assumptions."""
    from refold.planning.catalogue import find_gpu
    from refold.simulator.traces import read_cluster

    link = None if network is None else parse_network(network)
    if cluster is None:
        if gpu is None:
            raise BadInput("no GPUs given: use --gpu A100-80GB (see 'refold gpus') or --cluster cluster.yaml")
        return _default_pool(find_gpu(gpu), up_to or DEFAULT_MAX_GPUS, link)
    return _cluster_pools(read_cluster(cluster), None if gpu is None else find_gpu(gpu), up_to, link)


def pools_with_gpus(pools: Sequence[GpuPool], gpus: int) -> list[GpuPool]:
    enough = [pool for pool in pools if pool.up_to >= gpus]
    if not enough:
        available = ", ".join(f"{pool.up_to:,} {pool.gpu.name}" for pool in pools)
        raise BadInput(f"--cpus-at {gpus}: more GPUs than available ({available})")
    return enough


def _default_pool(gpu: GpuSpec, up_to: int, network: Link | None) -> tuple[list[GpuPool], list[str]]:
    from refold.planning.plans import PackedMachines

    notes = default_network_note(gpu) if network is None and up_to > gpu.gpus_per_node else []
    return [
        GpuPool(gpu, up_to, PackedMachines(gpu, network=network), lambda gpus: float(MAX_CPUS_PER_GPU * gpus))
    ], notes


def _cluster_pools(
    cluster: Cluster, only: GpuSpec | None, up_to: int | None, network: Link | None
) -> tuple[list[GpuPool], list[str]]:
    from refold.model import ETHERNET, Link

    # A cluster file without a network has ETHERNET, which is then replaced by the default of the GPU type.
    given = network or (None if cluster.network == ETHERNET else cluster.network)
    pools, notes = [], []
    for gpu, nodes in _nodes_by_gpu(cluster, only).items():
        default = Link("network", gpu.node_network_gigabytes_per_second)
        machines = ClusterGpus(gpu, nodes, given or default, cluster.cpus_known, cluster.memory_known)
        pools.append(GpuPool(gpu, min(machines.gpus, up_to or MAX_CURVE_GPUS), machines, machines.cpus_beside))
        notes += default_network_note(gpu) if given is None and len(nodes) > 1 else []
        notes += _memory_note(cluster, nodes[0].gpu_type, gpu)
        if up_to is None and machines.gpus > MAX_CURVE_GPUS:
            notes.append(f"only {MAX_CURVE_GPUS:,} of the cluster's {machines.gpus:,} {gpu.name} are considered")
    if only and not pools:
        raise BadInput(f"cluster {cluster.name!r} has no {only.name}, only {', '.join(cluster.type_names)}")
    return pools, notes


def _nodes_by_gpu(cluster: Cluster, only: GpuSpec | None) -> dict[GpuSpec, tuple[Node, ...]]:
    """Group the nodes that have GPUs by GPU type, nodes with the most GPUs first.

    `only`: consider this type only; GPUs of unknown type are taken to be of this type.
    """
    from refold.planning.catalogue import find_gpu
    from refold.simulator.traces import UNKNOWN_GPU_TYPE

    if not cluster.gpus:
        raise BadInput(f"cluster {cluster.name!r} has no GPUs")
    if UNKNOWN_GPU_TYPE in cluster.type_names and only is None:
        raise BadInput(
            f"cluster {cluster.name!r} has GPUs of unknown type; give it with --gpu, such as --gpu A100-80GB"
        )
    gpu_of = {name: only if only and name == UNKNOWN_GPU_TYPE else find_gpu(name) for name in cluster.type_names}
    by_gpu: dict[GpuSpec, list[Node]] = {}
    for node in sorted(cluster.nodes, key=lambda node: -node.gpus):
        if node.gpus and only in (None, gpu_of[node.gpu_type]):
            by_gpu.setdefault(gpu_of[node.gpu_type], []).append(node)
    return {gpu: tuple(nodes) for gpu, nodes in sorted(by_gpu.items(), key=lambda item: item[0].name)}


@dataclass(frozen=True, slots=True)
class ClusterGpus:
    """The GPUs of one type in a cluster. Calling it with a number of GPUs returns the machines for them.

    Nodes with the most GPUs are filled first; CPUs and memory of a node are divided evenly among its GPUs. If the links
    inside the nodes differ, the slowest is used.
    """

    gpu: GpuSpec
    nodes: tuple[Node, ...]
    network: Link
    cpus_known: bool
    memory_known: bool

    @property
    def gpus(self) -> int:
        return sum(node.gpus for node in self.nodes)

    def __call__(self, gpus: int) -> Machines:
        from refold.planning.perf import Machines

        layout, remaining, cpus, memory = [], gpus, 0.0, 0.0
        for node in self.nodes:
            if not remaining:
                break
            taken = min(node.gpus, remaining)
            remaining -= taken
            layout.append(taken)
            cpus += node.cpu_milli / 1000 * taken / node.gpus
            memory += node.memory_mib / 1024 * taken / node.gpus
        return Machines(
            self.gpu,
            tuple(layout),
            min(
                (self._link_inside(node) for node in self.nodes[: len(layout)]),
                key=lambda link: link.gigabytes_per_second,
            ),
            self.network,
            cpus if self.cpus_known else 0.0,
            memory if self.memory_known else 0.0,
        )

    def cpus_beside(self, gpus: int) -> float:
        """Return the CPUs of all nodes that hold that many GPUs."""
        on_nodes = len(self(gpus).gpus_on_node)
        known = sum(node.cpu_milli for node in self.nodes[:on_nodes]) / 1000 if self.cpus_known else 0.0
        return known or float(MAX_CPUS_PER_GPU * gpus)

    def _link_inside(self, node: Node) -> Link:
        from refold.model import PCIE

        return self.gpu.link if node.inside == PCIE else node.inside  # PCIE: the default of cluster files


def _memory_note(cluster: Cluster, name: str, gpu: GpuSpec) -> list[str]:
    memory_gib = cluster.gpu_type(name).memory_gib
    if not memory_gib or 1 / MEMORY_TOLERANCE < memory_gib / gpu.memory_gib < MEMORY_TOLERANCE:
        return []
    return [f"the cluster's {name} with {memory_gib:g} GiB is modelled as {gpu.name} with {gpu.memory_gib:g} GiB"]
