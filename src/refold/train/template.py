"""A model without storage, from which the local part of the model is built in every layout."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


class Template:
    """A copy of a model whose parameters have no storage. Buffers, which forward passes may read, keep their values.

    `aliases`: the second and further names of tied parameters, with the first name.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = _copy_without_storage(model)
        names = defaultdict[int, list[str]](list)
        for name, parameter in model.named_parameters(remove_duplicate=False):
            names[id(parameter)].append(name)
        self.aliases = {alias: first for first, *others in names.values() for alias in others}
        self.parameters: Mapping[str, Tensor] = dict(self._model.named_parameters())
        self._spare: nn.Module | None = None

    @property
    def model(self) -> nn.Module:
        """The model without storage itself, to look at."""
        return self._model

    def build_ahead(self) -> None:
        """Make the copy that the next call of `build` returns."""
        if self._spare is None:
            self._spare = _copy_without_storage(self._model)

    def build(self) -> nn.Module:
        """Return a new copy of the model without storage."""
        copied, self._spare = self._spare, None
        return _copy_without_storage(self._model) if copied is None else copied


def _copy_without_storage(model: nn.Module) -> nn.Module:
    memo: dict[int, Any] = {
        id(parameter): nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
        for parameter in model.parameters()
    }
    return copy.deepcopy(model, memo)


def allocate(model: nn.Module, device: torch.device, existing: Mapping[int, Tensor]) -> None:
    """Give parameters without storage uninitialised storage on a device, and move the rest there. Ties are kept.

    `existing`: the local parts of some parameters, by id of the parameter.
    """
    tied = defaultdict[int, list[tuple[nn.Module, str]]](list)
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                tied[id(parameter)].append((module, name))
    model._apply(lambda tensor: _allocated(tensor, device, existing) if tensor.is_meta else tensor.to(device))
    shared = [places for places in tied.values() if len(places) > 1]
    for (first, first_name), *others in shared:
        for module, name in others:
            setattr(module, name, getattr(first, first_name))
    if shared:
        model._apply(lambda tensor: tensor)  # modules that shard their parameters register the new ones


def _allocated(tensor: Tensor, device: torch.device, existing: Mapping[int, Tensor]) -> Tensor:
    local = existing.get(id(tensor))
    if local is None:
        local = torch.empty_like(tensor.to_local() if isinstance(tensor, DTensor) else tensor, device=device)
    if not isinstance(tensor, DTensor):
        return local
    mesh, placements, shape, stride = tensor.device_mesh, tensor.placements, tensor.shape, tensor.stride()
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=shape, stride=stride)
