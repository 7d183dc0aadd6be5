"""Memory footprint of a plan: on the fullest GPU of the fullest pipeline stage, and on the hosts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from refold.model import Plan
from refold.planning.perf.columns import FULL, SELECTIVE, Column, PlanColumns, in_blocks, plans_to_columns
from refold.planning.perf.communication import key_value_bytes
from refold.planning.perf.compute import composed_activation_width, composed_norm_width, imbalance, inner_width
from refold.planning.perf.training_setup import TrainingSetup

GIB = 2.0**30

CAPPED_LOGIT_BYTES = 2.0
"""Bytes saved per logit besides, if logits are limited by a hyperbolic tangent: its result in half precision."""

LOW_PRECISION_ACTIVATION_SHARE = {"fp8": 0.8, "mxfp8": 0.8, "nvfp4": 0.7}
"""Bytes saved for the backward pass relative to half precision: inputs of products, about 40 % of all, are saved
quantised."""

HOST_BYTES_PER_PARAMETER = 16.0
"""Bytes per offloaded parameter on the host: master weight, two moments, gradient."""

HOST_BUFFER_FACTOR = 1.5
"""Host memory including pinned transfer buffers, relative to the states alone."""


MEMORY_PART_MEANINGS = {
    "weights": "weights, and with ZeRO-3 two gathered layers",
    "gradients": "gradients",
    "optimizer": "master weights and moments",
    "activations": "saved for the backward pass, of all micro-batches in flight",
    "logits": "logits and loss of the last stage",
    "overhead": "framework and communication buffers",
    "host": "offloaded states and transfer buffers",
}
"""Description of each component of the memory footprint."""


class MemoryFootprint(NamedTuple):
    """GiB on the fullest GPU by component, and GiB on all hosts together."""

    weights: Column
    gradients: Column
    optimizer: Column
    activations: Column
    logits: Column
    overhead: Column
    host: Column

    @property
    def total(self) -> Column:
        """Total GiB on the fullest GPU."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits + self.overhead


@in_blocks
def memory_footprint(setup: TrainingSetup, plans: PlanColumns) -> MemoryFootprint:
    """Return the footprint of the fullest stage: the first (most micro-batches in flight) or the last (logits).

    Of uneven stages, the first has a layer less, and the last as well if several have: they have the embedding and the
    output layer (for Llama 3 405B, section 3.3.2 of Llama Team 2024). Then the second stage may be the fullest.
    """
    longest = np.ceil(setup.stage_blocks(plans))
    shorter = longest * plans.pipeline - setup.model.blocks
    first = _stage(setup, plans, _StageKind(0, longest - (shorter > 0)))
    fullest = _stage(setup, plans, _StageKind(-1, longest - (shorter > 1)))
    fullest = _fuller(plans.pipeline > 1, first, fullest)
    if not shorter.any():
        return fullest
    return _fuller((plans.pipeline > 2) & (shorter > 0), _stage(setup, plans, _StageKind(1, longest)), fullest)


def _fuller(possible: NDArray[np.bool_], one: MemoryFootprint, other: MemoryFootprint) -> MemoryFootprint:
    """Return the footprint with the larger total, of each plan; the other one where the first is not possible."""
    is_fuller = possible & (one.total > other.total)
    return MemoryFootprint(*(np.where(is_fuller, *parts) for parts in zip(one, other, strict=True)))


class _StageKind(NamedTuple):
    """A stage of a pipeline: 0 is the first, -1 the last; and its layers."""

    place: int
    layers: Column


def plan_memory_footprint(setup: TrainingSetup, plan: Plan) -> dict[str, float]:
    """Return the footprint of one plan: GiB by component."""
    return {
        part: float(column[0]) for part, column in memory_footprint(setup, plans_to_columns([plan]))._asdict().items()
    }


class PlanParameters(NamedTuple):
    """Weights of a stage on one GPU, for one plan: all, and those of experts."""

    total: float
    routed: float


def stage_parameters_of(setup: TrainingSetup, plan: Plan, *, is_last: bool) -> PlanParameters:
    """Return the number of weights of the first or last stage on one GPU, for one plan."""
    total, routed = stage_parameters(setup, plans_to_columns([plan]), is_last=is_last)
    return PlanParameters(float(total[0]), float(routed[0]))


class StageParameters(NamedTuple):
    """Weights of a stage on one GPU: all, and those of experts, of which fewer GPUs have a copy."""

    total: Column
    routed: Column


