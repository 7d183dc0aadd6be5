"""The best plan of Llama-2-7B as its resources shrink: Figure 7 of Rubick (MLSys'25), with Refold's plan search.

Llama-2-7B with a global batch of 16 runs on four nodes of eight A800-80GB, then on half of each node, on four GPUs, on
one, and on one with twice the CPUs. The best plan changes each time: on many GPUs it combines tensor and pipeline
parallelism; on one GPU the job fits only with its optimizer offloaded to the host, and then gains from more CPUs. A
scheduler that keeps the initial plan has to stop the job instead.

For each case, print the fastest plan that fits according to the performance model, and the paper's plan and measured
step time. If Rubick's measurements are available (`$REFOLD_DATA`, or `../shared/data` beside the repository), the model
is also fitted to seven of them, and the search is repeated. The search includes features that the paper's training code
lacks (interleaved pipeline stages, ZeRO combined with tensor parallelism).

python examples/figure7.py [--json]
"""

from __future__ import annotations

import csv
import json
import os
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec

from refold.model import Link, Plan
from refold.planning.catalogue import find_engine, find_gpu, find_model
from refold.planning.perf import (
    CorrectedForm,
    Estimate,
    Fitted,
    Machines,
    Measurement,
    TrainingSetup,
    apply_corrections,
    choose_samples_adaptively,
    estimate,
    fit,
)
from refold.planning.plans import best_plan

MODEL, GPU, ENGINE = find_model("llama-2-7b-rubick"), find_gpu("A800-80GB"), find_engine("megatron-2023-fp32")
NVLINK, RDMA = Link("nvlink", 200.0), Link("rdma", 100.0)
BATCH, SAMPLES = 16, 7


class Resources(NamedTuple):
    """Resources of the job, and the paper's plan and measured step time on them."""

    title: str
    gpus_on_node: tuple[int, ...]
    cpus_per_gpu: int
    paper_plan: Plan
    paper_seconds: float


OFFLOADED = Plan(zero=2, offload=True, recompute="full")
CASES = (
    Resources("4 nodes × 8 GPUs", (8, 8, 8, 8), 2, Plan(data=4, tensor=4, pipeline=2, accumulation=4), 1.165),
    Resources("4 nodes × 4 GPUs", (4, 4, 4, 4), 2, Plan(tensor=4, pipeline=4, accumulation=16), 1.803),
    Resources("4 GPUs", (4,), 2, Plan(tensor=2, pipeline=2, accumulation=16), 5.107),
    Resources("1 GPU", (1,), 2, OFFLOADED, 66.0),
    Resources("1 GPU, twice the CPUs", (1,), 4, OFFLOADED, 46.0),
)


class Choice(msgspec.Struct, frozen=True):
    """The fastest plan that fits, and its step time."""

    plan: str
    offloads: bool
    seconds: float


class CaseResult(msgspec.Struct, frozen=True):
    """One case of the figure."""

    resources: str
    gpus: int
    modelled: Choice
    fitted: Choice | None
    paper_plan: str
    paper_measured_seconds: float
    paper_modelled_seconds: float
    paper_fitted_seconds: float | None


def make_setup(gpus_on_node: tuple[int, ...], cpus: float) -> TrainingSetup:
    """Return the job on these machines, in single precision as in the paper."""
    return TrainingSetup(MODEL, Machines(GPU, gpus_on_node, NVLINK, RDMA, cpus), ENGINE, BATCH, MODEL.sequence)


def evaluate_case(resources: Resources, fitted: Fitted | None) -> CaseResult:
    """Find the best plan on these resources."""
    gpus = sum(resources.gpus_on_node)
    setup = make_setup(resources.gpus_on_node, resources.cpus_per_gpu * gpus)
    fitted_setup = apply_corrections(setup, fitted.values) if fitted else None
    return CaseResult(
        resources.title,
        gpus,
        _choice(best_plan(setup)),
        _choice(best_plan(fitted_setup)) if fitted_setup else None,
        str(resources.paper_plan),
        resources.paper_seconds,
        estimate(setup, resources.paper_plan).step_seconds,
        estimate(fitted_setup, resources.paper_plan).step_seconds if fitted_setup else None,
    )


