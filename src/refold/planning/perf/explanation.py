"""Derivation of an estimate: every formula with its numbers, to be checked by hand.

A line has a name, a formula over previous names, and a description. Values are computed from the printed formulas, and
a test compares them with the estimate.
"""

from __future__ import annotations

from refold.model import Plan
from refold.planning.perf import communication, compute, memory_model
from refold.planning.perf.columns import plans_to_columns
from refold.planning.perf.estimation import (
    DEFAULT_CPUS_PER_GPU,
    HOST_SECONDS_PER_PARAMETER,
    dequantize_wait,
    layer_launch_seconds,
    update_bytes,
)
from refold.planning.perf.explained_communication import (
    Lines,
    Section,
    add_communication,
    add_data_parallel,
    replicas,
    shard_count,
)
from refold.planning.perf.training_setup import TrainingSetup


def explain(setup: TrainingSetup, plan: Plan) -> tuple[Section, ...]:
    """Return all formulas of the estimate of a plan, from the model's shapes to step time and memory."""
    lines = Lines()
    _add_inputs(lines, setup, plan)
    _add_layer(lines, setup, plan)
    add_communication(lines, setup, plan)
    _add_step(lines, setup, plan)
    _add_memory(lines, setup, plan)
    return tuple(Section(title, tuple(added)) for title, added in lines.sections)


def _add_inputs(lines: Lines, setup: TrainingSetup, plan: Plan) -> None:
    model, machines = setup.model, setup.machines
    lines.section("Inputs")
    lines.given("global batch", "samples", batch=setup.batch)
    lines.given("tokens per sample", "tokens", sequence=setup.tokens_per_sample)
    lines.given("data-parallel replicas", data=plan.data)
    if plan.replicate > 1:
        lines.given("groups of them that have all shards", replicate=plan.replicate)
    lines.given("tensor-parallel GPUs", tensor=plan.tensor)
    lines.given("pipeline stages", stages=plan.pipeline)
    if plan.context > 1:
        lines.given("context-parallel GPUs", context=plan.context)
    lines.given("micro-batches per step", micro_batches=plan.accumulation)
    lines.given("chunks per stage", chunks=plan.interleave)
    lines.given("layers", layers=model.blocks)
    lines.given("hidden width", hidden_width=model.hidden)
    lines.given("bytes per activation", value_bytes=setup.engine.value_bytes)
    lines.given("peak of a GPU", "FLOP/s", peak=compute.product_peak(setup))
    lines.given("share of the peak for large matrix products", matmul_share=compute.matmul_share(setup))
    lines.given("effective bandwidth of GPU memory", "B/s", memory_rate=compute.memory_rate(setup))
    lines.given("effective bandwidth between GPUs of a node", "B/s", link_rate=communication.link_rate(machines))
    lines.given("effective bandwidth between nodes", "B/s", node_rate=communication.node_rate(machines))


def _add_layer(lines: Lines, setup: TrainingSetup, plan: Plan) -> None:
    model, engine, efficiency = setup.model, setup.engine, setup.machines.gpu.efficiency
    lines.section("One layer, one micro-batch")
    lines.formula(
        "tokens", f"batch * sequence / ({replicas(plan)} * micro_batches)", "tokens", "tokens per micro-batch"
    )
    lines.given("rows of 1,024 columns where matrix products reach half", half_tokens=compute.half_tokens(setup))
    if model.traced:
        lines.given("results of products per sample", product_results=model.product_results)
        lines.given("columns of products", product_width=model.product_width)
        lines.given("their efficiency / that of large products", product_share=model.product_share)
        lines.given("columns where matrix products reach half", half_width=efficiency.half_width)
        lines.formula(
            "efficiency",
            "matmul_share * product_share * tokens / (tokens + half_tokens * 1024 / product_results)"
            " / (1 + half_width / product_width)",
            "",
            "share of the peak for the products of a traced module",
        )
    elif model.opaque:
        shares = f"matmul_share * {compute.OPAQUE_EFFICIENCY} * tokens / (tokens + {compute.OPAQUE_HALF_SAMPLES})"
        lines.formula("efficiency", shares, "", "share of the peak for an opaque model")
    else:
        lines.given("width of the narrower matrix", min_width=compute.narrower_width(setup))
        lines.given("columns where matrix products reach half", half_width=efficiency.half_width)
        lines.formula("width", "min_width / tensor", "", "width of a tensor-parallel shard")
        lines.formula(
            "efficiency",
            "matmul_share * tokens / (tokens + half_tokens * 1024 / width) * width / (width + half_width)",
            "",
            "share of the peak for these matrix products",
        )
    _add_products(lines, setup, plan)
    lines.given("attention, forward", "FLOP/token", attention_flops=compute.attention_flops_per_token(setup))
    lines.given("peak for this head size", "FLOP/s", attention_peak=compute.attention_peak(setup))
    in_blocks = engine.context_attention_share if plan.context > 1 else 1.0
    share = compute.attention_efficiency(setup) * in_blocks
    lines.given("share of that peak inside attention", attention_share=share)
    lines.formula(
        "attention", "tokens * attention_flops / tensor / (attention_peak * attention_share)", "s", "inside attention"
    )
    mixing = _add_scan(lines, setup)
    split = plan.tensor if plan.sequence_parallel else 1
    outside, inside = compute.elementwise_bytes(setup)
    traffic = outside / split + inside / plan.tensor
    lines.given("memory traffic between matrix products", "B/token", between_bytes=traffic)
    lines.formula("elementwise", "tokens * between_bytes / memory_rate", "s", "norms, residuals, activation functions")
    scores = 0.0 if model.opaque or engine.fused_attention else model.heads * setup.sequence / plan.tensor
    lines.given("attention scores written to memory", "per token", scores=scores * model.attentions / model.blocks)
    lines.given("memory passes over the scores", score_passes=engine.passes_scores)
    lines.formula(
        "score_time", "tokens * value_bytes * score_passes * scores / memory_rate", "s", "memory time of the scores"
    )
    lines.given("correction of the compute time", compute_factor=engine.compute_factor)
    lines.formula("forward", f"compute_factor * (matmul + {mixing} + score_time + elementwise)", "s", "forward pass")
    backward_factor = compute.BACKWARD_ATTENTION if engine.fused_attention else compute.BACKWARD_SCORES
    lines.given("backward / forward cost of attention", attention_back=backward_factor)
    back = f"{setup.tuning.backward_products:g}"
    trained = "trained_layers * " if setup.tuning.frozen_layers else ""
    if trained:
        lines.given("layers that are trained / all layers", trained_layers=setup.backward_share)
    lines.formula(
        "backward",
        f"{trained}compute_factor * ({back} * matmul + attention_back * {mixing} + 2 * (score_time + elementwise))",
        "s",
        "backward pass",
    )
    share = engine.selective_recompute_share
    repeated = f"{mixing} + score_time + " if engine.selective_attention else ""
    selected = f"compute_factor * ({repeated}{share} * (matmul + elementwise))"
    recompute_formula = {"none": "0", "selective": selected, "full": "forward"}[plan.recompute]
    lines.formula("recompute_time", f"{trained}{recompute_formula}", "s", f"activation recomputation: {plan.recompute}")


