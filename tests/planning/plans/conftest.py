"""Training setups for tests of plans. Numbers have realistic magnitudes; no test depends on their last digits."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from refold.model.cluster import Link
from refold.planning.perf.engine import Engine
from refold.planning.perf.hardware import GpuSpec, Machines
from refold.planning.perf.shapes import ModelShape
from refold.planning.perf.training_setup import TrainingSetup

A100 = GpuSpec(
    name="A100",
    memory_gib=80.0,
    half_tflops=312.0,
    single_tflops=19.5,
    memory_gigabytes_per_second=2039.0,
    link=Link("nvlink", 300.0),
    pcie_gigabytes_per_second=32.0,
    node_network_gigabytes_per_second=100.0,
    watts=400.0,
)

MODELS = {
    "llama-2-70b": ModelShape(
        "llama-2-70b",
        layers=80,
        hidden=8192,
        heads=64,
        kv_heads=8,
        ffn=28672,
        gated=True,
        bias=False,
        vocabulary=32000,
        tied=False,
    ),
    "llama-2-7b": ModelShape(
        "llama-2-7b", layers=32, hidden=4096, heads=32, ffn=11008, gated=True, bias=False, vocabulary=32000, tied=False
    ),
    "resnet": ModelShape("resnet", kind="opaque", parameters_stated=25_600_000, sample_gflop=4.1, sample_mib=100.0),
}


@pytest.fixture(scope="session")
def a100() -> GpuSpec:
    return A100


@pytest.fixture(scope="session")
def models() -> dict[str, ModelShape]:
    return MODELS


@pytest.fixture(scope="session")
def make_setup() -> Callable[..., TrainingSetup]:
    def make(
        name: str = "llama-2-70b",
        on: tuple[int, ...] = (8,),
        batch: int = 512,
        sequence: int = 4096,
        gpu_gib: float = 80.0,
        host_gib: float = 0.0,
        **changed: Any,
    ) -> TrainingSetup:
        gpu = msgspec.structs.replace(A100, memory_gib=gpu_gib)
        machines = Machines(gpu, on, gpu.link, Link("network", 100.0), memory_gib=host_gib)
        model = msgspec.structs.replace(MODELS[name], **changed)
        return TrainingSetup(model, machines, Engine("test"), batch, sequence)

    return make
