"""Derivation of an estimate: every formula with its numbers, to be checked by hand.

A line has a name, a formula over previous names, and a description. Values are computed from the printed formulas, and
a test compares them with the estimate.
"""

from __future__ import annotations

import re
from math import ceil, gcd, log2

import msgspec
import numpy as np

from refold.model import Plan
from refold.perf import communication, compute, memory_model
from refold.perf.estimation import DEFAULT_CPUS_PER_GPU, HOST_SECONDS_PER_PARAMETER
from refold.perf.training_setup import TrainingSetup

_FUNCTIONS = {"max": max, "min": min, "ceil": ceil, "log2": log2}
_NAME = re.compile(r"[a-z_][a-z_0-9]*")


class FormulaLine(msgspec.Struct, frozen=True):
    """`name` = `formula` = `numbers` = `value`, and its meaning. Inputs have no formula."""

    name: str
    formula: str
    numbers: str
    value: float
    unit: str
    meaning: str


class Section(msgspec.Struct, frozen=True):
    """A group of lines with a title."""

    title: str
    lines: tuple[FormulaLine, ...]


class _Lines:
    """The lines added so far, and the value of every name in them."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.sections: list[tuple[str, list[FormulaLine]]] = []

    def section(self, title: str) -> None:
        self.sections.append((title, []))

    def given(self, meaning: str = "", unit: str = "", **values: float) -> None:
        """Add inputs: named numbers without a formula."""
        for name, value in values.items():
            self.values[name] = float(value)
            self.sections[-1][1].append(FormulaLine(name, "", "", float(value), unit, meaning))

    def formula(self, name: str, formula: str, unit: str, meaning: str) -> None:
        """Add a number computed by a formula over the previous ones."""
        value = float(eval(formula, {"__builtins__": {}}, {**self.values, **_FUNCTIONS}))
        self.values[name] = value
        self.sections[-1][1].append(FormulaLine(name, formula, self._substitute(formula), value, unit, meaning))

    def _substitute(self, formula: str) -> str:
        def number(word: re.Match[str]) -> str:
            return f"{self.values[word[0]]:.6g}" if word[0] in self.values else word[0]

        return _NAME.sub(number, formula)


def explain(setup: TrainingSetup, plan: Plan) -> tuple[Section, ...]:
    """Return all formulas of the estimate of a plan, from the model's shapes to step time and memory."""
    lines = _Lines()
    _add_inputs(lines, setup, plan)
    _add_layer(lines, setup, plan)
    _add_communication(lines, setup, plan)
    _add_step(lines, setup, plan)
    _add_memory(lines, setup, plan)
    return tuple(Section(title, tuple(added)) for title, added in lines.sections)


def _add_inputs(lines: _Lines, setup: TrainingSetup, plan: Plan) -> None:
    model, machines = setup.model, setup.machines
    efficiency = machines.gpu.efficiency
    lines.section("Inputs")
    lines.given("global batch", "samples", batch=setup.batch)
    lines.given("tokens per sample", "tokens", sequence=setup.tokens_per_sample)
    lines.given("data-parallel replicas", data=plan.data)
    lines.given("tensor-parallel GPUs", tensor=plan.tensor)
    lines.given("pipeline stages", stages=plan.pipeline)
    lines.given("micro-batches per step", micro_batches=plan.accumulation)
    lines.given("chunks per stage", chunks=plan.interleave)
    lines.given("layers", layers=model.blocks)
    lines.given("hidden width", hidden_width=model.hidden)
    lines.given("bytes per activation", value_bytes=setup.engine.value_bytes)
    lines.given("peak of a GPU", "FLOP/s", peak=compute.peak_rate(setup))
    lines.given("share of the peak for large matrix products", matmul_share=efficiency.matmul)
    lines.given("effective bandwidth of GPU memory", "B/s", memory_rate=compute.memory_rate(setup))
    lines.given("effective bandwidth between GPUs of a node", "B/s", link_rate=communication.link_rate(machines))
    lines.given("effective bandwidth between nodes", "B/s", node_rate=communication.node_rate(machines))


