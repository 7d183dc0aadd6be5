"""Compute time: a roofline per layer, with the measured efficiency of the GPU type.

Matrix products are compute-bound, everything else is bound by GPU memory bandwidth. All times are seconds for one
micro-batch and one layer, for the tensor-parallel shard of one GPU.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from refold.planning.perf.columns import FULL, SELECTIVE, Column, PlanColumns
from refold.planning.perf.training_setup import FROZEN_WEIGHT_BYTES, QUANTIZED_WEIGHT_BYTES, TrainingSetup

BACKWARD_SCORES = 2.0
"""Without fused attention, the backward pass has two products for each of the forward pass."""

BACKWARD_ATTENTION = 2.5
"""Fused attention recomputes the scores in the backward pass: five products where the forward pass has two."""

BACKWARD_MEMORY = 2.0
"""Memory traffic outside matrix products is about twice as large in the backward pass."""

TENSOR_CORE_ALIGNMENT = 8
"""Tensor cores need matrix rows whose length is a multiple of this, in half precision."""

UNALIGNED_PEAK_SHARE = 1 / 7
"""Share of the peak for other matrices: 1/9 in BLOOM's trials on A100 (heads), 1/5 on H200 (vocabulary)."""

DEQUANTIZE_PASSES = 3.2
"""Memory time to dequantize weights relative to their bytes: litgpt's QLoRA takes 79 ms more per step than LoRA for 7 B
weights on an A100, and 194 ms more for 13 B, where the bytes alone take 26 and 51 ms."""

OPAQUE_EFFICIENCY = 0.3
"""Efficiency of a convolutional network relative to large matrix products: NVIDIA's published ResNet-50 in mixed
precision reaches about 1,200 images per second on a V100 and 2,500 on an A100, a quarter and a fifth of the peak."""

OPAQUE_HALF_SAMPLES = 8.0
"""Samples per micro-batch at which half of that efficiency is reached."""


QUANTISED_VALUE_BYTES = {"fp8": 1.0, "mxfp8": 1.0, "nvfp4": 0.5}
"""Bytes per quantised element that enters a product, written once for it and, transposed, once for the gradient of the
weights in the backward pass, unless these are frozen."""


class LayerTime(NamedTuple):
    """Seconds of one layer and one micro-batch: forward, backward, and activation recomputation."""

    forward: Column
    backward: Column
    recompute: Column


def layer_time(setup: TrainingSetup, plans: PlanColumns) -> LayerTime:
    """Return the compute time of an average layer of the model."""
    tokens = setup.micro_tokens(plans)
    matmul = _matmul_seconds(setup, plans, tokens)
    attention = attention_seconds(setup, plans) + scan_seconds(setup, plans)
    scores = _score_seconds(setup, plans, tokens)
    memory = _memory_seconds(setup, plans, tokens)
    matmul = matmul + dequantize_seconds(setup, plans)
    forward = matmul + attention + scores + memory
    backward = setup.backward_share * (
        setup.tuning.backward_products * matmul
        + (BACKWARD_ATTENTION if setup.engine.fused_attention else BACKWARD_SCORES) * attention
        + BACKWARD_MEMORY * (scores + memory)
    )
    selected = setup.engine.selective_recompute_share * (matmul + memory)
    if setup.engine.selective_attention:
        selected = selected + attention + scores
    recompute_seconds = np.where(
        plans.recompute == FULL, forward, np.where(plans.recompute == SELECTIVE, selected, 0.0)
    )
    recompute_seconds = setup.backward_share * recompute_seconds
    factor = setup.engine.compute_factor
    return LayerTime(factor * forward, factor * backward, factor * recompute_seconds)


def head_time(setup: TrainingSetup, plans: PlanColumns) -> Column:
    """Return the forward and backward seconds of the output layer and the loss, per micro-batch."""
    model, gpu = setup.model, setup.machines.gpu
    if not model.predicts_tokens:
        return np.zeros(len(plans))
    tokens = setup.micro_tokens(plans)
    logits = (1 + model.mtp_layers) * tokens * model.vocabulary / plans.tensor
    products = 1 + setup.tuning.backward_products
    arithmetic = products * 2 * logits * model.hidden / (head_peak(setup) * gpu.efficiency.matmul)
    traffic = logits * setup.engine.logit_traffic_bytes / memory_rate(setup)
    return setup.engine.compute_factor * (arithmetic + traffic)


