"""Hugging Face configurations: shapes of all supported types, and error messages."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from refold.errors import RefoldError
from refold.model.documents import load_yaml
from refold.planning.catalogue import find_model
from refold.planning.catalogue.model_files import FAMILIES, shape_from_config
from refold.planning.perf.shapes import ModelShape


def shape_of(config: dict[str, Any], name: str) -> ModelShape:
    return shape_from_config(load_yaml(json.dumps(config, indent=1), "config.json"), name)


LLAMA_2_7B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}


def config(type: str, hidden: int, layers: int, heads: int, ffn: int, vocabulary: int, **more: Any) -> dict[str, Any]:
    """A configuration with the keys that most model types use."""
    return {
        "model_type": type,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": ffn,
        "vocab_size": vocabulary,
    } | more


CONFIGS: dict[str, tuple[dict[str, Any], int]] = {
    "llama": (LLAMA_2_7B, 6_738_415_616),
    "mistral": (config("mistral", 4096, 32, 32, 14336, 32000, num_key_value_heads=8), 7_241_732_096),
    "mixtral": (
        config(
            "mixtral", 4096, 32, 32, 14336, 32000, num_key_value_heads=8, num_local_experts=8, num_experts_per_tok=2
        ),
        46_702_792_704,
    ),
    "qwen3": (
        config("qwen3", 4096, 36, 32, 12288, 151936, num_key_value_heads=8, head_dim=128, tie_word_embeddings=False),
        8_190_735_360,
    ),
    "qwen2": (config("qwen2", 3584, 28, 28, 18944, 152064, num_key_value_heads=4), 7_615_616_512),
    "gemma": (config("gemma", 2048, 18, 8, 16384, 256000, num_key_value_heads=1, head_dim=256), 2_506_172_416),
    "gemma2": (config("gemma2", 2304, 26, 8, 9216, 256000, num_key_value_heads=4, head_dim=256), 2_614_341_888),
    "gemma3_text": (
        config("gemma3_text", 1152, 26, 4, 6912, 262144, num_key_value_heads=1, head_dim=256),
        999_885_952,
    ),
    "gpt2": (
        {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257},
        124_439_808,
    ),
    "gpt_neox": (config("gpt_neox", 6144, 44, 64, 24576, 50432, max_position_embeddings=2048), 20_554_567_680),
    "gptj": (
        {
            "model_type": "gptj",
            "n_embd": 4096,
            "n_layer": 28,
            "n_head": 16,
            "n_inner": None,
            "n_positions": 2048,
            "vocab_size": 50400,
            "tie_word_embeddings": False,
        },
        6_050_882_784,
    ),
    "opt": (
        {
            "model_type": "opt",
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "ffn_dim": 16384,
            "max_position_embeddings": 2048,
            "vocab_size": 50272,
        },
        6_658_473_984,
    ),
    "mpt": (
        {
            "model_type": "mpt",
            "d_model": 4096,
            "n_layers": 32,
            "n_heads": 32,
            "expansion_ratio": 4,
            "max_seq_len": 2048,
            "vocab_size": 50432,
            "no_bias": True,
            "attn_config": {"alibi": True},
        },
        6_649_286_656,
    ),
    "bloom": (
        {"model_type": "bloom", "n_embed": 1024, "n_layer": 24, "num_attention_heads": 16, "vocab_size": 250880},
        559_214_592,
    ),
    "falcon": (
        {
            "model_type": "falcon",
            "hidden_size": 4544,
            "num_hidden_layers": 32,
            "num_attention_heads": 71,
            "num_kv_heads": 71,
            "multi_query": True,
            "vocab_size": 65024,
        },
        6_921_720_704,
    ),
    "falcon, with groups": (
        {
            "model_type": "falcon",
            "hidden_size": 8192,
            "num_hidden_layers": 60,
            "num_attention_heads": 128,
            "num_kv_heads": 8,
            "new_decoder_architecture": True,
            "vocab_size": 65024,
        },
        41_303_293_952,
    ),
    "bert": (config("bert", 768, 12, 12, 3072, 30522, max_position_embeddings=512), 110_106_428),
    "roberta": (config("roberta", 768, 12, 12, 3072, 50265, max_position_embeddings=514), 124_697_433),
    "t5": (
        {
            "model_type": "t5",
            "d_model": 512,
            "d_kv": 64,
            "d_ff": 2048,
            "num_layers": 6,
            "num_heads": 8,
            "vocab_size": 32128,
            "n_positions": 512,
        },
        60_506_624,
    ),
    "mt5": (
        {
            "model_type": "mt5",
            "d_model": 512,
            "d_kv": 64,
            "d_ff": 1024,
            "num_layers": 8,
            "num_decoder_layers": 8,
            "num_heads": 6,
            "feed_forward_proj": "gated-gelu",
            "tie_word_embeddings": False,
            "vocab_size": 250112,
        },
        300_176_768,
    ),
    "vit": (
        {
            "model_type": "vit",
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "image_size": 224,
            "patch_size": 16,
        },
        86_567_656,
    ),
    "phi": (config("phi", 2560, 32, 32, 10240, 51200, tie_word_embeddings=False), 2_779_683_840),
    "phi3": (config("phi3", 3072, 32, 32, 8192, 32064, tie_word_embeddings=False), 3_821_079_552),
    "a type that is not known, with experts": (
        config(
            "qwen3_moe",
            *(2048, 48, 32, 6144, 151936),
            hidden_act="silu",
            head_dim=128,
            num_key_value_heads=4,
            num_experts=128,
            num_experts_per_tok=8,
            moe_intermediate_size=768,
            tie_word_embeddings=False,
        ),
        30_532_122_624,
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_matches_the_published_count(name: str) -> None:
    given, published = CONFIGS[name]
    assert shape_of(given, name).parameters == pytest.approx(published, rel=0.02)


def test_every_supported_type_is_tested() -> None:
    tested = {given["model_type"] for given, _ in CONFIGS.values()}
    assert tested >= {name for name in FAMILIES if name not in WITH_EXPERTS | HYBRID}


WITH_EXPERTS = {"deepseek_v2", "deepseek_v3", "gpt_oss", "kimi_k2", "qwen2_moe", "qwen3_moe"}
HYBRID = {"mamba2", "nemotron_h", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"}
"""These are tested in test_expert_models.py."""


@pytest.mark.parametrize(
    ("name", "type"),
    [
        ("mistral-7b", "mistral"),
        ("mixtral-8x7b", "mixtral"),
        ("gpt2-small", "gpt2"),
        ("bert-base", "bert"),
        ("roberta-base", "roberta"),
        ("t5-small", "t5"),
    ],
)
def test_a_configuration_matches_the_catalogue(name: str, type: str) -> None:
    known = find_model(name)
    read = msgspec.structs.replace(
        shape_of(CONFIGS[type][0] | {"max_position_embeddings": known.positions or known.sequence}, name),
        batch=known.batch,
        ffn=known.ffn,
        parameters_stated=known.parameters_stated,
        source=known.source,
    )
    assert read == known


def test_all_fields_of_llama() -> None:
    assert shape_of(LLAMA_2_7B, "mine") == ModelShape(
        "mine",
        layers=32,
        hidden=4096,
        heads=32,
        ffn=11008,
        gated=True,
        bias=False,
        vocabulary=32000,
        tied=False,
        sequence=4096,
        source="Hugging Face config of type llama",
    )


def test_the_text_part_of_a_multimodal_model_is_read() -> None:
    assert shape_of({"model_type": "llava", "text_config": LLAMA_2_7B}, "x") == shape_of(LLAMA_2_7B, "x")
    with pytest.raises(RefoldError, match=r"^config.json line 3: text_config: num_attention_heads .* is missing"):
        shape_of({"model_type": "llava", "text_config": {"model_type": "llama"}}, "x")


def test_the_default_sequence_of_a_long_context_model_is_limited() -> None:
    assert shape_of(LLAMA_2_7B | {"max_position_embeddings": 131072}, "x").sequence == 8192


def test_the_sequence_of_a_vit_is_its_patches_and_one_class_token() -> None:
    shape = shape_of(CONFIGS["vit"][0], "x")
    assert (shape.kind, shape.sequence, shape.positions, shape.vocabulary) == ("vit", 197, 197, 0)


def test_the_keys_of_an_unknown_type_are_used() -> None:
    unknown = LLAMA_2_7B | {"model_type": "newest"}
    assert shape_of(unknown, "x").parameters == shape_of(LLAMA_2_7B, "x").parameters
    assert not shape_of(unknown | {"hidden_act": "gelu"}, "x").gated
    assert shape_of(unknown | {"architectures": ["NewestForMaskedLM"]}, "x").kind == "encoder"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": 0}, r"hidden_size is 0, expected a whole number from 1 to 1e\+12"),
        ({"hidden_size": -4096}, "hidden_size is -4096, expected"),
        ({"hidden_size": "4096"}, "hidden_size is '4096', expected"),
        ({"hidden_size": 4096.5}, "hidden_size is 4096.5, expected"),
        ({"hidden_size": float("nan")}, "hidden_size is 'NaN', expected"),
        ({"hidden_size": True}, "hidden_size is true, expected"),
        ({"hidden_size": [4096]}, "hidden_size is a list, expected"),
        ({"hidden_size": 10**40}, "hidden_size is 1000.*000, expected"),
        ({"hidden_size": 10**400}, "a number has 401 digits, expected at most 100"),
        ({"hidden_size": None}, r"hidden_size \(or n_embd, d_model, n_embed\) is missing"),
        ({"intermediate_size": None}, r"intermediate_size .* is missing"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"num_attention_heads": 33, "num_key_value_heads": None}, "hidden 4096 is not divisible by 33 heads"),
        ({"num_key_value_heads": 5}, "32 heads are not divisible by 5 kv_heads"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no', expected true or false"),
        ({"model_type": ["llama"]}, "model_type is a list, expected text"),
        ({"num_local_experts": 8}, r"num_experts_per_tok .* is missing"),
        ({"num_local_experts": 2, "num_experts_per_tok": 3}, "experts_per_token is 3, expected ≤ 2"),
        ({"kv_lora_rank": 512}, "qk_nope_head_dim is missing"),
        ({"mamba_d_state": 16}, r"mamba_d_state: is not supported \(state-space layers of Mamba-1\); write"),
        (
            {"model_type": "bart", "is_encoder_decoder": True},
            "only t5 and mt5 are",
        ),
        ({"model_type": "mpt", "attn_config": 3}, "attn_config is 3, expected the configuration of a model"),
    ],
)
def test_invalid_values_are_rejected_with_their_key(change: dict[str, Any], words: str) -> None:
    with pytest.raises(RefoldError, match=words):
        shape_of(LLAMA_2_7B | change, "x")


KEYS = sorted({key for given, _ in CONFIGS.values() for key in given} | {"text_config", "kv_lora_rank", "ffn_config"})
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1, 10**20),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.sampled_from(KEYS), st.integers(0, 4096), max_size=3),
)


@given(st.sampled_from(sorted(CONFIGS)), st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3))
def test_any_configuration_is_read_or_rejected(name: str, change: dict[str, Any]) -> None:
    try:
        assert shape_of(CONFIGS[name][0] | change, "x").parameters > 0
    except RefoldError as error:
        assert len(str(error)) < 1000


@pytest.mark.parametrize(
    ("window", "longest", "used", "is_named"),
    [(4096, 32_768, True, True), (4096, 4096, True, False), (4096, 32_768, False, False), (None, 32_768, True, False)],
)
def test_a_sliding_window_shorter_than_the_sequences_is_named_as_not_modelled(
    window: int | None, longest: int, used: bool, is_named: bool
) -> None:
    given = LLAMA_2_7B | {"sliding_window": window, "max_position_embeddings": longest, "use_sliding_window": used}
    assert bool(shape_of(given, "m").not_modelled) == is_named