def _add_scan(lines: Lines, setup: TrainingSetup) -> str:
    """Add the scan of linear attention, and return the sum of what attention takes as a formula."""
    if not setup.model.linear:
        return "attention"
    lines.given("scan of linear attention, forward", "FLOP/token", scan_flops=compute.scan_flops_per_token(setup))
    lines.given("peak in half precision", "FLOP/s", half_peak=compute.peak_rate(setup))
    lines.given("share of that peak inside a scan", scan_share=setup.machines.gpu.efficiency.attention)
    lines.formula("scan", "tokens * scan_flops / tensor / (half_peak * scan_share)", "s", "scan of linear attention")
    return "(attention + scan)"


def _add_products(lines: Lines, setup: TrainingSetup, plan: Plan) -> None:
    model, engine = setup.model, setup.engine
    experts = compute.expert_flops_per_token(setup)
    flops = compute.matmul_flops_per_token(setup) - experts
    lines.given("matrix products, forward", "FLOP/token", matmul_flops=flops)
    dequantized = ""
    if setup.tuning.quantized:
        lines.given("memory traffic to dequantize the weights", "B", dequantized=compute.dequantized_bytes(setup))
        dequantized = " + dequantized / tensor / memory_rate"
    if not experts:
        products = "tokens * matmul_flops / tensor / (peak * efficiency)"
        lines.formula("matmul", products + dequantized, "s", "matrix products")
        return
    lines.given("GPUs among which experts are divided", expert=plan.expert)
    lines.given("experts, and experts of a token", experts=model.experts, experts_per_token=model.experts_per_token)
    lines.given("products of experts, forward", "FLOP/token", expert_flops=experts)
    lines.given("most tokens of a GPU / average", imbalance=engine.expert_imbalance if plan.expert > 1 else 1.0)
    lines.formula("expert_tokens", "tokens * expert * experts_per_token / experts", "tokens", "tokens of one expert")
    lines.given(
        "width of the narrower matrix of an expert", expert_width=min(model.hidden, model.ffn_width) / plan.tensor
    )
    lines.formula(
        "expert_efficiency",
        "matmul_share * expert_tokens / (expert_tokens + half_tokens * 1024 / expert_width)"
        " * expert_width / (expert_width + half_width)",
        "",
        "share of the peak for the products of an expert",
    )
    lines.formula(
        "matmul",
        "(tokens * matmul_flops / (peak * efficiency)"
        " + imbalance * tokens * expert_flops / (peak * expert_efficiency)) / tensor" + dequantized,
        "s",
        "matrix products",
    )


