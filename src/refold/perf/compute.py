"""How long a GPU computes: a roofline per layer, with the efficiency that the type of GPU was seen to reach.

Products of matrices are limited by arithmetic, everything else by the memory of the GPU. All times are seconds
for one micro-batch and one layer, on the share of the layer that tensor parallelism leaves to a GPU.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from refold.perf.columns import FULL, SELECTIVE, Column, PlanColumns
from refold.perf.setting import Setting

BACKWARD_MATMUL = 2.0
"""The backward pass has two products for each of the forward pass: for the inputs and for the weights."""

BACKWARD_ATTENTION = 2.5
"""Fused attention computes the scores again on its way back: five products where the forward pass has two."""

BACKWARD_MEMORY = 2.0
"""What is read and written besides products is about twice as much on the way back."""

ALIGNED = 8
"""Tensor cores take matrices whose rows are a multiple of so many numbers in half precision."""

UNALIGNED = 1 / 7
"""What other matrices leave of the peak: 1/9 in BLOOM's trials on A100 (heads), 1/5 on H200 (vocabulary)."""

OPAQUE = 0.3
"""What a convolutional network reaches of what large products do: NVIDIA's published ResNet-50 in mixed precision
makes some 1,200 images per second on a V100 and 2,500 on an A100, a quarter and a fifth of the peak."""

OPAQUE_HALF = 8.0
"""Samples with which it reaches half of that."""

SCORE_PASSES = 5.0
"""How often scores go through memory in a forward pass where attention is not fused: written by the product,
read and written by softmax and by dropout, read by the next product."""


LOGIT_BYTES = 12.0
"""Bytes of memory traffic per logit: the product writes it, the loss reads it and writes its softmax in single
precision, the way back reads that and writes its gradient."""


class LayerTime(NamedTuple):
    """Seconds of one layer and one micro-batch: forward, backward, and what is computed again."""

    forward: Column
    backward: Column
    again: Column


def layer_time(setting: Setting, plans: PlanColumns) -> LayerTime:
    """One layer, on average over those of the model."""
    tokens = setting.micro_tokens(plans)
    matmul = _matmul_seconds(setting, plans, tokens)
    attention = _attention_seconds(setting, plans, tokens)
    scores = _score_seconds(setting, plans, tokens)
    memory = _memory_seconds(setting, plans, tokens)
    forward = matmul + attention + scores + memory
    backward = (
        BACKWARD_MATMUL * matmul
        + (BACKWARD_ATTENTION if setting.engine.fused_attention else BACKWARD_MATMUL) * attention
        + BACKWARD_MEMORY * (scores + memory)
    )
    selected = attention + scores + setting.engine.selective_again * (matmul + memory)
    again = np.where(plans.recompute == FULL, forward, np.where(plans.recompute == SELECTIVE, selected, 0.0))
    factor = setting.engine.compute_factor
    return LayerTime(factor * forward, factor * backward, factor * again)


def head_time(setting: Setting, plans: PlanColumns) -> Column:
    """Forward and backward through the output layer and its loss, once per micro-batch."""
    model, gpu = setting.model, setting.machines.gpu
    if not model.predicts_tokens:
        return np.zeros(len(plans))
    tokens = setting.micro_tokens(plans)
    logits = tokens * model.vocabulary / plans.tensor
    arithmetic = (1 + BACKWARD_MATMUL) * 2 * logits * model.hidden / (head_peak(setting) * gpu.efficiency.matmul)
    traffic = logits * LOGIT_BYTES / memory_rate(setting)
    return setting.engine.compute_factor * (arithmetic + traffic)


def matmul_efficiency(setting: Setting, plans: PlanColumns, tokens: Column) -> Column:
    """Share of the peak that the products of a layer reach: less with few rows, or with narrow shares of a matrix."""
    reached = setting.machines.gpu.efficiency
    if setting.model.opaque:
        return reached.matmul * OPAQUE * tokens / (tokens + OPAQUE_HALF)
    width = min(setting.model.hidden, setting.model.ffn_width) / plans.tensor
    rows = tokens / (tokens + reached.half_tokens * 1024 / width)  # what fills a GPU is the number of results
    return reached.matmul * rows * width / (width + reached.half_width)


