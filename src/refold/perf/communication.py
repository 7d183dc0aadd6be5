"""How long GPUs talk: rings over the slowest link that a group of them really crosses.

Ranks stand in the usual order: tensor-parallel ranks are neighbours, then data-parallel ones, and pipeline
stages are furthest apart. A group is `members` ranks, `stride` apart.
"""

from __future__ import annotations

from math import ceil, gcd
from typing import NamedTuple

import numpy as np

from refold.perf.columns import FULL, Column, PlanColumns
from refold.perf.hardware import Machines
from refold.perf.setting import Setting

TENSOR_COLLECTIVES = 4.0
"""All-reduces of a layer: after attention and after feed-forward, forward and backward. Under sequence
parallelism each is a reduce-scatter and an all-gather, which move as much."""


class Span(NamedTuple):
    """Where the members of a group are: how many on one node, on how many nodes, and how many such groups share
    what a node can send."""

    on_node: Column
    nodes: Column
    sharing: Column


def span(machines: Machines, members: Column, stride: Column) -> Span:
    """Where a group is. A block of ranks lies within nodes if every node holds a whole number of such blocks."""
    common = gcd(*machines.gpus_on_node)
    inside = np.mod(common, stride * members) == 0
    per_node = machines.gpus / machines.nodes
    on_node = np.where(inside, members, np.clip(per_node / stride, 1.0, members))
    return Span(on_node, np.maximum(1.0, members / on_node), np.minimum(stride, per_node))


def link_rate(machines: Machines) -> float:
    """Bytes per second that a GPU really sends to another of its node."""
    return machines.inside.gigabytes_per_second * 1e9 * machines.gpu.efficiency.link


def node_rate(machines: Machines) -> float:
    """Bytes per second that the weakest node really sends to others: over the network cards next to its GPUs."""
    gpu = machines.gpu
    cards = ceil(min(machines.gpus_on_node) * gpu.network_cards / gpu.gpus_per_node)
    share = min(1.0, cards / gpu.network_cards)
    return machines.network.gigabytes_per_second * 1e9 * share * machines.gpu.efficiency.network


def ring_seconds(
    machines: Machines, moved: Column, members: Column, stride: Column, traffic_across: float = 1.0
) -> Column:
    """One pass over a group: a reduce-scatter, or an all-gather, of `moved` bytes; an all-reduce is two of them.

    `traffic_across`: how many times the bytes cross between nodes, where a framework does not gather in rings.
    """
    return pass_seconds(machines, moved, span(machines, members, stride), traffic_across)


def pass_seconds(machines: Machines, moved: Column, where: Span, traffic_across: float = 1.0) -> Column:
    """The same for a group whose place is known."""
    inside = moved * (1 - 1 / where.on_node) / link_rate(machines)
    across = moved * (1 - 1 / where.nodes) * where.sharing * traffic_across / node_rate(machines)
    wait = (
        machines.inside.latency_microseconds * np.log2(where.on_node)
        + machines.network.latency_microseconds * np.log2(where.nodes)
    ) * 1e-6
    return np.maximum(inside, across) + wait


def tensor_seconds(setting: Setting, plans: PlanColumns) -> Column:
    """What tensor parallelism says to itself about one layer of one micro-batch, as far as nothing hides it."""
    if setting.model.opaque:
        return np.zeros(len(plans))
    model = setting.model
    each = TENSOR_COLLECTIVES * model.attentions / model.blocks
    collectives = each * np.where(plans.recompute == FULL, 1.5, 1.0)
    moved = setting.micro_tokens(plans) * model.hidden * setting.engine.value_bytes
    neighbours, extra = np.ones(len(plans)), setting.engine.tensor_traffic_across
    seen = 2 * (1 - setting.engine.overlap_tensor)
    return seen * collectives * ring_seconds(setting.machines, moved, plans.tensor, neighbours, extra)


def stage_seconds(setting: Setting, plans: PlanColumns) -> Column:
    """What a pipeline stage hands to its neighbours for one micro-batch, forward and backward."""
    machines = setting.machines
    stride = plans.data * plans.tensor
    where = span(machines, plans.pipeline, stride)
    moved = setting.micro_tokens(plans) * setting.model.hidden * setting.engine.value_bytes / plans.tensor
    card = node_rate(machines) / min(machines.gpus_on_node)
    seconds = moved / np.where(where.nodes > 1, card, link_rate(machines))
    return np.where(plans.pipeline > 1, 2 * plans.interleave * seconds, 0.0)


class GradientTime(NamedTuple):
    """What data parallelism says to itself: gradients once per step or per micro-batch, weights likewise."""

    gradients_per_step: Column
    gradients_per_micro_batch: Column
    weights_per_step: Column
    weights_per_pass: Column


def gradient_seconds(setting: Setting, plans: PlanColumns, parameters: Column) -> GradientTime:
    """Gradients, and under ZeRO weights, of the `parameters` that a GPU holds a share of.

    Without ZeRO, and in stage 1, gradients travel once per step; from stage 2 on they are kept in shares only,
    and so travel for each micro-batch. In stages 1 and 2 the updated weights are gathered once per step, in
    stage 3 for each forward and for each backward pass.
    """
    engine = setting.engine
    group = span(setting.machines, plans.data, plans.tensor)
    gradients = pass_seconds(setting.machines, engine.gradient_traffic_bytes * parameters, group)
    weights = pass_seconds(setting.machines, engine.weight_bytes * parameters, group)
    whole = plans.zero <= (0 if engine.scatters_gradients else 1)
    exchange = np.where(plans.data > 1, np.where(whole, 2 * gradients, gradients), 0.0)
    gather = np.where(plans.data > 1, weights, 0.0)
    messages = np.where(plans.data > 1, engine.message_seconds * plans.data * setting.stage_blocks(plans), 0.0)
    each = np.ones(len(plans), bool) if engine.reduces_each_micro_batch else plans.zero >= 2
    return GradientTime(
        np.where(each, 0.0, exchange) + messages,
        np.where(each, exchange, 0.0),
        np.where((plans.zero == 1) | (plans.zero == 2), gather, 0.0),
        np.where(plans.zero == 3, gather, 0.0),
    )
