"""Read the layers of hybrid models, such as Nemotron-H and Qwen3-Next, from their config.json."""

from __future__ import annotations

from typing import Any

from refold.planning.catalogue.config_keys import FFN, ConfigKeys
from refold.planning.perf import LinearAttention

STATE_HEADS = ("mamba_num_heads", "mamba_n_heads")
STATE_HEAD_SIZE = ("mamba_head_dim", "mamba_d_head", "head_dim")
STATE_GROUPS = ("mamba_n_groups", "n_groups")
STATE_SIZE = ("ssm_state_size", "mamba_d_state", "state_size")
STATE_KERNEL = ("conv_kernel", "mamba_d_conv")
STATE_CHUNK = ("chunk_size", "mamba_chunk_size")

DELTA_RULE_CHUNK = 64
"""Tokens that kernels of gated delta networks process at once (flash-linear-attention)."""

LAYERS_OF_PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""Letters of `hybrid_override_pattern`."""

LINEAR_LAYERS = {"mamba", "linear_attention"}
FFN_LAYERS = {"mlp", "moe"}
ATTENTION_LAYERS = {"attention", "full_attention"}


def hybrid_fields(model_type: str, keys: ConfigKeys, known: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a model with linear attention: none without it."""
    delta_rule = keys.is_set("linear_num_value_heads")
    if not (delta_rule or any(map(keys.is_set, STATE_HEADS)) or model_type == "mamba2"):
        keys.reject({"mamba_d_state": "state-space layers of Mamba-1"})
        return {}
    kinds = _layer_kinds(model_type, keys, known["layers"])
    if len(kinds) != known["layers"]:
        raise keys.error(f"lists the kinds of {len(kinds)} layers, but num_hidden_layers is {known['layers']}")
    attention, linear, mlp, moe = (
        sum(kind in of for kind in kinds) for of in (ATTENTION_LAYERS, LINEAR_LAYERS, {"mlp"}, {"moe"})
    )
    if model_type == "falcon_h1":  # every layer has both
        attention = linear = len(kinds)
    mixer = _delta_rule if delta_rule else _state_space
    fields: dict[str, Any] = {
        "linear": mixer(keys, linear) if linear else None,
        "attention_free": len(kinds) - attention,
        "ffn_free": len(kinds) - mlp - moe if mlp or moe or model_type == "mamba2" else 0,
        "attention_gate": keys.flag("attn_output_gate", model_type == "qwen3_next"),
    }
    if moe:
        fields |= {"dense_layers": mlp, "dense_ffn": keys.count(*FFN) if mlp else 0, "mtp_layers": 0}
    return fields


def _layer_kinds(model_type: str, keys: ConfigKeys, layers: int) -> list[str]:
    if pattern := keys.text("hybrid_override_pattern"):
        return _known_kinds(keys, [LAYERS_OF_PATTERN.get(letter, letter) for letter in pattern])
    for name in ("layers_block_type", "layer_types"):
        if kinds := keys.texts(name):
            return _known_kinds(keys, kinds)
    if model_type == "mamba2":
        return ["mamba"] * layers
    if model_type == "falcon_h1":
        return ["attention"] * layers
    if keys.is_set("attn_layer_indices"):
        attention = set(keys.integers("attn_layer_indices"))
        return ["attention" if index in attention else "mamba" for index in range(layers)]
    interval = keys.count("full_attention_interval")
    return ["linear_attention" if (index + 1) % interval else "attention" for index in range(layers)]


def _known_kinds(keys: ConfigKeys, kinds: list[str]) -> list[str]:
    for kind in kinds:
        if kind not in LINEAR_LAYERS | FFN_LAYERS | ATTENTION_LAYERS:
            raise keys.error(
                f"has layers of the kind {kind!r}, which is not supported; write the closest shapes as YAML"
            )
    return kinds


def _delta_rule(keys: ConfigKeys, layers: int) -> LinearAttention:
    names = ("value_heads", "value_head_dim", "key_heads", "key_head_dim")
    prefixes = {"value_heads": "linear_num_", "key_heads": "linear_num_"}
    heads, head_size, key_heads, key_size = (keys.count(prefixes.get(name, "linear_") + name) for name in names)
    kernel = keys.count("linear_conv_kernel_dim", default=4)
    return LinearAttention(layers, heads, head_size, key_heads, key_size, kernel, DELTA_RULE_CHUNK, delta_rule=True)


def _state_space(keys: ConfigKeys, layers: int) -> LinearAttention:
    return LinearAttention(
        layers,
        keys.count(*STATE_HEADS, "num_heads"),
        keys.count(*STATE_HEAD_SIZE),
        keys.count(*STATE_GROUPS, default=1),
        keys.count(*STATE_SIZE),
        keys.count(*STATE_KERNEL, default=4),
        keys.count(*STATE_CHUNK, default=256),
    )