def matmul_flops_per_token(setting: Setting) -> float:
    """Arithmetic of one layer's products in a forward pass, for one token; 2 for each weight a token meets."""
    model = setting.model
    if model.opaque:
        return model.sample_gflop * 1e9
    return 2.0 * model.active_parameters / model.blocks


def attention_flops_per_token(setting: Setting) -> float:
    """Arithmetic inside one layer's attention in a forward pass, for one token: queries by keys, scores by values.

    Where attention is fused and looks back only, half of it is left out.
    """
    model = setting.model
    if model.opaque:
        return 0.0
    looks_back = model.kind == "decoder" and setting.engine.fused_attention
    return 4.0 * setting.sequence * model.query_width * (0.5 if looks_back else 1.0) * model.attentions / model.blocks


def inner_width(setting: Setting) -> float:
    """How wide what a layer holds inside attention and feed-forward is, for one token: in elements."""
    model = setting.model
    if model.opaque:
        return 0.0
    attention = 2.0 * (model.query_width + model.key_width) * model.attentions / model.blocks
    return attention + (3.0 if model.gated else 2.0) * model.ffn_width * model.experts_per_token


def _matmul_seconds(setting: Setting, plans: PlanColumns, tokens: Column) -> Column:
    rate = peak_rate(setting) * matmul_efficiency(setting, plans, tokens)
    return tokens * matmul_flops_per_token(setting) / plans.tensor / rate


def _attention_seconds(setting: Setting, plans: PlanColumns, tokens: Column) -> Column:
    rate = attention_peak(setting) * setting.machines.gpu.efficiency.attention
    return tokens * attention_flops_per_token(setting) / plans.tensor / rate


def _score_seconds(setting: Setting, plans: PlanColumns, tokens: Column) -> Column:
    """Writing and reading the scores themselves, where attention is not fused."""
    model = setting.model
    if model.opaque or setting.engine.fused_attention:
        return np.zeros(len(plans))
    scores = tokens * setting.sequence * model.heads / plans.tensor * model.attentions / model.blocks
    return SCORE_PASSES * setting.engine.value_bytes * scores / memory_rate(setting)


def _memory_seconds(setting: Setting, plans: PlanColumns, tokens: Column) -> Column:
    """Norms, residuals, activation functions: what is read and written between products of matrices."""
    model, engine = setting.model, setting.engine
    if model.opaque:
        return np.zeros(len(plans))
    outside = engine.passes_hidden * model.hidden / np.where(plans.sequence_parallel > 0, plans.tensor, 1.0)
    inside = engine.passes_inner * inner_width(setting) / plans.tensor
    return tokens * engine.value_bytes * (outside + inside) / memory_rate(setting)


def peak_rate(setting: Setting) -> float:
    """What the data sheet promises for the arithmetic that the framework uses, in operations per second."""
    gpu = setting.machines.gpu
    match setting.engine.arithmetic:
        case "half":
            return gpu.half_tflops * 1e12
        case "tf32":
            return gpu.half_tflops * 1e12 / 2
        case "single":
            return gpu.single_tflops * 1e12


def attention_peak(setting: Setting) -> float:
    """The same inside attention: tensor cores take only heads whose size divides by 8."""
    return peak_rate(setting) * _aligned_share(setting.model.head_width)


def head_peak(setting: Setting) -> float:
    """The same in the output layer: they take only vocabularies that divide by 8, or were padded."""
    padded = setting.engine.pads_vocabulary
    return peak_rate(setting) * (1.0 if padded else _aligned_share(setting.model.vocabulary))


def _aligned_share(width: int) -> float:
    return 1.0 if width % ALIGNED == 0 else UNALIGNED


def memory_rate(setting: Setting) -> float:
    """Bytes per second that a GPU really reads and writes in its own memory."""
    gpu = setting.machines.gpu
    return gpu.memory_gigabytes_per_second * 1e9 * gpu.efficiency.memory
