"""Every formula of an estimate with its numbers, for people who want to check it by hand.

A line is a name, a formula in those names and a sentence. What is printed is what is computed here, and a test
holds it against the estimate: the two cannot drift apart.
"""

from __future__ import annotations

import re
from math import ceil, gcd, log2

import msgspec

from refold.model import Plan
from refold.perf import communication, compute, memory_model
from refold.perf.estimation import HOST_SECONDS_PER_PARAMETER, USUAL_CPUS_PER_GPU
from refold.perf.setting import Setting

_FUNCTIONS = {"max": max, "min": min, "ceil": ceil, "log2": log2}
_NAME = re.compile(r"[a-z_][a-z_0-9]*")


class FormulaLine(msgspec.Struct, frozen=True):
    """`name` = `formula` = `numbers` = `value`, and what it means."""

    name: str
    formula: str
    numbers: str
    value: float
    unit: str
    meaning: str


class Section(msgspec.Struct, frozen=True):
    """Lines that belong together."""

    title: str
    lines: tuple[FormulaLine, ...]


class _Working:
    """Lines written so far, and the value of every name in them."""

    def __init__(self) -> None:
        self.known: dict[str, float] = {}
        self.sections: list[tuple[str, list[FormulaLine]]] = []

    def section(self, title: str) -> None:
        self.sections.append((title, []))

    def give(self, meaning: str = "", unit: str = "", **values: float) -> None:
        """A number that comes from outside."""
        for name, value in values.items():
            self.known[name] = float(value)
            self.sections[-1][1].append(FormulaLine(name, "", "", float(value), unit, meaning))

    def line(self, name: str, formula: str, unit: str, meaning: str) -> None:
        """A number that follows from those before."""
        value = float(eval(formula, {"__builtins__": {}}, {**self.known, **_FUNCTIONS}))
        self.known[name] = value
        self.sections[-1][1].append(FormulaLine(name, formula, self._with_numbers(formula), value, unit, meaning))

    def _with_numbers(self, formula: str) -> str:
        def number(word: re.Match[str]) -> str:
            return f"{self.known[word[0]]:.6g}" if word[0] in self.known else word[0]

        return _NAME.sub(number, formula)


def explain(setting: Setting, plan: Plan) -> tuple[Section, ...]:
    """All formulas of the estimate of this plan, from the model's shapes to the step and its memory."""
    work = _Working()
    _given(work, setting, plan)
    _layer(work, setting, plan)
    _talk(work, setting, plan)
    _step(work, setting, plan)
    _memory(work, setting, plan)
    return tuple(Section(title, tuple(lines)) for title, lines in work.sections)


def _given(work: _Working, setting: Setting, plan: Plan) -> None:
    model, machines = setting.model, setting.machines
    reached = machines.gpu.efficiency
    work.section("Given")
    work.give("global batch", "samples", batch=setting.batch)
    work.give("tokens of a sample", "tokens", sequence=setting.tokens_per_sample)
    work.give("data-parallel replicas", data=plan.data)
    work.give("GPUs that share each matrix", tensor=plan.tensor)
    work.give("pipeline stages", stages=plan.pipeline)
    work.give("micro-batches of a step", micro_batches=plan.accumulation)
    work.give("chunks per stage", chunks=plan.interleave)
    work.give("layers", layers=model.blocks)
    work.give("width of the hidden state", hidden_width=model.hidden)
    work.give("bytes of a number that is computed with", value_bytes=setting.engine.value_bytes)
    work.give("peak of a GPU", "FLOP/s", peak=compute.peak_rate(setting))
    work.give("share of the peak that large products reach", matmul_share=reached.matmul)
    work.give("bytes/s of the GPU's memory, as reached", "B/s", memory_rate=compute.memory_rate(setting))
    work.give("bytes/s between GPUs of a node, as reached", "B/s", link_rate=communication.link_rate(machines))
    work.give("bytes/s between nodes, as reached", "B/s", node_rate=communication.node_rate(machines))