def _choice(best: Estimate | None) -> Choice:
    assert best is not None, "every case of the figure has a plan"
    return Choice(str(best.plan), best.plan.offload, best.step_seconds)


def fitted_model() -> Fitted | None:
    """Fit the model to seven measured steps of this job; None if there are no measurements."""
    measured = measurements()
    if not measured:
        return None
    form = CorrectedForm(lambda step: make_setup(step.gpus_on_node, step.cpus))
    return fit(form, [measured[index] for index in choose_samples_adaptively(form, measured, SAMPLES)], min_samples=1)


def measurements() -> list[Measurement]:
    """Read Rubick's measurements of this job: 3D parallelism with micro-batches of one sample, or offloading."""
    folder = Path(os.environ.get("REFOLD_DATA") or Path(__file__).parents[2] / "shared" / "data")
    file = folder / "rubick" / "measured_iter_times.csv"
    if not file.exists():
        return []
    with file.open(encoding="utf-8", newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row["table"] == "llama7b_bsz16" and row["iter_time_s"]]
    return [_measurement(row) for row in rows]


def _measurement(row: dict[str, str]) -> Measurement:
    gpus, data = int(row["gpus"]), int(row["dp"])
    plan = Plan(gpus, zero=2, offload=True, recompute="full")
    if row["tp"]:
        plan = Plan(data, int(float(row["tp"])), int(float(row["pp"])), accumulation=BATCH // data)
    cpus = float(row["cpu_threads"]) * gpus
    on_node, seconds = tuple(int(digit) for digit in row["placement"]), float(row["iter_time_s"])
    return Measurement(MODEL.name, GPU.name, on_node, plan, BATCH, MODEL.sequence, cpus, seconds)


def as_text(results: list[CaseResult]) -> str:
    """Format the results as text."""
    text = [f"Llama-2-7B, batch {BATCH}, on A800-80GB: step time with the best plan", ""]
    for result in results:
        text.append(result.resources)
        text.append(f"  modelled   {result.modelled.seconds:7.2f} s   {result.modelled.plan}")
        if result.fitted:
            text.append(f"  fitted     {result.fitted.seconds:7.2f} s   {result.fitted.plan}")
        text.append(
            f"  the paper  {result.paper_measured_seconds:7.2f} s   {result.paper_plan}{_format_estimates(result)}"
        )
    text += ["", _format_cpu_speedup(*results[-2:])]
    return "\n".join(text)


def _format_cpu_speedup(fewer: CaseResult, more: CaseResult) -> str:
    """Format the speedup from twice the CPUs."""
    fitted = ""
    if fewer.fitted and more.fitted:
        fitted = f", {fewer.fitted.seconds / more.fitted.seconds:.2f} × fitted"
    modelled = fewer.modelled.seconds / more.modelled.seconds
    measured = fewer.paper_measured_seconds / more.paper_measured_seconds
    return (
        f"Speedup from twice the CPUs on one GPU: {modelled:.2f} × modelled{fitted}, "
        f"{measured:.2f} × measured (the paper's text says 1.7 ×)."
    )


def _format_estimates(result: CaseResult) -> str:
    """Format our estimates for the paper's plan."""
    fitted = f", fitted {result.paper_fitted_seconds:.2f} s" if result.paper_fitted_seconds else ""
    return f"   (modelled {result.paper_modelled_seconds:.2f} s{fitted})"


def main() -> None:
    """Print the best plan of every case."""
    fitted = fitted_model()
    results = [evaluate_case(resources, fitted) for resources in CASES]
    if "--json" in sys.argv[1:]:
        print(json.dumps(msgspec.to_builtins(results), indent=2))
    else:
        print(as_text(results))


if __name__ == "__main__":
    main()
