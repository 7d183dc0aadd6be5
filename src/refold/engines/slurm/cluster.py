"""The nodes of Slurm as the scheduler's `Cluster`.

The scheduler selects nodes by GPU type only. So nodes with the same GPUs that are in different partitions, or differ in
features that jobs ask for, get different types: `a100/gpu` and `a100/debug,gpu`. A job accepts the types whose nodes
its partitions contain.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from refold.engines.slurm.node_records import SlurmNode
from refold.errors import BadValue, UnknownName
from refold.model import MAX_GPU_TYPES, MAX_GPUS_PER_NODE, PCIE, WHOLE, Cluster, Link, Node
from refold.planning.catalogue import base_gpu_type, find_gpu
from refold.simulator.traces import UNKNOWN_GPU_TYPE

_CONSTRAINT = re.compile(r"[\w.+-]+(?:([&|,])[\w.+-]+(?:\1[\w.+-]+)*)?")
"""Features joined by the same operator: those with counts, brackets or several operators are not supported."""


class GpuGroup(NamedTuple):
    """The GPUs of one type on one node: a node of the scheduler. `slurm_type`: '' if Slurm does not name it."""

    node: SlurmNode
    slurm_type: str
    gpus: int
    gpu_type: str

    @property
    def share(self) -> float:
        """Its part of the CPUs and the memory of the node."""
        return self.gpus / sum(self.node.gpus.values())


class SlurmCluster(NamedTuple):
    """The cluster, and the groups of GPUs that it was made from. Both have the same order."""

    cluster: Cluster
    groups: tuple[GpuGroup, ...]

    def indices(self, name: str) -> list[int]:
        """Return the nodes of the cluster that are on a node of Slurm."""
        return [index for index, group in enumerate(self.groups) if group.node.name == name]

    def accepted_types(
        self, partitions: Collection[str], slurm_types: Collection[str] = (), features: str = ""
    ) -> tuple[str, ...]:
        """Return the GPU types of nodes in one of the partitions, with GPUs of one of these types, and the features."""
        return tuple(
            sorted(
                {
                    group.gpu_type
                    for group in self.groups
                    if not {*partitions}.isdisjoint(group.node.partitions)
                    and (not slurm_types or group.slurm_type in slurm_types)
                    and has_features(group.node, features)
                }
            )
        )


def constraint_features(constraint: str) -> frozenset[str]:
    """Return the features that a constraint names; none if it is not supported."""
    return frozenset(re.split(r"[&|,]", constraint)) if _CONSTRAINT.fullmatch(constraint) else frozenset()


def has_features(node: SlurmNode, constraint: str) -> bool:
    """Whether a node has the features of a constraint. A constraint that is not supported is ignored."""
    wanted = constraint_features(constraint)
    if "|" in constraint:
        return not wanted or not wanted.isdisjoint(node.features)
    return wanted <= node.features


def map_nodes(nodes: Iterable[SlurmNode], features: Collection[str] = (), name: str = "slurm") -> SlurmCluster:
    """Return the cluster of the nodes with GPUs. `features`: those that jobs ask for."""
    groups = [
        GpuGroup(node, gpu_type, min(count, MAX_GPUS_PER_NODE), gpu_type or UNKNOWN_GPU_TYPE)
        for node in nodes
        if node.partitions
        for gpu_type, count in node.gpus.items()
    ]
    if not groups:
        raise BadValue("Slurm has no nodes with GPUs (Gres=gpu:…) in a partition")
    named = _distinguish(groups, {*features})
    memory_known = all(group.node.memory_mib > 1 for group in groups)  # 1 MiB is Slurm's default
    return SlurmCluster(Cluster(tuple(map(_model_node, named)), name=name, memory_known=memory_known), tuple(named))


def _distinguish(groups: Sequence[GpuGroup], features: set[str]) -> list[GpuGroup]:
    """Add to the GPU types what distinguishes nodes with the same GPUs for jobs."""
    kinds: dict[str, set[str]] = {}
    traits = [",".join(sorted({*group.node.partitions, *(features & group.node.features)})) for group in groups]
    for group, trait in zip(groups, traits, strict=True):
        kinds.setdefault(group.gpu_type, set()).add(trait)
    count = sum(map(len, kinds.values()))
    if count > MAX_GPU_TYPES:
        raise BadValue(
            f"partitions, and features that jobs ask for, divide the GPU nodes into {count} kinds, "
            f"expected at most {MAX_GPU_TYPES}"
        )
    return [
        group._replace(gpu_type=f"{group.gpu_type}/{trait}") if len(kinds[group.gpu_type]) > 1 else group
        for group, trait in zip(groups, traits, strict=True)
    ]


def _model_node(group: GpuGroup) -> Node:
    node = group.node
    several = len(node.gpus) > 1
    return Node(
        f"{node.name}:{group.slurm_type or UNKNOWN_GPU_TYPE}" if several else node.name,
        group.gpus,
        group.gpu_type,
        int(node.cpus * WHOLE * group.share),
        int(node.memory_mib * group.share),
        inside=_link(group.gpu_type),
    )


def _link(gpu_type: str) -> Link:
    try:
        return find_gpu(base_gpu_type(gpu_type)).link
    except UnknownName:
        return PCIE