def _layer(work: _Working, setting: Setting, plan: Plan) -> None:
    model, engine, reached = setting.model, setting.engine, setting.machines.gpu.efficiency
    work.section("One layer, one micro-batch")
    work.line("tokens", "batch * sequence / (data * micro_batches)", "tokens", "a micro-batch")
    work.give("rows with which products of 1,024 columns reach half", half_tokens=reached.half_tokens)
    if model.opaque:
        shares = f"matmul_share * {compute.OPAQUE} * tokens / (tokens + {compute.OPAQUE_HALF})"
        work.line("efficiency", shares, "", "share of the peak that an opaque model reaches")
    else:
        work.give("width of the narrower matrix", narrower=min(model.hidden, model.ffn_width))
        work.give("columns with which products reach half", half_width=reached.half_width)
        work.line("width", "narrower / tensor", "", "what tensor parallelism leaves of it")
        work.line(
            "efficiency",
            "matmul_share * tokens / (tokens + half_tokens * 1024 / width) * width / (width + half_width)",
            "",
            "share of the peak that products reach here",
        )
    work.give("products, forward", "FLOP/token", matmul_flops=compute.matmul_flops_per_token(setting))
    work.line("matmul", "tokens * matmul_flops / tensor / (peak * efficiency)", "s", "products of matrices")
    work.give("attention, forward", "FLOP/token", attention_flops=compute.attention_flops_per_token(setting))
    work.give("its peak for this size of head", "FLOP/s", attention_peak=compute.attention_peak(setting))
    work.give("share of that peak inside attention", attention_share=reached.attention)
    work.line(
        "attention", "tokens * attention_flops / tensor / (attention_peak * attention_share)", "s", "inside attention"
    )
    split = plan.tensor if plan.sequence_parallel else 1
    outside = 0.0 if model.opaque else engine.passes_hidden * model.hidden / split
    inside = 0.0 if model.opaque else engine.passes_inner * compute.inner_width(setting) / plan.tensor
    work.give("elements read or written between products", "per token", elements=outside + inside)
    work.line("between", "tokens * value_bytes * elements / memory_rate", "s", "norms, residuals, activation functions")
    scores = 0.0 if model.opaque or engine.fused_attention else model.heads * setting.sequence / plan.tensor
    work.give("scores that go through memory", "per token", scores=scores * model.attentions / model.blocks)
    work.give("how often they do", score_passes=compute.SCORE_PASSES)
    work.line("score_time", "tokens * value_bytes * score_passes * scores / memory_rate", "s", "scores through memory")
    work.give("computing takes so many times as long", compute_factor=engine.compute_factor)
    work.line("forward", "compute_factor * (matmul + attention + score_time + between)", "s", "the forward pass")
    back = compute.BACKWARD_ATTENTION if engine.fused_attention else compute.BACKWARD_MATMUL
    work.give("products of attention on the way back, for each forward", attention_back=back)
    work.line(
        "backward",
        "compute_factor * (2 * matmul + attention_back * attention + 2 * (score_time + between))",
        "s",
        "the way back",
    )
    selected = f"compute_factor * (attention + score_time + {engine.selective_again} * (matmul + between))"
    again = {"none": "0", "selective": selected, "full": "forward"}[plan.recompute]
    work.line("again", again, "s", f"computed again: {plan.recompute}")


def _talk(work: _Working, setting: Setting, plan: Plan) -> None:
    model, engine, machines = setting.model, setting.engine, setting.machines
    work.section("Talk")
    work.give("GPUs per node", per_node=machines.gpus / machines.nodes)
    _ring(work, setting, "tensor", plan.tensor, 1)
    work.give("collectives of a layer", collectives=_collectives(setting, plan))
    if model.opaque:
        work.line("tensor_talk", "0", "s", "an opaque model has no tensor parallelism")
    else:
        work.line("tensor_moved", "tokens * hidden_width * value_bytes", "B", "one collective")
        passes = _pass_of("tensor", across=f" * {engine.tensor_traffic_across}")
        seen = f"2 * (1 - {engine.overlap_tensor})"
        work.line("tensor_talk", f"{seen} * collectives * {passes}", "s", "tensor parallelism, per layer")
    common = gcd(*machines.gpus_on_node)
    rate = "(node_rate / weakest)" if common % plan.gpus else "link_rate"
    work.give("weakest node's GPUs", weakest=min(machines.gpus_on_node))
    if plan.pipeline == 1:
        work.line("stage_talk", "0", "s", "no pipeline")
    else:
        work.line(
            "stage_talk",
            f"2 * chunks * tokens * hidden_width * value_bytes / tensor / {rate}",
            "s",
            "handing on to the next stage and back",
        )
    waits = machines.gpus >= engine.stage_wait_from_gpus
    work.give("seconds a stage waits for a neighbour", "s", stage_wait=engine.stage_wait if waits else 0.0)
    work.line("handing", "stage_talk + min(2, stages - 1) * stage_wait", "s", "between stages, per micro-batch")


