"""The layout of a plan: which part of the training each rank does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate

from refold.errors import BadInput
from refold.model import Plan

PIPELINE, REPLICA, SHARD, TENSOR = "pipeline", "replica", "shard", "tensor"


class Position(NamedTuple):
    """The position of a rank in the mesh of a plan. Tensor-parallel ranks are neighbours, pipeline stages far apart."""

    stage: int
    data: int
    tensor: int


def position_of(rank: int, plan: Plan) -> Position:
    """Return the position of a rank under a plan."""
    return Position(rank // (plan.tensor * plan.data), rank // plan.tensor % plan.data, rank % plan.tensor)


class Meshes:
    """The device meshes of one process group: one for layouts with the same dimensions, and so with the same groups.

    PyTorch caches what it has found out about equal meshes, with the names of their groups. So meshes of different
    process groups (`number`) must not be equal: the names of their dimensions differ.
    """

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self._meshes: dict[tuple[tuple[str, int], ...], DeviceMesh] = {}

    def get(self, device: torch.device, sizes: Mapping[str, int]) -> DeviceMesh:
        """Return the mesh with some dimensions. Collective."""
        key = tuple(sizes.items())
        if key not in self._meshes:
            names = tuple(map(self.name, sizes))
            self._meshes[key] = init_device_mesh(device.type, tuple(sizes.values()), mesh_dim_names=names)
        return self._meshes[key]

    def name(self, dimension: str) -> str:
        """Return the name of a dimension in these meshes."""
        return f"{dimension}_{self.number}"


class RankMesh:
    """The mesh of a plan, from the point of view of one rank.

    Data-parallel ranks are `replica` × `shard`: with ZeRO, the plan says how many replicas of the shards there are. If
    it says one, ZeRO shards over groups of `shard_group` ranks, or over all ranks if they cannot be divided into such
    groups. Creating a layout is collective.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        device: torch.device,
        shard_group: int | None = None,
        meshes: Meshes | None = None,
    ) -> None:
        shards = shards_of(plan, shard_group)
        self.plan = plan
        self.rank = rank
        self.device = device
        self.position = position_of(rank, plan)
        self.sizes = {PIPELINE: plan.pipeline, REPLICA: plan.data // shards, SHARD: shards, TENSOR: plan.tensor}
        dimensions = {name: size for name, size in self.sizes.items() if size > 1}  # each may cost a process group
        self._meshes = meshes or Meshes()
        self._mesh = self._meshes.get(device, dimensions) if dimensions else None
        replica, shard = divmod(self.position.data, shards)
        self.coordinates = {REPLICA: replica, SHARD: shard, TENSOR: self.position.tensor}

    @property
    def data_mesh(self) -> DeviceMesh:
        """The data-parallel mesh of a rank for `fully_shard` (ZeRO) or `replicate`."""
        return self.mesh(*(name for name in (REPLICA, SHARD) if self.sizes[name] > 1))

    def mesh(self, *dimensions: str) -> DeviceMesh:
        """Return the mesh of the ranks that differ from this one in some dimensions only, which have several ranks."""
        assert self._mesh is not None
        names = tuple(map(self._meshes.name, dimensions))
        return self._mesh[names if len(names) > 1 else names[0]]

    def placements(self, tensor: DTensor) -> dict[str, Placement]:
        """Return how a tensor is divided, by dimension."""
        by_name = dict(zip(tensor.device_mesh.mesh_dim_names or (), tensor.placements, strict=True))
        return {dimension: by_name.get(self._meshes.name(dimension), Replicate()) for dimension in self.sizes}

    def group(self, dimension: str) -> dist.ProcessGroup:
        """Return the process group of a dimension that has several ranks."""
        return self.mesh(dimension).get_group()

    def ranks_of_stage(self, stage: int) -> range:
        """Return the ranks of a pipeline stage."""
        size = self.plan.data * self.plan.tensor
        return range(stage * size, (stage + 1) * size)


def shards_of(plan: Plan, shard_group: int | None = None) -> int:
    """Return over how many data-parallel ranks ZeRO shards; 1 without it."""
    if not plan.zero:
        return 1
    if plan.replicate > 1:
        return plan.data // plan.replicate
    return plan.data if shard_group is None or plan.data % shard_group else shard_group


def check_batch(plan: Plan, batch: int) -> None:
    """Raise an error if a global batch cannot be divided as a plan says."""
    parts = plan.data * plan.accumulation
    if batch % parts:
        raise BadInput(f"a batch of {batch} samples cannot be divided into {parts} micro-batches ({plan})")
    if plan.sequence_parallel:
        raise BadInput(f"refold.train does not support sequence parallelism ({plan})")
    if max(plan.context, plan.expert) > 1:
        raise BadInput(f"refold.train does not support context or expert parallelism ({plan})")
    if plan.data % plan.replicate:
        raise BadInput(f"{plan.data} data-parallel ranks cannot be divided into {plan.replicate} groups ({plan})")
    if plan.pipeline > 1 and plan.accumulation < plan.pipeline:
        raise BadInput(
            f"{plan.pipeline} pipeline stages need at least as many micro-batches, the plan has {plan.accumulation}"
        )
    if plan.interleave > 1 and plan.accumulation % plan.pipeline:
        raise BadInput(f"interleaved stages need a multiple of {plan.pipeline} micro-batches ({plan})")


def with_micro_batches(plan: Plan, batch: int) -> Plan:
    """Return a plan with a number of micro-batches if it has pipeline stages, but says none.

    The more micro-batches, the less the stages wait for each other; more than four per stage bring little.
    """
    if plan.pipeline == 1 or plan.accumulation > 1 or batch % plan.data:
        return plan
    unit = plan.pipeline if plan.interleave > 1 else 1
    counts = range(plan.pipeline, 4 * plan.pipeline + 1)
    usable = [count for count in counts if batch // plan.data % count == 0 and count % unit == 0]
    return msgspec.structs.replace(plan, accumulation=max(usable)) if usable else plan


def fallback_plan(ranks: int, batch: int, *, divides: bool = True) -> Plan:
    """Return a plan that every model can be trained with on at most so many ranks: data parallelism with ZeRO-3.

    Without `divides`, parameters are not divided: it has no ZeRO.
    """
    data = max(count for count in range(1, ranks + 1) if batch % count == 0)
    return Plan(data=data, zero=3 if data > 1 and divides else 0)
