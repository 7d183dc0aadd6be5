"""Layers that compute several projections at once, as separate linear layers that tensor parallelism can split.

Hugging Face's GPT-2 has `Conv1D` layers: linear layers with transposed weights, whose `c_attn` computes queries, keys
and values in one product. They are replaced before training, and put together again in the state dictionary.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from refold.errors import BadInput

_PROJECTIONS = ("q", "k", "v")


class SeparateProjections(nn.Module):
    """Computes queries, keys and values with a layer each, and returns them side by side."""

    def __init__(self, layers: list[nn.Linear]) -> None:
        super().__init__()
        for name, layer in zip(_PROJECTIONS, layers, strict=True):
            self.add_module(name, layer)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return queries, keys and values."""
        return torch.cat([layer(hidden) for layer in self.children()], dim=-1)


class Replacement(NamedTuple):
    """A parameter that was replaced by others: the same values, cut along the last dimension, and transposed."""

    name: str
    parts: tuple[str, ...]

    def restore(self, state: dict[str, Tensor]) -> None:
        """Put the parts of a state dictionary together again."""
        parts = [state.pop(part) for part in self.parts]
        state[self.name] = torch.cat([part.T if part.dim() > 1 else part for part in parts], dim=-1)


def replace_fused_layers(model: nn.Module, optimizer: Optimizer) -> list[Replacement]:
    """Replace fused layers of a model in place, and their parameters in the optimizer."""
    replacements: list[Replacement] = []
    new_parameters: dict[int, list[nn.Parameter]] = {}
    for name, module in list(model.named_modules()):
        if type(module).__name__ != "Conv1D":
            continue
        count = len(_PROJECTIONS) if name.endswith("c_attn") and module.nf == len(_PROJECTIONS) * module.nx else 1
        layers = [_linear(weight, bias) for weight, bias in zip(*_cut(module, count), strict=True)]
        model.set_submodule(name, SeparateProjections(layers) if count > 1 else layers[0])
        prefixes = [f"{name}.{part}" for part in _PROJECTIONS] if count > 1 else [name]
        for kind in ("weight", "bias"):
            replacements.append(Replacement(f"{name}.{kind}", tuple(f"{prefix}.{kind}" for prefix in prefixes)))
            new_parameters[id(getattr(module, kind))] = [getattr(layer, kind) for layer in layers]
    if replacements and optimizer.state:
        raise BadInput("the optimizer has made steps already; pass it to refold.train.start before the first one")
    for group in optimizer.param_groups:
        group["params"] = [new for old in group["params"] for new in new_parameters.get(id(old), [old])]
    return replacements


def _cut(module: nn.Module, count: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    return module.weight.detach().chunk(count, dim=-1), module.bias.detach().chunk(count, dim=-1)


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    layer = nn.Linear(*weight.shape, device="meta", dtype=weight.dtype)
    layer.weight, layer.bias = nn.Parameter(weight.T.contiguous()), nn.Parameter(bias.clone())
    return layer