def _add_layer(lines: _Lines, setup: TrainingSetup, plan: Plan) -> None:
    model, engine, efficiency = setup.model, setup.engine, setup.machines.gpu.efficiency
    lines.section("One layer, one micro-batch")
    lines.formula("tokens", "batch * sequence / (data * micro_batches)", "tokens", "tokens per micro-batch")
    lines.given("rows of 1,024 columns where matrix products reach half", half_tokens=efficiency.half_tokens)
    if model.opaque:
        shares = f"matmul_share * {compute.OPAQUE_EFFICIENCY} * tokens / (tokens + {compute.OPAQUE_HALF_SAMPLES})"
        lines.formula("efficiency", shares, "", "share of the peak for an opaque model")
    else:
        lines.given("width of the narrower matrix", min_width=min(model.hidden, model.ffn_width))
        lines.given("columns where matrix products reach half", half_width=efficiency.half_width)
        lines.formula("width", "min_width / tensor", "", "width of a tensor-parallel shard")
        lines.formula(
            "efficiency",
            "matmul_share * tokens / (tokens + half_tokens * 1024 / width) * width / (width + half_width)",
            "",
            "share of the peak for these matrix products",
        )
    lines.given("matrix products, forward", "FLOP/token", matmul_flops=compute.matmul_flops_per_token(setup))
    lines.formula("matmul", "tokens * matmul_flops / tensor / (peak * efficiency)", "s", "matrix products")
    lines.given("attention, forward", "FLOP/token", attention_flops=compute.attention_flops_per_token(setup))
    lines.given("peak for this head size", "FLOP/s", attention_peak=compute.attention_peak(setup))
    lines.given("share of that peak inside attention", attention_share=efficiency.attention)
    lines.formula(
        "attention", "tokens * attention_flops / tensor / (attention_peak * attention_share)", "s", "inside attention"
    )
    split = plan.tensor if plan.sequence_parallel else 1
    outside = 0.0 if model.opaque else engine.passes_hidden * model.hidden / split
    inside = 0.0 if model.opaque else engine.passes_inner * compute.inner_width(setup) / plan.tensor
    lines.given("elements read or written between matrix products", "per token", elements=outside + inside)
    lines.formula(
        "elementwise", "tokens * value_bytes * elements / memory_rate", "s", "norms, residuals, activation functions"
    )
    scores = 0.0 if model.opaque or engine.fused_attention else model.heads * setup.sequence / plan.tensor
    lines.given("attention scores written to memory", "per token", scores=scores * model.attentions / model.blocks)
    lines.given("memory passes over the scores", score_passes=compute.SCORE_PASSES)
    lines.formula(
        "score_time", "tokens * value_bytes * score_passes * scores / memory_rate", "s", "memory time of the scores"
    )
    lines.given("correction of the compute time", compute_factor=engine.compute_factor)
    lines.formula("forward", "compute_factor * (matmul + attention + score_time + elementwise)", "s", "forward pass")
    backward_factor = compute.BACKWARD_ATTENTION if engine.fused_attention else compute.BACKWARD_MATMUL
    lines.given("backward / forward cost of attention", attention_back=backward_factor)
    lines.formula(
        "backward",
        "compute_factor * (2 * matmul + attention_back * attention + 2 * (score_time + elementwise))",
        "s",
        "backward pass",
    )
    share = engine.selective_recompute_share
    selected = f"compute_factor * (attention + score_time + {share} * (matmul + elementwise))"
    recompute_formula = {"none": "0", "selective": selected, "full": "forward"}[plan.recompute]
    lines.formula("recompute_time", recompute_formula, "s", f"activation recomputation: {plan.recompute}")


