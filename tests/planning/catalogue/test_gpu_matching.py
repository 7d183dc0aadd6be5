"""GPU names of different origins are compared by model, memory and form factor."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from refold.errors import UnknownName
from refold.planning.catalogue import find_gpu, gpu_names, gpus, matching_gpu_names
from refold.planning.catalogue.builtin import GpuName, parse_gpu_name


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a100", GpuName("a100")),
        ("NVIDIA A100-SXM4-80GB", GpuName("a100", 80, "sxm")),
        ("nvidia_a100-sxm4-80gb", GpuName("a100", 80, "sxm")),
        ("a100_80", GpuName("a100", 80)),
        ("A100-PCIe-40GB", GpuName("a100", 40, "pcie")),
        ("nvidia_h100_80gb_hbm3", GpuName("h100", 80)),
        ("NVIDIA H100 NVL", GpuName("h100", 0, "nvl")),
        ("tesla_v100", GpuName("v100")),
        ("Tesla V100-SXM2-32GB", GpuName("v100", 32, "sxm")),
        ("rtx_4090", GpuName("4090")),
        ("NVIDIA GeForce RTX 4090", GpuName("4090")),
        ("4090", GpuName("4090")),
        ("gtx_1080_ti", GpuName("1080ti")),
        ("1080ti", GpuName("1080ti")),
        ("NVIDIA RTX A6000", GpuName("a6000")),
        ("a6000", GpuName("a6000")),
        ("Quadro RTX 6000", GpuName("6000")),
        ("NVIDIA RTX 6000 Ada Generation", GpuName("6000ada")),
        ("TITAN RTX", GpuName("titanrtx")),
        ("AMD Instinct MI300X OAM", GpuName("mi300x")),
        ("a100_1g.5gb", GpuName("a1001g.5gb")),
    ],
)
def test_a_name_is_split_into_model_memory_and_form(name: str, parts: GpuName) -> None:
    assert parse_gpu_name(name) == parts


@pytest.mark.parametrize(
    ("name", "candidates", "expected"),
    [
        ("a100", ["A100-40GB", "A100-80GB", "H100"], ["A100-40GB", "A100-80GB"]),
        ("nvidia_a100-sxm4-80gb", ["A100-80GB", "A100-40GB", "A100-PCIe-80GB"], ["A100-80GB"]),
        ("nvidia_a100-sxm4-80gb", ["A100", "V100"], ["A100"]),
        ("A100", ["A100", "A100-80GB"], ["A100"]),
        ("A100", ["A100", "a100"], ["A100", "a100"]),
        ("tesla_v100", ["V100-16GB", "V100S-PCIe-32GB"], ["V100-16GB"]),
        ("a10", ["A100", "A10G", "A10"], ["A10"]),
        ("rtx_4090", ["GeForce RTX 4090"], ["GeForce RTX 4090"]),
        ("a100_1g.5gb", ["A100"], []),
        ("rtx_6000", ["RTX-A6000", "RTX 6000 Ada Generation"], []),
        ("gpu", ["A100"], []),
    ],
)
def test_a_name_stands_for_the_candidates_that_agree_with_it(
    name: str, candidates: list[str], expected: list[str]
) -> None:
    assert matching_gpu_names(name, candidates) == expected


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("a100", "A100-80GB"),
        ("nvidia_a100-sxm4-40gb", "A100-40GB"),
        ("nvidia_h100_80gb_hbm3", "H100-80GB"),
        ("tesla_v100", "V100-32GB"),
        ("Tesla V100-PCIE-16GB", "V100-PCIe-16GB"),
        ("geforce_rtx_3090", "RTX-3090"),
        ("a100_40", "A100-40GB"),
        ("nvidia_l40s", "L40S"),
    ],
)
def test_the_catalogue_is_searched_by_such_names(name: str, gpu: str) -> None:
    assert find_gpu(name).name == gpu


@pytest.mark.parametrize("name", ["a100-20gb", "quadro_rtx_6000", "a100_3g.20gb", ""])
def test_a_name_of_no_gpu_in_the_catalogue_is_an_error(name: str) -> None:
    with pytest.raises(UnknownName):
        find_gpu(name)


def test_every_name_and_alias_of_the_catalogue_finds_its_own_gpu() -> None:
    for gpu in gpus():
        assert {find_gpu(name).name for name in (gpu.name, *gpu.aliases)} == {gpu.name}


@given(st.sampled_from(gpu_names()), st.sampled_from(["{}", "nvidia_{}", "NVIDIA {}", "tesla {}"]), st.booleans())
def test_vendor_case_and_separators_do_not_matter(name: str, frame: str, underscores: bool) -> None:
    spelled = frame.format(name.lower().replace("-", "_") if underscores else name.upper())
    assert matching_gpu_names(spelled, gpu_names()) == [name]


@given(st.text(), st.text())
def test_compatibility_is_symmetric_and_every_name_is_compatible_with_itself(first: str, second: str) -> None:
    one, other = parse_gpu_name(first), parse_gpu_name(second)
    assert one.is_compatible(other) == other.is_compatible(one)
    assert one.is_compatible(one)
