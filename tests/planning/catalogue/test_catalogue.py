"""The built-in GPUs and models: lookup by name, and agreement with published numbers."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from refold.errors import RefoldError, UnknownName
from refold.model.documents import parse
from refold.planning.catalogue import find_gpu, find_model, gpu_key, gpu_names, gpus, model_aliases, model_names, models
from refold.planning.catalogue.builtin import model_key
from refold.planning.perf.hardware import GpuSpec
from refold.planning.perf.shapes import ModelShape

PUBLISHED_ROUNDED = {
    "gpt3-125m": 125e6,
    "gpt3-350m": 350e6,
    "gpt3-760m": 760e6,
    "gpt3-1.3b": 1.3e9,
    "gpt3-2.7b": 2.7e9,
    "gpt3-6.7b": 6.7e9,
    "gpt3-13b": 13.0e9,
    "gpt3-175b": 175.0e9,
    "deepseek-v3": 685e9,
    "kimi-k2": 1.03e12,
    "qwen3-30b-a3b": 30.5e9,
    "qwen3-235b-a22b": 235e9,
    "gpt-oss-20b": 20.9e9,
    "gpt-oss-120b": 116.8e9,
    "nemotron-h-8b": 8.1e9,
    "nemotron-h-56b": 56.3e9,
    "nemotron-3-nano-30b-a3b": 31.6e9,
    "megatron-22b": 22e9,
    "turing-530b": 530e9,
    "megatron-1t": 1008e9,
    "nanotron-1b": 1.34e9,
    "nanotron-8b": 8.86e9,
    "nanotron-80b": 80.0e9,
}
"""Rounded counts from papers; exact ones are in the catalogue, as `parameters_stated`."""

MAX_RELATIVE_ERROR = 0.02
INFERRED = {"t5-1.2b": "Rubick does not state its shapes: they were chosen to match its count"}
"""Models whose agreement proves nothing, and why."""


def computed_parameters(model: ModelShape) -> int:
    return model.stack_parameters + model.embedding_parameters + model.head_parameters


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("A100-80GB", "A100-80GB"),
        ("a100 80gb", "A100-80GB"),
        ("a100_80gb", "A100-80GB"),
        ("A100", "A100-80GB"),
        ("A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100-PCIE-40GB", "A100-PCIe-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("nvidia_a100_80gb_pcie", "A100-PCIe-80GB"),
        ("NVIDIA A800-SXM4-80GB", "A800-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-80GB"),
        ("H100", "H100-80GB"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA B200", "B200"),
        ("V100", "V100-32GB"),
        ("V100M16", "V100-16GB"),
        ("Tesla V100-SXM2-32GB", "V100-32GB"),
        ("Tesla V100-PCIE-16GB", "V100-PCIe-16GB"),
        ("Tesla P100-SXM2-16GB", "P100-16GB"),
        ("Tesla T4", "T4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA RTX A6000", "RTX-A6000"),
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI355X", "MI355X"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA GB300", "GB300"),
        ("NVIDIA GeForce RTX 5090", "RTX-5090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000"),
        ("Gaudi 3", "Gaudi-3"),
    ],
)
def test_a_gpu_is_found_in_various_spellings(name: str, expected: str) -> None:
    assert find_gpu(name).name == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama-2-7b", "llama-2-7b"),
        ("Llama 2 7B", "llama-2-7b"),
        ("LLAMA_2_7B", "llama-2-7b"),
        ("Llama-2-7b-hf", "llama-2-7b"),
        ("Meta-Llama-3.1-405B", "llama-3.1-405b"),
        ("gpt3-175B", "gpt3-175b"),
        ("megatron-530B", "turing-530b"),
        ("t5-v1_1-xxl", "t5-v1.1-xxl"),
        ("ResNet-50", "resnet50"),
        ("t5_3B", "t5-3b"),
    ],
)
def test_a_model_is_found_in_various_spellings(name: str, expected: str) -> None:
    assert find_model(name).name == expected


def test_the_models_of_rubick_have_its_names_batches_and_counts() -> None:
    names = ["vit", "roberta", "bert", "t5", "gpt2", "llama7", "llama30"]
    assert [(find_model(name).name, find_model(name).batch, find_model(name).parameters) for name in names] == [
        ("vit-base-16", 64, 85_952_456),
        ("roberta-large", 64, 355_412_057),
        ("bert-large", 32, 336_297_858),
        ("t5-1.2b", 16, 1_240_809_472),
        ("gpt2-xl", 16, 1_557_686_400),
        ("llama-2-7b-rubick", 8, 6_738_423_808),
        ("llama-30b", 4, 33_170_309_120),
    ]


def test_every_application_of_rubicks_workloads_is_a_known_model(shared_data: Path) -> None:
    with (shared_data / "rubick" / "workload-base.csv").open() as file:
        applications = {row["application"] for row in csv.DictReader(file)}
    assert {find_model(name).kind for name in applications} == {"vit", "encoder", "encoder-decoder", "decoder"}


def test_an_unknown_gpu_is_rejected_with_a_suggestion() -> None:
    with pytest.raises(
        UnknownName, match=r"unknown GPU 'h100 81gb'; did you mean 'H100-80GB'\? \(known: H100-80GB, .*lists all\)"
    ):
        find_gpu("h100 81gb")


def test_an_unknown_model_is_rejected_with_a_few_suggestions() -> None:
    with pytest.raises(UnknownName) as caught:
        find_model("Lama-2-7b")
    assert str(caught.value).startswith("unknown model 'Lama-2-7b'; did you mean 'llama-2-7b'? (known: llama-2-7b, ")
    assert str(caught.value).endswith("…; `refold models` lists all)")
    assert (caught.value.nearest, str(caught.value).count(", ")) == ("llama-2-7b", 8)


@pytest.mark.parametrize("name", ["", " ", "nvidia", "x" * 5000, "\0", "ß", "A 1 0 0 0"])
def test_malformed_names_are_unknown(name: str) -> None:
    with pytest.raises(UnknownName):
        find_gpu(name)
    with pytest.raises(UnknownName):
        find_model(name)


def test_names_are_unique() -> None:
    of_gpus = Counter(gpu_key(name) for gpu in gpus() for name in (gpu.name, *gpu.aliases))
    of_models = Counter(map(model_key, (*model_names(), *model_aliases())))
    assert [key for key, times in (of_gpus + of_models).items() if times > 1] == []


def test_every_entry_is_found_and_has_a_source() -> None:
    assert [find_gpu(name) for name in gpu_names()] == list(gpus())
    assert [find_model(name) for name in model_names()] == list(models())
    assert {find_model(alias).name for alias in model_aliases()} <= set(model_names())
    assert [gpu.name for gpu in gpus() if not gpu.source] == []
    assert [model.name for model in models() if not model.source] == []


@pytest.mark.parametrize("model", [model for model in models() if not model.opaque], ids=lambda model: model.name)
def test_shapes_match_the_published_count(model: ModelShape) -> None:
    published = model.parameters_stated or PUBLISHED_ROUNDED[model.name]
    assert abs(computed_parameters(model) / published - 1) < MAX_RELATIVE_ERROR


def test_most_counts_match_nearly_exactly() -> None:
    exact = [model for model in models() if model.parameters_stated and not model.opaque]
    errors = {model.name: abs(computed_parameters(model) / model.parameters_stated - 1) for model in exact}
    assert {name for name, share in errors.items() if share > 1e-3} == {
        "llama-30b",  # counted 2 % higher by Rubick
        *("bert-base", "bert-large", "roberta-base", "roberta-large"),  # poolers and heads
        *("vit-base-16", "vit-large-16", "vit-huge-14"),  # patches and classes
    }


@pytest.mark.parametrize("name", INFERRED)
def test_inferred_shapes_say_so_in_their_source(name: str) -> None:
    assert "inferred" in find_model(name).source


def test_mpt_matches_the_counts_of_its_table(shared_data: Path) -> None:
    with (shared_data / "perf" / "llm_foundry_a100.csv").open() as file:
        rows = {(row["Model"], int(row["SeqLen (T)"]), int(row["NumParams"])) for row in csv.DictReader(file)}
    for size, sequence, count in rows:
        model = msgspec.structs.replace(find_model(f"mpt-{size}"), positions=sequence, parameters_stated=0)
        assert model.parameters == pytest.approx(count, rel=2e-5), (size, sequence)


def test_models_match_the_shapes_of_korthikanti(shared_data: Path) -> None:
    with (shared_data / "perf" / "korthikanti2022_table5_a100.csv").open() as file:
        for row in csv.DictReader(file):
            model = find_model(row["model"])
            assert (model.hidden, model.layers, model.heads, model.sequence) == tuple(
                int(row[column]) for column in ("hidden", "layers", "heads", "seq_len")
            )


@pytest.mark.parametrize("gpu", gpus(), ids=lambda gpu: gpu.name)
def test_the_numbers_of_a_gpu_are_plausible(gpu: GpuSpec) -> None:
    assert 14 < gpu.memory_gib < 300
    assert gpu.fp8_tflops in (0, pytest.approx(2 * gpu.half_tflops, rel=0.03)) or gpu.name in ("L40", "Gaudi-3")
    assert gpu.fp4_tflops == 0 or gpu.fp4_tflops >= 1.99 * gpu.fp8_tflops
    assert gpu.single_tflops < gpu.half_tflops < 40 * gpu.single_tflops
    assert 0.05 < gpu.memory_gigabytes_per_second / gpu.watts < 20
    assert gpu.pcie_gigabytes_per_second <= gpu.link.gigabytes_per_second <= 900
    assert (gpu.link.kind == "pcie") == (gpu.link.gigabytes_per_second == gpu.pcie_gigabytes_per_second)
    own_ports = gpu.link.kind == "ethernet"  # the card has them itself
    network = gpu.node_network_gigabytes_per_second
    assert own_ports or network <= gpu.gpus_per_node * gpu.pcie_gigabytes_per_second


def test_common_gpus_match_their_data_sheets() -> None:
    half = {name: find_gpu(name).half_tflops for name in ("V100", "T4", "A10", "A100", "L4", "L40S", "H100", "H200")}
    assert half == {"V100": 125, "T4": 65, "A10": 125, "A100": 312, "L4": 121, "L40S": 362, "H100": 989, "H200": 989}
    links = {
        name: find_gpu(name).link.gigabytes_per_second for name in ("V100", "A100", "A800", "H100", "H800", "B200")
    }
    assert links == {"V100": 150, "A100": 300, "A800": 200, "H100": 450, "H800": 200, "B200": 900}


class GpuTable(msgspec.Struct, forbid_unknown_fields=True):
    gpus: tuple[GpuSpec, ...]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"watts": "much"}, r"gpus\[0\]\.watts is 'much', expected a number"),
        ({"link": {"kind": "nvlink"}}, r"gpus\[0\]\.link: gigabytes_per_second is missing, expected a number"),
        ({"efficiency": {"matmull": 0.5}}, r"gpus\[0\]\.efficiency: unknown field 'matmull'; did you mean 'matmul'"),
        ({"watts": -1}, r"gpus\[0\]: GPU 'T4': .* must be > 0"),
    ],
)
def test_an_error_in_the_table_is_reported_with_its_location(change: dict[str, object], words: str) -> None:
    entry = msgspec.to_builtins(find_gpu("T4")) | change
    with pytest.raises(RefoldError, match="gpus.yaml line 1: " + words):
        parse(json.dumps({"gpus": [entry]}), GpuTable, "gpus.yaml")


def test_a_convolution_counts_multiplications_and_additions() -> None:
    """He et al. count pairs: 3.8 billion for 50 layers, without the shortcuts."""
    pairs = {"resnet50": 4.089, "resnet101": 7.801, "resnet152": 11.514}
    assert {name: find_model(name).sample_gflop for name in pairs} == pytest.approx(
        {name: 2 * count for name, count in pairs.items()}, rel=0.002
    )