def _add_communication(lines: _Lines, setup: TrainingSetup, plan: Plan) -> None:
    model, engine, machines = setup.model, setup.engine, setup.machines
    lines.section("Communication")
    lines.given("GPUs per node", per_node=machines.gpus / machines.nodes)
    _add_group(lines, setup, "tensor", plan.tensor, 1)
    lines.given("collectives per layer", collectives=_collectives_per_layer(setup, plan))
    if model.opaque:
        lines.formula("tensor_comm", "0", "s", "an opaque model has no tensor parallelism")
    else:
        lines.formula("tensor_bytes", "tokens * hidden_width * value_bytes", "B", "bytes per collective")
        passes = _collective_formula("tensor", across=f" * {engine.tensor_inter_node_traffic}")
        exposed = f"2 * (1 - {engine.overlap_tensor})"
        lines.formula("tensor_comm", f"{exposed} * collectives * {passes}", "s", "tensor parallelism, per layer")
    stages, stride = np.full(1, float(plan.pipeline)), np.full(1, float(plan.data * plan.tensor))
    spans_nodes = communication.group_layout(machines, stages, stride).nodes[0] > 1
    rate = "(node_rate / smallest_node)" if spans_nodes else "link_rate"
    lines.given("GPUs of the smallest node", smallest_node=min(machines.gpus_on_node))
    if plan.pipeline == 1:
        lines.formula("stage_transfer", "0", "s", "no pipeline")
    else:
        lines.formula(
            "stage_transfer",
            f"2 * chunks * tokens * hidden_width * value_bytes / tensor / {rate}",
            "s",
            "transfers between stages, forward and backward",
        )
    has_stage_wait = machines.gpus >= engine.stage_wait_from_gpus
    lines.given("waiting time per neighbouring stage", "s", stage_wait=engine.stage_wait if has_stage_wait else 0.0)
    lines.formula(
        "stage_comm", "stage_transfer + min(2, stages - 1) * stage_wait", "s", "between stages, per micro-batch"
    )


def _collectives_per_layer(setup: TrainingSetup, plan: Plan) -> float:
    per_layer = communication.TENSOR_COLLECTIVES * setup.model.attentions / setup.model.blocks
    return per_layer * (1.5 if plan.recompute == "full" else 1.0)


def _add_group(lines: _Lines, setup: TrainingSetup, kind: str, members: int, stride: int) -> None:
    """Add the layout of a group: members per node, nodes, groups that share a node's network, and latency."""
    machines = setup.machines
    inside = gcd(*machines.gpus_on_node) % (members * stride) == 0
    lines.values[f"{kind}_members"] = float(members)
    if inside:
        lines.formula(f"{kind}_on_node", f"{members}", "", f"members of a {kind}-parallel group on a node: all")
    else:
        lines.formula(
            f"{kind}_on_node",
            f"min(max(per_node / {stride}, 1), {members})",
            "",
            f"members of a {kind}-parallel group on a node",
        )
    lines.formula(f"{kind}_nodes", f"max(1, {members} / {kind}_on_node)", "", "nodes of a group")
    lines.formula(f"{kind}_sharing", f"min({stride}, per_node)", "", "groups that share the network of a node")
    latency = machines.inside.latency_microseconds * log2(lines.values[f"{kind}_on_node"])
    latency += machines.network.latency_microseconds * log2(lines.values[f"{kind}_nodes"])
    lines.given("latency of one collective", "s", **{f"{kind}_latency": latency * 1e-6})


def _collective_formula(kind: str, payload: str = "", across: str = "") -> str:
    payload = payload or f"{kind}_bytes"
    return (
        f"(max({payload} * (1 - 1 / {kind}_on_node) / link_rate, "
        f"{payload} * (1 - 1 / {kind}_nodes) * {kind}_sharing{across} / node_rate) + {kind}_latency)"
    )