def matmul_efficiency(setup: TrainingSetup, plans: PlanColumns, tokens: Column) -> Column:
    """Return the share of the peak that matrix products reach: less with few rows or narrow tensor-parallel shards."""
    model = setup.model
    if model.traced:
        reached = tokens / (tokens + half_tokens(setup) * 1024 / model.product_results)
        share = matmul_share(setup) * model.product_share
        return share * reached / (1 + setup.machines.gpu.efficiency.half_width / model.product_width)
    if model.opaque:
        return matmul_share(setup) * OPAQUE_EFFICIENCY * tokens / (tokens + OPAQUE_HALF_SAMPLES)
    return _share_reached(setup, tokens, narrower_width(setup) / plans.tensor)


def _share_reached(setup: TrainingSetup, rows: Column, width: Column) -> Column:
    """Return the share of the peak that products with so many rows and columns reach.

    The number of results, rows × columns, determines how well a GPU is utilised.
    """
    reached = rows / (rows + half_tokens(setup) * 1024 / width)
    return matmul_share(setup) * reached * width / (width + setup.machines.gpu.efficiency.half_width)


def matmul_share(setup: TrainingSetup) -> float:
    """Return the share of the peak that large matrix products reach."""
    efficiency = setup.machines.gpu.efficiency
    match setup.engine.arithmetic:
        case "fp8" | "mxfp8":
            return efficiency.fp8
        case "nvfp4":
            return efficiency.fp4
        case _:
            return efficiency.matmul


def half_tokens(setup: TrainingSetup) -> float:
    """Return the rows of 1,024 columns with which products reach half of that.

    What is lost with few rows is time in which the GPU computes nothing, whatever the precision: the faster the
    products, the more rows are needed.
    """
    efficiency = setup.machines.gpu.efficiency
    faster = product_peak(setup) * matmul_share(setup) / (peak_rate(setup) * efficiency.matmul)
    return efficiency.half_tokens * faster


def narrower_width(setup: TrainingSetup) -> int:
    """Return the width of the narrower of the matrices, besides those of experts."""
    model = setup.model
    return model.hidden if model.experts > 1 else min(model.hidden, model.ffn_width)


def expert_efficiency(setup: TrainingSetup, plans: PlanColumns, tokens: Column) -> Column:
    """Return the share of the peak that the products of an expert reach, which has a part of the tokens only."""
    width = min(setup.model.hidden, setup.model.ffn_width) / plans.tensor
    return _share_reached(setup, expert_tokens(setup, plans, tokens), width)


def expert_tokens(setup: TrainingSetup, plans: PlanColumns, tokens: Column) -> Column:
    """Return the tokens of one expert, of those of all GPUs among which the experts are divided."""
    return tokens * plans.expert * setup.model.experts_per_token / setup.model.experts


def expert_flops_per_token(setup: TrainingSetup) -> float:
    """Return the FLOPs of the routed experts of an average layer in a forward pass, per token."""
    model = setup.model
    if model.opaque or model.experts == 1:
        return 0.0
    return 2.0 * model.experts_per_token * model.expert_parameters * model.expert_layers / model.blocks


def imbalance(setup: TrainingSetup, plans: PlanColumns) -> Column:
    """Return the tokens of the GPU with the most, relative to the average: 1 if it has all experts."""
    return np.where(plans.expert > 1, setup.engine.expert_imbalance, 1.0)


def matmul_flops_per_token(setup: TrainingSetup) -> float:
    """Return the FLOPs of one layer's matrix products in a forward pass, per token: 2 for each active weight."""
    model = setup.model
    if model.opaque:
        return model.sample_gflop * 1e9 / model.blocks
    return 2.0 * model.active_parameters / model.blocks


def attention_flops_per_token(setup: TrainingSetup) -> float:
    """Return the FLOPs inside one layer's attention in a forward pass, per token: queries × keys, scores × values.

    Fused causal attention skips half of them, and all between packed samples.
    """
    model = setup.model
    if model.opaque:
        return model.attention_gflop * 1e9 / model.blocks
    is_causal = model.kind == "decoder" and setup.engine.fused_attention
    width = model.query_width + model.value_width
    keys = setup.attended if setup.engine.fused_attention else setup.sequence
    return 2.0 * keys * width * (0.5 if is_causal else 1.0) * model.attentions / model.blocks


def scan_flops_per_token(setup: TrainingSetup) -> float:
    """Return the FLOPs of the scan of linear attention in an average layer in a forward pass, per token."""
    linear = setup.model.linear
    return linear.scan_flops() * linear.layers / setup.model.blocks if linear else 0.0


