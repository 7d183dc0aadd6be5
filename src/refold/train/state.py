"""The state of a training as boxes: of each named tensor of the model and the optimizer, every rank has one rectangular
part. Boxes are the same for all plans, so state that was written under one plan can be read under any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from refold.train.handover import Region, Regions
from refold.train.host_tensors import Description, describe
from refold.train.layout import REPLICA, SHARD, TENSOR
from refold.train.local_model import LocalModel, local_part
from refold.train.local_optimizer import LocalOptimizer, is_like


class Box(NamedTuple):
    """The part of a named tensor that this rank has. `writer` and `writers`: its number among ranks with this part.

    `division`: mesh and placements of a tensor that is divided; None: this rank has all of it. `parameter`: the name of
    the parameter, if the tensor is one, or is divided as it is.
    """

    name: str
    local: Tensor
    whole: tuple[int, ...]
    offset: tuple[int, ...]
    writer: int
    writers: int
    division: tuple[DeviceMesh, Sequence[Placement]] | None = None
    parameter: str | None = None

    def region(self) -> Region:
        """Return the region of the whole tensor."""
        return tuple((first, first + size) for first, size in zip(self.offset, self.local.shape, strict=True))

    def slices(self) -> tuple[slice, ...]:
        """Return the slices that give this part of the whole tensor."""
        return tuple(slice(*bounds) for bounds in self.region())

    def share(self) -> Region | None:
        """Return what this rank writes: ranks with the same part write some rows of it each."""
        region = self.region()
        if self.writers == 1 or not region:
            return region if self.writer == 0 else None
        (first, end), *others = region
        rows = -(-(end - first) // self.writers)
        begin = first + self.writer * rows
        return (min(begin, end), min(begin + rows, end)), *others

    def description(self) -> Description:
        """Return type and shape of the whole tensor."""
        return describe(self.local.dtype, self.whole)

    def distributed(self) -> Tensor:
        """Return the whole tensor, of which this rank has its part; it shares the memory of the part."""
        if self.division is None:
            return self.local
        mesh, placements = self.division
        stride = tuple(prod(self.whole[dimension + 1 :]) for dimension in range(len(self.whole)))
        shape = torch.Size(self.whole)
        return DTensor.from_local(self.local, mesh, placements, run_check=False, shape=shape, stride=stride)


class Boxes:
    """The boxes of one layout: parameters, optimizer state and buffers."""

    def __init__(self, model: LocalModel, optimizer: LocalOptimizer) -> None:
        self._model = model
        self._optimizer = optimizer
        self._boxes = {
            name: _box(name, parameter, model, tied=model.is_on_two_stages(name))._replace(parameter=name)
            for name, parameter in model.named_parameters()
        }

    def regions(self) -> Regions:
        """Return the regions of the parameters, by name."""
        return {name: box.region() for name, box in self._boxes.items()}

    def __iter__(self) -> Iterator[Box]:
        for name, copy in self._optimizer.optimized().items():
            box = self._boxes[name]
            yield box._replace(name=f"model.{name}", local=copy.detach())
            for key, value in self._optimizer.movable_tensors(name).items():
                if is_like(key, value, copy):
                    yield box._replace(name=f"optimizer.{name}.{key}", local=value)
                else:
                    yield _box(f"optimizer.{name}.{key}", value, self._model, tied=self._model.is_on_two_stages(name))
        for name, buffer in self._model.named_buffers():
            yield _box(f"buffer.{name}", buffer, self._model)


def replicas(tensor: Tensor, model: LocalModel, *, tied: bool = False) -> tuple[int, int]:
    """Return the number of this rank among the ranks that have the same part of a tensor, and the number of those.

    `tied`: the tensor is in the first and in the last pipeline stage; otherwise stages have different tensors.
    """
    layout = model.layout
    placements = layout.placements(tensor) if isinstance(tensor, DTensor) else {}
    number, count = (int(layout.position.stage > 0), 2) if tied else (0, 1)
    for dimension in (REPLICA, SHARD, TENSOR):
        if isinstance(placements.get(dimension, Replicate()), Replicate):
            number = number * layout.sizes[dimension] + layout.coordinates[dimension]
            count *= layout.sizes[dimension]
    return number, count


def _box(name: str, tensor: Tensor, model: LocalModel, *, tied: bool = False) -> Box:
    offset, division = (0,) * tensor.dim(), None
    if isinstance(tensor, DTensor):
        division = tensor.device_mesh, tensor.placements
        _, offset = compute_local_shape_and_global_offset(tensor.shape, *division)
    number_and_count = replicas(tensor, model, tied=tied)
    return Box(name, local_part(tensor), tuple(tensor.shape), tuple(offset), *number_and_count, division)