def _add_step(lines: _Lines, setup: TrainingSetup, plan: Plan) -> None:
    model, engine, machines = setup.model, setup.engine, setup.machines
    lines.section("Step")
    lines.formula("stage_layers", "layers / stages", "", "layers per stage")
    if model.predicts_tokens:
        lines.given("vocabulary", vocabulary=model.vocabulary)
        lines.given("peak for this vocabulary size", "FLOP/s", head_peak=compute.head_peak(setup))
        lines.formula(
            "head",
            "compute_factor * (3 * 2 * tokens * vocabulary * hidden_width / tensor / (head_peak * matmul_share)"
            f" + tokens * vocabulary / tensor * {compute.LOGIT_BYTES} / memory_rate)",
            "s",
            "output layer and loss, per micro-batch",
        )
    else:
        lines.formula("head", "0", "s", "no output layer over tokens")
    slowest = (
        "max(stage_layers * (forward + backward) + head / stages, ceil(stage_layers) * (forward + backward), head)"
    )
    lines.formula("stage_compute", slowest, "s", "compute of the slowest stage, per micro-batch")
    lines.formula("stage_recompute", "stage_layers * recompute_time", "s", "recomputation, per micro-batch")
    lines.formula("stage_tensor", "stage_layers * tensor_comm", "s", "tensor parallelism, per micro-batch")
    remote_ranks = max(0.0, plan.tensor - machines.gpus / machines.nodes)
    has_pipeline = plan.pipeline > 1 and plan.tensor > 1 and machines.nodes > 1
    factor = {"none": 1.0, "selective": engine.launch_factor_selective, "full": engine.launch_factor_full}[
        plan.recompute
    ]
    launch = engine.launch_seconds * factor * (1 + model.attentions / model.blocks) / 2
    launch += (
        engine.tensor_wait_across_nodes * remote_ranks + engine.tensor_wait_in_pipeline * plan.tensor * has_pipeline
    )
    lines.given("host time to launch the kernels of a layer", "s", launch_seconds=launch)
    lines.formula(
        "stage_launch",
        "max(0, stage_layers * launch_seconds - stage_compute - stage_recompute - stage_tensor)",
        "s",
        "GPU waits for kernel launches, per micro-batch",
    )
    lines.formula(
        "micro_batch_time",
        "stage_compute + stage_recompute + stage_tensor + stage_launch + stage_comm",
        "s",
        "one micro-batch",
    )
    for part, term in (
        ("compute", "stage_compute"),
        ("recompute", "stage_recompute"),
        ("launch", "stage_launch"),
        ("tensor_time", "stage_tensor"),
        ("pipeline_time", "stage_comm"),
    ):
        lines.formula(part, f"micro_batches * {term}", "s", "per step")
    lines.formula("bubble", "(stages - 1) / chunks * micro_batch_time", "s", "pipeline bubble: filling and draining")
    _add_data_parallel(lines, setup, plan)
    _add_optimizer(lines, setup, plan)
    lines.formula(
        "step",
        "compute + recompute + launch + tensor_time + pipeline_time + bubble + data_time + optimizer + offload",
        "s",
        "total step time",
    )


