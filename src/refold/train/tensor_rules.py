"""Which linear layers of a model are split by tensor parallelism, and how.

A pair of layers is split as in Megatron-LM: the first by columns (outputs), the second by rows (inputs), so that one
all-reduce per pair is enough. The table knows the names that are common in transformers, among them those of Hugging
Face's Llama, Qwen, Mistral, GPT-2 and BERT. Everything else is replicated.

Replicated parameters between the layers of a pair (*inner* ones, such as norms of queries and keys) see the activations
of their own rank only: their gradients are added up over the ranks.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from refold.errors import BadInput
from refold.train.fused_layers import FUSED

Split = Literal["column", "row", "inner", "whole"]
"""How tensor parallelism treats a layer: split by columns or rows, replicated within a pair, or outside of pairs."""

_KNOWN: tuple[tuple[re.Pattern[str], Split], ...] = (
    (re.compile(r".*att[a-z_]*(\.self)?\.(q|k|v|wq|wk|wv|query|key|value|[qkv]_proj|[qkv]_lin)"), "column"),
    (re.compile(r".*att[a-z_]*\.(o|wo|out|proj|o_proj|out_proj|c_proj|out_lin|output\.dense)"), "row"),
    (re.compile(r".*(mlp|ffn|feed_forward)\.(up|gate|fc1|c_fc|w1|w3|lin1|up_proj|gate_proj)"), "column"),
    (re.compile(r".*(mlp|ffn|feed_forward)\.(down|fc2|c_proj|w2|lin2|down_proj)"), "row"),
    (re.compile(r".*\.intermediate\.dense"), "column"),
    (re.compile(r".*layer\.\d+\.output\.dense"), "row"),
    (re.compile(r".*att[a-z_]*\.(c_attn|qkv_proj)\.(q|k|v)"), "column"),
    (re.compile(r".*(mlp|ffn|feed_forward)\.gate_up_proj\.(gate|up)"), "column"),
    (re.compile(r".*att[a-z_]*\.((q|k|query|key)_(norm|layernorm))"), "inner"),
)

_LORA = re.compile(r"\.(base_layer|lora_[AB]\.[^.]+)")
_OF_LORA: Mapping[tuple[Split, str], Split] = {
    ("column", "base_layer"): "column",
    ("column", "lora_A"): "whole",
    ("column", "lora_B"): "column",
    ("row", "base_layer"): "row",
    ("row", "lora_A"): "row",
    ("row", "lora_B"): "whole",
}
"""How the parts of a layer that PEFT has adapted are split, given how the layer would be."""

_STYLES = {"column": ColwiseParallel, "row": RowwiseParallel}

_HEADS = ("num_heads", "num_attention_heads", "num_key_value_heads", "n_head", "n_heads", "heads", "n_kv_heads")
_WIDTHS = ("split_size", "all_head_size", "inner_dim")
"""Attributes of attention modules that count what is split: heads, and widths of projections."""


def find_splits(model: nn.Module, annotated: Mapping[str, Split]) -> dict[str, Split]:
    """Return the linear layers that tensor parallelism splits: annotated patterns first, then the known names."""
    splits: dict[str, Split] = {}
    used: set[str] = set()
    for name, module in model.named_modules():
        pattern = next((pattern for pattern in annotated if fnmatchcase(name, pattern)), None)
        if pattern is not None:
            used.add(pattern)
            if annotated[pattern] in ("column", "row") and not isinstance(module, nn.Linear):
                raise BadInput(
                    f"tensor rule {pattern!r} matches {name!r}, a {type(module).__name__}; expected nn.Linear"
                )
            splits[name] = annotated[pattern]
        else:
            split = _known_split(name)
            if split == "inner" or (split is not None and isinstance(module, nn.Linear)):
                splits[name] = split
    if unused := set(annotated) - used:
        raise BadInput(f"tensor rule {min(unused)!r} matches no module of the model")
    return splits


def _known_split(name: str) -> Split | None:
    """Return how a layer is split, by its name."""
    adapted = _LORA.search(name)
    whole = name if adapted is None else name[: adapted.start()]
    split = next((split for known, split in _KNOWN if known.fullmatch(whole)), None)
    if adapted is None or split is None:
        return split
    part = adapted[1].partition(".")[0]
    return _OF_LORA.get((split, part)) if adapted.end() == len(name) else None


def check_splits(model: nn.Module, splits: Mapping[str, Split], degree: int) -> None:
    """Raise an error if the layers cannot be split by a degree."""
    if not any(split == "column" for split in splits.values()):
        raise BadInput(
            f"tensor parallelism of {degree} needs layers that can be split, and none was found; name them with "
            "tensor={'layers.*.attention.to_q': 'column', …}"
        )
    for name, split in splits.items():
        if split not in ("column", "row"):
            continue
        layer = model.get_submodule(name)
        size = layer.out_features if split == "column" else layer.in_features
        if not isinstance(size, int) or size % degree:
            side = "outputs" if split == "column" else "inputs"
            raise BadInput(f"{name} has {size} {side}, which tensor parallelism of {degree} cannot split evenly")
    for name in _unknown_inner_parameters(model, splits):
        raise BadInput(
            f"{name} is within split layers, and it is not known whether it sees split activations; add it to tensor=… "
            "as 'inner' if it does, else as 'whole'"
        )
    for name, parent in _parents(model, splits).items():
        for attribute, count in _counted_heads(parent).items():
            if count % degree:
                raise BadInput(f"{name} has {attribute} = {count}, which tensor parallelism of {degree} cannot split")


def split_layers(model: nn.Module, splits: Mapping[str, Split], mesh: DeviceMesh) -> None:
    """Split the layers of a model, in place, over the ranks of a one-dimensional mesh."""
    present = {name: split for name, split in splits.items() if _has(model, name)}
    styles = {name: _STYLES[split]() for name, split in present.items() if split in _STYLES}
    for parent in _parents(model, present).values():
        for attribute in (*_HEADS, *_WIDTHS):
            count = getattr(parent, attribute, None)
            if isinstance(count, int):
                setattr(parent, attribute, count // mesh.size())
        if hasattr(parent, "qkv_proj") and hasattr(parent, "config"):
            parent.config = _divided(parent.config, mesh.size())
    parallelize_module(model, mesh, styles)


def is_inner(parameter: str, splits: Mapping[str, Split]) -> bool:
    """Whether a replicated parameter sees the activations of its own rank only."""
    return any(split == "inner" and parameter.startswith(f"{name}.") for name, split in splits.items())


def _unknown_inner_parameters(model: nn.Module, splits: Mapping[str, Split]) -> Iterator[str]:
    """Return parameters in modules with layers split by columns that no rule covers."""
    columns = {_owner(name) for name, split in splits.items() if split == "column"}
    for parent in sorted(columns):
        for name, _ in model.get_submodule(parent).named_parameters(prefix=parent):
            if not any(name.startswith(f"{known}.") for known in splits):
                yield name


def _parents(model: nn.Module, splits: Mapping[str, Split]) -> dict[str, nn.Module]:
    """Return the modules that contain split layers, and those around separate projections."""
    names = {_owner(name) for name in splits}
    names |= {name.rpartition(".")[0] for name in names if name.rpartition(".")[2] in FUSED}
    return {name: model.get_submodule(name) for name in sorted(names)}


def _owner(name: str) -> str:
    """Return the name of the module that a layer belongs to."""
    return _LORA.sub("", name).rpartition(".")[0]


def _counted_heads(module: nn.Module) -> dict[str, int]:
    """Return the numbers of heads of an attention module, of its own or from its configuration."""
    counts = {name: getattr(module, name, None) for name in _HEADS}
    if any(hasattr(module, projection) for projection in ("q_proj", "query", "q", "wq", "c_attn", "qkv_proj")):
        config = getattr(module, "config", None)
        counts |= {name: getattr(config, name) for name in _HEADS if isinstance(getattr(config, name, None), int)}
    return {name: count for name, count in counts.items() if isinstance(count, int)}


def _divided(config: Any, degree: int) -> Any:
    """Return a configuration for an attention module that finds its queries, keys and values by the numbers in it."""
    own = copy.copy(config)
    for name in _HEADS:
        count = getattr(config, name, None)
        if isinstance(count, int):
            setattr(own, name, count // degree)
    return own


def _has(model: nn.Module, name: str) -> bool:
    try:
        model.get_submodule(name)
    except AttributeError:
        return False
    return True