def _collectives(setting: Setting, plan: Plan) -> float:
    each = communication.TENSOR_COLLECTIVES * setting.model.attentions / setting.model.blocks
    return each * (1.5 if plan.recompute == "full" else 1.0)


def _ring(work: _Working, setting: Setting, kind: str, members: int, stride: int) -> None:
    """Where a group is: so many on a node, on so many nodes, with so many groups sharing what a node sends."""
    machines = setting.machines
    inside = gcd(*machines.gpus_on_node) % (members * stride) == 0
    work.known[f"{kind}_members"] = float(members)
    if inside:
        work.line(f"{kind}_on_node", f"{members}", "", f"members of a {kind}-parallel group on a node: all")
    else:
        work.line(
            f"{kind}_on_node",
            f"min(max(per_node / {stride}, 1), {members})",
            "",
            f"members of a {kind}-parallel group on a node",
        )
    work.line(f"{kind}_nodes", f"max(1, {members} / {kind}_on_node)", "", "nodes it is on")
    work.line(f"{kind}_sharing", f"min({stride}, per_node)", "", "such groups that share what a node sends")
    wait = machines.inside.latency_microseconds * log2(work.known[f"{kind}_on_node"])
    wait += machines.network.latency_microseconds * log2(work.known[f"{kind}_nodes"])
    work.give("latency of one pass", "s", **{f"{kind}_latency": wait * 1e-6})


def _pass_of(kind: str, moved: str = "", across: str = "") -> str:
    moved = moved or f"{kind}_moved"
    return (
        f"(max({moved} * (1 - 1 / {kind}_on_node) / link_rate, "
        f"{moved} * (1 - 1 / {kind}_nodes) * {kind}_sharing{across} / node_rate) + {kind}_latency)"
    )


def _step(work: _Working, setting: Setting, plan: Plan) -> None:
    model, engine, machines = setting.model, setting.engine, setting.machines
    work.section("A step")
    work.line("blocks", "layers / stages", "", "layers of a stage")
    if model.predicts_tokens:
        work.give("vocabulary", vocabulary=model.vocabulary)
        work.give("peak for a vocabulary of this size", "FLOP/s", head_peak=compute.head_peak(setting))
        work.line(
            "head",
            "compute_factor * (3 * 2 * tokens * vocabulary * hidden_width / tensor / (head_peak * matmul_share)"
            f" + tokens * vocabulary / tensor * {compute.LOGIT_BYTES} / memory_rate)",
            "s",
            "output layer and loss, per micro-batch",
        )
    else:
        work.line("head", "0", "s", "no output layer over tokens")
    slowest = "max(blocks * (forward + backward) + head / stages, ceil(blocks) * (forward + backward), head)"
    work.line("stage_compute", slowest, "s", "the slowest stage, per micro-batch")
    work.line("stage_again", "blocks * again", "s", "computed again, per micro-batch")
    work.line("stage_tensor", "blocks * tensor_talk", "s", "tensor parallelism, per micro-batch")
    beyond = max(0.0, plan.tensor - machines.gpus / machines.nodes)
    piped = plan.pipeline > 1 and plan.tensor > 1 and machines.nodes > 1
    more = {"none": 1.0, "selective": engine.launch_selective, "full": engine.launch_full}[plan.recompute]
    launch = engine.launch_seconds * more * (1 + model.attentions / model.blocks) / 2
    launch += engine.tensor_wait_across_nodes * beyond + engine.tensor_wait_in_pipeline * plan.tensor * piped
    work.give("seconds the host needs to start a layer's kernels", "s", launch_seconds=launch)
    work.line(
        "stage_launch",
        "max(0, blocks * launch_seconds - stage_compute - stage_again - stage_tensor)",
        "s",
        "the GPU waits for the host, per micro-batch",
    )
    work.line("tick", "stage_compute + stage_again + stage_tensor + stage_launch + handing", "s", "one micro-batch")
    for part, term in (
        ("compute", "stage_compute"),
        ("recompute", "stage_again"),
        ("launch", "stage_launch"),
        ("tensor_time", "stage_tensor"),
        ("pipeline_time", "handing"),
    ):
        work.line(part, f"micro_batches * {term}", "s", "of the step")
    work.line("bubble", "(stages - 1) / chunks * tick", "s", "filling and draining the pipeline")
    _gradients(work, setting, plan)
    _update(work, setting, plan)
    work.line(
        "step",
        "compute + recompute + launch + tensor_time + pipeline_time + bubble + data_time + optimizer + offload",
        "s",
        "the whole step",
    )