def _add_step(lines: Lines, setup: TrainingSetup, plan: Plan) -> None:
    model, engine, machines = setup.model, setup.engine, setup.machines
    lines.section("Step")
    lines.formula("stage_layers", "layers / stages", "", "layers per stage")
    if model.predicts_tokens:
        lines.given("vocabulary", vocabulary=model.vocabulary)
        lines.given("passes of the output layer", head_passes=1 + model.mtp_layers)
        lines.given("share of that peak", head_share=machines.gpu.efficiency.matmul)
        lines.given("peak for this vocabulary size", "FLOP/s", head_peak=compute.head_peak(setup))
        products = f"{1 + setup.tuning.backward_products:g}"
        lines.formula(
            "head",
            f"compute_factor * head_passes * ({products} * 2 * tokens * vocabulary * hidden_width / tensor"
            " / (head_peak * head_share)"
            f" + tokens * vocabulary / tensor * {engine.logit_traffic_bytes} / memory_rate)",
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
    lines.formula("stage_expert", "stage_layers * expert_comm", "s", "expert parallelism, per micro-batch")
    lines.formula("stage_context", "stage_layers * context_comm", "s", "context parallelism, per micro-batch")
    _add_launch(lines, setup, plan)
    lines.formula(
        "stage_launch",
        "max(0, stage_layers * launch_seconds - stage_compute - stage_recompute - stage_tensor)",
        "s",
        "GPU waits for kernel launches, per micro-batch",
    )
    lines.formula(
        "stage_comm",
        "max(0, stage_transfer - overlap_stages * (stage_compute + stage_recompute)) + min(2, stages - 1) * stage_wait",
        "s",
        "between stages, per micro-batch",
    )
    lines.formula(
        "micro_batch_time",
        "stage_compute + stage_recompute + stage_tensor + stage_context + stage_expert + stage_launch + stage_comm",
        "s",
        "one micro-batch",
    )
    for part, term in (
        ("compute", "stage_compute"),
        ("recompute", "stage_recompute"),
        ("launch", "stage_launch"),
        ("tensor_time", "stage_tensor"),
        ("context_time", "stage_context"),
        ("expert_time", "stage_expert"),
        ("pipeline_time", "stage_comm"),
    ):
        lines.formula(part, f"micro_batches * {term}", "s", "per step")
    lines.formula("bubble", "(stages - 1) / chunks * micro_batch_time", "s", "pipeline bubble: filling and draining")
    add_data_parallel(lines, setup, plan)
    _add_optimizer(lines, setup, plan)
    parts = (
        "compute + recompute + launch + tensor_time + context_time + expert_time + pipeline_time + bubble + data_time"
        " + optimizer + offload"
    )
    gather = engine.gather_straggler_share if plan.zero == 3 else 0.0
    lines.given("longer with each doubling of the nodes", straggler_share=engine.straggler_share)
    lines.given("the same of the nodes that gather weights together", gather_share=gather)
    share = f"straggler_share * log2({machines.nodes}) + gather_share * log2({max(1, machines.nodes / plan.replicate)})"
    lines.formula("stragglers", f"({share}) * ({parts})", "s", "waiting for the slowest GPU")
    lines.formula("step", f"{parts} + stragglers", "s", "total step time")


def _add_launch(lines: Lines, setup: TrainingSetup, plan: Plan) -> None:
    """Add the host time to launch kernels, and what of the passes overlaps with transfers between stages."""
    engine, machines = setup.engine, setup.machines
    domains = len(machines.domains)
    remote_ranks = max(0.0, plan.tensor - machines.gpus / domains)
    has_pipeline = plan.pipeline > 1 and plan.tensor > 1 and domains > 1
    factor = {"none": 1.0, "selective": engine.launch_factor_selective, "full": engine.launch_factor_full}[
        plan.recompute
    ]
    launch = layer_launch_seconds(setup) * factor + float(dequantize_wait(setup, plans_to_columns([plan]))[0])
    launch += (
        engine.tensor_wait_across_nodes * remote_ranks + engine.tensor_wait_in_pipeline * plan.tensor * has_pipeline
    )
    lines.given("host time to launch the kernels of a layer", "s", launch_seconds=launch)
    overlap = engine.overlap_stages if plan.interleave > 1 else 0.0
    lines.given("overlap of passes and transfers between stages", overlap_stages=overlap)


def _add_optimizer(lines: Lines, setup: TrainingSetup, plan: Plan) -> None:
    engine, machines = setup.engine, setup.machines
    divisor = shard_count(plan) if plan.replicate > 1 else replicas(plan).replace(" * ", " / ")
    sharded = f"parameters / {divisor}"
    if setup.model.routed_parameters:
        sharded = f"(parameters - routed) / {divisor} + routed / {divisor} * expert"
    updated = sharded if plan.zero else "parameters"
    if setup.trained_share != 1:
        lines.given("trained weights / all weights", trained=setup.trained_share)
        updated = f"({updated}) * trained"
    lines.formula("updated", updated, "", "weights updated by this GPU")
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
    lines.formula(
        "optimizer",
        f"updated * {update_bytes(setup)} / memory_rate + {fixed}",
        "s",
        "Adam: read and write optimizer state",
    )
    lines.formula("offload", "0", "s", "no offload")


def _add_memory(lines: Lines, setup: TrainingSetup, plan: Plan) -> None:
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
        "spare", f"gpu_gib * (1 - {setup.machines.margin}) - memory", "GiB", "headroom; negative: missing memory"
    )
    lines.given("total of all hosts", "GiB", host_gib=needs["host"])
