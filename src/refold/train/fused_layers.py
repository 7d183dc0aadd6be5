"""Layers that compute several projections at once, as separate linear layers that tensor parallelism can split.

Hugging Face's GPT-2 has `Conv1D` layers: linear layers with transposed weights, whose `c_attn` computes queries, keys
and values in one product. Phi-3 and others have `qkv_proj`, whose keys and values may have fewer heads, and
`gate_up_proj`. They are replaced before training, and put together again in the state dictionary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from refold.errors import BadInput

FUSED = ("c_attn", "qkv_proj", "gate_up_proj")
"""Names of layers that compute several projections."""


class SeparateProjections(nn.Module):
    """Computes projections, such as queries, keys and values, with a layer each, and returns them side by side."""

    def __init__(self, layers: Mapping[str, nn.Linear]) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the projections."""
        return torch.cat([layer(hidden) for layer in self.children()], dim=-1)


class Replacement(NamedTuple):
    """A parameter that was replaced by others: the same values, cut by outputs; `transposed`: these are its columns."""

    name: str
    parts: tuple[str, ...]
    transposed: bool

    def restore(self, state: dict[str, Tensor]) -> None:
        """Put the parts of a state dictionary together again."""
        whole = torch.cat([state.pop(part) for part in self.parts])
        state[self.name] = whole.T.contiguous() if self.transposed and whole.dim() > 1 else whole


def replace_fused_layers(model: nn.Module, optimizer: Optimizer) -> list[Replacement]:
    """Replace fused layers of a model in place, and their parameters in the optimizer."""
    replacements: list[Replacement] = []
    new_parameters: dict[int, list[nn.Parameter]] = {}
    for name, module in list(model.named_modules()):
        transposed = type(module).__name__ == "Conv1D"
        sizes = _projections(model, name, module)
        if not transposed and not sizes:
            continue
        layers = _cut(module, sizes, transposed=transposed)
        model.set_submodule(name, SeparateProjections(layers) if sizes else layers[""])
        for kind in ("weight", "bias"):
            if getattr(module, kind) is not None:
                parts = tuple(".".join(filter(None, (name, part, kind))) for part in layers)
                replacements.append(Replacement(f"{name}.{kind}", parts, transposed))
                new_parameters[id(getattr(module, kind))] = [getattr(layer, kind) for layer in layers.values()]
    if replacements and optimizer.state:
        raise BadInput("the optimizer has made steps already; pass it to refold.train.start before the first one")
    for group in optimizer.param_groups:
        group["params"] = [new for old in group["params"] for new in new_parameters.get(id(old), [old])]
    return replacements


def _projections(model: nn.Module, name: str, module: nn.Module) -> dict[str, int]:
    """Return the sizes of the projections of a fused layer; none if it is not one, or of an unknown kind."""
    parent_name, _, own_name = name.rpartition(".")
    parent = model.get_submodule(parent_name)
    sizes: dict[str, int] = {}
    match own_name:
        case "c_attn" if type(module).__name__ == "Conv1D":
            sizes = dict.fromkeys("qkv", module.nx)
        case "qkv_proj" if hasattr(parent, "config") and isinstance(getattr(parent, "head_dim", None), int):
            heads = parent.config.num_attention_heads
            others = getattr(parent.config, "num_key_value_heads", None) or heads
            sizes = {key: count * parent.head_dim for key, count in zip("qkv", (heads, others, others), strict=True)}
        case "gate_up_proj" if isinstance(module, nn.Linear):
            sizes = dict.fromkeys(("gate", "up"), module.out_features // 2)
    outputs = getattr(module, "nf", getattr(module, "out_features", None))
    return sizes if sum(sizes.values()) == outputs else {}


def _cut(module: nn.Module, sizes: dict[str, int], *, transposed: bool) -> dict[str, nn.Linear]:
    """Return the layers of the projections; of a layer with only one, that, without a name."""
    weight = module.weight.detach().T if transposed else module.weight.detach()
    weights = weight.split([*sizes.values()]) if sizes else [weight]
    biases = [None] * len(weights) if module.bias is None else module.bias.detach().split([len(w) for w in weights])
    requires_grad = module.weight.requires_grad
    return {
        name: _linear(weight, bias, requires_grad)
        for name, weight, bias in zip(sizes or [""], weights, biases, strict=True)
    }


def _linear(weight: Tensor, bias: Tensor | None, requires_grad: bool) -> nn.Linear:
    outputs, inputs = weight.shape
    layer = nn.Linear(inputs, outputs, bias=bias is not None, device="meta", dtype=weight.dtype)
    layer.weight = nn.Parameter(weight.contiguous().clone(), requires_grad)
    if bias is not None:
        layer.bias = nn.Parameter(bias.clone(), requires_grad)
    return layer