def _add_data_parallel(lines: _Lines, setup: TrainingSetup, plan: Plan) -> None:
    engine = setup.engine
    parameters = memory_model.stage_parameters_of(setup, plan, is_last=False)
    lines.given("weights of the first stage on one GPU", parameters=parameters)
    if plan.data == 1:
        lines.formula("data_time", "0", "s", "one replica: no communication")
        return
    _add_group(lines, setup, "data", plan.data, plan.tensor)
    lines.formula("gradient_bytes", f"{engine.gradient_traffic_bytes} * parameters", "B", "gradients to exchange")
    lines.formula("weight_bytes", f"{engine.weight_bytes} * parameters", "B", "weights to gather with ZeRO")
    lines.formula("reduce_scatter", _collective_formula("data", "gradient_bytes"), "s", "one reduce-scatter")
    lines.formula("all_gather", _collective_formula("data", "weight_bytes"), "s", "one all-gather")
    full_exchange = plan.zero <= (0 if engine.scatters_gradients else 1)
    exchange = "2 * reduce_scatter" if full_exchange else "reduce_scatter"
    lines.formula("grad_exchange", exchange, "s", f"gradient exchange with ZeRO-{plan.zero}")
    per_micro_batch = plan.zero >= 2 or engine.reduces_each_micro_batch
    messages = f"{engine.message_seconds} * data * stage_layers"
    overlap = engine.overlap_gradients if plan.zero == 0 else engine.overlap_shards
    lines.given("share of a pass that overlaps with communication", overlap=overlap)
    lines.formula("grad_per_step", "grad_exchange" if not per_micro_batch else "0", "s", "gradients, per step")
    lines.formula(
        "grad_exposed",
        f"max(0, grad_per_step + {messages} - overlap * stage_layers * (backward + recompute_time))",
        "s",
        "exposed",
    )
    lines.formula("weights_per_step", "all_gather" if plan.zero in (1, 2) else "0", "s", "updated weights, per step")
    lines.formula("weights_exposed", "max(0, weights_per_step - overlap * stage_layers * forward)", "s", "exposed")
    lines.formula("weights_per_pass", "all_gather" if plan.zero == 3 else "0", "s", "weights, per pass")
    lines.formula("grad_per_batch", "grad_exchange" if per_micro_batch else "0", "s", "gradients, per micro-batch")
    lines.formula(
        "exposed_per_batch",
        "max(0, grad_per_batch + weights_per_pass - overlap * stage_layers * (backward + recompute_time))"
        " + max(0, weights_per_pass - overlap * stage_layers * forward)",
        "s",
        "exposed, per micro-batch",
    )
    lines.formula(
        "data_time",
        "grad_exposed + weights_exposed + micro_batches * exposed_per_batch",
        "s",
        "exposed data-parallel communication",
    )


def _add_optimizer(lines: _Lines, setup: TrainingSetup, plan: Plan) -> None:
    engine, machines = setup.engine, setup.machines
    lines.formula("updated", "parameters / data" if plan.zero else "parameters", "", "weights updated by this GPU")
    fixed = engine.step_seconds
    if plan.offload:
        pcie = machines.gpu.pcie_gigabytes_per_second * 1e9 * machines.gpu.efficiency.pcie
        threads = machines.cpus / machines.gpus if machines.cpus else DEFAULT_CPUS_PER_GPU
        lines.given("effective bandwidth to the host", "B/s", pcie_rate=pcie)
        lines.given("CPU threads per GPU", threads=threads)
        lines.given("GPUs that share a host", sharing_host=max(machines.gpus_on_node))
        per_parameter = (
            f"max({engine.cpu_seconds_per_parameter} / threads, {HOST_SECONDS_PER_PARAMETER} * sharing_host)"
        )
        lines.formula("optimizer", f"updated * {per_parameter} + {fixed}", "s", "update on the host")
        lines.formula(
            "offload", f"2 * {engine.weight_bytes} * updated / pcie_rate", "s", "gradients to the host, weights back"
        )
        return
    traffic = engine.update_passes * (2 * engine.optimizer_bytes + engine.gradient_bytes + engine.weight_bytes)
    lines.formula(
        "optimizer", f"updated * {traffic} / memory_rate + {fixed}", "s", "Adam: read and write optimizer state"
    )
    lines.formula("offload", "0", "s", "no offload")


def _add_memory(lines: _Lines, setup: TrainingSetup, plan: Plan) -> None:
    """Add the memory footprint of the fullest stage by component."""
    needs = memory_model.plan_memory_footprint(setup, plan)
    lines.section("Memory of the fullest GPU")
    for part, gib in needs.items():
        if part != "host":
            lines.given(memory_model.MEMORY_PART_MEANINGS[part], "GiB", **{f"{part}_gib": gib})
    total = " + ".join(f"{part}_gib" for part in needs if part != "host")
    lines.formula("memory", total, "GiB", "total")
    lines.given("memory of the GPU", "GiB", gpu_gib=setup.machines.gpu.memory_gib)
    lines.formula(
        "spare", f"gpu_gib * {memory_model.USABLE_MEMORY_SHARE} - memory", "GiB", "headroom; negative: missing memory"
    )
    lines.given("total of all hosts", "GiB", host_gib=needs["host"])