def _gradients(work: _Working, setting: Setting, plan: Plan) -> None:
    engine = setting.engine
    parameters = memory_model.stage_parameters_of(setting, plan, is_last=False)
    work.give("weights of the first stage on one GPU", parameters=parameters)
    if plan.data == 1:
        work.line("data_time", "0", "s", "one replica has nothing to say")
        return
    _ring(work, setting, "data", plan.data, plan.tensor)
    work.line("gradient_bytes", f"{engine.gradient_traffic_bytes} * parameters", "B", "gradients that travel")
    work.line("weight_bytes", f"{engine.weight_bytes} * parameters", "B", "weights that travel under ZeRO")
    work.line("gradient_pass", _pass_of("data", "gradient_bytes"), "s", "one reduce-scatter")
    work.line("weight_pass", _pass_of("data", "weight_bytes"), "s", "one all-gather")
    whole = plan.zero <= (0 if engine.scatters_gradients else 1)
    exchange = "2 * gradient_pass" if whole else "gradient_pass"
    work.line("exchange", exchange, "s", f"gradients, ZeRO-{plan.zero}")
    each = plan.zero >= 2 or engine.reduces_each_micro_batch
    messages = f"{engine.message_seconds} * data * blocks"
    hidden = engine.overlap_gradients if plan.zero == 0 else engine.overlap_shards
    work.give("share of a pass that can hide this", hidden=hidden)
    work.line("once", "exchange" if not each else "0", "s", "gradients, once per step")
    work.line("gradient_time", f"max(0, once + {messages} - hidden * blocks * (backward + again))", "s", "not hidden")
    work.line("gather", "weight_pass" if plan.zero in (1, 2) else "0", "s", "updated weights, once per step")
    work.line("weight_time", "max(0, gather - hidden * blocks * forward)", "s", "not hidden")
    work.line("gathers", "weight_pass" if plan.zero == 3 else "0", "s", "weights, for each pass")
    work.line("reduce", "exchange" if each else "0", "s", "gradients, for each micro-batch")
    work.line(
        "each_time",
        "max(0, reduce + gathers - hidden * blocks * (backward + again)) + max(0, gathers - hidden * blocks * forward)",
        "s",
        "not hidden, per micro-batch",
    )
    work.line("data_time", "gradient_time + weight_time + micro_batches * each_time", "s", "data parallelism")


def _update(work: _Working, setting: Setting, plan: Plan) -> None:
    engine, machines = setting.engine, setting.machines
    work.line("own", "parameters / data" if plan.zero else "parameters", "", "weights that this GPU updates")
    fixed = engine.step_seconds
    if plan.offload:
        pcie = machines.gpu.pcie_gigabytes_per_second * 1e9 * machines.gpu.efficiency.pcie
        threads = machines.cpus / machines.gpus if machines.cpus else USUAL_CPUS_PER_GPU
        work.give("bytes/s to the host, as reached", "B/s", pcie_rate=pcie)
        work.give("CPU threads per GPU", threads=threads)
        work.give("GPUs that share a host", sharing_host=max(machines.gpus_on_node))
        each = f"max({engine.cpu_seconds_per_parameter} / threads, {HOST_SECONDS_PER_PARAMETER} * sharing_host)"
        work.line("optimizer", f"own * {each} + {fixed}", "s", "updated by the host")
        work.line("offload", f"2 * {engine.weight_bytes} * own / pcie_rate", "s", "gradients down, weights up")
        return
    moved = engine.update_passes * (2 * engine.optimizer_bytes + engine.gradient_bytes + engine.weight_bytes)
    work.line("optimizer", f"own * {moved} / memory_rate + {fixed}", "s", "Adam: states read and written")
    work.line("offload", "0", "s", "nothing is offloaded")


def _memory(work: _Working, setting: Setting, plan: Plan) -> None:
    """The fuller stage, part by part, as the memory model has it."""
    needs = memory_model.memory_of(setting, plan)
    work.section("Memory of the fullest GPU")
    for part, gib in needs.items():
        if part != "host":
            work.give(memory_model.MEANINGS[part], "GiB", **{f"{part}_gib": gib})
    total = " + ".join(f"{part}_gib" for part in needs if part != "host")
    work.line("memory", total, "GiB", "in all")
    work.give("memory of the GPU", "GiB", gpu_gib=setting.machines.gpu.memory_gib)
    work.line("spare", f"gpu_gib * {memory_model.USABLE} - memory", "GiB", "left, if not below 0")
    work.give("on all hosts together", "GiB", host_gib=needs["host"])
