"""Shapes of mixtures of experts and of latent attention, from configurations, against published counts of weights."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from refold.errors import RefoldError
from refold.model.documents import load_yaml
from refold.planning.catalogue import find_model
from refold.planning.catalogue.model_files import shape_from_config
from refold.planning.perf import ModelShape

DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "num_nextn_predict_layers": 1,
}

KIMI_K2 = DEEPSEEK_V3 | {
    "model_type": "kimi_k2",
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "n_routed_experts": 384,
    "first_k_dense_replace": 1,
    "vocab_size": 163840,
    "num_nextn_predict_layers": 0,
}

DEEPSEEK_V2_LITE = DEEPSEEK_V3 | {
    "model_type": "deepseek_v2",
    "hidden_size": 2048,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 64,
    "num_experts_per_tok": 6,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "vocab_size": 102400,
    "num_nextn_predict_layers": None,
}

QWEN3_30B: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}

QWEN3_235B = QWEN3_30B | {
    "hidden_size": 4096,
    "num_hidden_layers": 94,
    "num_attention_heads": 64,
    "moe_intermediate_size": 1536,
}

QWEN2_57B: dict[str, Any] = {
    "model_type": "qwen2_moe",
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "moe_intermediate_size": 2560,
    "shared_expert_intermediate_size": 20480,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}

GPT_OSS_120B: dict[str, Any] = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 2880,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "vocab_size": 201088,
    "tie_word_embeddings": False,
}

GPT_OSS_20B = GPT_OSS_120B | {"num_hidden_layers": 24, "num_local_experts": 32}

MIXTRAL: dict[str, Any] = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
}


NEMOTRON_NANO: dict[str, Any] = {
    "model_type": "nemotron_h",
    "hidden_size": 2688,
    "num_hidden_layers": 52,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "mamba_num_heads": 64,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "chunk_size": 128,
    "intermediate_size": 1856,
    "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712,
    "n_routed_experts": 128,
    "num_experts_per_tok": 6,
    "n_group": 1,
    "topk_group": 1,
    "vocab_size": 131072,
    "max_position_embeddings": 262144,
    "tie_word_embeddings": False,
}

NEMOTRON_8B = {name: value for name, value in NEMOTRON_NANO.items() if "moe" not in name and "expert" not in name} | {
    "hidden_size": 4096,
    "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
    "num_key_value_heads": 8,
    "head_dim": None,
    "mamba_num_heads": 128,
    "intermediate_size": 21504,
}

QWEN3_NEXT: dict[str, Any] = {
    "model_type": "qwen3_next",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "full_attention_interval": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "intermediate_size": 5120,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "decoder_sparse_step": 1,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}

GRANITE_SMALL: dict[str, Any] = {
    "model_type": "granitemoehybrid",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "num_hidden_layers": 40,
    "layer_types": [*["mamba"] * 36, *["attention"] * 4],
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "mamba_n_heads": 128,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 256,
    "intermediate_size": 768,
    "shared_intermediate_size": 1536,
    "num_local_experts": 72,
    "num_experts_per_tok": 10,
    "vocab_size": 100352,
}

MAMBA_2: dict[str, Any] = {
    "model_type": "mamba2",
    "hidden_size": 2560,
    "num_hidden_layers": 64,
    "num_heads": 80,
    "head_dim": 64,
    "state_size": 128,
    "n_groups": 1,
    "chunk_size": 256,
    "vocab_size": 50288,
}


def shape_of(config: dict[str, Any]) -> ModelShape:
    return shape_from_config(load_yaml(json.dumps(config), "config.json"), "m")


@pytest.mark.parametrize(
    ("config", "total", "active"),
    [
        pytest.param(DEEPSEEK_V3, 685e9, 38e9, id="DeepSeek-V3, as published on Hugging Face"),
        pytest.param(DEEPSEEK_V3 | {"num_nextn_predict_layers": 0}, 671e9, 37e9, id="DeepSeek-V3"),
        pytest.param(KIMI_K2, 1.03e12, 32e9, id="Kimi K2"),
        pytest.param(DEEPSEEK_V2_LITE, 15.7e9, 2.4e9, id="DeepSeek-V2-Lite"),
        pytest.param(QWEN3_30B, 30.5e9, 3.3e9, id="Qwen3-30B-A3B"),
        pytest.param(QWEN3_235B, 235e9, 22e9, id="Qwen3-235B-A22B"),
        pytest.param(QWEN2_57B, 57.4e9, 14e9, id="Qwen2-57B-A14B"),
        pytest.param(GPT_OSS_120B, 116.8e9, 5.1e9, id="gpt-oss-120b"),
        pytest.param(GPT_OSS_20B, 20.9e9, 3.6e9, id="gpt-oss-20b"),
        pytest.param(MIXTRAL, 46.7e9, 12.9e9, id="Mixtral-8x7B"),
        pytest.param(NEMOTRON_NANO, 31.6e9, 3.6e9, id="Nemotron 3 Nano"),
        pytest.param(NEMOTRON_8B, 8.1e9, 8.1e9, id="Nemotron-H-8B"),
        pytest.param(QWEN3_NEXT, 79.674e9, 3.875e9, id="Qwen3-Next, of whose tensors the counts are"),
        pytest.param(GRANITE_SMALL, 32e9, 9e9, id="Granite 4.0 H Small"),
        pytest.param(MAMBA_2, 2.7e9, 2.7e9, id="Mamba-2"),
    ],
)
def test_counts_are_those_that_were_published(config: dict[str, Any], total: float, active: float) -> None:
    """Published active counts include the output layer; some also the embedding."""
    shape = shape_of(config)
    assert shape.parameters == pytest.approx(total, rel=0.01)
    used = shape.active_parameters + shape.head_parameters
    assert used - 0.03 * active <= active <= used + shape.embedding_parameters + 0.03 * active


def test_parts_that_are_not_modelled_are_named() -> None:
    assert shape_of(KIMI_K2).not_modelled == ()
    seeing = {"model_type": "seeing", "vision_config": {"depth": 3}, "text_config": MIXTRAL}
    assert shape_of(seeing).not_modelled == ("the vision part",)


def test_a_layer_that_predicts_a_further_token_is_counted() -> None:
    with_one, without = shape_of(DEEPSEEK_V3), shape_of(DEEPSEEK_V3 | {"num_nextn_predict_layers": 0})
    assert (with_one.blocks, with_one.expert_layers) == (without.blocks + 1, without.expert_layers + 1)


def test_groups_count_only_where_they_limit_the_experts_of_a_token() -> None:
    assert shape_of(DEEPSEEK_V3 | {"n_group": 8, "topk_group": 4}).groups_per_token == 4
    assert shape_of(DEEPSEEK_V3 | {"n_group": 1, "topk_group": 1}).groups_per_token == 0


@pytest.mark.parametrize(
    ("config", "attention", "linear", "feed_forward"),
    [(NEMOTRON_NANO, 6, 23, 23), (NEMOTRON_8B, 4, 24, 24), (QWEN3_NEXT, 12, 36, 48), (MAMBA_2, 0, 64, 0)],
    ids=["Nemotron 3 Nano", "Nemotron-H-8B", "Qwen3-Next", "Mamba-2"],
)
def test_hybrid_models_have_layers_of_several_kinds(
    config: dict[str, Any], attention: int, linear: int, feed_forward: int
) -> None:
    shape = shape_of(config)
    assert (shape.attentions, shape.linear_layers, shape.ffn_layers) == (attention, linear, feed_forward)


def test_a_list_of_layers_stands_for_a_pattern_or_an_interval() -> None:
    kinds = {"M": "mamba", "E": "moe", "*": "attention"}
    listed = NEMOTRON_NANO | {"layers_block_type": [kinds[one] for one in NEMOTRON_NANO["hybrid_override_pattern"]]}
    del listed["hybrid_override_pattern"]
    assert shape_of(listed) == shape_of(NEMOTRON_NANO)
    listed = QWEN3_NEXT | {"layer_types": [*["linear_attention"] * 3, "full_attention"] * 12}
    assert shape_of(listed) == shape_of(QWEN3_NEXT)
    indexed = GRANITE_SMALL | {"layer_types": None, "attn_layer_indices": [36, 37, 38, 39]}
    assert shape_of(indexed) == shape_of(GRANITE_SMALL)


def test_layers_may_have_both_kinds_of_attention_side_by_side() -> None:
    both = shape_of(GRANITE_SMALL | {"model_type": "falcon_h1", "layer_types": None})
    assert (both.attentions, both.linear_layers) == (40, 40)


def test_a_hybrid_type_may_have_no_layer_with_linear_attention() -> None:
    """Granite 4.0 Micro is of the type of hybrid models, has their keys, and attention in all layers."""
    micro = shape_of(GRANITE_SMALL | {"layer_types": ["attention"] * 40, "num_local_experts": 0})
    assert (micro.linear, micro.attentions, micro.experts, micro.ffn) == (None, 40, 1, 1536)


def test_the_catalogue_has_the_shapes_of_configurations() -> None:
    for name, config in (("nemotron-3-nano-30b-a3b", NEMOTRON_NANO), ("nemotron-h-8b", NEMOTRON_8B)):
        same = {"name": name, "source": "", "sequence": 8192}
        assert replace(find_model(name), **same) == replace(shape_of(config), **same)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            NEMOTRON_NANO | {"hybrid_override_pattern": "M*X" * 17 + "M"},
            "layers of the kind 'X', which is not supported",
        ),
        (NEMOTRON_NANO | {"hybrid_override_pattern": "M*"}, "lists the kinds of 2 layers, but num_hidden_layers is 52"),
        (NEMOTRON_NANO | {"moe_latent_size": 1024}, r"moe_latent_size: is not supported \(experts that are narrower"),
        (GRANITE_SMALL | {"layer_types": ["mamba", 3]}, "layers of the kind '3', which is not supported"),
        (GRANITE_SMALL | {"layer_types": "mamba"}, "layer_types is 'mamba', expected a list"),
        (GRANITE_SMALL | {"layer_types": None}, "full_attention_interval is missing"),
        (QWEN3_NEXT | {"linear_num_value_heads": 33}, "33 heads are not divisible by 16 key_heads"),
        (QWEN3_NEXT | {"linear_key_head_dim": None}, "linear_key_head_dim is missing"),
        (GRANITE_SMALL | {"mamba_dt_rank": 256}, r"mamba_dt_rank: is not supported \(state-space layers of Mamba-1\)"),
    ],
)
def test_hybrid_models_that_cannot_be_represented_are_errors(config: dict[str, Any], words: str) -> None:
    with pytest.raises(RefoldError, match=words):
        shape_of(config)


def test_latent_attention_computes_with_its_own_widths() -> None:
    shape = shape_of(DEEPSEEK_V3)
    assert (shape.query_width, shape.value_width, shape.key_width) == (128 * 192, 128 * 128, 128 * 160)
    assert shape.kv_heads == 0, "every head has keys of its own"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"decoder_sparse_step": 2}, r"decoder_sparse_step: is not supported \(layers of different kinds\)"),
        ({"moe_layer_freq": 2}, r"moe_layer_freq: is not supported \(layers of different kinds\)"),
        ({"first_k_dense_replace": 61}, "dense_layers is 61, expected fewer than the 61 layers"),
        ({"first_k_dense_replace": -1}, "first_k_dense_replace is -1, expected a whole number from 0"),
        ({"v_head_dim": None}, "v_head_dim is missing"),
        ({"num_experts_per_tok": 257}, "experts_per_token is 257, expected ≤ 256"),
    ],
)
def test_what_cannot_be_represented_is_an_error(change: dict[str, Any], words: str) -> None:
    with pytest.raises(RefoldError, match=words):
        shape_of(DEEPSEEK_V3 | change)