def inner_width(setup: TrainingSetup) -> float:
    """Return the number of activation elements inside attention and feed-forward of one layer, per token."""
    model = setup.model
    if model.opaque:
        return 0.0
    linear = model.linear.inner_width * model.linear.layers / model.blocks if model.linear else 0.0
    return attention_width(setup) + linear + (3.0 if model.gated else 2.0) * model.active_ffn_width


def attention_width(setup: TrainingSetup) -> float:
    """Return the number of activation elements inside attention of one layer, per token."""
    model = setup.model
    return (model.query_width + model.value_width + 2.0 * model.key_width) * model.attentions / model.blocks


def _matmul_seconds(setup: TrainingSetup, plans: PlanColumns, tokens: Column) -> Column:
    peak, experts = product_peak(setup), expert_flops_per_token(setup)
    others = tokens * (matmul_flops_per_token(setup) - experts) / (peak * matmul_efficiency(setup, plans, tokens))
    if experts:
        rate = peak * expert_efficiency(setup, plans, tokens)
        others += imbalance(setup, plans) * tokens * experts / rate
    return others / plans.tensor


def attention_seconds(setup: TrainingSetup, plans: PlanColumns) -> Column:
    """Return the seconds inside the attention of one layer in a forward pass."""
    in_blocks = np.where(plans.context > 1, setup.engine.context_attention_share, 1.0)
    tokens, rate = setup.micro_tokens(plans), attention_peak(setup) * attention_efficiency(setup) * in_blocks
    return tokens * attention_flops_per_token(setup) / plans.tensor / rate


def attention_efficiency(setup: TrainingSetup) -> float:
    """Return the share of the peak that is reached inside attention: less with few keys."""
    efficiency = setup.machines.gpu.efficiency
    share = efficiency.attention * setup.engine.attention_share
    if setup.model.opaque or not setup.engine.fused_attention:
        return share
    return share * setup.attended / (setup.attended + efficiency.half_keys)


def scan_seconds(setup: TrainingSetup, plans: PlanColumns) -> Column:
    """Return the seconds of the products of the scan of linear attention, in an average layer in a forward pass."""
    rate = peak_rate(setup) * setup.machines.gpu.efficiency.attention
    return setup.micro_tokens(plans) * scan_flops_per_token(setup) / plans.tensor / rate


def _score_seconds(setup: TrainingSetup, plans: PlanColumns, tokens: Column) -> Column:
    """Return the memory time of the attention scores; 0 with fused attention."""
    model = setup.model
    if model.opaque or setup.engine.fused_attention:
        return np.zeros(len(plans))
    scores = tokens * setup.sequence * model.heads / plans.tensor * model.attentions / model.blocks
    return setup.engine.passes_scores * setup.engine.value_bytes * scores / memory_rate(setup)


def _memory_seconds(setup: TrainingSetup, plans: PlanColumns, tokens: Column) -> Column:
    """Return the memory time of norms, residuals and activation functions, between the matrix products."""
    outside, inside = elementwise_bytes(setup)
    split = np.where(plans.sequence_parallel > 0, plans.tensor, 1.0)
    return tokens * (outside / split + inside / plans.tensor) / memory_rate(setup)


def elementwise_bytes(setup: TrainingSetup) -> tuple[float, float]:
    """Return the memory traffic between the matrix products of a layer in a forward pass, per token.

    The first number is that of tensors of hidden width, which only sequence parallelism divides.
    """
    model, engine = setup.model, setup.engine
    if model.opaque:
        return 0.0, model.traffic_mib * 2**20 / model.blocks
    outside = min(
        1.0, model.parts / 2
    ) * engine.passes_hidden * model.hidden + engine.passes_norm * composed_norm_width(setup)
    inside = engine.passes_inner * inner_width(setup) + engine.passes_attention * attention_width(setup)
    inside += engine.passes_activation * composed_activation_width(setup) + expert_elements(setup)
    adapters = setup.adapters
    adapted = engine.adapter_input_bytes * adapters.inputs + engine.adapter_output_bytes * adapters.outputs
    scan = model.linear.scan_bytes() * model.linear.layers / model.blocks if model.linear else 0.0
    return engine.value_bytes * outside, engine.value_bytes * inside + quantised_bytes(setup) + adapted + scan


