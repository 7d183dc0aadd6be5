"""Published recipes as cases: Megatron-Bridge (mixtures of experts, FP8, NVFP4, NVL72), DGX Cloud on H100, large runs.

Neither table states which activations are recomputed. Megatron-Core's distributed optimizer is ZeRO-1; FSDP is ZeRO-3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from benchmarks.accuracy.cases import setting_of
from benchmarks.accuracy.tables import Case, Line, data_folder, read_lines
from refold.errors import UnknownName
from refold.model import Link, Plan
from refold.planning.catalogue import find_engine, find_gpu, find_model
from refold.planning.perf import Arithmetic, build_machines, model_flops

ENGINE = "megatron-core-26.04"

ARITHMETIC: Mapping[str, Arithmetic] = {"bf16": "half", "fp8": "fp8", "mxfp8": "mxfp8", "nvfp4": "nvfp4"}

MODELS = {
    "LLAMA3_8B": "llama-3-8b",
    "LLAMA3_70B": "llama-3-70b",
    "LLAMA3.1_405B": "llama-3.1-405b",
    "DeepSeekV3": "deepseek-v3",
    "GPT OSS 120B": "gpt-oss-120b",
    "Qwen3_30B_a3B": "qwen3-30b-a3b",
    "Qwen3_235B_a22B": "qwen3-235b-a22b",
    "Kimi_K2": "kimi-k2",
}
"""Names in megatron_bridge.csv; those of dgx_cloud_h100.csv are the catalogue's."""

FITTED_RECIPES = {
    ("llama-3-70b", "H100-80GB"),
    ("llama-3.1-70b", "H100-80GB"),
    ("llama-3-70b", "GB200"),
    ("llama-3-70b", "GB300"),
    ("deepseek-v3", "GB300"),
    ("deepseek-v3", "B200"),
    ("gpt-oss-120b", "H100-80GB"),
    ("gpt-oss-120b", "GB200"),
    ("qwen3-30b-a3b", "H100-80GB"),
    ("qwen3-30b-a3b", "GB200"),
}
"""Models and GPUs to which constants were fitted, with all releases; all others are held out."""


def read_recipes(table: str) -> list[Case]:
    """Return the cases of a table by its name in RECIPES; empty if the tables are not available."""
    if table not in RECIPES:
        raise UnknownName("table", table, RECIPES)
    if table == "large_runs":
        return [_large_run(line) for line in LARGE_RUNS]
    folder = data_folder()
    return [RECIPES[table](line) for line in read_lines(folder / "perf" / f"{table}.csv")] if folder else []


class _Degrees(NamedTuple):
    tensor: int
    pipeline: int
    context: int
    interleave: int
    expert: int
    zero: int


def _bridge_case(line: Line) -> Case:
    name = line.text("model")
    degrees = _Degrees(
        line.integer("tp"),
        line.integer("pp"),
        line.integer("cp"),
        round(line.optional("vp") or 1),
        round(line.optional("ep") or 1),
        3 if line.optional("fsdp") else 1,
    )
    tokens_per_second = line.real("tokens_per_second_per_gpu") * line.integer("gpus")
    tokens = line.integer("global_batch") * line.integer("sequence")
    gpu = line.text("system").removeprefix("DGX-")
    return _case(line, MODELS.get(name, name), gpu, degrees, tokens / tokens_per_second)


def _cloud_case(line: Line) -> Case:
    tensor, pipeline, context, interleave = (line.integer(degree) for degree in ("tp", "pp", "cp", "vp"))
    degrees = _Degrees(tensor, pipeline, context, interleave, expert=1, zero=1)
    return _case(line, line.text("model"), line.text("gpu"), degrees, line.real("step_seconds"))


def _case(line: Line, model: str, gpu_name: str, degrees: _Degrees, seconds: float) -> Case:
    gpu, gpus = find_gpu(gpu_name), line.integer("gpus")
    batch, micro_batch = line.integer("global_batch"), line.integer("micro_batch")
    data = gpus // (degrees.tensor * degrees.pipeline * degrees.context)
    plan = Plan(
        data,
        degrees.tensor,
        degrees.pipeline,
        degrees.zero,
        accumulation=batch // (data * micro_batch),
        interleave=degrees.interleave,
        sequence_parallel=degrees.tensor > 1,
        context=degrees.context,
        expert=degrees.expert,
    )
    return Case(
        source=line.source,
        row=line.number,
        group=f"{model} on {gpus} {gpu.name}, {line.text('precision')}",
        model=find_model(model),
        gpu=gpu.name,
        gpus_on_node=build_machines(gpu, gpus).gpus_on_node,
        network=Link("network", gpu.node_network_gigabytes_per_second),
        inside=None,
        engine=ENGINE,
        plan=plan,
        micro_batch=micro_batch,
        batch=batch,
        sequence=line.integer("sequence"),
        cpus=0,
        step_seconds=seconds,
        memory_gib=None,
        fits=True,
        arithmetic=ARITHMETIC[line.text("precision").lower()],
        knows_recompute=False,
    )


_LLAMA_3 = {"model": "llama-3.1-405b", "gpu": "H100", "precision": "bf16", "global_batch": "2048", "sequence": "8192"}

LARGE_RUNS = (
    Line("Llama 3 (2024), table 4", 1, _LLAMA_3 | {"gpus": "8192", "tp": "8", "pp": "16", "vp": "8", "tflops": "430"}),
    Line("Llama 3 (2024), table 4", 2, _LLAMA_3 | {"gpus": "16384", "tp": "8", "pp": "16", "vp": "8", "tflops": "400"}),
    Line(
        "DeepSeek-V3 (2024), sections 3 and 4",
        1,
        {
            "model": "deepseek-v3",
            "gpu": "H800",
            "precision": "fp8",
            "global_batch": "15360",
            "sequence": "4096",
            "gpus": "2048",
            "tp": "1",
            "pp": "16",
            "ep": "64",
            "gpu_hours_per_trillion_tokens": "180000",
        },
    ),
)
"""Large runs with what their authors published: TFLOP/s per GPU, or GPU hours. How many chunks Llama 3's stages had is
not published: one for each layer is assumed."""


def _large_run(line: Line) -> Case:
    degrees = _Degrees(
        line.integer("tp"),
        line.integer("pp"),
        1,
        round(line.optional("vp") or 1),
        round(line.optional("ep") or 1),
        1,
    )
    cells = {**line.cells, "micro_batch": "1"}
    case = _case(line._replace(cells=cells), line.text("model"), line.text("gpu"), degrees, 1.0)
    case = replace(case, engine="megatron-core-2024")
    hours = line.optional("gpu_hours_per_trillion_tokens")
    if hours is not None:
        return replace(case, step_seconds=hours * 3600 * case.tokens / 1e12 / case.gpus)
    flops = model_flops(setting_of(case, find_gpu, find_engine))
    return replace(case, step_seconds=flops / (line.real("tflops") * 1e12 * case.gpus))


RECIPES: Mapping[str, Callable[[Line], Case]] = {
    "megatron_bridge": _bridge_case,
    "dgx_cloud_h100": _cloud_case,
    "large_runs": _large_run,
}
