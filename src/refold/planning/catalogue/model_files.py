"""Read a model by name or from a file: shapes in YAML, or a Hugging Face config.json."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refold.errors import BadFile, BadValue
from refold.model.documents import Part, convert, load_yaml, read_text
from refold.planning.catalogue.builtin import find_model, known_model
from refold.planning.catalogue.config_keys import EXPECTED_CONFIG, FFN, ConfigKeys
from refold.planning.catalogue.hybrid_layers import hybrid_fields
from refold.planning.perf import ModelKind, ModelShape

MAX_DEFAULT_SEQUENCE = 8192
"""Limit of the default sequence length: models with a long context are rarely trained at full length."""

HIDDEN = ("hidden_size", "n_embd", "d_model", "n_embed")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
HEAD_SIZE = ("head_dim", "attention_head_dim", "d_kv")
EXPERT_FFN = ("moe_intermediate_size", *FFN)
LENGTH = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
SHARED_FFN = (
    "shared_expert_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "shared_intermediate_size",
)
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
EXPERTS_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token")

ACTIVATION = ("hidden_act", "hidden_activation", "activation_function")

COMPOSED_ACTIVATIONS = ("gelu_new", "gelu_fast", "gelu_10")
"""Activation functions that transformers computes in several steps."""

UNSUPPORTED_KEYS = {
    "intermediate_size_mlp": "layers of different kinds",
    "attn_layer_period": "layers of different kinds",
    "mamba_dt_rank": "state-space layers of Mamba-1",
    "time_step_rank": "state-space layers of Mamba-1",
    "num_mem_blocks": "layers that share weights",
    "moe_latent_size": "experts that are narrower than the model",
    "ssm_cfg": "layers without attention",
    "ffn_config": "a nested feed-forward configuration",
}
"""Keys of architectures that `ModelShape` cannot represent; ignoring them would give wrong numbers."""


NOT_MODELLED = {
    "vision_config": "the vision part",
    "audio_config": "the audio part",
    "attn_logit_softcapping": "the limit of attention scores",
    "index_topk": "the choice of keys (sparse attention)",
    "mtp_num_hidden_layers": "layers that predict further tokens",
    "mtp_layers_block_type": "layers that predict further tokens",
    "mtp_hybrid_override_pattern": "layers that predict further tokens",
}
"""Keys of parts that a model has besides, and that estimates leave out, with their descriptions."""

SUFFIXES = {".json", ".yaml", ".yml"}


@dataclass(frozen=True, slots=True)
class Family:
    """Properties that a configuration leaves to the code of its model type.

    `learned_positions`: positions are learned embeddings. `default_ffn`: without a feed-forward width in the
    configuration, it is four times the hidden width. `norms` and `head_norms`: see `ModelShape`. `activation`: the
    activation function without one in the configuration.
    """

    kind: ModelKind = "decoder"
    gated: bool = False
    bias: bool = False
    tied: bool = True
    learned_positions: bool = False
    default_ffn: bool = False
    norms: int = 2
    head_norms: bool = False
    activation: str = ""


_LLAMA = Family(gated=True, tied=False)
_QWEN3 = Family(gated=True, tied=False, head_norms=True)
_GEMMA = Family(gated=True)
_BERT = Family("encoder", bias=True, learned_positions=True)
_T5 = Family("encoder-decoder")

FAMILIES: dict[str, Family] = {
    "bert": _BERT,
    "bloom": Family(bias=True, default_ffn=True),
    "falcon": Family(default_ffn=True),
    "gemma": _GEMMA,
    "gemma2": Family(gated=True, norms=4),
    "gemma3_text": Family(gated=True, norms=4, head_norms=True),
    "gpt2": Family(bias=True, learned_positions=True, default_ffn=True, activation="gelu_new"),
    "gpt_oss": Family(gated=True, bias=True, tied=False),
    "gpt_neox": Family(bias=True, tied=False),
    "gptj": Family(bias=True, tied=False, default_ffn=True, norms=1, activation="gelu_new"),
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": _LLAMA,
    "mpt": Family(default_ffn=True),
    "mt5": _T5,
    "opt": Family(bias=True, learned_positions=True),
    "phi": Family(bias=True, tied=False, norms=1, activation="gelu_new"),
    "phi3": _LLAMA,
    "deepseek_v2": _LLAMA,
    "deepseek_v3": _LLAMA,
    "kimi_k2": _LLAMA,
    "mamba2": Family(default_ffn=True, norms=1),
    "nemotron_h": Family(tied=False, norms=1),
    "qwen2": _LLAMA,
    "qwen2_moe": _LLAMA,
    "qwen3": _QWEN3,
    "qwen3_5_moe_text": _QWEN3,
    "qwen3_5_text": _QWEN3,
    "qwen3_moe": _QWEN3,
    "qwen3_next": _QWEN3,
    "roberta": _BERT,
    "t5": _T5,
    "vit": Family("vit", bias=True),
}
"""Supported model types. For other types, the keys are taken at face value."""


def shape_from_config(config: Part, name: str) -> ModelShape:
    """Return the shapes of a configuration; for a multimodal model, those of its text part."""
    config.fields(expected=EXPECTED_CONFIG)
    whole = keys = ConfigKeys(config)
    text = keys.get("text_config")
    if text is not None and isinstance(text.value, dict):
        keys = ConfigKeys(text)
    model_type = keys.text("model_type")
    family = FAMILIES.get(model_type) or _guess_family(keys)
    keys.reject(UNSUPPORTED_KEYS)
    fields = _common_fields(keys, family) | _expert_fields(keys) | _latent_attention_fields(keys)
    fields |= _type_specific_fields(model_type, keys)
    source = f"Hugging Face config of type {model_type or 'unknown'}"
    named = (what for name, what in NOT_MODELLED.items() if whole.is_set(name) or keys.is_set(name))
    window = keys.amount("sliding_window") if keys.flag("use_sliding_window", True) else 0
    local = "attention in a sliding window (whole sequences are assumed)"
    missing = tuple(dict.fromkeys([*named, *([local] if 0 < window < fields["sequence"] else [])]))
    try:
        fields |= hybrid_fields(model_type, keys, fields)
        return ModelShape(name=name, source=source, not_modelled=missing, **fields)
    except BadValue as error:
        raise config.error(error) from None


def _guess_family(keys: ConfigKeys) -> Family:
    """Guess the family of an unknown model type."""
    keys.reject({"is_encoder_decoder": "of the encoder-decoders, only t5 and mt5 are"})
    architectures = keys.get("architectures")
    masked = architectures is not None and "MaskedLM" in str(architectures.to_plain())
    gated = (keys.text("hidden_act") or keys.text("hidden_activation")) in ("silu", "swiglu", "swish", "geglu")
    return Family("encoder" if masked else "decoder", gated=gated)


def _common_fields(keys: ConfigKeys, family: Family) -> dict[str, Any]:
    """Return the fields that nearly all configurations have, under similar keys."""
    length = keys.count(*LENGTH, default=2048)
    heads = keys.count(*HEADS)
    kv_heads = keys.count(*KV_HEADS, default=heads)
    return {
        "kind": family.kind,
        "layers": keys.count(*LAYERS),
        "hidden": keys.count(*HIDDEN),
        "heads": heads,
        "kv_heads": kv_heads if kv_heads != heads else 0,
        "head_size": keys.count(*HEAD_SIZE, default=0),
        "ffn": keys.count(*FFN, default=0 if family.default_ffn or keys.is_set(EXPERT_FFN[0]) else None),
        "gated": family.gated,
        "bias": family.bias,
        "vocabulary": 0 if family.kind == "vit" else keys.count("vocab_size"),
        "tied": keys.flag("tie_word_embeddings", family.tied),
        "positions": length if family.learned_positions else 0,
        "norms": family.norms,
        "head_norms": family.head_norms,
        "capped_logits": keys.is_set("final_logit_softcapping"),
        "composed_activation": _activation(keys, family) in COMPOSED_ACTIVATIONS,
        "sequence": min(length, MAX_DEFAULT_SEQUENCE),
    }


def _activation(keys: ConfigKeys, family: Family) -> str:
    return next(filter(None, map(keys.text, ACTIVATION)), family.activation)


def _expert_fields(keys: ConfigKeys) -> dict[str, Any]:
    """Return the fields of experts: none if there is only one."""
    experts = next(filter(None, map(keys.amount, EXPERTS)), 1)
    if experts == 1:
        return {}
    keys.reject_other("decoder_sparse_step", 1, "layers of different kinds")
    keys.reject_other("moe_layer_freq", 1, "layers of different kinds")
    width = keys.count(*EXPERT_FFN)
    dense = keys.amount("first_k_dense_replace") or keys.length("mlp_only_layers")
    shared = next(filter(None, map(keys.amount, SHARED_FFN)), 0)
    return {
        "experts": experts,
        "experts_per_token": keys.count(*EXPERTS_PER_TOKEN),
        "groups_per_token": keys.amount("topk_group") if keys.amount("n_group") > keys.amount("topk_group") else 0,
        "mtp_layers": keys.amount("num_nextn_predict_layers"),
        "ffn": width,
        "shared_ffn": shared or width * keys.amount("n_shared_experts"),
        "dense_layers": dense,
        "dense_ffn": keys.count(*FFN) if dense else 0,
    }


def _latent_attention_fields(keys: ConfigKeys) -> dict[str, Any]:
    """Return the fields of latent attention (MLA): none without it."""
    rank = keys.amount("kv_lora_rank")
    if not rank:
        return {}
    return {
        "key_rank": rank,
        "query_rank": keys.amount("q_lora_rank"),
        "kv_heads": 0,
        "head_size": keys.count("qk_nope_head_dim"),
        "rope_size": keys.count("qk_rope_head_dim"),
        "value_size": keys.count("v_head_dim"),
    }


def _type_specific_fields(model_type: str, keys: ConfigKeys) -> dict[str, Any]:
    match model_type:
        case "falcon":
            grouped = keys.flag("new_decoder_architecture", False) or not keys.flag("multi_query", True)
            return {"bias": keys.flag("bias", False)} | ({} if grouped else {"kv_heads": 1})
        case "granitemoehybrid" if not keys.amount("num_local_experts"):
            return {"ffn": keys.count("shared_intermediate_size")}
        case "mpt":
            return _mpt_fields(keys)
        case "roberta":  # the first two positions are unused
            return {"sequence": max(1, min(keys.count(*LENGTH) - 2, MAX_DEFAULT_SEQUENCE))}
        case "t5" | "mt5":
            encoder_layers = keys.count("num_layers")
            gated = keys.text("feed_forward_proj").startswith("gated")
            layers = keys.count("num_decoder_layers", default=encoder_layers)
            return {"layers": layers, "encoder_layers": encoder_layers, "gated": gated, "sequence": 512}
        case "vit":
            patches = (keys.count("image_size") // keys.count("patch_size")) ** 2
            return {"positions": patches + 1, "sequence": patches + 1}
    return {}


def _mpt_fields(keys: ConfigKeys) -> dict[str, Any]:
    attention = keys.section("attn_config")
    learned_positions = keys.flag("learned_pos_emb", True) and not attention.flag("alibi", False)
    return {
        "ffn": keys.count("expansion_ratio", default=4) * keys.count(*HIDDEN),
        "bias": not keys.flag("no_bias", False),
        "positions": keys.count(*LENGTH, default=2048) if learned_positions else 0,
        "kv_heads": attention.count("kv_n_heads", default=0),
    }


def read_model(path_or_name: str | Path) -> ModelShape:
    """Return a model of the catalogue by name, or read it from a file or a checkpoint folder."""
    text, path = str(path_or_name), Path(path_or_name)
    if isinstance(path_or_name, str) and (known := known_model(text)):
        return known
    if text and _exists(path):
        return _read_path(path)
    if isinstance(path_or_name, Path) or _looks_like_path(text):
        raise BadFile(text, f"does not exist; {_suggestion(path.name)}")
    return find_model(text)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _looks_like_path(text: str) -> bool:
    return "/" in text or "\\" in text or Path(text).suffix.lower() in SUFFIXES


def _suggestion(name: str) -> str:
    """Suggest a fix: the text may be a Hugging Face ID, 'meta-llama/Llama-2-7b-hf', of a model in the catalogue."""
    if known := known_model(name):
        return f"the catalogue has {known.name!r}"
    return "expected a file of shapes, a config.json or its folder, or a name listed by `refold models`"


def _read_path(path: Path) -> ModelShape:
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise BadFile(path, "is a folder without a config.json")
        path = path / "config.json"
    document = load_yaml(read_text(path), str(path))
    if path.suffix.lower() == ".json":
        return shape_from_config(document, _model_name(path))
    document.fields().setdefault("name", Part(document.where, 1, path.stem, path.stem, document, "name"))
    return convert(document, ModelShape)


def _model_name(path: Path) -> str:
    """Return 'mine' for mine.json and mine/config.json; in the Hugging Face cache, the name of the model."""
    if path.name != "config.json":
        return path.stem
    folder = path.resolve().parent
    if folder.parent.name == "snapshots":
        return folder.parent.parent.name.rpartition("--")[2]
    return folder.name or "model"