def expert_elements(setup: TrainingSetup) -> float:
    """Return the elements read or written to sort tokens by expert and to add biases, per token and average layer."""
    model, engine = setup.model, setup.engine
    elements = engine.expert_passes * sorted_width(setup)
    if model.bias and model.experts > 1:
        computed = model.experts_per_token * ((2 if model.gated else 1) * model.ffn_width + model.hidden)
        elements += engine.expert_bias_passes * computed * model.expert_layers / model.blocks
    return elements


def sorted_width(setup: TrainingSetup) -> float:
    """Return the number of elements per token and average layer that are sent to experts, one copy for each."""
    model = setup.model
    if model.experts == 1:
        return 0.0
    return model.experts_per_token * model.hidden * model.expert_layers / model.blocks


def quantised_bytes(setup: TrainingSetup) -> float:
    """Return the memory traffic of quantisation in the forward pass of a layer, per token."""
    if not setup.engine.low_precision or setup.model.opaque:
        return 0.0
    model = setup.model
    attention = (1 - model.attention_free / model.blocks) * (model.hidden + model.value_width)
    if model.linear:
        attention += model.linear.layers / model.blocks * (model.hidden + model.linear.value_width)
    feed_forward = model.ffn_layers / model.blocks * model.hidden + model.active_ffn_width
    elements = attention + feed_forward + sorted_width(setup)
    copies = 1.0 if setup.tuning.lora_rank else 2.0
    return (setup.engine.value_bytes + copies * QUANTISED_VALUE_BYTES[setup.engine.arithmetic]) * elements


def composed_norm_width(setup: TrainingSetup) -> int:
    """Return the elements of a token that RMS norms process; layer norms (models with biases) are one kernel."""
    return 0 if setup.model.bias else setup.model.norm_width


def composed_activation_width(setup: TrainingSetup) -> float:
    """Return the elements of a token that an activation function in several steps processes."""
    return setup.model.active_ffn_width if setup.model.composed_activation else 0.0


def dequantized_bytes(setup: TrainingSetup) -> float:
    """Return the memory traffic of a layer's weights in 4 bits for each use: read, and written in half precision."""
    if not setup.tuning.quantized:
        return 0.0
    layer = setup.model.stack_parameters / setup.model.blocks
    return DEQUANTIZE_PASSES * (QUANTIZED_WEIGHT_BYTES + FROZEN_WEIGHT_BYTES) * layer


def dequantize_seconds(setup: TrainingSetup, plans: PlanColumns) -> Column:
    """Return the seconds to dequantize the weights of a layer for one pass."""
    return dequantized_bytes(setup) / plans.tensor / memory_rate(setup)


def peak_rate(setup: TrainingSetup) -> float:
    """Return the data-sheet peak of everything but the products of layers in low precision, in FLOP/s."""
    gpu = setup.machines.gpu
    match setup.engine.arithmetic:
        case "tf32":
            return gpu.half_tflops * 1e12 / 2
        case "single":
            return gpu.single_tflops * 1e12
        case _:
            return gpu.half_tflops * 1e12


def product_peak(setup: TrainingSetup) -> float:
    """Return the data-sheet peak of the matrix products of layers, in FLOP/s."""
    gpu = setup.machines.gpu
    match setup.engine.arithmetic:
        case "fp8" | "mxfp8":
            return gpu.fp8_tflops * 1e12
        case "nvfp4":
            return gpu.fp4_tflops * 1e12
        case _:
            return peak_rate(setup)


def attention_peak(setup: TrainingSetup) -> float:
    """Return the peak inside attention: tensor cores need a head size that is a multiple of 8."""
    return peak_rate(setup) * (1.0 if setup.model.opaque else _aligned_share(setup.model.head_width))


def head_peak(setup: TrainingSetup) -> float:
    """Return the peak in the output layer: tensor cores need a vocabulary that is a multiple of 8, or padded."""
    padded = setup.engine.pads_vocabulary
    return peak_rate(setup) * (1.0 if padded else _aligned_share(setup.model.vocabulary))


def _aligned_share(width: int) -> float:
    return 1.0 if width % TENSOR_CORE_ALIGNMENT == 0 else UNALIGNED_PEAK_SHARE


def memory_rate(setup: TrainingSetup) -> float:
    """Return the effective memory bandwidth of a GPU, in bytes per second."""
    gpu = setup.machines.gpu
    return gpu.memory_gigabytes_per_second * 1e9 * gpu.efficiency.memory
