"""One job on less and less: which plan keeps Llama-2-7B training. Figure 7 of Rubick (MLSys'25), decided anew.

Llama-2-7B with a batch of 16 on four nodes of eight A800-80GB, then on half of each, on four GPUs, on one, and on one
with twice the CPUs. The best plan changes each time: on many GPUs the layers are sliced and staged, on one GPU the job
only runs if its optimizer is offloaded to the host, and then it gains by CPUs. A scheduler that keeps the plan of the
beginning has to stop the job instead.

Printed for each: the fastest plan of all that fit, by the performance model alone, and beside it the plan and the
measured seconds of the paper. Where Rubick's measured steps are at hand (`$REFOLD_DATA`, or `../shared/data` beside the
repository), the model is also fitted to seven of them, and chooses again. The search knows some ways to compute that
the paper's training code does not have (several chunks of layers on each stage, sharding beside slicing).

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

from refold.catalogue import find_engine, find_gpu, find_model
from refold.model import Link, Plan
from refold.perf import (
    CorrectedForm,
    Estimate,
    Fitted,
    Machines,
    Measurement,
    Setting,
    corrected,
    estimate,
    fit,
    samples_in_turn,
)
from refold.plans import best_plan

MODEL, GPU, ENGINE = find_model("llama-2-7b-rubick"), find_gpu("A800-80GB"), find_engine("megatron-2023-fp32")
NVLINK, RDMA = Link("nvlink", 200.0), Link("rdma", 100.0)
BATCH, SAMPLES = 16, 7


class Resources(NamedTuple):
    """What the job has, and what the paper does with it: its plan, and the seconds of a step as measured."""

    title: str
    gpus_on_node: tuple[int, ...]
    cpus_per_gpu: int
    paper_plan: Plan
    paper_seconds: float


OFFLOADED = Plan(zero=2, offload=True, recompute="full")
SHRINKING = (
    Resources("4 nodes × 8 GPUs", (8, 8, 8, 8), 2, Plan(data=4, tensor=4, pipeline=2, accumulation=4), 1.165),
    Resources("4 nodes × 4 GPUs", (4, 4, 4, 4), 2, Plan(tensor=4, pipeline=4, accumulation=16), 1.803),
    Resources("4 GPUs", (4,), 2, Plan(tensor=2, pipeline=2, accumulation=16), 5.107),
    Resources("1 GPU", (1,), 2, OFFLOADED, 66.0),
    Resources("1 GPU, twice the CPUs", (1,), 4, OFFLOADED, 46.0),
)


class Choice(msgspec.Struct, frozen=True):
    """The fastest plan that fits, and the seconds of a step with it."""

    plan: str
    offloads: bool
    seconds: float


class Line(msgspec.Struct, frozen=True):
    """One line of the figure."""

    resources: str
    gpus: int
    modelled: Choice
    fitted: Choice | None
    paper_plan: str
    paper_measured_seconds: float
    paper_modelled_seconds: float
    paper_fitted_seconds: float | None


def setting_on(gpus_on_node: tuple[int, ...], cpus: float) -> Setting:
    """The job on these machines, in the single precision of the paper."""
    return Setting(MODEL, Machines(GPU, gpus_on_node, NVLINK, RDMA, cpus), ENGINE, BATCH, MODEL.sequence)


def line(resources: Resources, fitted: Fitted | None) -> Line:
    """What is best on these resources."""
    gpus = sum(resources.gpus_on_node)
    setting = setting_on(resources.gpus_on_node, resources.cpus_per_gpu * gpus)
    after_fit = corrected(setting, fitted.values) if fitted else None
    return Line(
        resources.title,
        gpus,
        _choice(best_plan(setting)),
        _choice(best_plan(after_fit)) if after_fit else None,
        str(resources.paper_plan),
        resources.paper_seconds,
        estimate(setting, resources.paper_plan).step_seconds,
        estimate(after_fit, resources.paper_plan).step_seconds if after_fit else None,
    )


def _choice(best: Estimate | None) -> Choice:
    assert best is not None, "there is a plan for every line of the figure"
    return Choice(str(best.plan), best.plan.offload, best.step_seconds)


def fitted_model() -> Fitted | None:
    """The model corrected by seven of the measured steps of this job; None if they are not at hand."""
    measured = measurements()
    if not measured:
        return None
    form = CorrectedForm(lambda one: setting_on(one.gpus_on_node, one.cpus))
    return fit(form, [measured[index] for index in samples_in_turn(form, measured, SAMPLES)], least=1)


def measurements() -> list[Measurement]:
    """Rubick's steps of this job: three degrees with micro-batches of one sample, or offloading with recomputation."""
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


def as_text(lines: list[Line]) -> str:
    """A page to read."""
    told = [f"Llama-2-7B, batch {BATCH}, on A800-80GB: seconds of a step with the best plan", ""]
    for one in lines:
        told.append(one.resources)
        told.append(f"  modelled   {one.modelled.seconds:7.2f} s   {one.modelled.plan}")
        if one.fitted:
            told.append(f"  fitted     {one.fitted.seconds:7.2f} s   {one.fitted.plan}")
        told.append(f"  the paper  {one.paper_measured_seconds:7.2f} s   {one.paper_plan}{_by_us(one)}")
    told += ["", _by_cpus(*lines[-2:])]
    return "\n".join(told)


def _by_cpus(fewer: Line, more: Line) -> str:
    """What twice the CPUs are worth."""
    fitted = ""
    if fewer.fitted and more.fitted:
        fitted = f", {fewer.fitted.seconds / more.fitted.seconds:.2f} times fitted"
    modelled = fewer.modelled.seconds / more.modelled.seconds
    measured = fewer.paper_measured_seconds / more.paper_measured_seconds
    return (
        f"Twice the CPUs make one GPU {modelled:.2f} times as fast by the model{fitted}; "
        f"measured {measured:.2f} times (the paper's text says 1.7)."
    )


def _by_us(one: Line) -> str:
    """What our model makes of the paper's plan."""
    fitted = f", fitted {one.paper_fitted_seconds:.2f} s" if one.paper_fitted_seconds else ""
    return f"   (modelled {one.paper_modelled_seconds:.2f} s{fitted})"


def main() -> None:
    """Print what is chosen."""
    fitted = fitted_model()
    lines = [line(resources, fitted) for resources in SHRINKING]
    if "--json" in sys.argv[1:]:
        print(json.dumps(msgspec.to_builtins(lines), indent=2))
    else:
        print(as_text(lines))


if __name__ == "__main__":
    main()