def shard_of(parameters: StageParameters, plans: PlanColumns, is_sharded: NDArray[np.bool_]) -> Column:
    """Return how many of a stage's weights a GPU keeps or updates where they are sharded over their copies."""
    total, routed = parameters
    sharded = (total - routed) / plans.shards + routed / (plans.shards / plans.expert)
    return np.where(is_sharded, sharded, total)


def stage_parameters(setup: TrainingSetup, plans: PlanColumns, *, is_last: bool) -> StageParameters:
    """Return the number of weights of the first or last stage on one GPU, after tensor and expert parallelism.

    Without a pipeline the last stage is the only one.
    """
    stage = _StageKind(-1 if is_last else 0, np.ceil(setup.stage_blocks(plans)))
    return _parameters(setup, plans, stage)


def _parameters(setup: TrainingSetup, plans: PlanColumns, stage: _StageKind) -> StageParameters:
    model = setup.model
    ends = model.parameters - model.stack_parameters
    tied_copy = model.vocabulary * model.hidden if model.tied and model.predicts_tokens else 0
    end_parameters = {
        0: max(model.embedding_parameters, ends - model.head_parameters),
        -1: model.head_parameters + tied_copy,
    }.get(stage.place, 0)
    common = stage.layers * ((model.stack_parameters - model.routed_parameters) / model.blocks)
    common = (common + np.where(plans.pipeline == 1, ends, end_parameters)) / plans.tensor
    routed = stage.layers * (model.routed_parameters / model.blocks) / plans.tensor / plans.expert
    return StageParameters(common + routed, routed)


def _stage(setup: TrainingSetup, plans: PlanColumns, stage: _StageKind) -> MemoryFootprint:
    engine, model = setup.engine, setup.model
    parameters = _parameters(setup, plans, stage)
    on_host = plans.offload > 0
    one_layer = (model.stack_parameters - model.routed_parameters * (1 - 1 / plans.expert)) / model.blocks
    gathered = np.where(plans.zero == 3, 2 * one_layer / plans.tensor * (1 - 1 / plans.shards), 0.0)
    weights = setup.stored_weight_bytes * (shard_of(parameters, plans, plans.zero == 3) + gathered)
    cast = np.where(plans.recompute == FULL, 0.0, _cast_weight_bytes(setup) * parameters.total)
    gradients = engine.gradient_bytes * setup.trained_share * shard_of(parameters, plans, plans.zero >= 2)
    accumulated = np.where(plans.accumulation > 1, engine.weight_bytes / engine.gradient_bytes * gradients, 0.0)
    optimizer = setup.optimizer_bytes * setup.trained_share * shard_of(parameters, plans, plans.zero >= 1)
    tokens = setup.micro_tokens(plans)
    each = engine.logit_activation_bytes + (CAPPED_LOGIT_BYTES if model.capped_logits else 0.0)
    logits = each * tokens * model.vocabulary / plans.tensor
    logits = logits if stage.place == -1 and model.predicts_tokens else np.zeros(len(plans))
    activations = _activations(setup, plans, tokens, stage)
    if engine.releases_gradients:
        replaced = np.where(plans.accumulation == 1, activations + logits + cast, 0.0)
        gradients = np.maximum(0.0, gradients + _tied_gradient_bytes(setup) / plans.tensor - replaced)
    return MemoryFootprint(
        (weights + cast) / GIB,
        np.where(on_host, accumulated, gradients) / GIB,  # accumulated over micro-batches before they are offloaded
        np.where(on_host, 0.0, optimizer) / GIB,
        activations / GIB,
        logits / GIB,
        np.full(len(plans), engine.overhead_gib),
        np.where(
            on_host,
            HOST_BYTES_PER_PARAMETER
            * HOST_BUFFER_FACTOR
            * model.parameters
            * setup.trained_share
            * np.where(plans.zero >= 1, 1.0, plans.data),
            0.0,
        )
        / GIB,
    )


def _cast_weight_bytes(setup: TrainingSetup) -> float:
    """Return the bytes of the copy of a weight in half precision; frozen weights are in half precision already."""
    return 0.0 if setup.tuning.lora_rank else setup.engine.cast_weight_bytes


def _tied_gradient_bytes(setup: TrainingSetup) -> float:
    """Return the bytes of the second gradient of an embedding that is the output layer as well, until it is added."""
    model = setup.model
    if setup.tuning.lora_rank or not (model.tied and model.predicts_tokens):
        return 0.0
    return setup.engine.gradient_bytes * model.vocabulary * model.hidden


