"""Published measurements of 2023 to 2026 as cases: `published.csv` beside this file, and published_2025.csv.

`published.csv` has figures of public tables and logs, with their releases: MPT on H100 (mosaicml/llm-foundry,
scripts/train/benchmarking), NVIDIA's recipes for Megatron-Bridge (docs/performance-summary.md, three releases) and of
DGX Cloud (NVIDIA/dgxc-benchmarking), and logs of MLPerf Training 5.1 (mlcommons/training_results_v5.1). Fine-tuning
recipes have samples of SQuAD packed into sequences, about 200 tokens each, and adapters for queries, keys and values.

LoRA in MLPerf: the configurations of the submissions say FP8 for attention (NVTE_DPA_FP8_RECIPE, FP8_DPA), and in NVFP4
frozen weights that are stored quantised (PRE_QUANTIZED_MODEL); pretraining has attention in half precision.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from benchmarks.accuracy.tables import ASYNCHRONOUS, Case, Line, data_folder, read_lines
from refold.model import Link, Plan, Recompute, parse_plan
from refold.planning.catalogue import find_gpu, find_model
from refold.planning.perf import AdaptedLayers, Arithmetic, ModelShape, Tuning, build_machines

HERE = Path(__file__).parent

ARITHMETIC: dict[str, Arithmetic] = {"bf16": "half", "fp8": "fp8", "mxfp8": "mxfp8", "nvfp4": "nvfp4"}

ROW_OF_AMD = 155
"""Line of published.csv with AMD's own submission of Llama 3.1 8B on MI355X; that of GigaComputing is held out."""

PUBLISHED_SOURCES = ("llm-foundry", "megatron-bridge", "dgx-cloud", "mlperf-5.1", "mlperf", "torchtitan", "litgpt")
"""First words of the sources of both files."""


def read_published() -> list[Case]:
    """Return the cases of published.csv."""
    return [_case(line) for line in read_lines(HERE / "published.csv")]


def _case(line: Line) -> Case:
    gpu, gpus = find_gpu(line.text("gpu")), line.integer("gpus")
    batch, micro_batch, sequence = (line.integer(name) for name in ("batch", "micro_batch", "sequence"))
    tensor, pipeline, context = (line.integer(name) for name in ("tp", "pp", "cp"))
    data = gpus // (tensor * pipeline * context)
    recompute, precision, rank = line.text("recompute"), line.text("precision"), round(line.optional("lora") or 0)
    plan = Plan(
        data,
        tensor,
        pipeline,
        line.integer("zero"),
        recompute=msgspec.convert(recompute or "none", Recompute),
        accumulation=batch // (data * micro_batch),
        interleave=line.integer("vp"),
        sequence_parallel=tensor > 1,
        context=context,
        expert=line.integer("ep"),
    )
    layers = msgspec.convert(line.text("lora_layers") or "all", AdaptedLayers)
    return Case(
        source=f"{line.text('source')} {line.text('release')}",
        row=line.number,
        group=f"{line.text('model')} on {gpus} {gpu.name}, {precision}",
        model=_model(line.text("model"), sequence),
        gpu=gpu.name,
        gpus_on_node=build_machines(gpu, gpus).gpus_on_node,
        network=Link("network", gpu.node_network_gigabytes_per_second),
        inside=None,
        engine=line.text("engine"),
        plan=plan,
        micro_batch=micro_batch,
        batch=batch,
        sequence=sequence,
        cpus=0,
        step_seconds=line.real("step_s"),
        memory_gib=None,
        fits=True,
        arithmetic=ARITHMETIC[precision],
        knows_recompute=bool(recompute),
        tuning=Tuning(rank, lora_layers=layers, stored_quantised=rank > 0 and precision == "nvfp4"),
        packed=round(line.optional("packed") or 0),
    )


def _model(name: str, sequence: int) -> ModelShape:
    """Return a model; MPT, as benchmarked, has learned positions for the sequence length."""
    shape = find_model(name)
    if not name.startswith("mpt"):
        return shape
    return msgspec.structs.replace(shape, positions=sequence, parameters_stated=0)


def read_published_2025() -> list[Case]:
    """Return the cases of published_2025.csv; empty if the tables are not available."""
    folder = data_folder()
    return [_case_2025(line) for line in read_lines(folder / "perf" / "published_2025.csv")] if folder else []


