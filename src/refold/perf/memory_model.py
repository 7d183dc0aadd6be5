"""How much memory a plan takes: on the fullest GPU of its fullest pipeline stage, and on the hosts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from refold.model import Plan
from refold.perf.columns import FULL, SELECTIVE, Column, PlanColumns, columns_of
from refold.perf.compute import inner_width
from refold.perf.setting import Setting

GIB = 2.0**30

USABLE = 0.94
"""Share of a GPU's memory that can be used: the rest is lost between blocks of the allocator."""

SCORE_BYTES = 5.0
"""Bytes kept of each score where attention is not fused: softmax in, dropout mask, dropout out."""

HOST_BYTES = 16.0
"""Bytes per offloaded parameter on the host: master weight, two moments, gradient."""

HOST_FACTOR = 1.5
"""Pinned buffers for transfers come on top."""


MEANINGS = {
    "weights": "weights, and under ZeRO-3 two gathered layers",
    "gradients": "gradients",
    "optimizer": "master weights and moments",
    "activations": "kept for the backward pass, of all micro-batches begun",
    "logits": "logits and loss of the last stage",
    "overhead": "the framework itself",
    "host": "offloaded states and their buffers",
}
"""What each part is."""


class Memory(NamedTuple):
    """GiB on the fullest GPU by what fills them, and GiB on all hosts together."""

    weights: Column
    gradients: Column
    optimizer: Column
    activations: Column
    logits: Column
    overhead: Column
    host: Column

    @property
    def total(self) -> Column:
        """GiB on the fullest GPU."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits + self.overhead


def memory(setting: Setting, plans: PlanColumns) -> Memory:
    """The fuller of the first stage, which keeps most micro-batches, and the last, which has the logits."""
    first = _stage(setting, plans, is_last=False)
    last = _stage(setting, plans, is_last=True)
    fuller = (plans.pipeline > 1) & (first.total > last.total)
    return Memory(*(np.where(fuller, ours, theirs) for ours, theirs in zip(first, last, strict=True)))


def memory_of(setting: Setting, plan: Plan) -> dict[str, float]:
    """GiB by part, for one plan."""
    return {part: float(column[0]) for part, column in memory(setting, columns_of([plan]))._asdict().items()}


def stage_parameters_of(setting: Setting, plan: Plan, *, is_last: bool) -> float:
    """Weights of the first or the last stage on one GPU, for one plan."""
    return float(stage_parameters(setting, columns_of([plan]), is_last=is_last)[0])


def stage_parameters(setting: Setting, plans: PlanColumns, *, is_last: bool) -> Column:
    """Weights of the first or the last stage, as far as tensor parallelism leaves them to one GPU.

    Without a pipeline the last stage is the only one.
    """
    model = setting.model
    ends = model.parameters - model.stack_parameters
    only = plans.pipeline == 1
    embedding = max(model.embedding_parameters, ends - model.head_parameters)
    tied_copy = model.vocabulary * model.hidden if model.tied and model.predicts_tokens else 0
    of_the_end = model.head_parameters + tied_copy if is_last else embedding
    layers = np.ceil(setting.stage_blocks(plans)) * (model.stack_parameters / model.blocks)
    return (layers + np.where(only, ends, of_the_end)) / plans.tensor


def _stage(setting: Setting, plans: PlanColumns, *, is_last: bool) -> Memory:
    engine, model = setting.engine, setting.model
    parameters = stage_parameters(setting, plans, is_last=is_last)
    on_host = plans.offload > 0
    share = 1 / plans.data
    gathered = np.where(plans.zero == 3, 2 * model.stack_parameters / model.blocks / plans.tensor * (1 - share), 0.0)
    weights = engine.weight_bytes * (parameters * np.where(plans.zero == 3, share, 1.0) + gathered)
    gradients = engine.gradient_bytes * parameters * np.where(plans.zero >= 2, share, 1.0)
    waiting = np.where(plans.accumulation > 1, engine.weight_bytes / engine.gradient_bytes * gradients, 0.0)
    optimizer = engine.optimizer_bytes * parameters * np.where(plans.zero >= 1, share, 1.0)
    tokens = setting.micro_tokens(plans)
    logits = engine.kept_logits * tokens * model.vocabulary / plans.tensor
    at_once = _micro_batches_at_once(plans, is_last=is_last)
    return Memory(
        weights / GIB,
        np.where(on_host, waiting, gradients) / GIB,  # those of several micro-batches add up before they go down
        np.where(on_host, 0.0, optimizer) / GIB,
        _activations(setting, plans, tokens, at_once) / GIB,
        (logits if is_last and model.predicts_tokens else np.zeros(len(plans))) / GIB,
        np.full(len(plans), engine.overhead_gib),
        np.where(on_host, HOST_BYTES * HOST_FACTOR * model.parameters * np.where(plans.zero >= 1, 1.0, plans.data), 0.0)
        / GIB,
    )


def _micro_batches_at_once(plans: PlanColumns, *, is_last: bool) -> Column:
    """How many micro-batches a stage has begun and not ended, one forward and one backward at a time.

    Interleaved stages begin a little more: (p - 1) / (p × chunks) of them.
    """
    if is_last:
        return np.ones(len(plans))
    more = 1 + np.where(plans.interleave > 1, (plans.pipeline - 1) / (plans.pipeline * plans.interleave), 0.0)
    at_once: Column = np.minimum(plans.pipeline * more, plans.accumulation)
    return at_once


def _activations(setting: Setting, plans: PlanColumns, tokens: Column, at_once: Column) -> Column:
    model, engine = setting.model, setting.engine
    if model.opaque:
        return tokens * model.sample_mib * 2**20 * np.where(plans.recompute == FULL, 0.5, 1.0)
    split = np.where(plans.sequence_parallel > 0, plans.tensor, 1.0)
    outside = engine.kept_hidden * model.hidden / split
    inside = engine.kept_inner * inner_width(setting) / plans.tensor
    scores = SCORE_BYTES * model.heads * setting.sequence / plans.tensor * model.attentions / model.blocks
    if engine.fused_attention:
        scores = np.zeros(len(plans))
    layer = outside + inside + scores
    selected = engine.selective_kept * (outside + inside)
    checkpoint = engine.value_bytes * model.hidden / split  # of a layer that is computed again, its input
    blocks = np.ceil(setting.stage_blocks(plans))
    full, selective = plans.recompute == FULL, plans.recompute == SELECTIVE
    kept = np.where(full, checkpoint, np.where(selective, selected, layer)) * blocks * at_once
    working = np.where(full | selective, layer, 0.0)  # of the one layer that is computed again just now
    return tokens * (kept + working)