def _micro_batches_in_flight(plans: PlanColumns, stage: _StageKind) -> Column:
    """Return the number of micro-batches in flight in a stage, with the 1F1B schedule: p - s of stage s.

    Interleaved stages have more: p + (p - 1 - 2 s) / chunks (Narayanan et al. 2021, section 2.2).
    """
    if stage.place == -1:
        return np.ones(len(plans))
    interleaved = plans.pipeline + (plans.pipeline - 1 - 2 * stage.place) / plans.interleave
    in_flight = np.where(plans.interleave > 1, interleaved, plans.pipeline - stage.place)
    return np.asarray(np.minimum(in_flight, plans.accumulation))


def _activations(setup: TrainingSetup, plans: PlanColumns, tokens: Column, stage: _StageKind) -> Column:
    model, engine = setup.model, setup.engine
    if model.opaque:
        return tokens * model.sample_mib * 2**20 * np.where(plans.recompute == FULL, 0.5, 1.0)
    split = np.where(plans.sequence_parallel > 0, plans.tensor, 1.0)
    outside = _saved_outside(setup) / split
    inside = _saved_inside(setup) / plans.tensor
    scores = (
        engine.score_activation_bytes * model.heads * setup.sequence / plans.tensor * model.attentions / model.blocks
    )
    if engine.fused_attention:
        scores = np.zeros(len(plans))
    is_quantised = engine.low_precision and engine.quantised_activations
    quantised = LOW_PRECISION_ACTIVATION_SHARE[engine.arithmetic] if is_quantised else 1.0
    products = quantised * (outside + inside + _dispatched_bytes(setup, plans))
    layer = products + scores
    repeated = quantised * engine.inner_activation_bytes * _latent_saving(setup) / plans.tensor
    selected = engine.selective_activation_share * (products - repeated)
    checkpoint = _checkpoint_bytes(setup) * model.hidden / split  # of a recomputed layer only the input is saved
    full, selective = plans.recompute == FULL, plans.recompute == SELECTIVE
    saved = np.where(full, checkpoint, np.where(selective, selected, layer))
    saved = saved * stage.layers * _micro_batches_in_flight(plans, stage)
    saved = setup.backward_share * saved
    working = np.where(full | selective, layer, 0.0)  # of the layer that is being recomputed
    working = working + np.where(plans.tensor > 1, engine.gathered_activation_bytes * model.hidden, 0.0)
    present = 2 / plans.context if engine.overlap_context else 1.0  # in a ring, the present block and the next one
    keys_and_values = np.where(plans.context > 1, present * key_value_bytes(setup, plans), 0.0)
    return tokens * (saved + working) + keys_and_values


def _latent_saving(setup: TrainingSetup) -> float:
    """Return the elements per token that latent attention need not save if it computes keys and queries again."""
    model = setup.model
    if not model.key_rank or setup.engine.selective_attention:
        return 0.0
    return max(0.0, model.query_width + 2.0 * model.key_width - model.query_rank - model.key_rank - model.rope_size)


def _saved_outside(setup: TrainingSetup) -> float:
    """Return the bytes saved per token and layer for tensors of hidden width."""
    engine = setup.engine
    norms = engine.norm_activation_bytes * composed_norm_width(setup)
    return min(1.0, setup.model.parts / 2) * engine.hidden_activation_bytes * setup.model.hidden + norms


def _saved_inside(setup: TrainingSetup) -> float:
    """Return the bytes saved per token and layer inside attention and feed-forward, and for adapters."""
    engine = setup.engine
    saved = engine.inner_activation_bytes * inner_width(setup)
    saved += engine.composed_activation_bytes * composed_activation_width(setup)
    return saved + engine.adapter_saved_bytes * setup.adapters.inputs


def _checkpoint_bytes(setup: TrainingSetup) -> float:
    """Return the bytes per element of a recomputed layer's input; frozen weights are in half precision, as it is."""
    engine = setup.engine
    return engine.value_bytes if setup.tuning.lora_rank else engine.checkpoint_bytes or engine.value_bytes


def _dispatched_bytes(setup: TrainingSetup, plans: PlanColumns) -> Column:
    """Return the bytes saved per token and average layer of what experts get: a copy for each expert."""
    model = setup.model
    if model.experts == 1:
        return np.zeros(len(plans))
    copies = model.experts_per_token * imbalance(setup, plans) * model.expert_layers / model.blocks
    return copies * setup.engine.value_bytes * model.hidden / plans.tensor
