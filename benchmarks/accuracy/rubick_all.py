"""All measured steps of Rubick, predicted from seven per model: `python -m benchmarks.accuracy.rubick_all [--write]`.

Rubick's table has many placements, some with a single GPU of a node. Their effect on step times is specific to that
testbed (two GPUs share a network card; plain data parallelism stalls if a node contributes an odd number of GPUs), so
the form that is fitted here is specific to the testbed, too, and not part of Refold. Samples are chosen adaptively: one
is measured and the form fitted before the next is chosen (`perf.choose_samples_adaptively`); all others are predicted.
Nine of the 535 timed rows are excluded, as documented in benchmarks/accuracy/tables.py: six of a T5-3B whose shape and
plan are not stated, and three of RoBERTa on one GPU that are not slower than on two.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from math import ceil
from pathlib import Path

import numpy as np

from benchmarks.accuracy.cases import with_step_time
from benchmarks.accuracy.device import read_cases
from benchmarks.accuracy.reports import as_measurement, run_report
from benchmarks.table import Row, as_markdown, at_most, markdown
from refold.planning.perf import (
    Measurement,
    ModelShape,
    Parameter,
    PhaseTimes,
    Vector,
    choose_samples_adaptively,
    fit,
    relative_errors,
)

HERE = Path(__file__).parent
SAMPLES = 7
RATE = 125e12
"""Approximate FLOP/s of an A800 in TF32, to which the parameter `work` is relative."""


class TestbedForm:
    """Step times on nodes with eight A800. Units are seconds, GB/s and billions of weights."""

    name = "testbed"
    parameters: tuple[Parameter, ...] = (
        Parameter("work", "compute time relative to 6 FLOPs per weight and token at the nominal rate", 1.4, 0.4),
        Parameter("start", "fixed seconds per micro-batch", 0.03, 0.5),
        Parameter("update", "seconds to update a billion weights on a GPU", 0.07, 0.3),
        Parameter("offload", "relative time to offload a billion weights", 1.0, 0.35),
        Parameter("activations", "tensor-parallel communication relative to compute", 0.05, 1.0),
        Parameter("stall", "seconds lost if a node contributes an odd number of GPUs", 0.01, 1.5),
        Parameter("megatron", "compute time with tensor or pipeline parallelism relative to without", 1.0, 0.7),
        Parameter("overlap", "overlap of gradient communication with the backward pass", 0.15, 0.8),
        Parameter("stages", "pipeline communication relative to compute", 0.05, 1.0),
        Parameter("link", "GB/s between GPUs of a node", 150.0, 0.2),
        Parameter("card", "GB/s of a network card", 20.0, 0.15),
        Parameter("latency", "seconds that each node adds to a collective", 0.002, 1.0),
        Parameter("backward", "backward time / forward time", 2.0, 0.1),
        Parameter("overlap_shards", "overlap of communication under ZeRO", 0.15, 0.8),
        Parameter("offload_per_micro_batch", "share of offload time per micro-batch", 0.2, 0.5),
        Parameter("offload_per_step", "share of offload time per step", 0.2, 0.5),
        Parameter("cpu", "seconds to update a billion weights with one CPU thread", 3.0, 0.4),
        Parameter("gather", "share of the gather time that offload does not hide", 0.8, 0.2),
    )

    def __init__(self, shape: ModelShape) -> None:
        self._weights = shape.parameters / 1e9
        self._shape = shape

    def predict(self, values: Vector, samples: Sequence[Measurement]) -> PhaseTimes:
        """Predict step times: compute, stalls, gradient communication and its overlap, optimizer, offload."""
        q = dict(zip((one.name for one in self.parameters), values.tolist(), strict=True))
        a = {
            name: np.array(column)
            for name, column in zip(_COLUMNS, zip(*map(_columns, samples), strict=True), strict=True)
        }
        slices = a["tensor"] * a["pipeline"]
        sliced, shards, offload = slices > 1, a["zero"] > 0, a["offload"] > 0
        replica_batch = a["batch"] / a["data"]
        rounds = (a["micro"] + a["pipeline"] - 1) / a["micro"]
        nominal = 6 * self._weights * 1e9 * a["sequence"] / RATE
        work = q["work"] * nominal * np.where(sliced, q["megatron"], 1.0) * replica_batch
        compute = work / slices * rounds + q["start"] * (a["micro"] + a["pipeline"] - 1) / a["pipeline"]
        crossing = np.where(a["tensor_crosses"] > 0, 0.5 * q["link"] / q["card"], 1.0)
        tensor = q["activations"] * work / a["pipeline"] * rounds * 2 * (1 - 1 / a["tensor"]) * crossing
        stages = q["stages"] * 0.2 * work * (a["pipeline"] - 1) * a["stages_cross"]
        share = 1 / (1 + q["backward"])
        forward = share * (compute + tensor + stages)
        backward = (1 - share) * (compute + tensor + stages) + a["recompute"] * share * (
            work / slices * rounds + tensor
        )
        moved = 8 * self._weights / slices * (1 - 1 / a["data"])
        across_nodes = a["load"] > 0
        sync = moved * np.where(across_nodes, a["load"] / q["card"], 1 / q["link"])
        latency = across_nodes * q["latency"] * a["nodes"]
        whole = sliced | ~(shards | offload)
        exponent = np.where(sliced, 1.0, 1 + np.where(whole, q["overlap"], q["overlap_shards"]))
        exchange = _power_mean(backward, sync * np.where(whole, 1.0, 0.5) + latency + 1e-9, exponent)
        gather = np.where(whole, 0.0, (sync * 0.5 + latency) * np.where(offload, q["gather"], 1.0))
        update = np.where(offload, 0.0, q["update"] * self._weights / slices / np.where(shards, a["data"], 1.0))
        base = offload * self._weights * q["offload"]
        cpu_update = q["cpu"] / a["data"] / a["threads"]
        host = base * q["offload_per_micro_batch"] * a["micro"] + base * (cpu_update + q["offload_per_step"])
        stall = q["stall"] * a["odd"] * ~offload * ~sliced * np.sqrt(a["max_gpus"] * a["data"])
        return PhaseTimes(np.asarray(forward + stall + exchange + update + gather + host))


_COLUMNS = (
    "batch",
    "sequence",
    "data",
    "tensor",
    "pipeline",
    "micro",
    "zero",
    "offload",
    "recompute",
    "threads",
    "nodes",
    "max_gpus",
    "odd",
    "load",
    "stages_cross",
    "tensor_crosses",
)


@cache
def _columns(one: Measurement) -> tuple[float, ...]:
    plan, nodes = one.plan, one.gpus_on_node
    load, stages_cross, tensor_crosses = _crossings(one)
    threads = one.cpus / plan.gpus if one.cpus else (4.0 if plan.offload else 1.0)
    return (
        float(one.batch),
        float(one.sequence),
        float(plan.data),
        float(plan.tensor),
        float(plan.pipeline),
        float(plan.accumulation),
        float(plan.zero > 0 and not plan.offload),
        float(plan.offload),
        float(plan.recompute == "full"),
        threads,
        float(len(nodes)),
        float(max(nodes)),
        float(len(nodes) > 1 and any(count % 2 for count in nodes)),
        load,
        float(stages_cross),
        float(tensor_crosses),
    )


def _crossings(one: Measurement) -> tuple[float, bool, bool]:
    """Return replica groups per network card on the busiest node, and whether stages and tensor groups cross nodes."""
    plan = one.plan
    node_of = [node for node, count in enumerate(one.gpus_on_node) for _ in range(count)]
    groups: dict[int, int] = defaultdict(int)
    for stage in range(plan.pipeline):
        for slice_ in range(plan.tensor):
            first = stage * plan.tensor * plan.data + slice_
            nodes = {node_of[first + replica * plan.tensor] for replica in range(plan.data)}
            for node in nodes if len(nodes) > 1 else ():
                groups[node] += 1
    load = max((count / ceil(one.gpus_on_node[node] / 2) for node, count in groups.items()), default=0.0)
    size = plan.tensor * plan.data
    stages_cross = any(node_of[stage * size] != node_of[(stage + 1) * size] for stage in range(plan.pipeline - 1))
    starts = range(0, plan.gpus, plan.tensor)
    return load, stages_cross, any(len(set(node_of[start : start + plan.tensor])) > 1 for start in starts)


def _power_mean(one: Vector, other: Vector, exponent: Vector) -> Vector:
    more, less = np.maximum(one, other), np.minimum(one, other)
    return np.asarray(more * (1 + (less / more) ** exponent) ** (1 / exponent))


def report() -> str:
    """Return Markdown tables of errors by model and placement, and the goal."""
    kinds: dict[str, list[Measurement]] = defaultdict(list)
    shapes: dict[str, ModelShape] = {}
    for case in with_step_time(read_cases("rubick_measured")):
        one = as_measurement(case, f"{case.model.name}, batch {case.batch}")
        kinds[one.model].append(one)
        shapes[one.model] = case.model
    rows, all_errors, unseen = [], [], []
    for name, steps in kinds.items():
        form = TestbedForm(shapes[name])
        chosen = choose_samples_adaptively(form, steps, SAMPLES)
        found = fit(form, [steps[index] for index in chosen], min_samples=1)
        errors = 100 * np.abs(relative_errors(form, found, steps))
        others = np.delete(errors, chosen)
        single = [index for index, one in enumerate(steps) if len(one.gpus_on_node) == 1]
        all_errors += errors.tolist()
        unseen += others.tolist()
        one_node = f"{errors[single].mean():.1f} %" if single else ""
        more = np.delete(errors, single)
        sliced = [index for index, one in enumerate(steps) if one.plan.gpus > one.plan.data]
        rows.append(
            (
                name,
                f"{len(steps)}",
                f"{errors.mean():.1f} %",
                f"{others.mean():.1f} %" if len(others) else "",
                one_node,
                f"{more.mean():.1f} %" if len(more) else "",
                f"{errors[sliced].mean():.1f} %" if sliced else "",
                f"{np.median(errors):.1f} %",
            )
        )
    titles = ("model", "steps", "mean error", "held out", "on one node", "on several", "3-D plans", "median")
    goal = at_most("mean error over all steps", float(np.mean(all_errors)), 5, f"{np.mean(all_errors):.1f} %", "%")
    rest = Row("mean error over held-out steps", f"{np.mean(unseen):.1f} %")
    number = Row("steps", f"{len(all_errors)}")
    return markdown(titles, rows) + "\n\n" + as_markdown([goal, rest, number])


def main() -> None:
    """Print the tables; write them with --write."""
    run_report(report, "rubick_all", __doc__)


if __name__ == "__main__":
    main()
