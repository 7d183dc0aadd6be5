"""Fit the constants of GPUs and engines to published measurements: `python -m benchmarks.accuracy.calibrate`.

Each entry of FITS names the cases, and the free constants of GPUs and engines. Efficiencies belong to a GPU type and
are fitted once; constants of a framework are fitted to rows of that framework. Rows rejected by `is_fitted_on` are held
out: `benchmarks.accuracy.no_samples` reports them separately. The printed values are copied to
src/refold/planning/catalogue/gpus.yaml and engines.yaml by hand, so that changes are reviewed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from benchmarks.accuracy.cases import (
    Batch,
    Vector,
    measured_gib,
    measured_seconds,
    with_peak_memory,
    with_step_time,
)
from benchmarks.accuracy.device import read_cases
from benchmarks.accuracy.published import PUBLISHED_SOURCES, is_fitted_published
from benchmarks.accuracy.recipes import FITTED_RECIPES
from benchmarks.accuracy.tables import Case, data_folder
from refold.planning.catalogue import find_engine, find_gpu
from refold.planning.perf import Efficiency, Engine, GpuSpec

SHARES = {
    "matmul",
    "attention",
    "memory",
    "link",
    "network",
    "pcie",
    "overlap_gradients",
    "overlap_shards",
    "overlap_tensor",
    "overlap_experts",
    "overlap_stages",
    "context_attention_share",
    "fp8",
    "fp4",
}
"""Constants that cannot exceed 1."""

OUTLIER_ERROR = 0.08
"""Relative errors well above this count as outliers with less weight."""

PRIOR_WEIGHT = 0.05
"""A deviation by one prior width counts as much as a relative error of this size in one row."""


class Free(NamedTuple):
    """A free constant: `field` of all `owners`, with a prior at `start` of width e^±`width`."""

    owners: tuple[str, ...]
    field: str
    start: float
    width: float


class Fit(NamedTuple):
    """Tables and GPUs that select the cases, and the constants that are fitted to them."""

    name: str
    tables: tuple[str, ...]
    gpus: tuple[str, ...]
    free: tuple[Free, ...]
    target: Literal["time", "memory"] = "time"
    loss: Literal["soft_l1", "cauchy"] = "soft_l1"
    """Weight of outliers: reduced, or (cauchy) almost none, for tables with many unexplained outliers."""


AMPERE = ("A100-40GB", "A100-80GB")
VOLTA = ("V100-16GB", "V100-32GB")
HOPPER = ("H100-80GB", "H200")
RACK_OF_2024 = ("GB200",)
BLACKWELL = ("B200", "B300", "GB300")
EAGER = ("pytorch",)
CORE = ("megatron-core", "megatron-core-26.04", "megatron-core-graphs")
CORE_LAYERS, CORE_GRAPHS = ("megatron-core", "megatron-core-26.04"), ("megatron-core-graphs",)
INSTINCT = ("MI300X", "MI325X", "MI355X")
TITAN = ("torchtitan", "torchtitan-compile")
FOUNDRY = ("llm-foundry", "llm-foundry-pure")
MEGATRON = ("megatron-2021", "megatron-2022")
BLOOM = ("deepspeed-2022", "deepspeed-2022-bf16")
ZERO_2021 = ("deepspeed-2021", "hf-deepspeed-2021")
TRANSFORMERS_MODELS = (
    "qwen2.5-0.5b",
    "qwen2.5-7b",
    "qwen3-0.6b",
    "qwen3-1.7b",
    "llama-3.2-1b",
    "gemma-2-2b",
    "gpt2",
    "phi-2",
)
"""Hugging Face models that constants are fitted to; other models and families are held out."""

AUTOCAST = ("transformers", "transformers-eager")
PURE_BF16 = ("transformers-bf16", "transformers-bf16-eager")
TRANSFORMERS = (*AUTOCAST, *PURE_BF16)

FITS = (
    Fit(
        "A100",
        ("llm_foundry_a100", "korthikanti2022_table5", "bigscience_sweeps"),
        AMPERE,
        (
            Free(AMPERE, "matmul", 0.85, 0.05),
            Free(AMPERE, "half_tokens", 500.0, 0.5),
            Free(AMPERE, "half_width", 100.0, 0.5),
            Free(AMPERE, "attention", 0.4, 0.2),
            Free(AMPERE, "network", 0.6, 0.2),
            Free(AMPERE, "link", 0.75, 0.1),
            Free(FOUNDRY, "passes_hidden", 10.0, 0.2),
            Free(FOUNDRY, "passes_inner", 2.5, 0.3),
            Free(FOUNDRY, "step_seconds", 0.05, 0.5),
            Free(MEGATRON, "passes_hidden", 12.0, 0.3),
            Free(MEGATRON, "passes_inner", 2.5, 0.4),
            Free(BLOOM, "passes_hidden", 12.0, 0.3),
            Free(BLOOM, "passes_inner", 2.5, 0.4),
            Free(BLOOM, "stage_wait", 0.003, 1.0),
            Free(BLOOM, "step_seconds", 0.1, 1.0),
            Free(BLOOM, "overlap_shards", 0.3, 1.0),
        ),
    ),
    Fit(
        "V100",
        ("dlperf_megatron_v100", "bigscience_sweeps"),
        VOLTA,
        (
            Free(VOLTA, "matmul", 0.65, 0.1),
            Free(VOLTA, "half_tokens", 500.0, 0.5),
            Free(VOLTA, "half_width", 100.0, 0.5),
            Free(VOLTA, "network", 0.5, 0.3),
            Free(VOLTA, "link", 0.7, 0.2),
            Free(ZERO_2021, "passes_hidden", 12.0, 0.5),
            Free(ZERO_2021, "passes_inner", 2.5, 0.5),
            Free(ZERO_2021, "overlap_shards", 0.3, 1.0),
        ),
        loss="cauchy",  # the authors of the sweeps report that the same plan took between 125 and 225 seconds
    ),
    Fit(
        "H100 and H200",
        ("ultrascale_h100", "h200_measured"),
        HOPPER,
        (
            Free(HOPPER, "matmul", 0.72, 0.05),
            Free(HOPPER, "half_tokens", 700.0, 0.5),
            Free(HOPPER, "half_width", 100.0, 0.5),
            Free(("nanotron",), "attention_share", 0.8, 0.2),
            Free(HOPPER, "link", 0.8, 0.02),
            Free(("nanotron",), "passes_hidden", 10.0, 0.3),
            Free(("nanotron",), "passes_inner", 6.0, 0.5),
            Free(("nanotron",), "launch_seconds", 0.0044, 0.5),
            Free(("nanotron",), "overlap_gradients", 0.9, 0.1),
            Free(("nanotron",), "overlap_tensor", 0.45, 0.5),
            Free(("nanotron",), "overlap_shards", 0.1, 0.5),
            Free(("nanotron",), "message_seconds", 0.00004, 0.5),
            Free(("nanotron",), "step_seconds", 0.03, 0.5),
            Free(("nanotron",), "tensor_inter_node_traffic", 2.0, 0.5),
            Free(("nanotron",), "tensor_wait_across_nodes", 0.0005, 0.5),
            Free(("nanotron",), "tensor_wait_in_pipeline", 0.0028, 0.5),
            Free(("nanotron",), "stage_wait", 0.47, 0.2),
            Free(EAGER, "passes_hidden", 10.0, 0.3),
            Free(EAGER, "passes_inner", 4.0, 0.5),
            Free(EAGER, "launch_seconds", 0.0015, 0.5),
            Free(EAGER, "launch_factor_full", 2.0, 0.3),
            Free(EAGER, "launch_factor_selective", 1.5, 0.3),
            Free(EAGER, "step_seconds", 0.002, 0.5),
            Free(EAGER, "update_passes", 1.0, 0.5),
            Free(HOPPER, "pcie", 0.5, 0.3),
        ),
        loss="cauchy",
    ),
    Fit(
        "MPT on H100",
        ("published",),
        ("H100-80GB",),
        (
            Free(("llm-foundry-h100",), "attention_share", 0.45, 0.3),
            Free(("llm-foundry-h100",), "compute_factor", 1.1, 0.2),
        ),
    ),
    Fit(
        "H100 of 96 GB and 500 W",
        ("torchtitan_docs",),
        ("H100-96GB",),
        (
            Free(("H100-96GB",), "matmul", 0.6, 0.2),
            Free(("H100-96GB",), "fp8", 0.6, 0.2),
            Free(TITAN, "attention_share", 0.6, 0.3),
            Free(TITAN, "context_attention_share", 0.85, 0.2),
        ),
    ),
    Fit(
        "torchtitan of June 2025",
        ("published_2025",),
        ("H100-96GB", "H200"),
        (
            Free(("torchtitan-2025",), "attention_share", 0.5, 0.1),
            Free((*TITAN, "torchtitan-2025"), "tensor_factor", 1.0, 0.3),
        ),
    ),
    Fit(
        "low precision, Blackwell and mixtures of experts",
        ("megatron_bridge", "dgx_cloud_h100", "published"),
        ("H100-80GB", *BLACKWELL, *RACK_OF_2024),
        (
            Free(BLACKWELL, "matmul", 0.75, 0.03),
            Free(RACK_OF_2024, "matmul", 0.75, 0.1),
            Free(("H100-80GB",), "fp8", 0.65, 0.05),
            Free(BLACKWELL, "fp8", 0.65, 0.05),
            Free(RACK_OF_2024, "fp8", 0.65, 0.05),
            Free(BLACKWELL, "fp4", 0.45, 0.2),
            Free(RACK_OF_2024, "fp4", 0.45, 0.2),
            Free(BLACKWELL + RACK_OF_2024, "half_tokens", 1300.0, 0.5),
            Free(BLACKWELL + RACK_OF_2024, "attention", 0.45, 0.1),
            Free(BLACKWELL + RACK_OF_2024, "network", 0.75, 0.1),
            Free(RACK_OF_2024, "memory", 0.75, 0.1),
            Free(CORE, "passes_inner", 2.1, 0.1),
            Free(CORE_LAYERS, "expert_passes", 15.0, 0.3),
            Free(CORE_LAYERS, "expert_bias_passes", 10.0, 1.0),
            Free(CORE_LAYERS, "expert_launch_seconds", 0.006, 0.1),
            Free(CORE_LAYERS, "overlap_experts", 0.5, 0.3),
            Free(CORE, "overlap_tensor", 0.8, 0.3),
            Free(CORE, "overlap_stages", 0.5, 0.3),
            Free(CORE, "straggler_share", 0.003, 0.5),
            Free(CORE_GRAPHS, "expert_passes", 9.0, 0.5),
            Free(CORE_GRAPHS, "expert_bias_passes", 5.0, 1.0),
            Free(CORE_GRAPHS, "expert_launch_seconds", 0.001, 1.0),
        ),
    ),
    Fit(
        "Instinct",
        ("published", "published_2025"),
        INSTINCT,
        (Free(INSTINCT, "fp8", 0.58, 0.2), Free(INSTINCT, "attention", 0.45, 0.2)),
    ),
    Fit(
        "LoRA of MLPerf",
        ("published_2025",),
        ("GB200",),
        (Free(("megatron-core-mlperf",), "attention_share", 1.6, 0.2),),  # FP8 in FlashAttention-3 on H100
    ),
    Fit(
        "transformers",
        ("transformers_h200", "transformers_h200_long", "h200_measured"),
        HOPPER,
        (
            Free(("H200",), "matmul", 0.78, 0.05),
            Free(("H200",), "half_tokens", 1300.0, 0.3),
            Free(TRANSFORMERS, "passes_hidden", 2.0, 0.5),
            Free(TRANSFORMERS, "passes_inner", 1.5, 0.5),
            Free(TRANSFORMERS, "passes_norm", 30.0, 0.3),
            Free(TRANSFORMERS, "passes_attention", 15.0, 0.3),
            Free(AUTOCAST, "passes_activation", 27.0, 0.5),
            Free(PURE_BF16, "passes_activation", 10.0, 0.5),
            Free(TRANSFORMERS, "passes_scores", 15.0, 0.3),
            Free(TRANSFORMERS, "logit_traffic_bytes", 60.0, 0.3),
            Free(TRANSFORMERS, "launch_seconds", 0.003, 0.3),
            Free(TRANSFORMERS, "norm_launch_seconds", 0.0008, 0.3),
            Free(TRANSFORMERS, "launch_factor_full", 1.8, 0.3),
            Free(TRANSFORMERS, "step_seconds", 0.002, 0.5),
            Free(AUTOCAST, "update_passes", 3.2, 0.3),
            Free(PURE_BF16, "update_passes", 2.8, 0.3),
            Free(TRANSFORMERS, "adapter_input_bytes", 14.0, 0.3),
            Free(TRANSFORMERS, "adapter_output_bytes", 10.0, 0.3),
            Free(TRANSFORMERS, "adapter_launch_seconds", 0.0005, 0.5),
        ),
    ),
    Fit(
        "memory of transformers",
        ("transformers_h200",),
        HOPPER,
        (
            Free(AUTOCAST, "hidden_activation_bytes", 10.0, 0.5),
            Free(PURE_BF16, "hidden_activation_bytes", 5.0, 0.5),
            Free(AUTOCAST, "inner_activation_bytes", 2.9, 0.3),
            Free(PURE_BF16, "inner_activation_bytes", 2.5, 0.3),
            Free(AUTOCAST, "norm_activation_bytes", 9.0, 0.3),
            Free(PURE_BF16, "norm_activation_bytes", 7.0, 0.3),
            Free(AUTOCAST, "composed_activation_bytes", 13.0, 0.5),
            Free(PURE_BF16, "composed_activation_bytes", 7.0, 0.5),
            Free(TRANSFORMERS, "score_activation_bytes", 6.2, 0.3),
            Free(TRANSFORMERS, "logit_activation_bytes", 11.5, 0.3),
            Free(TRANSFORMERS, "overhead_gib", 0.2, 0.5),
            Free(TRANSFORMERS, "adapter_saved_bytes", 2.0, 0.5),
        ),
        target="memory",
    ),
    Fit(
        "memory of plain PyTorch",
        ("h200_measured",),
        HOPPER,
        (
            Free(EAGER, "hidden_activation_bytes", 8.0, 0.5),
            Free(EAGER, "inner_activation_bytes", 2.5, 0.5),
            Free(EAGER, "logit_activation_bytes", 10.0, 0.5),
            Free(EAGER, "overhead_gib", 0.3, 0.5),
        ),
        target="memory",
    ),
    Fit(
        "memory of nanotron",
        ("ultrascale_h100",),
        HOPPER,
        (
            Free(("nanotron",), "hidden_activation_bytes", 4.0, 0.5),
            Free(("nanotron",), "inner_activation_bytes", 3.0, 0.5),
            Free(("nanotron",), "logit_activation_bytes", 6.0, 0.5),
            Free(("nanotron",), "overhead_gib", 1.0, 0.5),
        ),
        target="memory",
        loss="cauchy",
    ),
    Fit(
        "memory of Megatron-DeepSpeed",
        ("bigscience_sweeps",),
        AMPERE,
        (
            Free(BLOOM, "hidden_activation_bytes", 10.0, 0.2),
            Free(BLOOM, "logit_activation_bytes", 6.0, 0.5),
            Free(BLOOM, "overhead_gib", 3.0, 0.5),
        ),
        target="memory",
    ),
)


FITTED_MODULES = (
    "resnet-50",
    "swin-base",
    "unet",
    "t5-large",
    "vit-large",
    "segformer-b3",
    "mamba-370m",
    "efficientnet-b4",
)
"""Modules to which the costs of traced modules are fitted (`fit_modules`)."""


def is_fitted_on(case: Case) -> bool:
    """Return whether constants are fitted to this row; a part of every table is held out.

    H100: the 1B and 80B models (8B is held out), and torchtitan on 8 GPUs (128 is held out). H200: BERT, GPT-2 and
    ViT (RoBERTa, T5 and LLaMA are held out), and of Hugging Face's models those of TRANSFORMERS_MODELS. A100:
    llm-foundry on A100-40GB (80GB is held out), the four models of Korthikanti et al. with full recomputation
    (selective is held out), even lines of the BLOOM sweeps. V100: even lines. Megatron-Bridge and DGX Cloud: the models
    and systems of `FITTED_RECIPES`. All of Rubick's measurements are held out.
    """
    match case.source:
        case "ultrascale_h100.csv":
            return "8B" not in case.model.name
        case "megatron_bridge.csv" | "dgx_cloud_h100.csv":
            return (case.model.name, case.gpu) in FITTED_RECIPES
        case "llm_foundry_a100.csv":
            return case.gpu == "A100-40GB"
        case "korthikanti2022_table5_a100.csv":
            return case.plan.recompute == "full"
        case "bigscience_sweeps.csv" | "dlperf_megatron_v100.csv":
            return case.row % 2 == 0
        case "torchtitan_docs_2025-01.csv":
            return case.gpus == 8
        case source if source.split()[0] in PUBLISHED_SOURCES:
            return is_fitted_published(case)
        case "modules_h200.csv":
            return case.model.name in FITTED_MODULES
        case "transformers_h200.csv":
            return case.model.name in TRANSFORMERS_MODELS
        case "transformers_h200_long.csv":
            return case.model.name == "llama-3.2-3b"
        case "h200_measured.csv":
            return case.model.name in ("bert-large", "gpt2-xl", "vit-base-16")
        case _:
            return False


class Fitted(NamedTuple):
    """GPUs and engines with fitted constants."""

    gpus: dict[str, GpuSpec]
    engines: dict[str, Engine]

    def gpu(self, name: str) -> GpuSpec:
        return self.gpus.get(name) or find_gpu(name)

    def engine(self, name: str) -> Engine:
        return self.engines.get(name) or find_engine(name)


def fit(one: Fit, known: Fitted, is_fitted: Callable[[Case], bool] = is_fitted_on) -> Fitted:
    """Fit by least squares of logarithms with a robust loss and weak priors, to the cases that `is_fitted` selects."""
    from scipy.optimize import least_squares

    if one.target == "time":
        select, measure = with_step_time, measured_seconds
    else:
        select, measure = with_peak_memory, measured_gib
    candidates = [case for table in one.tables for case in select(read_cases(table))]
    cases = [case for case in candidates if case.gpu in one.gpus and is_fitted(case)]
    batch, measured = Batch(cases), measure(cases)
    widths = np.array([free.width for free in one.free])

    def errors(moves: Vector) -> Vector:
        found = _with_constants(one.free, moves, known)
        predicted = batch.predict(found.gpu, found.engine)
        modelled = predicted.seconds if one.target == "time" else predicted.memory_gib
        return np.concatenate([np.log(modelled / measured), PRIOR_WEIGHT * moves / widths])

    best = least_squares(errors, np.zeros(len(one.free)), loss=one.loss, f_scale=OUTLIER_ERROR, diff_step=1e-4)
    return _with_constants(one.free, best.x, known)


def _with_constants(all_free: Sequence[Free], moves: Vector, known: Fitted) -> Fitted:
    """Return GPUs and engines with each free constant at start × e^move."""
    found = Fitted(dict(known.gpus), dict(known.engines))
    for free, move in zip(all_free, moves, strict=True):
        value = float(free.start * np.exp(move))
        value = min(1.0, value) if free.field in SHARES else value
        for owner in free.owners:
            if free.field in Efficiency.__struct_fields__:
                gpu = found.gpu(owner)
                efficiency = msgspec.structs.replace(gpu.efficiency, **{free.field: value})
                found.gpus[owner] = msgspec.structs.replace(gpu, efficiency=efficiency)
            else:
                found.engines[owner] = msgspec.structs.replace(found.engine(owner), **{free.field: value})
    return found


def main() -> None:
    """Run the fits and print the fitted constants."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy.calibrate", description=__doc__)
    parser.add_argument("--only", metavar="TEXT", default="", help="fits whose name contains this; others as committed")
    options = parser.parse_args()
    if data_folder() is None:
        print("the published tables are not available (see benchmarks/README.md)")
        return
    found = Fitted({}, {})
    for one in (one for one in FITS if options.only in one.name):
        found = fit(one, found)
        print(f"{one.name}, fitted to {', '.join(one.tables)}")
        for free in one.free:
            print(f"  {' '.join(free.owners)}: {free.field}: {_value(found, free):.3g}")


def _value(found: Fitted, free: Free) -> float:
    owner = free.owners[0]
    holder = found.gpus[owner].efficiency if owner in found.gpus else found.engines[owner]
    return float(getattr(holder, free.field))


if __name__ == "__main__":
    main()