def _case_2025(line: Line) -> Case:
    gpu, gpus, batch = find_gpu(line.text("gpu")), line.integer("gpus"), line.integer("batch")
    plan = parse_plan(line.text("plan"))
    is_titan = line.text("engine") == "torchtitan-compile"
    is_mlperf, precision = "MLPerf" in line.text("source"), line.text("precision")
    tuning = Tuning(
        round(line.optional("lora") or 0),
        line.text("qlora") == "True",
        lora_layers="attention" if is_mlperf else "all",
        stored_quantised=is_mlperf and precision == "nvfp4",
    )
    engine = "torchtitan-2025" if is_titan else line.text("engine")
    if is_mlperf:
        engine = "megatron-core-26.04" if gpu.name.startswith("MI") else "megatron-core-mlperf"
    case = Case(
        source=line.text("source").split()[0].lower(),
        row=line.number,
        group=line.text("source"),
        model=_model_2025(line.text("model")),
        gpu=gpu.name,
        gpus_on_node=build_machines(gpu, gpus).gpus_on_node,
        network=Link("network", gpu.node_network_gigabytes_per_second),
        inside=None,
        engine=engine,
        plan=plan,
        micro_batch=batch // (plan.data * plan.accumulation),
        batch=batch,
        sequence=line.integer("seq"),
        cpus=0,
        step_seconds=line.optional("measured_s"),
        memory_gib=line.optional("measured_gib"),
        fits=line.text("oom") != "True",
        arithmetic=ARITHMETIC[precision],
        knows_recompute=is_titan or gpus == 1,
        tuning=tuning,
    )
    return replace(case, note=ASYNCHRONOUS) if "asyncTP" in line.text("name") else case


_SMALL_MODELS = {
    "phi-1.5": ModelShape(
        "phi-1.5", layers=24, hidden=2048, heads=32, ffn=8192, vocabulary=51_200, tied=False, norms=1
    ),
    "phi-2": ModelShape("phi-2", layers=32, hidden=2560, heads=32, ffn=10_240, vocabulary=51_200, tied=False, norms=1),
    "tiny-llama": ModelShape(
        "tiny-llama",
        layers=22,
        hidden=2048,
        heads=32,
        kv_heads=4,
        ffn=5632,
        gated=True,
        bias=False,
        vocabulary=32_000,
        tied=False,
    ),
    "llama-3.2-1b": ModelShape(
        "llama-3.2-1b",
        layers=16,
        hidden=2048,
        heads=32,
        kv_heads=8,
        ffn=8192,
        gated=True,
        bias=False,
        vocabulary=128_256,
    ),
    "llama-3.2-3b": ModelShape(
        "llama-3.2-3b",
        layers=28,
        hidden=3072,
        heads=24,
        kv_heads=8,
        ffn=8192,
        gated=True,
        bias=False,
        vocabulary=128_256,
    ),
}
"""Models of published_2025.csv that the catalogue does not have, from their config.json."""


def _model_2025(name: str) -> ModelShape:
    return _SMALL_MODELS.get(name) or find_model(name)


def is_fitted_published(case: Case) -> bool:
    """Return whether constants are fitted to a row of these files: few of them, the others are held out.

    MPT on H100: the 1B and 7B in bf16. Megatron-Bridge 26.06: DeepSeek-V3, GPT-OSS and Qwen3-30B on GB200; 26.02: Llama
    3.1 405B on H100, GB200 and GB300. torchtitan of June 2025: the 8B model on H100 without asynchronous tensor
    parallelism. MLPerf: LoRA on MI325X and on 8 GB200, and one of two submissions of the 8B model on MI355X. Nothing
    else, in particular no other LoRA on GPUs of NVIDIA.
    """
    source, _, release = case.source.partition(" ")
    match source:
        case "llm-foundry":
            return case.model.name in ("mpt-1b", "mpt-7b") and case.arithmetic == "half"
        case "megatron-bridge":
            experts = case.model.name in ("deepseek-v3", "gpt-oss-120b", "qwen3-30b-a3b") and case.gpu == "GB200"
            largest = case.model.name == "llama-3.1-405b" and case.gpu in ("GB200", "GB300", "H100-80GB")
            return (release == "26.06" and experts) or (release == "26.02" and largest)
        case "torchtitan":
            return case.gpu == "H100-96GB" and "8b" in case.model.name and not case.note
        case "mlperf-5.1":
            return case.row == ROW_OF_AMD
        case "mlperf":
            return case.gpu == "MI325X" or (case.gpu, case.gpus) == ("GB200", 8)
    return False
