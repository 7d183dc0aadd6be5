"""Shapes from the `config.json` that lies beside the weights of a model on Hugging Face."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from refold.documents import shown
from refold.errors import BadValue
from refold.perf import Kind, ModelShape

LONGEST_ASSUMED = 8192
"""A model that can read 128 thousand tokens is seldom trained on so many: longer sequences must be asked for."""

MOST = 10**12
"""No count of a configuration is larger than this."""

HIDDEN = ("hidden_size", "n_embd", "d_model", "n_embed")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
HEAD_SIZE = ("head_dim", "d_kv")
FFN = ("intermediate_size", "ffn_dim", "n_inner", "d_ff", "ffn_hidden_size")
EXPERT_FFN = ("moe_intermediate_size", *FFN)
LENGTH = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
EXPERTS = ("num_local_experts", "num_experts")
EXPERTS_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token")

NO_SHAPE = {
    "kv_lora_rank": "latent attention",
    "n_shared_experts": "shared experts",
    "shared_expert_intermediate_size": "shared experts",
    "first_k_dense_replace": "layers of different kinds",
    "intermediate_size_mlp": "layers of different kinds",
    "attn_layer_period": "layers of different kinds",
    "hybrid_override_pattern": "layers of different kinds",
    "mamba_d_state": "layers of different kinds",
    "ssm_cfg": "layers without attention",
    "ffn_config": "a feed-forward part with a configuration of its own",
}
"""Keys of models that `ModelShape` has no fields for; reading the rest would give wrong numbers."""


@dataclass(frozen=True, slots=True)
class Family:
    """What a configuration leaves to the code of its model type.

    `learned`: a position is a learned vector. `fourfold`: where no feed-forward width is given, it is four times
    the hidden one.
    """

    kind: Kind = "decoder"
    gated: bool = False
    bias: bool = False
    tied: bool = True
    learned: bool = False
    fourfold: bool = False


_LLAMA = Family(gated=True, tied=False)
_GEMMA = Family(gated=True)
_BERT = Family("encoder", bias=True, learned=True)
_T5 = Family("encoder-decoder")

FAMILIES: dict[str, Family] = {
    "bert": _BERT,
    "bloom": Family(bias=True, fourfold=True),
    "falcon": Family(fourfold=True),
    "gemma": _GEMMA,
    "gemma2": _GEMMA,
    "gemma3_text": _GEMMA,
    "gpt2": Family(bias=True, learned=True, fourfold=True),
    "gpt_neox": Family(bias=True, tied=False),
    "gptj": Family(bias=True, tied=False, fourfold=True),
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": _LLAMA,
    "mpt": Family(fourfold=True),
    "mt5": _T5,
    "opt": Family(bias=True, learned=True),
    "phi": Family(bias=True, tied=False),
    "phi3": _LLAMA,
    "qwen2": _LLAMA,
    "roberta": _BERT,
    "t5": _T5,
    "vit": Family("vit", bias=True),
}
"""The model types whose code is known. Of others, what the keys say is believed."""


def shape_from_config(config: Mapping[str, Any], name: str) -> ModelShape:
    """The shapes of a configuration; of one for pictures and text, those of its text part."""
    text = config.get("text_config")
    keys = _Keys(text, "text_config.") if isinstance(text, dict) else _Keys(config)
    model_type = keys.text("model_type")
    family = FAMILIES.get(model_type) or _guessed(keys)
    keys.refuse(NO_SHAPE)
    fields = _usual(keys, family) | _particular(model_type, keys)
    return ModelShape(name=name, source=f"Hugging Face config of type {model_type or 'unknown'}", **fields)


def _guessed(keys: _Keys) -> Family:
    """The family of a type that is not known."""
    if keys.flag("is_encoder_decoder", False):
        raise BadValue("is_encoder_decoder is true; of encoder-decoders only t5 and mt5 can be read")
    masked = "MaskedLM" in str(keys.values.get("architectures"))
    gated = (keys.text("hidden_act") or keys.text("hidden_activation")) in ("silu", "swiglu", "swish", "geglu")
    return Family("encoder" if masked else "decoder", gated=gated)


def _usual(keys: _Keys, family: Family) -> dict[str, Any]:
    """What nearly all configurations say in nearly the same words."""
    length = keys.count(*LENGTH, default=2048)
    heads = keys.count(*HEADS)
    kv_heads = keys.count(*KV_HEADS, default=heads)
    experts = keys.count(*EXPERTS, default=1)
    return {
        "kind": family.kind,
        "layers": keys.count(*LAYERS),
        "hidden": keys.count(*HIDDEN),
        "heads": heads,
        "kv_heads": kv_heads if kv_heads != heads else 0,
        "head_size": keys.count(*HEAD_SIZE, default=0),
        "ffn": keys.count(*(EXPERT_FFN if experts > 1 else FFN), default=0 if family.fourfold else None),
        "gated": family.gated,
        "bias": family.bias,
        "vocabulary": 0 if family.kind == "vit" else keys.count("vocab_size"),
        "tied": keys.flag("tie_word_embeddings", family.tied),
        "positions": length if family.learned else 0,
        "sequence": min(length, LONGEST_ASSUMED),
        "experts": experts,
        "experts_per_token": keys.count(*EXPERTS_PER_TOKEN) if experts > 1 else 1,
    }


def _particular(model_type: str, keys: _Keys) -> dict[str, Any]:
    """What only one model type says, or says in its own way."""
    match model_type:
        case "falcon":
            grouped = keys.flag("new_decoder_architecture", False) or not keys.flag("multi_query", True)
            return {"bias": keys.flag("bias", False)} | ({} if grouped else {"kv_heads": 1})
        case "mpt":
            return _of_mpt(keys)
        case "roberta":  # the first two positions are never used
            return {"sequence": max(1, min(keys.count(*LENGTH) - 2, LONGEST_ASSUMED))}
        case "t5" | "mt5":
            encoder_layers = keys.count("num_layers")
            gated = keys.text("feed_forward_proj").startswith("gated")
            layers = keys.count("num_decoder_layers", default=encoder_layers)
            return {"layers": layers, "encoder_layers": encoder_layers, "gated": gated, "sequence": 512}
        case "vit":
            patches = (keys.count("image_size") // keys.count("patch_size")) ** 2
            return {"positions": patches + 1, "sequence": patches + 1}
    return {}


def _of_mpt(keys: _Keys) -> dict[str, Any]:
    attention = keys.inner("attn_config")
    learned = keys.flag("learned_pos_emb", True) and not attention.flag("alibi", False)
    return {
        "ffn": keys.count("expansion_ratio", default=4) * keys.count(*HIDDEN),
        "bias": not keys.flag("no_bias", False),
        "positions": keys.count(*LENGTH, default=2048) if learned else 0,
        "kv_heads": attention.count("kv_n_heads", default=0),
    }


class _Keys:
    """A configuration, asked for a value by any of the names it goes by. A null is no value."""

    def __init__(self, values: Mapping[str, Any], where: str = "") -> None:
        self.values = values
        self._where = where

    def count(self, *names: str, default: int | None = None) -> int:
        """A whole number from 1."""
        for name in names:
            value = self.values.get(name)
            if value is not None:
                return self._checked(name, value)
        if default is None:
            others = f" (or {', '.join(names[1:])})" if names[1:] else ""
            raise BadValue(f"{self._where}{names[0]}{others} is absent, expected a whole number ≥ 1")
        return default

    def _checked(self, name: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
            raise BadValue(f"{self._where}{name} is {shown(value)}, expected a whole number from 1 to {MOST:.0e}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise BadValue(f"{self._where}{name} is {shown(value)}, expected true or false")
        return value

    def text(self, name: str) -> str:
        """A word; empty where there is none."""
        value = self.values.get(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise BadValue(f"{self._where}{name} is {shown(value)}, expected text")
        return value

    def inner(self, name: str) -> _Keys:
        """A configuration inside of this one; empty where there is none."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, dict):
            raise BadValue(f"{self._where}{name} is {shown(value)}, expected fields and their values")
        return _Keys(value or {}, f"{self._where}{name}.")

    def refuse(self, reasons: Mapping[str, str]) -> None:
        """Keys that must not be there, and why."""
        for name, reason in reasons.items():
            if self.values.get(name):
                raise BadValue(
                    f"{self._where}{name} is {shown(self.values[name])}: {reason} cannot be read; "
                    "write the shapes that come nearest as YAML"
                )
